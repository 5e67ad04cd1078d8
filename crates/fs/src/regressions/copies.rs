//! Snapshot headroom for copies of shared nodes. With this headroom a delete always succeeds on a
//! full volume, whatever fills the volume.

use std::collections::BTreeMap;

use buttress_format::RootItem;
use buttress_tree::{Expect, NodeSource};

use super::*;
use crate::{NewInode, XattrFlags};

mod kept;
mod shapes;
mod storm;

/// Small files. Their contents lie in leaves.
const FILES: usize = 6000;
const INLINE: usize = 1500;

fn name(number: usize) -> Vec<u8> {
    format!("file{number}").into_bytes()
}

/// Makes a folder with files. The leaves that hold the files take more than the global reserve.
fn populate(fs: &Filesystem, top: &Inode) {
    let dir = top.mkdir(b"dir", 0o755, 0, 0).expect("a folder");
    for number in 0..FILES {
        let file = dir.create(&name(number), NewInode::file(0o644)).expect("a file");
        file.write_at(0, &bytes(number as u8, 1)[..INLINE]).expect("written");
    }
    fs.sync().expect("durable");
}

/// Fills the volume with data and metadata until it refuses more. Returns how many files were made.
fn fill_up(fs: &Filesystem, top: &Inode, more: &str) -> usize {
    fill_by(fs, top, more, 100)
}

/// As [`fill_up`], with a sync after `each` files.
fn fill_by(fs: &Filesystem, top: &Inode, more: &str, each: usize) -> usize {
    let filler = top.create(format!("{more}-data").as_bytes(), NewInode::file(0o644));
    if let Ok(filler) = filler {
        let mut at = 0;
        for size in [MIB, 64 << 10, SECTOR] {
            let mode = FallocateMode::Allocate { keep_size: false };
            while filler.fallocate(at, size, mode).is_ok() {
                at += size;
            }
        }
    }
    let mut number = 0;
    loop {
        let made = top.create(format!("{more}{number}").as_bytes(), NewInode::file(0o644));
        let Ok(made) = made else { break };
        let _ = made.set_xattr(b"user.large", &[1; 3000], XattrFlags::default());
        number += 1;
        if number % each == 0 {
            fs.sync().expect("durable");
        }
    }
    fs.sync().expect("durable");
    number
}

/// Removes files of a folder in random order. Returns how many removals were refused.
fn remove_some(fs: &Filesystem, dir: &Inode, rng: &mut Rng, files: &mut Vec<usize>) -> usize {
    rng.shuffle(files);
    let mut left = Vec::new();
    for (count, number) in files.drain(..).enumerate() {
        if let Err(error) = dir.unlink(&name(number)) {
            assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
            left.push(number);
        }
        // Sync now and then, so that later removals copy leaves again. Within one transaction, each
        // shared leaf is copied only once.
        if count % 500 == 0 {
            fs.sync().expect("durable");
        }
    }
    fs.sync().expect("durable");
    *files = left;
    files.len()
}

/// Removes all files of a folder in random order.
fn remove_all(fs: &Filesystem, dir: &Inode, seed: u64) {
    let refused = remove_some(fs, dir, &mut Rng::new(seed), &mut (0..FILES).collect());
    assert_eq!(refused, 0, "a delete always succeeds: {}", fs.space_stats().accounts);
}

fn dir_of(top: &Inode) -> Inode {
    top.lookup(b"dir").expect("it was made")
}

/// For each tree, the number of its nodes and the number that its root item records.
fn nodes_and_items(fs: &Filesystem) -> BTreeMap<TreeId, (u64, u64)> {
    let view = fs.view();
    let range = view.range(TreeId::ROOT, Key::MIN, Key::MAX);
    let items = range.map(|found| found.expect("it reads"));
    let items = items.filter(|(key, _)| key.kind == Kind::ROOT_ITEM);
    let items: Vec<_> = items.map(|(key, item)| (TreeId(key.objectid), item)).collect();
    let subvolumes = items.into_iter().filter(|(tree, _)| tree.is_fs_tree());
    let count = |(tree, item): (TreeId, buttress_tree::Item)| {
        let item = RootItem::parse(&item).expect("an item");
        let root = view.committed_root(tree).expect("it reads").expect("a root");
        let nodesize = u64::from(view.store().geometry().nodesize);
        let nodes = nodes_under(&view, tree, &Expect::root(root)) * nodesize;
        (tree, (nodes, item.bytes_used))
    };
    subvolumes.map(count).collect()
}

