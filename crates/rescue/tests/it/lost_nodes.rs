//! Where freed nodes were overwritten, `undelete` mixes no moments and no files.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use buttress_block::{Device, MemoryDevice};
use buttress_format::{Header, Key, Kind, TreeId, header::HEADER_LEN};
use buttress_fs::{Filesystem, Inode, NewInode};
use buttress_rescue::{Condition, Entry, Glob, UndeleteOptions};

use crate::deleted::{made, undeleted};
use crate::volume::{noise, opened};

const OPTIONS: &str = "rw,noatime,commit=3000";
const BLOCKS: u64 = 600;
const NODE: usize = 16384;

/// A leaf of any age, with all its copies.
struct Leaf {
    header: Header,
    places: Vec<u64>,
    keys: Vec<Key>,
}

impl Leaf {
    fn has(&self, ino: u64, kind: Kind) -> bool {
        self.keys.iter().any(|key| key.objectid == ino && key.kind == kind)
    }

    fn overwrite(&self, device: &MemoryDevice) {
        for at in &self.places {
            device.write_at(*at, &vec![0; NODE]).expect("damage");
        }
    }
}

/// All leaves that are on a device.
fn leaves(device: &MemoryDevice) -> Vec<Leaf> {
    let mut superblock = vec![0; 4096];
    device.read_at(65536, &mut superblock).expect("a superblock");
    let mut found: BTreeMap<(u64, u64), Leaf> = BTreeMap::new();
    let mut window = vec![0; 1 << 20];
    for start in (0..device.len() - (1 << 20)).step_by((1 << 20) - NODE) {
        device.read_at(start, &mut window).expect("a read");
        for at in (0..window.len() - NODE).step_by(4096) {
            let node = &window[at..at + NODE];
            if start + at as u64 == 65536 || node[32..48] != superblock[32..48] {
                continue;
            }
            let Ok(header) = Header::parse(node) else { continue };
            let key = |slot: u32| Key::parse(&node[HEADER_LEN + slot as usize * 25..]).ok();
            if header.level != 0 || header.nritems > 600 {
                continue;
            }
            let keys = (0..header.nritems).filter_map(key).collect();
            let id = (header.bytenr.0, header.generation.0);
            let leaf = found.entry(id).or_insert(Leaf { header, places: Vec::new(), keys });
            leaf.places.push(start + at as u64);
        }
    }
    found.into_values().collect()
}

fn forked(devices: &[Arc<MemoryDevice>]) -> Vec<Arc<MemoryDevice>> {
    devices.iter().map(|device| Arc::new(device.fork())).collect()
}

fn generation(fs: &Filesystem) -> u64 {
    fs.sync().expect("a commit");
    fs.view().committed_generation().0
}

/// Writes every other block of a file, and commits. Returns the transaction and the content.
fn write_blocks(fs: &Filesystem, file: &Inode, seed: u64) -> (u64, Vec<u8>) {
    let mut content = vec![0; BLOCKS as usize * 8192 - 4096];
    for block in 0..BLOCKS {
        let bytes = noise(seed * 10_000 + block, 4096);
        file.write_at(block * 8192, &bytes).expect("a write");
        content[block as usize * 8192..][..4096].copy_from_slice(&bytes);
    }
    (generation(fs), content)
}

/// Each byte of a file is right, or said to be lost.
fn assert_right(folder: &Path, path: &str, entry: &Entry, right: &[u8]) {
    if entry.condition == Condition::Lost {
        return;
    }
    let found = std::fs::read(folder.join(path)).expect("a file");
    if entry.condition == Condition::Whole {
        assert!(found == right, "{path} is not whole");
    }
    let is_lost = |at: u64| {
        entry
            .lost
            .iter()
            .any(|part| (part.offset..part.offset.saturating_add(part.len)).contains(&at))
    };
    for (at, (bytes, right)) in found.chunks(4096).zip(right.chunks(4096)).enumerate() {
        assert!(bytes == right || is_lost(at as u64 * 4096), "{path}: wrong bytes in block {at}");
    }
}

