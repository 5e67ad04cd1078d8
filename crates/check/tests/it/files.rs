//! Tests of damage to inodes, names and extents of files.

use std::sync::Arc;

use buttress_block::{Device, MemoryDevice};
use buttress_check::repair;
use buttress_format::{
    Body, Compression, DirEntry, FileExtent, FileKind, Generation, InodeFlags, InodeItem,
    InodeRefs, Key, Kind, Region, TreeId, name_hash,
};
use buttress_fs::{FallocateMode, Filesystem, MakeOptions, MountOptions, NewInode};

use crate::patch::{Patch, put64};
use crate::victim::{old_victim, victim};

const FS: TreeId = TreeId::FS;

/// The inode that a name of the top directory leads to.
fn inode(patch: &Patch, name: &str) -> u64 {
    let key = Key::new(256, Kind::DIR_ITEM, name_hash(name.as_bytes()));
    let (_, bytes) = patch.find(FS, |other, _| *other == key).expect("a name");
    DirEntry::parse_all(&bytes).expect("an entry")[0].location.objectid
}

fn of(ino: u64, kind: Kind) -> impl Fn(&Key, &[u8]) -> bool {
    move |key, _| key.objectid == ino && key.kind == kind
}

fn edit_inode(patch: &Patch, ino: u64, change: impl FnOnce(&mut InodeItem)) {
    patch.edit(FS, of(ino, Kind::INODE_ITEM), |bytes| {
        let mut item = InodeItem::parse(bytes).expect("an inode");
        change(&mut item);
        *bytes = item.to_bytes();
    });
}

fn entry_of(name: &'static str, kind: Kind) -> impl Fn(&Key, &[u8]) -> bool {
    move |key, bytes| {
        let entries = || DirEntry::parse_all(bytes).expect("entries");
        key.objectid == 256 && key.kind == kind && entries()[0].name == name.as_bytes()
    }
}

#[test]
fn item_generation() {
    let patch = Patch::new(victim());
    edit_inode(&patch, inode(&patch, "big"), |item| item.transid = Generation(1 << 40));
    patch.finds(&["item-generation"]);
}

/// A log is one transaction ahead of its superblock, but the other trees are not. So an item of
/// another tree that is as new as the log is an error, even while the log exists. A repair that
/// removes a damaged log also mends the item.
#[test]
fn item_generation_beside_a_log() {
    let patch = Patch::new(victim());
    let mut generation = [0; 8];
    patch.device.read_at((64 << 10) + 72, &mut generation).expect("a superblock");
    let next = Generation(u64::from_le_bytes(generation) + 1);
    edit_inode(&patch, inode(&patch, "big"), |item| item.transid = next);
    patch.edit_supers(&[0, 1], |bytes| put64(bytes, 96, 1 << 40));
    patch.finds_among_others(&["item-generation", "log-damaged"]);
    let devices: Vec<Arc<dyn Device>> = vec![Arc::clone(&patch.device) as Arc<dyn Device>];
    let repairs = repair(&devices, &patch.report()).expect("a repair");
    assert!(repairs.left.is_empty(), "{repairs:?}");
    patch.finds(&[]);
}

#[test]
fn inode_missing() {
    let patch = Patch::new(victim());
    patch.remove(FS, of(inode(&patch, "big"), Kind::INODE_ITEM));
    patch.finds(&["inode-missing"]);
}

/// The name of the root directory for itself (`..`) must not have an index.
#[test]
fn root_directory_with_a_place() {
    let patch = Patch::new(victim());
    let top = of(256, Kind::INODE_REF);
    patch.edit(FS, top, |bytes| bytes[0] = 1);
    patch.finds(&["dir-entry-missing"]);
}

#[test]
fn inode_mode() {
    let patch = Patch::new(victim());
    edit_inode(&patch, inode(&patch, "big"), |item| item.mode = 0o644);
    patch.finds_among_others(&["inode-mode", "dir-entry-kind"]);

    let patch = Patch::new(victim());
    edit_inode(&patch, inode(&patch, "big"), |item| item.mode |= 1 << 18);
    patch.finds(&["inode-mode"]);
}

#[test]
fn inode_links() {
    let patch = Patch::new(victim());
    edit_inode(&patch, inode(&patch, "small"), |item| item.nlink += 1);
    patch.finds(&["inode-links"]);
}

#[test]
fn dir_size() {
    let patch = Patch::new(victim());
    edit_inode(&patch, 256, |item| item.size += 2);
    patch.finds(&["dir-size"]);
}

#[test]
fn inode_bytes() {
    let patch = Patch::new(victim());
    edit_inode(&patch, inode(&patch, "big"), |item| item.nbytes += 4096);
    patch.finds(&["inode-bytes"]);
}

