//! Older versions of files that still exist come back under names with their transactions.

use std::collections::BTreeMap;
use std::path::Path;

use buttress_fs::{Filesystem, Inode, NewInode, SetAttr};
use buttress_rescue::{Condition, Glob, Since, UndeleteOptions};

use crate::deleted::{made, undeleted};
use crate::volume::{noise, opened};

const OPTIONS: &str = "rw,noatime,commit=3000";

/// Sets the whole content of a file, and commits. Returns the transaction.
fn write(fs: &Filesystem, file: &Inode, content: &[u8]) -> u64 {
    let set = SetAttr { size: Some(content.len() as u64), ..SetAttr::default() };
    file.set_attr(&set).expect("a length");
    file.write_at(0, content).expect("a write");
    fs.sync().expect("a commit");
    fs.view().committed_generation().0
}

fn wanted() -> UndeleteOptions {
    let mut options = UndeleteOptions::default();
    options.versions = true;
    options
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    let name = |entry: std::fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
    let mut names: Vec<_> = entries.map(|entry| name(entry.expect("an entry"))).collect();
    names.sort_unstable();
    names
}

/// Each committed version of a long and of a short file comes back whole, under the transaction
/// that wrote it. The present content and a change of the mode alone give no version.
#[test]
fn versions_of_living_files_come_back() {
    let devices = made();
    let fs = opened(&devices, OPTIONS);
    let root = fs.root();
    let long = root.create(b"long", NewInode::file(0o640)).expect("a file");
    let dir = root.mkdir(b"dir", 0o755, 0, 0).expect("a folder");
    let short = dir.create(b"short", NewInode::file(0o640)).expect("a file");
    let mut expected: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    for seed in 0..4_u64 {
        let content = noise(seed, 150_000 + seed as usize * 5000);
        let at = write(&fs, &long, &content);
        expected.insert(format!("long.~{at}~"), content);
        if seed == 0 {
            // The short file was there, and empty.
            expected.insert(format!("dir/short.~{at}~"), Vec::new());
        }
        let content = noise(100 + seed, 100 + seed as usize);
        let at = write(&fs, &short, &content);
        expected.insert(format!("dir/short.~{at}~"), content);
    }
    let last = fs.view().committed_generation().0;
    long.set_attr(&SetAttr { mode: Some(0o600), ..SetAttr::default() }).expect("a mode");
    fs.sync().expect("a commit");
    drop((long, short, dir, root));
    fs.close().expect("an unmount");
    // The last versions are those that exist.
    let present: Vec<String> = ["long", "dir/short"]
        .iter()
        .filter_map(|name| {
            let is_it = |path: &&String| path.starts_with(&format!("{name}.~"));
            let number =
                |path: &&String| path.trim_end_matches('~').rsplit('~').next()?.parse::<u64>().ok();
            expected.keys().filter(is_it).max_by_key(number).cloned()
        })
        .collect();
    present.iter().for_each(|path| drop(expected.remove(path)));
    let folder = tempfile::tempdir().expect("a folder");
    let entries = undeleted(&devices, &wanted(), Some(folder.path()));
    let found: Vec<&String> = entries.keys().collect();
    assert_eq!(found, expected.keys().collect::<Vec<_>>(), "{entries:#?}");
    for (path, content) in &expected {
        assert_eq!(entries[path].condition, Condition::Whole, "{entries:#?}");
        assert!(std::fs::read(folder.path().join(path)).expect("a file") == *content, "{path}");
    }
    assert_eq!(names(folder.path()).len(), 4, "three versions, and a folder");
    // Without the option, nothing was deleted.
    assert!(undeleted(&devices, &UndeleteOptions::default(), None).is_empty());
    let mut options = wanted();
    options.paths = vec![Glob::new(b"/dir")];
    assert_eq!(undeleted(&devices, &options, None).len(), 4);
    options.since = Some(Since::Generation(last - 2));
    let recent = undeleted(&devices, &options, None);
    assert_eq!(recent.keys().next_back(), expected.keys().rfind(|path| path.starts_with("dir")));
    assert_eq!(recent.len(), 1, "{recent:#?}");
}

/// A part that the versions share is read with the checksums of today.
#[test]
fn versions_share_what_did_not_change() {
    let devices = made();
    let fs = opened(&devices, OPTIONS);
    let root = fs.root();
    let file = root.create(b"file", NewInode::file(0o640)).expect("a file");
    let first = noise(1, 400_000);
    let at = write(&fs, &file, &first);
    for number in 0..30_u64 {
        root.create(format!("other {number}").as_bytes(), NewInode::file(0o640))
            .and_then(|other| other.write_at(0, &noise(number, 50_000)))
            .expect("a file");
        fs.sync().expect("a commit");
    }
    file.write_at(100_000, &noise(2, 9000)).expect("a write");
    fs.sync().expect("a commit");
    drop((file, root));
    fs.close().expect("an unmount");
    let folder = tempfile::tempdir().expect("a folder");
    let entries = undeleted(&devices, &wanted(), Some(folder.path()));
    let path = format!("file.~{at}~");
    assert_eq!(entries.keys().collect::<Vec<_>>(), [&path], "{entries:#?}");
    let found = std::fs::read(folder.path().join(&path)).expect("a file");
    let lost = &entries[&path].lost;
    let is_lost =
        |at: u64| lost.iter().any(|part| (part.offset..part.offset + part.len).contains(&at));
    for (at, (byte, right)) in found.iter().zip(&first).enumerate() {
        assert!(byte == right || is_lost(at as u64) && *byte == 0, "a wrong byte at {at}");
    }
    // At most what was overwritten is lost.
    let bytes: u64 = lost.iter().map(|part| part.len).sum();
    assert!(bytes <= 16384, "{lost:?}");
}

/// What an fsync wrote and a later write of the same transaction replaced is a version, too.
#[test]
fn a_synced_version_comes_back() {
    let devices = made();
    let fs = opened(&devices, OPTIONS);
    let root = fs.root();
    let file = root.create(b"file", NewInode::file(0o640)).expect("a file");
    let first = write(&fs, &file, &noise(1, 60_000));
    file.write_at(0, &noise(2, 30_000)).expect("a write");
    file.sync().expect("a log");
    let last = write(&fs, &file, &noise(3, 60_000));
    drop((file, root));
    fs.close().expect("an unmount");
    let folder = tempfile::tempdir().expect("a folder");
    let entries = undeleted(&devices, &wanted(), Some(folder.path()));
    let paths = [format!("file.~{first}~"), format!("file.~{last}~")];
    assert!(entries.keys().eq(&paths), "{entries:#?}");
    assert!(entries.values().all(|entry| entry.condition == Condition::Whole), "{entries:#?}");
    let mut synced = noise(1, 60_000);
    synced[..30_000].copy_from_slice(&noise(2, 30_000));
    let read = |path: &String| std::fs::read(folder.path().join(path)).expect("a file");
    assert!(read(&paths[0]) == noise(1, 60_000) && read(&paths[1]) == synced);
}
