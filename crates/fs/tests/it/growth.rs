//! Counts the steps that operations and an unmount take in trees. The steps grow with the work and
//! no faster.
//!
//! Steps are counted, not timed. Each load runs at 1, 4 and 16 times its size, on a volume of its
//! own. Afterwards our checker looks at each volume, and `btrfs check` looks at the last volume.

use std::ops::ControlFlow;
use std::sync::Arc;

use buttress_block::Device;
use buttress_fs::{BalanceOptions, Filesystem, Inode, NewInode, SetAttr, XattrFlags};

use crate::checker::{check, expect_sound};
use crate::volume::{memory, mount_with};

const SECTOR: u64 = 4096;

/// The allowed growth of the steps of one unit at 4 and 16 times the size. The steps of one unit
/// grow a little because the trees get deeper.
const MOST: f64 = 1.6;

/// A load: its name, the preparation of a volume, and the work with counted steps.
struct Load<P> {
    name: &'static str,
    prepare: fn(&Filesystem, u64) -> P,
    run: fn(&Filesystem, u64, P),
}

/// The average steps of a unit, over `count` units and an unmount.
fn steps<P>(load: &Load<P>, count: u64, look: fn(&Arc<dyn Device>)) -> f64 {
    let device = memory(512);
    // With this option the clock causes no commit.
    let fs = mount_with(&device, "rw,commit=3600");
    let prepared = (load.prepare)(&fs, count);
    fs.sync().expect("a commit");
    let store = Arc::clone(fs.view().store());
    let before = store.steps();
    (load.run)(&fs, count, prepared);
    fs.close().expect("an unmount");
    let done = store.steps().since(&before);
    look(&device);
    (done.keys + done.nodes) as f64 / count as f64
}

fn grows_with_the_work<P>(load: &Load<P>, least: u64) {
    let one = steps(load, least, expect_sound);
    let four = steps(load, 4 * least, expect_sound);
    let sixteen = steps(load, 16 * least, check);
    let name = load.name;
    assert!(four < MOST * one, "{name}: {one} steps each, {four} at four times the size");
    assert!(sixteen < MOST * one, "{name}: {one} steps each, {sixteen} at sixteen times the size");
}

fn make(fs: &Filesystem, name: &str) -> Inode {
    fs.root().create(name.as_bytes(), NewInode::file(0o644)).expect("a file")
}

fn name(at: u64) -> Vec<u8> {
    format!("name-{at:08}").into_bytes()
}

fn one_sector(fs: &Filesystem, _: u64) -> Inode {
    let file = make(fs, "one");
    file.write_at(0, &[7; SECTOR as usize]).expect("room");
    file
}

/// A file of `count` extents, with a hole between any two extents.
fn scattered(fs: &Filesystem, count: u64) -> Inode {
    let file = make(fs, "scattered");
    for at in 0..count {
        file.write_at(2 * at * SECTOR, &[at as u8; SECTOR as usize]).expect("room");
    }
    file
}

fn clone_to_many(fs: &Filesystem, count: u64, one: Inode) {
    let many = make(fs, "many");
    for at in 0..count {
        one.clone_range(0, &many, at * SECTOR, SECTOR).expect("a clone");
    }
}

#[test]
fn reflinks_of_one_extent_cost_the_same_each_up_to_the_unmount() {
    let load = Load { name: "reflinks", prepare: one_sector, run: clone_to_many };
    grows_with_the_work(&load, 250);
}

#[test]
fn removal_of_a_file_costs_the_same_for_each_extent() {
    let run = |fs: &Filesystem, _, file| {
        fs.root().unlink(b"scattered").expect("a name");
        drop(file);
    };
    grows_with_the_work(&Load { name: "unlink of extents", prepare: scattered, run }, 250);
    let run = |_: &Filesystem, _, file: Inode| {
        file.set_attr(&SetAttr { size: Some(0), ..SetAttr::default() }).expect("a cut");
    };
    grows_with_the_work(&Load { name: "cut of extents", prepare: scattered, run }, 250);
}

