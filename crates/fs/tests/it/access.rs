//! Times of access: the cost of a read, and the moment at which the time of the read reaches the
//! trees.

use std::ops::ControlFlow;

use buttress_format::{InodeItem, Key, Kind, Timespec};
use buttress_fs::{Filesystem, Inode, MountOptions, SetAttr};

use crate::checker::expect_sound;
use crate::volume::{file_with, memory, mount_with};

const PAST: Timespec = Timespec { sec: 1000, nsec: 5 };

/// The time of access of an inode in the trees.
fn in_tree(fs: &Filesystem, inode: &Inode) -> Timespec {
    let id = inode.id();
    let item = fs.view().get(id.tree, &Key::new(id.ino.0, Kind::INODE_ITEM, 0));
    let item = item.expect("it reads").expect("an item");
    InodeItem::parse(&item).expect("an inode").atime
}

fn make_old(inode: &Inode) {
    let set = SetAttr { atime: Some(PAST), ..SetAttr::default() };
    inode.set_attr(&set).expect("times");
}

/// A file, a symbolic link and a directory that were not accessed for a long time.
fn some(fs: &Filesystem) -> [Inode; 3] {
    let root = fs.root();
    let file = file_with(&root, "file", b"text");
    let link = root.symlink(b"link", b"file", 0, 0).expect("a link");
    let dir = root.mkdir(b"dir", 0o755, 0, 0).expect("a directory");
    fs.sync().expect("durable");
    let all = [file, link, dir];
    all.iter().for_each(make_old);
    fs.sync().expect("durable");
    all
}

fn read_all([file, link, dir]: &[Inode; 3]) {
    file.read_at(0, &mut [0; 4]).expect("content");
    link.read_link().expect("a target");
    dir.read_dir(0, |_| ControlFlow::Continue(())).expect("names");
}

/// Reads put nothing into the trees, however many reads there are. A sync puts the time of the last
/// read into the trees.
#[test]
fn reads_put_no_item_before_a_sync() {
    for options in ["relatime", "strictatime", "lazytime", "strictatime,lazytime"] {
        let device = memory(64);
        let fs = mount_with(&device, &format!("rw,commit=3000,{options}"));
        let all = some(&fs);
        for _ in 0..100 {
            read_all(&all);
        }
        for inode in &all {
            assert_eq!(in_tree(&fs, inode), PAST, "{options}: a read changed the trees");
            assert_ne!(inode.attr().atime, PAST, "{options}: a read changed nothing");
        }
        fs.sync().expect("durable");
        for inode in &all {
            assert_eq!(in_tree(&fs, inode), inode.attr().atime, "{options}");
        }
        let shown = all.each_ref().map(|inode| inode.attr().atime);
        drop(all);
        fs.close().expect("closed");
        expect_sound(&device);
        let fs = mount_with(&device, "ro");
        let found = ["file", "link", "dir"].map(|name| fs.resolve(name).expect("there"));
        assert_eq!(found.map(|inode| inode.attr().atime), shown, "{options}");
    }
}

/// An inode that was read and is not used any more keeps its time of access. The inode has this
/// time when it is loaded from the trees anew, even if it was never synced.
#[test]
fn access_outlives_the_last_user() {
    let device = memory(64);
    let fs = mount_with(&device, "rw,commit=3000");
    let all = some(&fs);
    read_all(&all);
    let (ids, shown) =
        (all.each_ref().map(Inode::id), all.each_ref().map(|inode| inode.attr().atime));
    drop(all);
    let again = ids.map(|id| fs.inode(id).expect("it is there"));
    assert_eq!(again.map(|inode| inode.attr().atime), shown);
    fs.close().expect("closed");
    let fs = mount_with(&device, "ro");
    assert_eq!(ids.map(|id| fs.inode(id).expect("it is there").attr().atime), shown);
}

/// An fsync makes the time of access durable, and a snapshot has it.
#[test]
fn access_is_part_of_fsync_and_snapshot() {
    let device = memory(64);
    let fs = mount_with(&device, "rw,commit=3000");
    let all = some(&fs);
    read_all(&all);
    let [file, link, _] = &all;
    file.sync().expect("durable");
    assert_eq!(in_tree(&fs, file), file.attr().atime);
    assert_eq!(in_tree(&fs, link), PAST, "an fsync of one file is not for others");
    let top = fs.root().id().tree;
    let snapshot = fs.root().snapshot(b"snapshot", top, true).expect("a snapshot");
    let copy = snapshot.lookup(b"link").expect("the link");
    assert_eq!(copy.attr().atime, link.attr().atime);
    copy.read_link().expect("a target");
    assert_eq!(copy.attr().atime, link.attr().atime, "a read-only snapshot keeps its times");
}

/// A file that was read, and then loses its name, gives its space back before any commit.
#[test]
fn a_file_that_was_read_can_go() {
    let device = memory(64);
    let fs = mount_with(&device, "rw,commit=3000,strictatime");
    let all = some(&fs);
    read_all(&all);
    let [file, link, dir] = all;
    let ids = [file.id(), link.id(), dir.id()];
    drop((file, link, dir));
    fs.root().unlink(b"file").expect("removed");
    fs.root().unlink(b"link").expect("removed");
    fs.root().rmdir(b"dir").expect("removed");
    fs.sync().expect("durable");
    for id in ids {
        let key = Key::new(id.ino.0, Kind::INODE_ITEM, 0);
        assert!(fs.view().get(id.tree, &key).expect("it reads").is_none(), "{id:?}");
    }
    fs.close().expect("closed");
    expect_sound(&device);
}

/// A subvolume with files that were read can be deleted, and is gone soon.
#[test]
fn a_subvolume_that_was_read_can_go() {
    let device = memory(64);
    let fs = mount_with(&device, "rw,commit=3000,strictatime");
    let subvolume = fs.root().create_subvolume(b"sub", 0o755, 0, 0).expect("a subvolume");
    let file = file_with(&subvolume, "file", b"text");
    fs.sync().expect("durable");
    file.read_at(0, &mut [0; 4]).expect("content");
    drop((file, subvolume));
    fs.root().delete_subvolume(b"sub").expect("deleted");
    crate::volume::drop_all(&fs);
    fs.close().expect("closed");
    expect_sound(&device);
}

/// A mount without threads of its own keeps times of access until the volume is synced.
#[test]
fn access_is_kept_without_threads() {
    let device = memory(64);
    let mut options = MountOptions::parse("rw,strictatime").expect("options");
    options.background = false;
    let fs = Filesystem::open(vec![device.clone()], options).expect("a mount");
    let all = some(&fs);
    read_all(&all);
    assert_eq!(in_tree(&fs, &all[0]), PAST);
    fs.sync().expect("durable");
    assert_eq!(in_tree(&fs, &all[0]), all[0].attr().atime);
    drop(all);
    fs.close().expect("closed");
    expect_sound(&device);
}