#[test]
fn orphan_missing() {
    let patch = Patch::new(victim());
    let ino = inode(&patch, "big");
    patch.remove(FS, of(ino, Kind::INODE_REF));
    edit_inode(&patch, ino, |item| item.nlink = 0);
    patch.finds(&["orphan-missing", "inode-ref-missing"]);
    // With an orphan item, the inode is a file that was open when the power failed.
    patch.insert(FS, Key::new(buttress_format::ids::ORPHAN, Kind::ORPHAN_ITEM, ino), Vec::new());
    patch.finds(&["inode-ref-missing"]);
}

/// A crash during the removal of a file or directory without a name leaves some of its items.
#[test]
fn orphan_half_removed() {
    let orphan = buttress_format::ids::ORPHAN;
    let patch = Patch::new(victim());
    let ino = inode(&patch, "sparse");
    for (dir, kind) in [(ino, Kind::INODE_REF), (256, Kind::DIR_ITEM), (256, Kind::DIR_INDEX)] {
        let is_it = entry_of("sparse", kind);
        patch.remove(FS, |key: &Key, bytes: &[u8]| match kind {
            Kind::INODE_REF => key.objectid == dir && key.kind == kind,
            _ => is_it(key, bytes),
        });
    }
    edit_inode(&patch, 256, |item| item.size -= 2 * "sparse".len() as u64);
    edit_inode(&patch, ino, |item| (item.nlink, item.nbytes) = (0, 4096));
    patch.insert(FS, Key::new(orphan, Kind::ORPHAN_ITEM, ino), Vec::new());
    patch.finds(&[]);

    // The directory still lists one name. A lookup does not find the name, and the file is gone.
    let patch = Patch::new(victim());
    let ino = inode(&patch, "link");
    for kind in [Kind::INODE_ITEM, Kind::INODE_REF, Kind::EXTENT_DATA] {
        patch.remove(FS, of(ino, kind));
    }
    for kind in [Kind::DIR_ITEM, Kind::DIR_INDEX] {
        patch.remove(FS, entry_of("link", kind));
    }
    edit_inode(&patch, 256, |item| item.size -= 2 * "link".len() as u64);
    let dir = u64::from(u32::MAX);
    let bytes = InodeItem { nlink: 0, mode: 0o40_755, size: 0, ..top(&patch) }.to_bytes();
    patch.insert(FS, Key::new(dir, Kind::INODE_ITEM, 0), bytes);
    let (_, entry) = patch.find(FS, |key, _| key.kind == Kind::DIR_INDEX).expect("an entry");
    let mut entry = DirEntry::parse_all(&entry).expect("an entry").remove(0);
    entry.location.objectid = ino;
    patch.insert(FS, Key::new(dir, Kind::DIR_INDEX, 2), entry.to_bytes());
    patch.finds(&["orphan-missing"]);
    patch.insert(FS, Key::new(orphan, Kind::ORPHAN_ITEM, dir), Vec::new());
    patch.finds(&[]);
}

fn top(patch: &Patch) -> InodeItem {
    let (_, bytes) = patch.find(FS, of(256, Kind::INODE_ITEM)).expect("the top directory");
    InodeItem::parse(&bytes).expect("an inode")
}

#[test]
fn inode_odd() {
    let patch = Patch::new(victim());
    edit_inode(&patch, inode(&patch, "link"), |item| item.flags |= InodeFlags::IMMUTABLE);
    patch.finds(&["inode-odd"]);
}

#[test]
fn dir_entry_missing() {
    let patch = Patch::new(victim());
    patch.remove(FS, entry_of("big", Kind::DIR_ITEM));
    patch.remove(FS, entry_of("big", Kind::DIR_INDEX));
    edit_inode(&patch, 256, |item| item.size -= 6);
    patch.finds(&["dir-entry-missing"]);
    assert!(patch.report().to_text().contains("\"big\""), "{}", patch.report().to_text());
}

/// One name is in an ordinary reference, and one in an extended reference.
#[test]
fn inode_ref_missing() {
    let patch = Patch::new(victim());
    let ino = inode(&patch, "small");
    patch.edit(
        FS,
        |key, _| *key == Key::new(ino, Kind::INODE_REF, 256),
        |bytes| {
            let mut names = InodeRefs::parse(bytes).expect("names");
            names.retain(|name| name.name != b"second");
            *bytes = InodeRefs::encode(&names);
        },
    );
    edit_inode(&patch, ino, |item| item.nlink -= 1);
    patch.finds(&["inode-ref-missing"]);
    assert!(patch.report().to_text().contains("\"second\""));

    let patch = Patch::new(victim());
    // The chosen item is not the first of its leaf, because the parent node has the key of the
    // first item.
    let first: Vec<Key> = patch.leaves(FS).iter().map(|leaf| leaf.key(0)).collect();
    let extended = of(ino, Kind::INODE_EXTREF);
    patch.remove(FS, |key, bytes| extended(key, bytes) && !first.contains(key));
    edit_inode(&patch, ino, |item| item.nlink -= 1);
    patch.finds(&["inode-ref-missing"]);
}