/// Of a file with several leaves, all versions have as many bytes. If one leaf of a version is
/// lost, no leaf of an earlier version takes its place.
#[test]
fn versions_are_not_mixed() {
    let devices = made();
    let fs = opened(&devices, OPTIONS);
    let root = fs.root();
    let file = root.create(b"file", NewInode::file(0o640)).expect("a file");
    let ino = file.id().ino.0;
    let versions: BTreeMap<u64, Vec<u8>> =
        (1..=4).map(|seed| write_blocks(&fs, &file, seed)).collect();
    let living = forked(&devices);
    root.unlink(b"file").expect("removed");
    drop((file, root));
    generation(&fs);
    fs.close().expect("an unmount");
    let last = versions.last_key_value().expect("a version").1;
    let folder = tempfile::tempdir().expect("a folder");
    let entries = undeleted(&devices, &UndeleteOptions::default(), Some(folder.path()));
    assert_eq!(entries["file"].condition, Condition::Whole, "{:?}", entries["file"].lost);
    assert_right(folder.path(), "file", &entries["file"], last);
    let mut partly = [0, 0];
    let of_file = |leaf: &Leaf| {
        leaf.header.owner == TreeId::FS
            && leaf.has(ino, Kind::EXTENT_DATA)
            && versions.contains_key(&leaf.header.generation.0)
    };
    for leaf in leaves(&living[0]).into_iter().filter(of_file) {
        // The present leaves are not lost.
        if leaf.header.generation.0 < *versions.last_key_value().expect("a version").0 {
            let damaged = forked(&living);
            leaf.overwrite(&damaged[0]);
            let folder = tempfile::tempdir().expect("a folder");
            let mut options = UndeleteOptions::default();
            options.versions = true;
            let entries = undeleted(&damaged, &options, Some(folder.path()));
            for (path, entry) in &entries {
                let number = path.trim_end_matches('~').rsplit('~').next().expect("a number");
                let right = &versions[&number.parse().expect("a number")];
                assert_right(folder.path(), path, entry, right);
                partly[0] += u32::from(entry.condition == Condition::Partly);
            }
            assert!(entries.values().any(|entry| entry.condition == Condition::Whole));
        }
        let damaged = forked(&devices);
        leaf.overwrite(&damaged[0]);
        let folder = tempfile::tempdir().expect("a folder");
        let entries = undeleted(&damaged, &UndeleteOptions::default(), Some(folder.path()));
        for (path, entry) in &entries {
            if entry.condition == Condition::Whole {
                let found = std::fs::read(folder.path().join(path)).expect("a file");
                assert!(versions.values().any(|right| found == *right), "{path} is mixed");
            } else if !leaf.has(ino, Kind::INODE_ITEM) {
                assert_right(folder.path(), path, entry, last);
                partly[1] += 1;
            }
        }
    }
    assert!(partly.iter().all(|count| *count > 0), "{partly:?}");
}

/// If the last commits before a log are lost, an earlier one does not fill what the log lacks: its
/// content may be outdated, or overwritten by another file.
#[test]
fn a_log_is_not_joined_with_an_earlier_commit() {
    for is_filled in [true, false] {
        log_above_a_lost_commit(is_filled);
    }
}

