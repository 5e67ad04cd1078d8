//! Files come back that only a log of fsync had, or of which a log had the last version.

use std::path::Path;

use buttress_fs::{Filesystem, Inode, NewInode, RenameFlags, SetAttr, XattrFlags};
use buttress_rescue::{Condition, UndeleteOptions};

use crate::deleted::{made, undeleted};
use crate::volume::{noise, opened};

const OPTIONS: &str = "rw,noatime,commit=3000";

fn file(dir: &Inode, name: &str, seed: u64, len: usize) -> Inode {
    let file = dir.create(name.as_bytes(), NewInode::file(0o640)).expect("a file");
    file.write_at(0, &noise(seed, len)).expect("a write");
    file
}

fn synced(fs: Filesystem) {
    fs.sync().expect("a commit");
    fs.close().expect("an unmount");
}

fn read(folder: &Path, name: &str) -> Vec<u8> {
    std::fs::read(folder.join(name)).expect("a file")
}

/// Files that no commit ever had: in the top, in a folder that no commit had either, and in a
/// subvolume with a log of its own.
#[test]
fn files_that_only_a_log_had_come_back() {
    let devices = made();
    let fs = opened(&devices, OPTIONS);
    let root = fs.root();
    let sub = root.create_subvolume(b"sub", 0o755, 0, 0).expect("a subvolume");
    file(&root, "kept", 1, 9000);
    fs.sync().expect("a commit");
    let brief = file(&root, "brief", 2, 200_000);
    brief.set_xattr(b"user.colour", b"blue", XattrFlags::default()).expect("an attribute");
    let dir = root.mkdir(b"dir", 0o755, 0, 0).expect("a folder");
    let inside = file(&dir, "inside", 3, 70_000);
    let small = file(&root, "small", 4, 100);
    let of_sub = file(&sub, "of sub", 5, 30_000);
    for each in [&brief, &inside, &small, &of_sub] {
        each.sync().expect("a log");
    }
    file(&root, "never synced", 6, 5000);
    for name in ["brief", "small", "never synced"] {
        root.unlink(name.as_bytes()).expect("removed");
    }
    sub.unlink(b"of sub").expect("removed");
    dir.unlink(b"inside").expect("removed");
    root.rmdir(b"dir").expect("removed");
    drop((brief, inside, small, of_sub, dir, sub, root));
    synced(fs);
    let folder = tempfile::tempdir().expect("a folder");
    let entries = undeleted(&devices, &UndeleteOptions::default(), Some(folder.path()));
    let expected = [
        ("brief", 2, 200_000),
        ("dir/inside", 3, 70_000),
        ("small", 4, 100),
        ("sub/of sub", 5, 30_000),
    ];
    for (name, seed, len) in expected {
        let condition = entries.get(name).map(|entry| entry.condition);
        assert_eq!(condition, Some(Condition::Whole), "{name}: {entries:#?}");
        assert!(read(folder.path(), name) == noise(seed, len), "{name}");
    }
    assert!(!entries.contains_key("kept") && !entries.contains_key("never synced"), "{entries:#?}");
}

/// Of a file with a committed and a logged version, the logged one comes back: a part of it new, a
/// shorter one, and one with another name.
#[test]
fn a_logged_version_is_newer_than_the_commit() {
    let devices = made();
    let fs = opened(&devices, OPTIONS);
    let root = fs.root();
    let (part, short) = (file(&root, "part", 1, 300_000), file(&root, "short", 2, 90_000));
    let (named, kept) = (file(&root, "named", 3, 20_000), file(&root, "kept", 4, 20_000));
    fs.sync().expect("a commit");
    part.write_at(65536, &noise(5, 100_000)).expect("a write");
    short.set_attr(&SetAttr { size: Some(10_000), ..SetAttr::default() }).expect("shorter");
    root.rename(b"named", &root, b"renamed", RenameFlags::default()).expect("a new name");
    for each in [&part, &short, &named, &kept] {
        each.sync().expect("a log");
    }
    for name in ["part", "short", "renamed"] {
        root.unlink(name.as_bytes()).expect("removed");
    }
    drop((part, short, named, kept, root));
    synced(fs);
    let folder = tempfile::tempdir().expect("a folder");
    let entries = undeleted(&devices, &UndeleteOptions::default(), Some(folder.path()));
    assert!(entries.values().all(|entry| entry.condition == Condition::Whole), "{entries:#?}");
    let mut expected = noise(1, 300_000);
    expected[65536..165_536].copy_from_slice(&noise(5, 100_000));
    assert!(read(folder.path(), "part") == expected);
    assert!(read(folder.path(), "short") == noise(2, 90_000)[..10_000]);
    assert!(read(folder.path(), "renamed") == noise(3, 20_000));
    assert_eq!(entries.len(), 3, "{entries:#?}");
}

/// A log that the next mount replays is part of the volume: its files are there, and what it
/// removes is gone.
#[test]
fn files_of_the_present_log_are_not_deleted() {
    let devices = crate::logged::cut_off();
    let folder = tempfile::tempdir().expect("a folder");
    let entries = undeleted(&devices, &UndeleteOptions::default(), Some(folder.path()));
    assert_eq!(entries.keys().map(String::as_str).collect::<Vec<_>>(), ["gone"], "{entries:#?}");
    assert!(read(folder.path(), "gone") == noise(2, 5000));
}

/// Where space of logged files was used again, no byte of another file comes back in its place.
#[test]
fn overwritten_logged_files_are_said_to_be() {
    let devices = made();
    let fs = opened(&devices, OPTIONS);
    let root = fs.root();
    file(&root, "kept", 1, 9000);
    fs.sync().expect("a commit");
    let len = 2 << 20;
    for number in 0..30_u64 {
        file(&root, &format!("old {number}"), number, len).sync().expect("a log");
    }
    for number in 0..30 {
        root.unlink(format!("old {number}").as_bytes()).expect("removed");
    }
    fs.sync().expect("a commit");
    for number in 0..25_u64 {
        file(&root, &format!("new {number}"), 1000 + number, len).sync().expect("a log");
    }
    drop(root);
    synced(fs);
    let folder = tempfile::tempdir().expect("a folder");
    let entries = undeleted(&devices, &UndeleteOptions::default(), Some(folder.path()));
    let (mut overwritten, mut found) = (0, 0);
    for (path, entry) in entries.iter().filter(|(path, _)| path.starts_with("old")) {
        let number = path["old ".len()..].parse().expect("a number");
        found += 1;
        overwritten += u32::from(entry.condition != Condition::Whole);
        if entry.condition == Condition::Lost {
            continue;
        }
        let right = noise(number, len);
        for (at, (byte, right)) in read(folder.path(), path).iter().zip(&right).enumerate() {
            let is_in = |part: &buttress_rescue::Lost| {
                (part.offset..part.offset.saturating_add(part.len)).contains(&(at as u64))
            };
            let is_lost = entry.lost.iter().any(is_in);
            assert!(byte == right || is_lost && *byte == 0, "{path}: a wrong byte at {at}");
        }
    }
    println!("{found} found, {overwritten} of them overwritten");
    assert!(found > 0 && overwritten > 0, "{entries:#?}");
    assert!(entries.keys().all(|path| path.starts_with("old")), "{entries:#?}");
}