#[test]
fn dir_entry_kind() {
    let patch = Patch::new(victim());
    for kind in [Kind::DIR_ITEM, Kind::DIR_INDEX] {
        patch.edit(FS, entry_of("big", kind), |bytes| bytes[29] = FileKind::Fifo as u8);
    }
    patch.finds(&["dir-entry-kind"]);
}

#[test]
fn dir_item_missing() {
    let patch = Patch::new(victim());
    patch.remove(FS, entry_of("big", Kind::DIR_ITEM));
    patch.finds(&["dir-item-missing"]);
}

#[test]
fn dir_index_missing() {
    let patch = Patch::new(victim());
    patch.remove(FS, entry_of("big", Kind::DIR_INDEX));
    patch.finds(&["dir-index-missing", "dir-entry-missing", "dir-size"]);
}

#[test]
fn name_hash_wrong() {
    let patch = Patch::new(victim());
    patch.edit_key(FS, entry_of("big", Kind::DIR_ITEM), |key| key.offset += 1);
    patch.finds(&["name-hash"]);
}

fn hole(len: u64) -> Vec<u8> {
    let region = Region { disk: buttress_format::Logical(0), disk_len: 0, offset: 0, len };
    let extent = FileExtent {
        generation: Generation(1),
        ram_bytes: len,
        compression: Compression::None,
        body: Body::Regular(region),
    };
    extent.to_bytes()
}

#[test]
fn file_overlap() {
    let patch = Patch::new(victim());
    // The test adds an item to the last file, because the last leaf has room for the item.
    let leaves = patch.leaves(FS);
    let last = leaves.last().expect("a leaf");
    let mut keys = (0..last.len()).map(|slot| last.key(slot)).rev();
    let key = keys.find(|key| key.kind == Kind::EXTENT_DATA).expect("an extent");
    patch.insert(FS, Key { offset: 4096, ..key }, hole(4096));
    patch.finds(&["file-overlap"]);
}

#[test]
fn file_hole() {
    let patch = Patch::new(old_victim());
    let ino = inode(&patch, "sparse");
    patch.remove(FS, |key, _| *key == Key::new(ino, Kind::EXTENT_DATA, 0));
    patch.finds(&["file-hole"]);
}

#[test]
fn file_beyond_end() {
    let patch = Patch::new(victim());
    edit_inode(&patch, inode(&patch, "big"), |item| item.size = 1);
    let report = patch.report();
    assert!(report.has("file-beyond-end") && report.is_clean(), "{}", report.to_text());
}

#[test]
fn file_extent_invalid() {
    let patch = Patch::new(victim());
    let ino = inode(&patch, "small");
    patch.edit(FS, of(ino, Kind::EXTENT_DATA), |bytes| bytes.push(0));
    patch.finds(&["file-extent-invalid"]);
}

/// One file has written into an extent that another file has as preallocated. The checksums belong
/// to the writing file, and are no error.
#[test]
fn csum_of_a_shared_allocation() {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(256 << 20));
    Filesystem::make(&*device, &MakeOptions::default()).expect("an empty volume");
    let options = || MountOptions::parse("rw").expect("options");
    let fs = Filesystem::open(vec![Arc::clone(&device)], options()).expect("a mount");
    let file =
        |name: &str| fs.root().create(name.as_bytes(), NewInode::file(0o644)).expect("a file");
    let ahead = file("ahead");
    let mode = FallocateMode::Allocate { keep_size: false };
    ahead.fallocate(0, 1 << 20, mode).expect("an allocation");
    fs.sync().expect("a commit");
    for name in ["one", "two"] {
        ahead.clone_range(0, &file(name), 0, 0).expect("a clone");
    }
    fs.root().snapshot(b"copy", TreeId::FS, true).expect("a snapshot");
    ahead.write_at(64 << 10, &[7; 100_000]).expect("a write");
    ahead.write_at(512 << 10, &[8; 4096]).expect("a write");
    drop(ahead);
    fs.close().expect("an unmount");
    let report = buttress_check::check_devices(
        vec![device],
        &buttress_check::Options::thorough(),
        &buttress_check::NoProgress,
    );
    let report = report.expect("a check");
    assert!(report.issues.is_empty(), "{}", report.to_text());
}

#[test]
fn csum_unexpected() {
    let patch = Patch::new(victim());
    let ino = inode(&patch, "big");
    edit_inode(&patch, ino, |item| item.flags |= InodeFlags::NODATASUM);
    patch.finds(&["csum-unexpected"]);
}