fn nodes_under(view: &buttress_txn::View, tree: TreeId, at: &Expect) -> u64 {
    if at.ptr.level == 0 {
        return 1;
    }
    let node = view.store().node(tree, at).expect("it reads");
    let below = |slot| nodes_under(view, tree, &node.expect_child_below(slot, at.below));
    1 + (0..node.len()).map(below).sum::<u64>()
}

fn assert_items_are_right(fs: &Filesystem) {
    for (tree, (nodes, item)) in nodes_and_items(fs) {
        assert_eq!(nodes, item, "bytes of {tree}, and what its item says");
    }
}

/// Y1: all files of a snapshot can be removed from a full volume, also after a remount. Without
/// snapshot headroom, as in Linux, some removals are refused.
#[test]
fn files_of_snapshots_can_be_deleted() {
    for rule in ["keep", "off"] {
        let device = volume(256);
        let options = format!("rw,commit=300,delete_room={rule}");
        let fs = mount(&device, &options);
        populate(&fs, &fs.root());
        drop(fs.root().snapshot(b"before", TreeId::FS, true).expect("a snapshot"));
        fill_up(&fs, &fs.root(), "more");
        assert_items_are_right(&fs);
        fs.close().expect("closed");
        let fs = mount(&device, &options);
        fill_up(&fs, &fs.root(), "again");
        let mut files = (0..FILES).collect();
        let refused = remove_some(&fs, &dir_of(&fs.root()), &mut Rng::new(1), &mut files);
        println!("{rule}: {refused} of {FILES} were refused, {}", fs.space_stats().accounts);
        assert_eq!(refused == 0, rule == "keep", "{refused} by {rule}");
        assert_items_are_right(&fs);
        fs.close().expect("closed");
        check_volume(&device);
    }
}

/// Waits until deleted subvolumes are dropped.
fn wait_for_drops(fs: &Filesystem) {
    wait_for(fs, "dropped", || fs.dying_subvolumes().expect("a list").is_empty());
    fs.sync().expect("durable");
}

/// Y1: on a full volume, two writable subvolumes share nodes, beside a read-only snapshot. All
/// files of both subvolumes can be removed alternately.
#[test]
fn full_volume_deletes_what_two_subvolumes_share() {
    let device = volume(256);
    let fs = mount(&device, "rw,commit=300");
    populate(&fs, &fs.root());
    // These files are in the transaction that makes the snapshot.
    (0..300).for_each(|number| drop(file(&fs, &format!("late{number}"))));
    let copy = fs.root().snapshot(b"copy", TreeId::FS, false).expect("a snapshot");
    drop(fs.root().snapshot(b"before", TreeId::FS, true).expect("a snapshot"));
    fill_up(&fs, &fs.root(), "more");
    fill_up(&fs, &copy, "more");
    let mut rng = Rng::new(2);
    let dirs = [dir_of(&fs.root()), dir_of(&copy)];
    for part in 0..6 {
        for dir in &dirs {
            let mut some = (0..FILES).filter(|number| number % 6 == part).collect();
            let refused = remove_some(&fs, dir, &mut rng, &mut some);
            assert_eq!(refused, 0, "part {part}: {}", fs.space_stats().accounts);
        }
        // A filler takes the space that the removals freed, and no more.
        fill_up(&fs, &fs.root(), &format!("more{part}-"));
    }
    assert_items_are_right(&fs);
    drop((dirs, copy));
    fs.close().expect("closed");
    check_volume(&device);
}
