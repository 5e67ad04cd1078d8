//! Tests attributes of restored files, and the options that select files.

use std::collections::BTreeMap;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

use buttress_block::{Device, MemoryDevice};
use buttress_format::Logical;
use buttress_fs::{Filesystem, MakeOptions, NewInode, XattrFlags};
use buttress_rescue::{
    Condition, Entry, Glob, NoProgress, RestoreOptions, Salvage, SalvageOptions, State, Summary,
    restore,
};

use crate::facts::Facts;
use crate::volume::{Shape, noise, opened};

pub(crate) fn salvage(devices: &[Arc<MemoryDevice>]) -> Salvage {
    let devices = devices.iter().map(|device| Arc::clone(device) as Arc<dyn Device>).collect();
    Salvage::open(devices, SalvageOptions::default(), Arc::new(NoProgress)).expect("a volume")
}

fn restored(
    devices: &[Arc<MemoryDevice>],
    options: &RestoreOptions,
    folder: Option<&Path>,
) -> (BTreeMap<String, Entry>, Summary) {
    let salvage = salvage(devices);
    let state = State::newest(&salvage).expect("a state");
    let mut entries = BTreeMap::new();
    let mut each = |entry: &Entry| {
        entries.insert(String::from_utf8_lossy(&entry.path).into_owned(), entry.clone());
    };
    let summary = restore(&salvage, &state, options, folder, &mut each).expect("restored");
    (entries, summary)
}

pub(crate) fn small() -> Vec<Arc<MemoryDevice>> {
    let device = Arc::new(MemoryDevice::new(300 << 20));
    Filesystem::make(&*device, &MakeOptions::default()).expect("an empty volume");
    vec![device]
}

/// The cache of nodes keeps to its size, and a restore with a small cache finds the same files.
#[test]
fn a_small_cache_restores_the_same_files() {
    let devices = small();
    let fs = opened(&devices, "rw");
    for number in 0..4000 {
        let name = format!("{number:0>200}");
        drop(fs.root().create(name.as_bytes(), NewInode::file(0o644)).expect("a file"));
    }
    fs.close().expect("an unmount");
    let list = || devices.iter().map(|device| Arc::clone(device) as Arc<dyn Device>).collect();
    let [few, many] = [2 << 20, 64 << 20].map(|bytes| {
        let mut options = SalvageOptions::default();
        options.node_cache_bytes = bytes;
        let salvage = Salvage::open(list(), options, Arc::new(NoProgress)).expect("a volume");
        let state = State::newest(&salvage).expect("a state");
        let how = RestoreOptions::default();
        let summary = restore(&salvage, &state, &how, None, &mut |_| ()).expect("restored");
        assert_eq!((summary.partly, summary.lost), (0, 0));
        assert!(summary.whole >= 4000, "{summary:?}");
        salvage.cached_nodes()
    });
    assert!(few <= 128, "{few} nodes of 16 KiB are more than 2 MiB");
    assert!(many > 200, "the large cache has only {many} nodes");
}

/// Modes, times, attributes, symbolic links, holes, device files and hard links are restored.
#[test]
fn attributes_come_along() {
    let devices = small();
    let fs = opened(&devices, "rw");
    let root = fs.root();
    let dir = root.mkdir(b"dir", 0o2751, 0, 0).expect("a folder");
    let file = dir.create(b"file", NewInode::file(0o4711)).expect("a file");
    file.write_at(1 << 20, &noise(1, 5000)).expect("a write");
    file.set_xattr(b"user.colour", b"blue", XattrFlags::default()).expect("an attribute");
    root.link(&file, b"second").expect("a link");
    root.symlink(b"to", b"dir/file", 0, 0).expect("a symbolic link");
    root.create(b"pipe", NewInode::fifo(0o600)).expect("a pipe");
    root.create(b"odd\xff name", NewInode::file(0o600)).expect("a file");
    let time = file.attr().mtime;
    fs.close().expect("an unmount");
    let folder = tempfile::tempdir().expect("a folder");
    let (entries, summary) = restored(&devices, &RestoreOptions::default(), Some(folder.path()));
    assert_eq!((summary.partly, summary.lost), (0, 0), "{entries:?}");
    let at = |name: &str| folder.path().join(name);
    let metadata = at("dir/file").metadata().expect("the file");
    assert_eq!(metadata.permissions().mode() & 0o7777, 0o4711);
    assert_eq!((metadata.mtime(), metadata.mtime_nsec()), (time.sec, i64::from(time.nsec)));
    assert_eq!(metadata.nlink(), 2);
    assert_eq!(metadata.ino(), at("second").metadata().expect("the link").ino());
    assert!(metadata.blocks() * 512 < 1 << 19, "the hole stays one");
    let found = std::fs::read(at("second")).expect("read");
    assert!(found[..1 << 20].iter().all(|byte| *byte == 0) && found[1 << 20..] == noise(1, 5000));
    assert_eq!(at("dir").metadata().expect("the folder").permissions().mode() & 0o7777, 0o2751);
    assert_eq!(std::fs::read_link(at("to")).expect("a link"), Path::new("dir/file"));
    assert!(at("pipe").metadata().expect("the pipe").file_type().is_fifo());
    let mut value = [0; 16];
    if let Ok(len) = rustix::fs::getxattr(at("second"), "user.colour", &mut value) {
        assert_eq!(&value[..len], b"blue");
    }
}