fn log_above_a_lost_commit(is_filled: bool) {
    let devices = made();
    let fs = opened(&devices, OPTIONS);
    let root = fs.root();
    let file = root.create(b"file", NewInode::file(0o640)).expect("a file");
    let ino = file.id().ino.0;
    let mut first = noise(1, 1 << 20);
    file.write_at(0, &first).expect("a write");
    generation(&fs);
    first.extend(noise(2, 1 << 20));
    file.write_at(1 << 20, &first[1 << 20..]).expect("a write");
    let early = generation(&fs);
    let mut right = [&first[..1 << 20], &noise(3, 1 << 20)].concat();
    file.write_at(1 << 20, &right[1 << 20..]).expect("a write");
    let spare = root.create(b"spare", NewInode::file(0o640)).expect("a file");
    spare.write_at(0, &noise(6, 1 << 20)).expect("a write");
    generation(&fs);
    let other = noise(4, 1 << 20);
    let filler = root.create(b"filler", NewInode::file(0o640)).expect("a file");
    for number in 0..if is_filled { 400_u64 } else { 0 } {
        if filler.write_at(number << 20, &other).and_then(|_| filler.flush_data()).is_err() {
            break;
        }
    }
    // This makes room for the log.
    drop(spare);
    root.unlink(b"spare").expect("removed");
    generation(&fs);
    right.extend(noise(5, 8192));
    let file = root.lookup(b"file").expect("the file");
    file.write_at(2 << 20, &right[2 << 20..]).expect("a write");
    file.sync().expect("a log");
    root.unlink(b"file").expect("removed");
    drop((file, filler, root));
    generation(&fs);
    fs.close().expect("an unmount");
    let of_file = |leaf: &Leaf| leaf.header.owner == TreeId::FS && leaf.has(ino, Kind::INODE_ITEM);
    let mut is_there = false;
    for leaf in leaves(&devices[0]).iter().filter(|leaf| of_file(leaf)) {
        is_there |= leaf.header.generation.0 == early;
        if leaf.header.generation.0 > early {
            leaf.overwrite(&devices[0]);
        }
    }
    assert!(is_there, "the earlier leaf was overwritten");
    let folder = tempfile::tempdir().expect("a folder");
    let entries = undeleted(&devices, &UndeleteOptions::default(), Some(folder.path()));
    let entry = &entries["file"];
    assert_ne!(entry.condition, Condition::Whole, "{:?}", entry.notes);
    if entry.condition == Condition::Partly {
        let found = std::fs::read(folder.path().join("file")).expect("a file");
        assert!(found.chunks(4096).all(|block| !other.chunks(4096).any(|one| one == block)));
    }
}

/// A log of a deleted subvolume, of which nothing tells the subvolume, is not one of the only
/// subvolume that exists.
#[test]
fn a_log_of_a_deleted_subvolume_gives_no_version() {
    let devices = made();
    let fs = opened(&devices, OPTIONS);
    let root = fs.root();
    let sub = root.create_subvolume(b"sub", 0o755, 0, 0).expect("a subvolume");
    generation(&fs);
    let kept = root.create(b"kept", NewInode::file(0o640)).expect("a file");
    let secret = sub.create(b"secret", NewInode::file(0o640)).expect("a file");
    assert_eq!(kept.id().ino, secret.id().ino);
    let content = noise(1, 50_000);
    kept.write_at(0, &noise(2, 9000)).expect("a write");
    generation(&fs);
    secret.write_at(0, &content).expect("a write");
    secret.sync().expect("a log");
    generation(&fs);
    kept.write_at(0, &noise(3, 9000)).expect("a write");
    generation(&fs);
    drop((secret, sub));
    root.delete_subvolume(b"sub").expect("deleted");
    for _ in 0..200 {
        if fs.dying_subvolumes().expect("a list").is_empty() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    drop((kept, root));
    generation(&fs);
    fs.close().expect("an unmount");
    let mut count = 0;
    for leaf in leaves(&devices[0]) {
        let is_root = leaf.keys.iter().any(|key| key.kind == Kind::ROOT_ITEM);
        if leaf.header.owner == TreeId::TREE_LOG && is_root {
            leaf.overwrite(&devices[0]);
            count += 1;
        }
    }
    assert!(count > 0, "a root of logs");
    let folder = tempfile::tempdir().expect("a folder");
    let mut options = UndeleteOptions::default();
    options.versions = true;
    options.paths = vec![Glob::new(b"/kept")];
    let entries = undeleted(&devices, &options, Some(folder.path()));
    for (path, entry) in entries.iter().filter(|(path, _)| path.starts_with("kept")) {
        if entry.condition != Condition::Lost {
            let found = std::fs::read(folder.path().join(path)).expect("a file");
            assert!(found != content, "{path} is another file");
        }
    }
}
