//! Files that only a log of fsync has.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use buttress_block::{Device, MemoryDevice};
use buttress_fs::{NewInode, RenameFlags};
use buttress_rescue::{Condition, Entry, RestoreOptions, Salvage, State, restore};
use buttress_volume::Volume;

use crate::content::{salvage, small};
use crate::facts::Facts;
use crate::volume::{noise, opened};

/// A volume that was cut off after several calls of fsync.
pub(crate) fn cut_off() -> Vec<Arc<MemoryDevice>> {
    let devices = small();
    let fs = opened(&devices, "rw,noatime,commit=3000");
    let root = fs.root();
    let file = |name: &str, seed, len| {
        let file = root.create(name.as_bytes(), NewInode::file(0o644)).expect("a file");
        file.write_at(0, &noise(seed, len)).expect("a write");
        file
    };
    let (old, gone, cut) = (file("old", 1, 300_000), file("gone", 2, 5000), file("cut", 3, 90_000));
    file("still", 4, 70_000);
    fs.sync().expect("a commit");
    old.write_at(65536, &noise(5, 100_000)).expect("a write");
    old.sync().expect("a log");
    file("new", 6, 200_000).sync().expect("a log");
    let small = file("small", 7, 100);
    small.sync().expect("a log");
    root.rename(b"small", &root, b"tiny", RenameFlags::default()).expect("a new name");
    small.sync().expect("a log");
    cut.set_attr(&buttress_fs::SetAttr { size: Some(10_000), ..Default::default() })
        .expect("a shorter file");
    cut.sync().expect("a log");
    root.unlink(b"gone").expect("unlink");
    drop(gone);
    root.sync().expect("a log");
    file("not synced", 8, 1000);
    let forked = devices.iter().map(|device| Arc::new(device.fork())).collect();
    fs.close().expect("an unmount");
    forked
}

fn restored(salvage: &Salvage, with_log: bool, folder: &Path) -> (BTreeMap<String, Entry>, State) {
    let mut state = State::newest(salvage).expect("a state");
    if with_log {
        state.replay_log(salvage);
    }
    let mut entries = BTreeMap::new();
    let mut each = |entry: &Entry| {
        entries.insert(String::from_utf8_lossy(&entry.path).into_owned(), entry.clone());
    };
    let options = RestoreOptions::default();
    restore(salvage, &state, &options, Some(folder), &mut each).expect("restored");
    (entries, state)
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    let mut names: Vec<_> = entries
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort_unstable();
    names
}

/// What was synced comes back as it was, and nothing is written to the volume. Without the log the
/// files are those of the last commit.
#[test]
fn synced_files_come_back() {
    let devices = cut_off();
    let before = devices[0].fork();
    let salvage = salvage(&devices);
    assert_ne!(salvage.superblock().log_root.0, 0, "a log");
    let folder = tempfile::tempdir().expect("a folder");
    let (entries, state) = restored(&salvage, true, folder.path());
    let bad: Vec<_> = entries.values().filter(|e| e.condition != Condition::Whole).collect();
    assert!(bad.is_empty(), "{bad:?}");
    assert!(state.notes.iter().any(|note| note.contains("log of fsync")), "{:?}", state.notes);
    assert_eq!(names(folder.path()), ["cut", "new", "old", "still", "tiny"]);
    let read = |name: &str| std::fs::read(folder.path().join(name)).expect("a file");
    let mut old = noise(1, 300_000);
    old[65536..165_536].copy_from_slice(&noise(5, 100_000));
    assert!(read("old") == old && read("new") == noise(6, 200_000));
    assert!(read("tiny") == noise(7, 100) && read("cut") == noise(3, 90_000)[..10_000]);
    assert!(read("still") == noise(4, 70_000));
    let without = tempfile::tempdir().expect("a folder");
    restored(&salvage, false, without.path());
    assert_eq!(names(without.path()), ["cut", "gone", "old", "still"]);
    assert!(std::fs::read(without.path().join("old")).expect("a file") == noise(1, 300_000));
    let mut bytes = [vec![0; 1 << 20], vec![0; 1 << 20]];
    for at in (0..before.len()).step_by(1 << 20) {
        before.read_at(at, &mut bytes[0]).expect("a read");
        devices[0].read_at(at, &mut bytes[1]).expect("a read");
        assert!(bytes[0] == bytes[1], "restore wrote at {at}");
    }
}

/// A damaged log is left out as a whole, and the notes say so: the rest is as without a log.
#[test]
fn a_damaged_log_is_left_out() {
    let devices = cut_off();
    let superblock = Volume::read_superblock(&*devices[0]).expect("a superblock");
    for (device, at) in Facts::of(&devices).places(superblock.log_root) {
        devices[device].write_at(at, &[0xab; 4096]).expect("damage");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (_, state) = restored(&salvage(&devices), true, folder.path());
    assert!(state.notes.iter().any(|note| note.contains("is lost")), "{:?}", state.notes);
    assert_eq!(names(folder.path()), ["cut", "gone", "old", "still"]);
}

/// If the leaf of a subvolume is lost, a file that the log has completely is whole. A file that the
/// log only mentions is not made up.
#[test]
fn a_log_outlives_the_tree_below_it() {
    let devices = cut_off();
    let facts = Facts::of(&devices);
    let tree = facts.nodes.values().filter(|node| node.tree == buttress_format::TreeId::FS);
    for (device, at) in tree.flat_map(|node| node.copies.clone()) {
        devices[device].write_at(at, &[0xab; 4096]).expect("damage");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (entries, _) = restored(&salvage(&devices), true, folder.path());
    let whole: Vec<_> = entries
        .iter()
        .filter(|(_, entry)| entry.condition == Condition::Whole)
        .map(|(name, _)| name.rsplit('/').next().unwrap_or_default().to_owned())
        .collect();
    assert!(whole.contains(&"new".to_owned()), "{entries:?}");
    assert!(whole.contains(&"tiny".to_owned()), "{entries:?}");
    for entry in entries.values().filter(|entry| entry.bytes > 0) {
        let right = [noise(6, 200_000), noise(7, 100), noise(1, 300_000), noise(3, 90_000)];
        assert!(right.iter().any(|bytes| bytes.len() as u64 >= entry.size), "{entry:?}");
    }
}