fn link_all(fs: &Filesystem, count: u64, file: Inode) {
    (0..count).for_each(|at| fs.root().link(&file, &name(at)).expect("a name more"));
}

#[test]
fn names_of_one_inode_cost_the_same_each() {
    grows_with_the_work(&Load { name: "link", prepare: one_sector, run: link_all }, 250);
    let prepare = |fs: &Filesystem, count| link_all(fs, count, one_sector(fs, count));
    let run = |fs: &Filesystem, count, ()| {
        (0..count).for_each(|at| fs.root().unlink(&name(at)).expect("a name"));
    };
    grows_with_the_work(&Load { name: "unlink of links", prepare, run }, 250);
}

fn set_attributes(file: &Inode, count: u64, value: u8) {
    for at in 0..count {
        let name = [b"user.".to_vec(), name(at)].concat();
        file.set_xattr(&name, &[value; 20], XattrFlags::default()).expect("an attribute");
    }
}

#[test]
fn attributes_of_one_inode_cost_the_same_each() {
    let prepare = |fs: &Filesystem, count| {
        let file = make(fs, "file");
        set_attributes(&file, count, 1);
        file
    };
    let run = |_: &Filesystem, count, file: Inode| {
        set_attributes(&file, count, 2);
        assert_eq!(file.list_xattrs().expect("a list").len() as u64, count);
    };
    grows_with_the_work(&Load { name: "xattr replace", prepare, run }, 250);
    let run = |_: &Filesystem, count, file: Inode| {
        for at in 0..count {
            let name = [b"user.".to_vec(), name(at)].concat();
            file.remove_xattr(&name).expect("an attribute");
        }
    };
    grows_with_the_work(&Load { name: "xattr remove", prepare, run }, 250);
    let prepare = |fs: &Filesystem, _| make(fs, "file");
    let run = |_: &Filesystem, count, file: Inode| set_attributes(&file, count, 1);
    grows_with_the_work(&Load { name: "xattr set", prepare, run }, 250);
}

fn fill(fs: &Filesystem, count: u64) {
    (0..count)
        .for_each(|at| drop(fs.root().create(&name(at), NewInode::file(0o644)).expect("a file")));
}

#[test]
fn names_of_one_folder_cost_the_same_each() {
    let load = Load { name: "create", prepare: |_, _| (), run: |fs, count, ()| fill(fs, count) };
    grows_with_the_work(&load, 250);
    let run = |fs: &Filesystem, count, ()| {
        for at in 0..count {
            let found = fs.root().lookup(&name(at)).expect("a file");
            assert_eq!(found.attr().nlink, 1);
        }
        let mut listed = 0;
        // Lists a few names for each request, as a server does.
        let mut cookie = 0;
        loop {
            let (from, mut here) = (cookie, 0);
            let visit = |entry: buttress_fs::DirEntry<'_>| {
                (cookie, here) = (entry.cookie, here + 1);
                if here == 50 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            };
            fs.root().read_dir(from, visit).expect("a list");
            listed += here;
            if here < 50 {
                break;
            }
        }
        assert_eq!(listed, count);
    };
    grows_with_the_work(&Load { name: "stat and list", prepare: fill, run }, 250);
    let run = |fs: &Filesystem, count, ()| {
        (0..count).for_each(|at| fs.root().unlink(&name(at)).expect("a name"));
    };
    grows_with_the_work(&Load { name: "unlink of all", prepare: fill, run }, 250);
    // Lists names and then removes them, as `rm` does.
    let run = |fs: &Filesystem, count, ()| {
        let mut left = count;
        while left > 0 {
            let mut names = Vec::new();
            let visit = |entry: buttress_fs::DirEntry<'_>| {
                names.push(entry.name.to_vec());
                if names.len() == 50 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            };
            fs.root().read_dir(0, visit).expect("a list");
            names.iter().for_each(|name| fs.root().unlink(name).expect("a name"));
            left -= names.len() as u64;
        }
    };
    grows_with_the_work(&Load { name: "list and unlink", prepare: fill, run }, 250);
}

