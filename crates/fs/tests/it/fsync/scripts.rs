//! Logs with a given content, case by case.

use std::sync::Arc;
#[cfg(debug_assertions)]
use std::time::Duration;

#[cfg(debug_assertions)]
use buttress_base::{clock, seeded, thread};
use buttress_block::{Device, MemoryDevice};
use buttress_fs::{Filesystem, InodeFlags, MakeOptions, NewInode, RenameFlags, SetAttr};
use buttress_volume::Volume;

use super::{open, open_with};
use crate::checker::{check, expect_sound};
use crate::volume::{content, file_with, pattern};

/// The options of the mount decide whether fsync writes a log or makes a commit.
#[test]
fn options_say_what_is_written() {
    let cases = [
        ("commit=3000", true),
        ("commit=3000,notreelog", false),
        ("commit=3000,flushoncommit", true),
    ];
    for (options, logs) in cases {
        let base = Arc::new(MemoryDevice::new(128 << 20));
        Filesystem::make(&*base, &MakeOptions::default()).expect("a volume");
        let fs = open_with(Arc::clone(&base) as Arc<dyn Device>, options);
        let (file, other) = (
            fs.root().create(b"a", NewInode::file(0o644)).expect("a file"),
            fs.root().create(b"b", NewInode::file(0o644)).expect("a file"),
        );
        other.write_at(0, &pattern(2, 9000)).expect("a write");
        fs.sync().expect("sync");
        let before = Volume::read_superblock(&*base).expect("a superblock");
        file.write_at(0, &pattern(1, 9000)).expect("a write");
        file.sync().expect("sync");
        let after = Volume::read_superblock(&*base).expect("a superblock");
        assert_eq!(after.log_root.0 != 0, logs, "{options}");
        assert_eq!(after.generation == before.generation, logs, "{options}");
        assert_eq!(fs.sync_stats().logs > 0, logs, "{options}");
        drop((file, other));
        fs.close().expect("a clean end");
    }
}

/// The inode item in a log may have an old number of bytes that the extents take. So replay counts
/// these bytes.
#[test]
fn replay_counts_the_bytes_of_extents() {
    const BLOCK: u64 = 4096;
    let base = Arc::new(MemoryDevice::new(128 << 20));
    Filesystem::make(&*base, &MakeOptions::default()).expect("a volume");
    let fs = open_with(Arc::clone(&base) as Arc<dyn Device>, "commit=3000");
    let file = fs.root().create(b"a", NewInode::file(0o644)).expect("a file");
    file.set_attr(&SetAttr { size: Some(100 * BLOCK), ..SetAttr::default() }).expect("a length");
    file.write_at(0, &[1; 3 * BLOCK as usize]).expect("a write");
    fs.sync().expect("sync");
    // Most of these syncs come within one tick of the clock.
    for block in 1..30 {
        file.write_at(2 * block * BLOCK, &[2; BLOCK as usize]).expect("a write");
        file.sync().expect("sync");
        if block % 7 == 0 {
            let copy: Arc<dyn Device> = Arc::new(base.fork());
            let again = open(Arc::clone(&copy));
            let found = again.resolve("/a").expect("a file").attr();
            // The first block overwrites an existing block.
            assert_eq!(found.blocks, (3 + block - 1) * BLOCK / 512, "after {block}");
            again.close().expect("a clean end");
            expect_sound(&copy);
        }
    }
    assert!(fs.sync_stats().commits.is_empty(), "{:?}", fs.sync_stats());
    drop(file);
    fs.close().expect("a clean end");
}

/// With `flushoncommit`, every commit that an fsync makes writes the data of all files.
#[test]
fn a_commit_flushes_everything_if_asked() {
    for (options, all) in [
        ("commit=3000,notreelog,flushoncommit", true),
        ("commit=3000,notreelog", false),
        ("commit=3000,flushoncommit", true),
    ] {
        let base = Arc::new(MemoryDevice::new(128 << 20));
        Filesystem::make(&*base, &MakeOptions::default()).expect("a volume");
        let fs = open_with(Arc::clone(&base) as Arc<dyn Device>, options);
        let root = fs.root();
        let dir = root.mkdir(b"d", 0o755, 0, 0).expect("a directory");
        let other = root.create(b"other", NewInode::file(0o644)).expect("a file");
        fs.sync().expect("sync");
        other.write_at(0, &pattern(2, 9000)).expect("a write");
        // A log cannot express that a directory moved, so this sync makes a commit.
        root.rename(b"d", &root, b"e", RenameFlags::default()).expect("rename");
        dir.sync().expect("sync");
        let again = open(Arc::new(base.fork()));
        let found = content(&again.resolve("/other").expect("it was synced"));
        // Without the option, the data may also be written. The file has all of the data or none.
        assert!(found == pattern(2, 9000) || !all && found.is_empty(), "{options}");
        again.close().expect("a clean end");
        drop((dir, other, root));
        fs.close().expect("a clean end");
    }
}

