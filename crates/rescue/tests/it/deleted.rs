//! Deleted files are recovered if their blocks were not used again.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use buttress_block::{Device, MemoryDevice};
use buttress_fs::{Filesystem, MakeOptions, NewInode};
use buttress_rescue::{
    Condition, Entry, Glob, Kind, NoProgress, Salvage, SalvageOptions, Since, UndeleteOptions,
    undelete,
};

use crate::volume::{noise, opened};

pub(crate) fn made() -> Vec<Arc<MemoryDevice>> {
    let device = Arc::new(MemoryDevice::new(300 << 20));
    Filesystem::make(&*device, &MakeOptions::default()).expect("an empty volume");
    vec![device]
}

pub(crate) fn undeleted(
    devices: &[Arc<MemoryDevice>],
    options: &UndeleteOptions,
    folder: Option<&Path>,
) -> BTreeMap<String, Entry> {
    let devices = devices.iter().map(|device| Arc::clone(device) as Arc<dyn Device>).collect();
    let opening = SalvageOptions::default();
    let salvage = Salvage::open(devices, opening, Arc::new(NoProgress)).expect("a volume");
    let mut entries = BTreeMap::new();
    let mut each = |entry: &Entry| {
        entries.insert(String::from_utf8_lossy(&entry.path).into_owned(), entry.clone());
    };
    undelete(&salvage, options, folder, &mut each).expect("a search");
    entries
}

/// A removed folder is recovered with its content. Files that still exist are not recovered.
#[test]
fn a_removed_folder_comes_back() {
    let devices = made();
    let fs = opened(&devices, "rw");
    let root = fs.root();
    let kept = root.create(b"kept", NewInode::file(0o600)).expect("a file");
    kept.write_at(0, &noise(1, 9000)).expect("a write");
    let dir = root.mkdir(b"gone", 0o750, 0, 0).expect("a folder");
    for number in 0..200_u64 {
        let name = format!("file {number}");
        let file = dir.create(name.as_bytes(), NewInode::file(0o640)).expect("a file");
        let len = if number.is_multiple_of(4) { 300 } else { 9000 };
        file.write_at(0, &noise(number, len)).expect("a write");
    }
    fs.sync().expect("a commit");
    let before = fs.view().committed_generation().0;
    root.create(b"between", NewInode::file(0o600)).expect("a file");
    fs.sync().expect("a commit");
    for number in 0..200_u64 {
        dir.unlink(format!("file {number}").as_bytes()).expect("removed");
    }
    root.rmdir(b"gone").expect("removed");
    fs.sync().expect("a commit");
    fs.close().expect("an unmount");
    let folder = tempfile::tempdir().expect("a folder");
    let options = UndeleteOptions::default();
    let listed = undeleted(&devices, &options, None);
    let entries = undeleted(&devices, &options, Some(folder.path()));
    assert_eq!(listed, entries, "a list says the same");
    let files = entries.values().filter(|entry| entry.kind == Kind::File);
    assert_eq!(files.clone().count(), 200);
    for entry in files {
        assert_eq!(entry.condition, Condition::Whole, "{entry:?}");
    }
    for number in 0..200_u64 {
        let found = std::fs::read(folder.path().join(format!("gone/file {number}")));
        let len = if number.is_multiple_of(4) { 300 } else { 9000 };
        assert!(found.expect("read") == noise(number, len), "file {number}");
    }
    assert!(!folder.path().join("kept").exists() && !folder.path().join("between").exists());
    let mut options = UndeleteOptions::default();
    options.paths = vec![Glob::new(b"/gone/file 1?")];
    assert_eq!(undeleted(&devices, &options, None).len(), 10);
    options.since = Some(Since::Generation(before));
    assert_eq!(undeleted(&devices, &options, None).len(), 10);
    options.since = Some(Since::Generation(u64::MAX));
    assert_eq!(undeleted(&devices, &options, None).len(), 0);
}

/// If blocks of a file were used again, no byte of another file is recovered in its place.
#[test]
fn overwritten_blocks_are_said_to_be() {
    let devices = made();
    let fs = opened(&devices, "rw");
    let root = fs.root();
    let mut len = 0;
    for number in 0..40_u64 {
        let name = format!("old {number}");
        let file = root.create(name.as_bytes(), NewInode::file(0o640)).expect("a file");
        len = 2 << 20;
        file.write_at(0, &noise(number, len)).expect("a write");
    }
    fs.sync().expect("a commit");
    for number in 0..40 {
        root.unlink(format!("old {number}").as_bytes()).expect("removed");
    }
    fs.sync().expect("a commit");
    // The new files take more than half of the volume's data space.
    for number in 0..60_u64 {
        let file =
            root.create(format!("new {number}").as_bytes(), NewInode::file(0o640)).expect("a file");
        file.write_at(0, &noise(1000 + number, len)).expect("a write");
        if number.is_multiple_of(10) {
            fs.sync().expect("a commit");
        }
    }
    fs.close().expect("an unmount");
    let folder = tempfile::tempdir().expect("a folder");
    let entries = undeleted(&devices, &UndeleteOptions::default(), Some(folder.path()));
    let mut overwritten = 0;
    for (path, entry) in entries.iter().filter(|(path, _)| path.starts_with("old")) {
        let number = path["old ".len()..].parse().expect("a number");
        overwritten += u32::from(entry.condition != Condition::Whole);
        if entry.condition == Condition::Lost {
            continue;
        }
        let found = std::fs::read(folder.path().join(path)).expect("read");
        let right = noise(number, len);
        for (at, (byte, right)) in found.iter().zip(&right).enumerate() {
            let at = at as u64;
            let is_lost = entry
                .lost
                .iter()
                .any(|part| (part.offset..part.offset.saturating_add(part.len)).contains(&at));
            assert!(byte == right || is_lost && *byte == 0, "{path}: a wrong byte at {at}");
        }
    }
    assert!(overwritten > 0, "some were overwritten");
    assert!(entries.keys().all(|path| !path.starts_with("new")));
}

/// A deleted subvolume is recovered under its name and number.
#[test]
fn a_deleted_subvolume_comes_back() {
    let devices = made();
    let fs = opened(&devices, "rw");
    let sub = fs.root().create_subvolume(b"sub", 0o755, 0, 0).expect("a subvolume");
    let id = sub.id().tree;
    let file = sub.create(b"file", NewInode::file(0o600)).expect("a file");
    file.write_at(0, &noise(1, 20_000)).expect("a write");
    fs.sync().expect("a commit");
    fs.root().create(b"between", NewInode::file(0o600)).expect("a file");
    fs.sync().expect("a commit");
    drop((sub, file));
    fs.root().delete_subvolume(b"sub").expect("deleted");
    for _ in 0..200 {
        if fs.dying_subvolumes().expect("a list").is_empty() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    fs.close().expect("an unmount");
    let folder = tempfile::tempdir().expect("a folder");
    let entries = undeleted(&devices, &UndeleteOptions::default(), Some(folder.path()));
    let path = format!("sub-{}/file", id.0);
    assert_eq!(
        entries.get(&path).map(|entry| entry.condition),
        Some(Condition::Whole),
        "{entries:?}"
    );
    assert!(std::fs::read(folder.path().join(path)).expect("read") == noise(1, 20_000));
}