/// Makes files in a folder that no commit has, and syncs each file on its own.
fn fill_and_sync(fs: &Filesystem, count: u64, (): ()) {
    let folder = fs.root().mkdir(b"new", 0o755, 0, 0).expect("a folder");
    for at in 0..count {
        let file = folder.create(&name(at), NewInode::file(0o644)).expect("a file");
        file.sync().expect("a log");
    }
    assert!(fs.sync_stats().commits.is_empty());
}

/// The folder is logged again with each file. The notes of its changes grow with its names, and a
/// log looks at none of these notes.
#[test]
fn an_fsync_in_a_new_folder_costs_the_same_for_each_name() {
    let load = Load { name: "create and fsync", prepare: |_, _| (), run: fill_and_sync };
    grows_with_the_work(&load, 250);
    // The folder itself is synced, too. So the log has the whole folder, and changes that come
    // later are noted.
    let run = |fs: &Filesystem, count, ()| {
        let folder = fs.root().mkdir(b"new", 0o755, 0, 0).expect("a folder");
        folder.sync().expect("a log");
        for at in 0..count {
            let file = folder.create(&name(at), NewInode::file(0o644)).expect("a file");
            file.sync().expect("a log");
        }
    };
    grows_with_the_work(&Load { name: "sync of both", prepare: |_, _| (), run }, 250);
}

/// Makes `files` files of one sector. Then takes `snapshots` snapshots, and changes one file after
/// each snapshot.
fn snapshots_of_files(fs: &Filesystem, files: u64, snapshots: u64) {
    for at in 0..files {
        let file = fs.root().create(&name(at), NewInode::file(0o644)).expect("a file");
        file.write_at(0, &[at as u8; SECTOR as usize]).expect("room");
    }
    fs.sync().expect("a commit");
    for at in 0..snapshots {
        let copy = format!("snapshot-{at}");
        drop(fs.root().snapshot(copy.as_bytes(), fs.root().id().tree, true).expect("a copy"));
        let file = fs.root().lookup(&name(at % files)).expect("a file");
        file.write_at(0, &[99; SECTOR as usize]).expect("room");
        fs.sync().expect("a commit");
    }
}

fn balance(fs: &Filesystem) {
    let done = fs.balance(&BalanceOptions::full(), &mut |_| true).expect("a balance");
    assert_eq!(done.completed, done.expected);
}

#[test]
fn balance_costs_the_same_for_each_file_and_each_snapshot() {
    let prepare = |fs: &Filesystem, files| snapshots_of_files(fs, files, 4);
    let run = |fs: &Filesystem, _, ()| balance(fs);
    grows_with_the_work(&Load { name: "balance of files", prepare, run }, 64);
    let prepare = |fs: &Filesystem, snapshots| snapshots_of_files(fs, 64, snapshots);
    grows_with_the_work(&Load { name: "balance of snapshots", prepare, run }, 4);
}

/// Commits free nodes and write new ones. The cache has space for all of them, but keeps only the
/// nodes that the trees still have.
#[test]
fn the_cache_does_not_grow_with_the_number_of_commits() {
    let device = memory(512);
    let fs = mount_with(&device, "rw,commit=3600");
    fill(&fs, 500);
    for at in 0..300 {
        let file = fs.root().lookup(&name(7 * at % 500)).expect("a file");
        file.write_at(0, &[at as u8; 100]).expect("room");
        fs.sync().expect("a commit");
    }
    let accounts = fs.space_stats().accounts;
    let nodesize = u64::from(fs.view().store().geometry().nodesize);
    let in_use = (accounts.metadata.used + accounts.system.used) / nodesize;
    let cached = fs.view().store().cached_nodes() as u64;
    assert!(cached <= in_use + 50, "{cached} nodes in the cache, and {in_use} in use");
    fs.close().expect("an unmount");
    expect_sound(&device);
}