/// A change without an fsync is durable once the time between commits has passed, and not at once.
#[cfg(debug_assertions)]
#[test]
fn commits_come_after_their_time() {
    let work = || {
        let base = Arc::new(MemoryDevice::new(128 << 20));
        Filesystem::make(&*base, &MakeOptions { seed: Some(1), ..MakeOptions::default() })
            .expect("a volume");
        let fs = open_with(Arc::clone(&base) as Arc<dyn Device>, "rw,noatime,commit=60");
        let begun = clock::now();
        let file = fs.root().create(b"a", NewInode::file(0o644)).expect("a file");
        file.write_at(0, &pattern(1, 9000)).expect("a write");
        let generation = || Volume::read_superblock(&*base).expect("a superblock").generation;
        let before = generation();
        while generation() == before {
            thread::sleep(Duration::from_secs(1));
            assert!(clock::since(begun) < Duration::from_secs(120), "no commit");
        }
        assert!(clock::since(begun) > Duration::from_secs(50), "a commit at once");
        let again = open(Arc::new(base.fork()));
        let found = content(&again.resolve("/a").expect("it is there"));
        assert_eq!(found, pattern(1, 9000));
        again.close().expect("a clean end");
        drop(file);
        fs.close().expect("a clean end");
    };
    seeded::run(1, seeded::Options::default(), work).unwrap_or_else(|stuck| panic!("{stuck}"));
}

/// Names that do not fit into one item are logged, too.
#[test]
fn many_names_are_logged() {
    let base = MemoryDevice::new(128 << 20);
    Filesystem::make(&base, &MakeOptions { nodesize: 4096, ..MakeOptions::default() })
        .expect("a volume");
    let device: Arc<dyn Device> = Arc::new(base);
    let fs = open(Arc::clone(&device));
    let root = fs.root();
    let file = root.create(b"0", NewInode::file(0o644)).expect("a file");
    let name = |index: u64| format!("{index}-{}", "n".repeat(200));
    for index in 1..40 {
        root.link(&file, name(index).as_bytes()).expect("a link");
    }
    fs.sync().expect("sync");
    for index in 40..50 {
        root.link(&file, name(index).as_bytes()).expect("a link");
    }
    root.unlink(name(3).as_bytes()).expect("unlink");
    root.unlink(name(38).as_bytes()).expect("unlink");
    file.sync().expect("sync");
    assert_eq!(fs.sync_stats().logs, 1, "{:?}", fs.sync_stats());
    // A copy of the device is the state after a crash, because the mount wrote nothing since.
    let crashed: Arc<dyn Device> = Arc::new(fork(&device));
    let again = open(Arc::clone(&crashed));
    for index in 1..50 {
        let there = again.root().lookup(name(index).as_bytes()).is_ok();
        assert_eq!(there, index != 3 && index != 38, "{index}");
    }
    assert_eq!(again.resolve("/0").expect("the file").attr().nlink, 48);
    again.close().expect("a clean end");
    expect_sound(&crashed);
    drop((file, root));
    fs.close().expect("a clean end");
}

/// A log becomes empty, because its only file has lost its name. Replay changes no tree, and the
/// commit that ends the log can be opened.
#[test]
fn a_log_that_changes_nothing_ends() {
    let base = MemoryDevice::new(128 << 20);
    Filesystem::make(&base, &MakeOptions::default()).expect("a volume");
    let device: Arc<dyn Device> = Arc::new(base);
    let fs = open(Arc::clone(&device));
    let kept = file_with(&fs.root(), "kept", &pattern(1, 9000));
    fs.sync().expect("sync");
    let file = file_with(&fs.root(), "file", &pattern(2, 9000));
    file.sync().expect("sync");
    fs.root().unlink(b"file").expect("unlink");
    file.sync().expect("sync");
    let crashed: Arc<dyn Device> = Arc::new(fork(&device));
    let superblock = Volume::read_superblock(&*crashed).expect("a superblock");
    assert!(superblock.log_root.0 != 0, "{:?}", fs.sync_stats());
    drop((kept, file));
    fs.close().expect("a clean end");
    for _ in 0..2 {
        open(Arc::clone(&crashed)).close().expect("a clean end");
        check(&crashed);
    }
    let again = open(crashed);
    assert!(content(&again.resolve("/kept").expect("the file")) == pattern(1, 9000));
    again.resolve("/file").expect_err("it is gone");
    again.close().expect("a clean end");
}