/// Files are selected by a pattern, and a subvolume by number and by path. A dry run writes
/// nothing, and existing files stay.
#[test]
fn a_selection_is_restored_alone() {
    let made = Shape::Usual.make();
    let folder = tempfile::tempdir().expect("a folder");
    let mut options = RestoreOptions::default();
    options.paths = vec![Glob::new(b"/dir/entry 1?"), Glob::new(b"/sub/item 7")];
    let (_, dry) = restored(&made.devices, &options, None);
    assert_eq!(std::fs::read_dir(folder.path()).expect("a list").count(), 0);
    let (entries, summary) = restored(&made.devices, &options, Some(folder.path()));
    assert_eq!(dry, summary);
    assert_eq!(summary.whole, 11, "{entries:?}");
    assert_eq!(std::fs::read_dir(folder.path().join("dir")).expect("a list").count(), 10);
    let (_, again) = restored(&made.devices, &options, Some(folder.path()));
    assert_eq!((again.whole, again.exists), (0, 11));
    for name in ["sub", "/sub/"] {
        let folder = tempfile::tempdir().expect("a folder");
        let mut options = RestoreOptions::default();
        options.subvolume = Some(name.to_owned());
        let (_, summary) = restored(&made.devices, &options, Some(folder.path()));
        // These are sixty files and the subvolume itself.
        assert_eq!(summary.whole, 61);
        assert!(folder.path().join("item 7").exists());
    }
    let salvage = salvage(&made.devices);
    let state = State::newest(&salvage).expect("a state");
    let mut options = RestoreOptions::default();
    options.subvolume = Some("no such".to_owned());
    restore(&salvage, &state, &options, None, &mut |_| {}).expect_err("none of that name");
}

/// If a sector is damaged in all copies, only this sector is lost, and the report says why. A
/// sector with a good copy is not lost.
#[test]
fn a_damaged_sector_is_lost_alone() {
    for (shape, is_lost) in [(Shape::Usual, true), (Shape::Mirrored, false)] {
        let made = shape.make();
        let facts = Facts::of(&made.devices);
        let big = made.contents.iter().max_by_key(|(_, content)| {
            // The sparse file is not chosen, since its first sector is a hole.
            if content[0] == 0 { 0 } else { content.len() }
        });
        let (id, content) = big.expect("files");
        let data = facts.files[id].data[0];
        let (device, at) = facts.places(Logical(data.start.0 + 8192))[0];
        made.devices[device].write_at(at + 100, b"damage").expect("damage");
        let folder = tempfile::tempdir().expect("a folder");
        let (entries, _) = restored(&made.devices, &RestoreOptions::default(), Some(folder.path()));
        let entry = entries.values().find(|entry| (entry.subvolume, entry.inode) == *id);
        let entry = entry.expect("the file");
        let found = std::fs::read(folder.path().join("big")).expect("read");
        if is_lost {
            assert_eq!(entry.condition, Condition::Partly);
            let lost: Vec<_> = entry.lost.iter().map(|part| (part.offset, part.len)).collect();
            assert_eq!(lost, [(8192, 4096)]);
            assert!(entry.lost[0].why.contains("checksum"), "{entry:?}");
            assert_eq!(found[..8192], content[..8192]);
            assert_eq!(found[12288..], content[12288..]);
        } else {
            assert_eq!((entry.condition, &found), (Condition::Whole, content));
        }
    }
}

/// Older roots are listed. An older root can be chosen by its generation or by its address.
#[test]
fn an_older_root_is_used_when_asked_for() {
    let devices = small();
    let fs = opened(&devices, "rw");
    for number in 0..4 {
        let name = format!("file {number}");
        let file = fs.root().create(name.as_bytes(), NewInode::file(0o600)).expect("a file");
        file.write_at(0, &noise(number, 9000)).expect("a write");
        fs.sync().expect("a commit");
    }
    fs.close().expect("an unmount");
    let salvage = salvage(&devices);
    let roots = State::list(&salvage);
    assert!(roots.len() >= 4, "{roots:?}");
    assert!(roots.windows(2).all(|pair| pair[0].generation >= pair[1].generation));
    let files = |state: &State| {
        let mut count = 0;
        let mut each = |entry: &Entry| count += u32::from(entry.path.starts_with(b"file"));
        restore(&salvage, state, &RestoreOptions::default(), None, &mut each).expect("restored");
        count
    };
    assert_eq!(files(&State::newest(&salvage).expect("a state")), 4);
    let older = roots
        .iter()
        .filter(|root| root.readable)
        .find(|root| files(&State::of(&salvage, root.generation).expect("a root")) == 3);
    let older = older.expect("one with three files");
    assert_eq!(files(&State::of(&salvage, older.address).expect("by address")), 3);
    State::of(&salvage, 1).map(|state| files(&state)).ok();
    State::of(&salvage, u64::MAX).expect_err("no such root");
}