/// A synced file loses its name, in some cases to a new file that is not synced. Then an unrelated
/// file is synced. After a crash the name leads to the synced file or, if there is one, to the new
/// file. The synced file never has its earlier content.
#[test]
fn synced_name_moves_to_its_new_file() {
    for (committed, replaced, of_directory) in
        (0..8).map(|case| (case & 1 == 1, case & 2 == 2, case & 4 == 4))
    {
        let about = format!("committed {committed}, replaced {replaced}, {of_directory}");
        let base = MemoryDevice::new(128 << 20);
        Filesystem::make(&base, &MakeOptions::default()).expect("a volume");
        let device: Arc<dyn Device> = Arc::new(base);
        let fs = open(Arc::clone(&device));
        let root = fs.root();
        let other = file_with(&root, "other", &pattern(1, 9000));
        if committed {
            file_with(&root, "file", &pattern(2, 9000));
        }
        fs.sync().expect("sync");
        let file = match committed {
            true => root.lookup(b"file").expect("the file"),
            false => root.create(b"file", NewInode::file(0o644)).expect("a file"),
        };
        file.write_at(0, &pattern(3, 9000)).expect("a write");
        file.sync().expect("sync");
        if of_directory {
            root.sync().expect("sync");
        }
        if replaced {
            let new = file_with(&root, "new", &pattern(4, 9000));
            new.flush_data().expect("a flush");
            root.rename(b"new", &root, b"file", RenameFlags::default()).expect("rename");
        } else {
            root.unlink(b"file").expect("unlink");
        }
        drop(file);
        other.write_at(0, &pattern(5, 9000)).expect("a write");
        other.sync().expect("sync");
        let crashed: Arc<dyn Device> = Arc::new(fork(&device));
        let again = open(Arc::clone(&crashed));
        match again.resolve("/file") {
            Ok(found) => {
                let found = content(&found);
                let new = replaced && found == pattern(4, 9000);
                assert!(new || found == pattern(3, 9000), "{about}");
            }
            Err(error) => assert!(!replaced, "{about}: neither the old file nor the new: {error}"),
        }
        assert!(content(&again.resolve("/other").expect("it was synced")) == pattern(5, 9000));
        again.close().expect("a clean end");
        check(&crashed);
        drop((other, root));
        fs.close().expect("a clean end");
    }
}

pub(crate) fn fork(device: &Arc<dyn Device>) -> MemoryDevice {
    let mut bytes = vec![0; device.len() as usize];
    device.read_at(0, &mut bytes).expect("a read");
    let copy = MemoryDevice::new(device.len());
    copy.write_at(0, &bytes).expect("a write");
    copy
}

/// After a crash, a file may get back an extent that it has lost since the last commit or log. A
/// write in place to another file does not overwrite such an extent. This holds for extents in the
/// committed trees and in the log.
#[test]
fn write_in_place_spares_extents_of_others_after_a_crash() {
    for in_log in [false, true] {
        let base = MemoryDevice::new(128 << 20);
        Filesystem::make(&base, &MakeOptions::default()).expect("a volume");
        let device: Arc<dyn Device> = Arc::new(base);
        let fs = open(Arc::clone(&device));
        let make = |name: &str| {
            let file = fs.root().create(name.as_bytes(), NewInode::file(0o644)).expect("a file");
            file.set_flags(InodeFlags::NODATACOW).expect("a flag");
            file
        };
        let (mine, other) = (make("mine"), make("other"));
        let old = pattern(1, 65_536);
        mine.write_at(0, &old).expect("a write");
        if in_log {
            fs.sync().expect("sync");
        }
        mine.sync().expect("sync");
        mine.clone_range(0, &other, 0, 65_536).expect("a clone");
        other.sync().expect("sync");
        if !in_log {
            fs.sync().expect("sync");
        }
        let none = SetAttr { size: Some(0), ..SetAttr::default() };
        other.set_attr(&none).expect("truncate");
        mine.write_at(0, &pattern(2, 65_536)).expect("a write");
        mine.flush_data().expect("a flush");
        let again = open(Arc::new(fork(&device)));
        let found = content(&again.resolve("/other").expect("it was synced"));
        assert!(found == old || found.is_empty(), "in a log: {in_log}");
        again.close().expect("a clean end");
        drop((mine, other));
        fs.close().expect("a clean end");
    }
}
