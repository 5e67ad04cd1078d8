//! A repair uses every record there is. If the records do not decide, it changes nothing.

use std::sync::Arc;

use buttress_block::{Device, MemoryDevice};
use buttress_check::{NoProgress, Options, Repairs, check_devices, repair};
use buttress_format::limits::{SUPER_OFFSETS, SUPER_SIZE};
use buttress_format::{
    BackRef, BlockGroupFlags, ExtentItem, FileExtent, Ino, InodeFlags, Key, Kind, Logical, TreeId,
};
use buttress_fs::{Filesystem, MakeOptions, MountOptions, NewInode, SetAttr};
use buttress_volume::journal::{Journal, undo};

use crate::mend::{FS, devices, ino, is_entry, is_item, mends};
use crate::patch::{Patch, add64, get64, put64};
use crate::victim::{Overlay, old_victim, victim};

fn mend(patch: &Patch) -> Repairs {
    repair(&devices(patch), &patch.report()).expect("a repair")
}

/// Mounts a volume and changes it, before it is damaged.
fn changed(device: &Arc<Overlay>, change: impl FnOnce(&Filesystem)) {
    let options = MountOptions::parse("rw").expect("options");
    let fs = Filesystem::open(vec![Arc::clone(device) as Arc<dyn Device>], options);
    let fs = fs.expect("a mount");
    change(&fs);
    fs.close().expect("an unmount");
}

/// Panics unless a repair names the faults that it leaves, and writes nothing.
fn leaves_alone(patch: &Patch) {
    let before = patch.device.blocks();
    let repairs = mend(patch);
    assert!(repairs.done.is_empty() && !repairs.left.is_empty(), "{repairs:?}");
    patch.device.expect_blocks(&before);
}

/// Puts the reference to the data of a file into an item of its own. Linux does so where the item
/// of an extent has no room.
fn key_reference(patch: &Patch, change: impl FnOnce(BackRef) -> BackRef) {
    let file = ino(patch, "big");
    let (_, bytes) = patch.find(FS, is_item(file, Kind::EXTENT_DATA)).expect("data");
    let extent = FileExtent::parse(&bytes).expect("an extent").region().expect("a region").extent();
    let key = Key::new(extent.start.0, Kind::EXTENT_ITEM, extent.len);
    let mut reference = None;
    patch.edit(
        TreeId::EXTENT,
        |other, _| *other == key,
        |bytes| {
            let mut item = ExtentItem::parse(&key, bytes).expect("an item");
            reference = item.inline.pop();
            *bytes = item.to_bytes();
        },
    );
    let (key, bytes) = change(reference.expect("a reference")).keyed(extent.start);
    patch.insert(TreeId::EXTENT, key, bytes);
}

#[test]
fn data_is_given_back_by_a_keyed_record() {
    let patch = Patch::new(old_victim());
    key_reference(&patch, |same| {
        assert!(matches!(same, BackRef::Data { .. }));
        same
    });
    patch.finds(&[]);
    mends("a keyed record", &patch, true, |patch| {
        patch.remove(FS, is_item(ino(patch, "big"), Kind::EXTENT_DATA));
    });
}

/// A record that names a leaf may be for any file in that leaf. So the repair can neither give the
/// data back to a file nor record a hole, and the data stays recorded.
#[test]
fn a_shared_record_decides_nothing() {
    let patch = Patch::new(old_victim());
    let file = ino(&patch, "big");
    key_reference(&patch, |_| BackRef::SharedData { parent: Logical(1 << 30), count: 1 });
    patch.remove(FS, is_item(file, Kind::EXTENT_DATA));
    patch.finds_among_others(&["file-hole"]);
    let repairs = mend(&patch);
    assert!(repairs.done.is_empty() && !repairs.left.is_empty(), "{repairs:?}");
    patch.finds_among_others(&["file-hole"]);
}

/// Two copies of a root node have right checksums and different generations: one write was lost.
#[test]
fn a_root_item_follows_only_copies_that_agree() {
    let patch = Patch::new(victim());
    let root = patch.root(FS);
    let is_root = |key: &Key, _: &[u8]| *key == Key::new(FS.0, Kind::ROOT_ITEM, 0);
    patch.edit(TreeId::ROOT, is_root, |bytes| {
        put64(bytes, 160, 1 << 40);
        put64(bytes, 239, 1 << 40);
    });
    let chunk = patch.volume.chunk_at(root.logical).expect("a chunk");
    assert!(chunk.flags.has(BlockGroupFlags::DUP));
    let first = chunk.stripes[0].offset + root.logical.distance(chunk.logical);
    let mut bytes = vec![0; patch.superblock.nodesize as usize];
    patch.device.read_at(first, &mut bytes).expect("a node");
    add64(&mut bytes, 80, u64::MAX);
    let digest = patch.superblock.csum_type.digest(&bytes[32..]);
    bytes[..32].copy_from_slice(&digest);
    patch.device.write_at(first, &bytes).expect("a write");
    leaves_alone(&patch);
}

/// A replay of the log adds to the links and bytes that it finds.
#[test]
fn no_count_is_mended_beside_a_log() {
    let device = victim();
    let options = MountOptions::parse("rw").expect("options");
    let fs = Filesystem::open(vec![Arc::clone(&device) as Arc<dyn Device>], options);
    let fs = fs.expect("a mount");
    let file = fs.root().lookup(b"big").expect("a file");
    file.write_at(0, b"new").expect("a write");
    file.sync().expect("it is durable");
    let patch = Patch::new(device.cut());
    fs.close().expect("an unmount");
    patch.finds(&[]);
    assert!(patch.report().has("log-present"));
    patch.edit(FS, is_item(ino(&patch, "small"), Kind::INODE_ITEM), |bytes| {
        add64(bytes, 40, 1);
    });
    patch.edit(FS, is_item(Ino::ROOT_DIR.0, Kind::INODE_ITEM), |bytes| add64(bytes, 16, 2));
    patch.finds(&["inode-links", "dir-size"]);
    leaves_alone(&patch);
}

/// After a repair of names, the report still names damaged data.
#[test]
fn damaged_data_stays_named() {
    let patch = Patch::new(victim());
    let (_, bytes) = patch.find(FS, is_item(ino(&patch, "big"), Kind::EXTENT_DATA)).expect("data");
    let at = FileExtent::parse(&bytes).expect("an extent").region().expect("a region").disk;
    patch.volume.write(at, &[7; 4096]).expect("a write");
    patch.remove(FS, is_entry("big", Kind::DIR_INDEX));
    let report = patch.report_with(&Options::thorough());
    let repairs = repair(&devices(&patch), &report).expect("a repair");
    assert!(!repairs.done.is_empty(), "{repairs:?}");
    assert!(repairs.left.iter().any(|line| line.contains("data-damaged")), "{repairs:?}");
    crate::patch::finds(&patch.report_with(&Options::thorough()), &["data-damaged"]);
}

/// A device that missed writes has copies of nodes that are older and have right checksums.
#[test]
fn repair_is_refused_where_a_device_missed_writes() {
    let parts: Vec<Arc<Overlay>> =
        (0..2).map(|_| Arc::new(Overlay::new(Arc::new(MemoryDevice::new(256 << 20))))).collect();
    let given: Vec<&dyn Device> = parts.iter().map(|part| &**part as &dyn Device).collect();
    buttress_fs::make::make_on(&given, &MakeOptions::default()).expect("an empty volume");
    let all: Vec<Arc<dyn Device>> =
        parts.iter().map(|part| Arc::clone(part) as Arc<dyn Device>).collect();
    let open = || {
        let options = MountOptions::parse("rw").expect("options");
        Filesystem::open(all.clone(), options).expect("a mount")
    };
    for name in [&b"one"[..], b"two", b"three"] {
        let fs = open();
        fs.root().mkdir(name, 0o755, 0, 0).expect("a directory");
        fs.close().expect("an unmount");
    }
    damage_size(&all);
    for offset in &SUPER_OFFSETS[..2] {
        edit_super(&parts[1], *offset, |bytes| {
            let generation = get64(bytes, 72);
            put64(bytes, 72, generation - 3);
        });
    }
    let before: Vec<_> = parts.iter().map(|part| part.blocks()).collect();
    let report = check_devices(all.clone(), &Options::default(), &NoProgress).expect("a check");
    assert!(report.has("dir-size"), "{}", report.to_text());
    let repairs = repair(&all, &report).expect("a repair");
    assert!(!repairs.left.is_empty(), "{repairs:?}");
    assert!(!repairs.done.iter().any(|line| line.contains("directory")), "{repairs:?}");
    let nodes_only = |at: &u64| !SUPER_OFFSETS.contains(&(at * 4096));
    for (part, before) in parts.iter().zip(before) {
        let after = part.blocks();
        assert!(before.keys().filter(|at| nodes_only(at)).all(|at| before[at] == after[at]));
    }
}

/// Gives the top directory a wrong size on every device.
fn damage_size(all: &[Arc<dyn Device>]) {
    use buttress_tree::{Geometry, Store, boot};
    let options = buttress_volume::OpenOptions { writable: true, ..Default::default() };
    let (volume, superblock) = buttress_volume::Volume::open(all.to_vec(), options).expect("it");
    let (volume, geometry) = (Arc::new(volume), Geometry::of(&superblock));
    let store = Store::new(Arc::clone(&volume), geometry, 0);
    boot::load_chunks(&store, &superblock).expect("chunks");
    let top = boot::root_tree_root(&superblock);
    let key = Key::new(FS.0, Kind::ROOT_ITEM, 0);
    let found = buttress_tree::Cursor::find(&store, TreeId::ROOT, top, &key).expect("a root tree");
    let (node, slot) = found.expect("a root item");
    let item = buttress_format::RootItem::parse(node.item(slot)).expect("it parses");
    let (logical, generation, level) = (item.bytenr, item.generation, item.level);
    let root = buttress_tree::NodePtr { logical, generation, level };
    let leaf = store.root(FS, root).expect("a root");
    let at = leaf.bytes().len() - leaf.item(0).len();
    let mut bytes = leaf.bytes().to_vec();
    add64(&mut bytes, at + 16, 2);
    let digest = superblock.csum_type.digest(&bytes[32..]);
    bytes[..32].copy_from_slice(&digest);
    volume.write(logical, &bytes).expect("a write");
}

fn edit_super(device: &Overlay, offset: u64, change: impl Fn(&mut [u8])) {
    let mut bytes = vec![0; SUPER_SIZE];
    device.read_at(offset, &mut bytes).expect("a read");
    change(&mut bytes);
    let digest = buttress_format::CsumType::Crc32c.digest(&bytes[32..]);
    bytes[..32].copy_from_slice(&digest);
    device.write_at(offset, &bytes).expect("a write");
}

/// A torn superblock does not show whether the volume was written after the repair. The other
/// copies of the superblock show it.
#[test]
fn undo_asks_other_copies_of_a_torn_superblock() {
    let folder = tempfile::tempdir().expect("a folder");
    for is_written in [false, true] {
        let path = folder.path().join(format!("journal {is_written}"));
        let patch = Patch::new(victim());
        patch.remove(FS, is_entry("big", Kind::DIR_INDEX));
        let (_, journaled) = Journal::create(&path, &devices(&patch)).expect("a journal");
        let repairs = repair(&journaled, &patch.report()).expect("a repair");
        assert!(!repairs.done.is_empty() && repairs.left.is_empty(), "{repairs:?}");
        if is_written {
            let options = MountOptions::parse("rw").expect("options");
            let fs = Filesystem::open(devices(&patch), options).expect("a mount");
            fs.root().mkdir(b"new", 0o755, 0, 0).expect("a directory");
            fs.close().expect("an unmount");
        }
        patch.device.write_at(SUPER_OFFSETS[0] + 100, b"torn").expect("a write");
        assert_eq!(undo(&devices(&patch), &path).is_err(), is_written);
    }
}

/// An error of a journal names its file.
#[test]
fn errors_of_a_journal_name_its_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let patch = Patch::new(victim());
    let (absent, present) = (folder.path().join("absent"), folder.path().join("present"));
    std::fs::write(&present, "mine").expect("a file");
    let missing = undo(&devices(&patch), &absent).expect_err("no journal");
    assert!(missing.to_string().contains("absent"), "{missing}");
    let taken = Journal::create(&present, &devices(&patch)).expect_err("a file of another kind");
    assert!(taken.to_string().contains("present"), "{taken}");
    assert_eq!(std::fs::read(&present).expect("the file"), b"mine");
}

/// A volume with full quotas that were counted.
fn with_quotas() -> Patch {
    let device = victim();
    changed(&device, |fs| {
        fs.enable_quotas(false).expect("quotas");
        fs.count_quotas().expect("a count");
    });
    let patch = Patch::new(device);
    patch.finds(&[]);
    assert!(!patch.report().has("quota-inconsistent"), "{}", patch.report().to_text());
    patch
}

/// After a repair of a name, and after a repair of wrong counts, the counts of quota groups are
/// right and not marked as inconsistent. If an extent may be lost, the counts stay, because they
/// show the loss.
#[test]
fn counts_of_quotas_are_right_after_fixes() {
    let expect_counted = |patch: &Patch| {
        let repairs = mend(patch);
        assert!(!repairs.done.is_empty(), "{repairs:?}");
        assert!(!patch.report().has("quota-inconsistent"), "{}", patch.report().to_text());
    };
    let patch = with_quotas();
    mends("a name", &patch, true, |patch| {
        patch.remove(FS, is_entry("big", Kind::DIR_INDEX));
    });
    expect_counted(&patch);
    let patch = with_quotas();
    patch.remove(FS, is_item(ino(&patch, "big"), Kind::EXTENT_DATA));
    let repairs = mend(&patch);
    assert!(repairs.done.is_empty() && patch.report().has("quota-reach"), "{repairs:?}");
    let patch = with_quotas();
    let is_count = |key: &Key, _: &[u8]| key.kind == Kind::QGROUP_INFO;
    mends("counts", &patch, true, |patch| {
        patch.edit(TreeId::QUOTA, is_count, |bytes| {
            add64(bytes, 8, 4096);
            add64(bytes, 24, 1 << 20);
        });
    });
    expect_counted(&patch);
}

/// A read-only snapshot stays as it was made: no name for a lost inode goes into it.
#[test]
fn no_name_goes_into_a_read_only_snapshot() {
    for read_only in [false, true] {
        let device = victim();
        let options = MountOptions::parse("rw").expect("options");
        let fs = Filesystem::open(vec![Arc::clone(&device) as Arc<dyn Device>], options);
        let fs = fs.expect("a mount");
        let sub = fs.root().create_subvolume(b"sub", 0o755, 0, 0).expect("a subvolume");
        sub.create(b"alone", NewInode::file(0o644)).expect("a file");
        let frozen = fs.root().snapshot(b"frozen", sub.id().tree, read_only).expect("a snapshot");
        let tree = frozen.id().tree;
        fs.close().expect("an unmount");
        let patch = Patch::new(device);
        patch.remove(tree, |key, _| key.kind == Kind::INODE_REF && key.objectid == 257);
        patch.remove(tree, |key, _| key.kind == Kind::DIR_INDEX);
        patch.remove(tree, |key, _| key.kind == Kind::DIR_ITEM);
        patch.finds_among_others(&["inode-links"]);
        let repairs = mend(&patch);
        let is_named = repairs.done.iter().any(|line| line.contains("lost+found"));
        assert_eq!(is_named, !read_only, "{repairs:?}");
        assert_eq!(repairs.left.is_empty(), !read_only, "{repairs:?}");
    }
}

/// A volume without items for holes: only the count of bytes tells that a file lost data. The count
/// stays, and the data stays recorded.
#[test]
fn lost_data_stays_recorded_without_items_for_holes() {
    for flags in [0, InodeFlags::NODATACOW | InodeFlags::NODATASUM] {
        let device = victim();
        changed(&device, |fs| {
            let file = fs.root().create(b"lost", NewInode::file(0o644)).expect("a file");
            if flags != 0 {
                let flags = Some(flags);
                file.set_attr(&SetAttr { flags, ..SetAttr::default() }).expect("flags");
            }
            file.write_at(0, &[7; 40_000]).expect("a write");
        });
        let patch = Patch::new(device);
        let file = ino(&patch, "lost");
        patch.finds(&[]);
        patch.remove(FS, is_item(file, Kind::EXTENT_DATA));
        patch.finds_among_others(&["inode-bytes", "extent-unused"]);
        let before = patch.find(FS, is_item(file, Kind::INODE_ITEM)).expect("an inode");
        let repairs = mend(&patch);
        assert!(!repairs.left.is_empty(), "{repairs:?}");
        assert_eq!(patch.find(FS, is_item(file, Kind::INODE_ITEM)), Some(before));
        patch.finds_among_others(&["inode-bytes", "extent-unused"]);
    }
}

/// An extent has old bytes where its file was overwritten later. The file does not get these bytes
/// back.
#[test]
fn old_data_of_an_overwritten_file_stays_away() {
    let device = old_victim();
    changed(&device, |fs| {
        let file = fs.root().create(b"lost", NewInode::file(0o644)).expect("a file");
        file.write_at(0, &[1; 12 << 10]).expect("a write");
        fs.sync().expect("a commit");
        file.write_at(4096, &[2; 4096]).expect("a write");
    });
    let patch = Patch::new(device);
    let file = ino(&patch, "lost");
    patch.finds(&[]);
    for _ in 0..3 {
        patch.remove(FS, is_item(file, Kind::EXTENT_DATA));
    }
    assert!(patch.find(FS, is_item(file, Kind::EXTENT_DATA)).is_none(), "three items");
    let repairs = mend(&patch);
    assert!(!repairs.left.is_empty(), "{repairs:?}");
    assert!(patch.find(FS, is_item(file, Kind::EXTENT_DATA)).is_none(), "{repairs:?}");
    patch.finds_among_others(&["file-hole", "extent-unused"]);
}

/// A recorded node that no tree uses is reported like an unused extent, but it cannot hold data of
/// a file. So a file gets its lost data back although such a node is recorded.
#[test]
fn a_leaked_node_is_in_the_way_of_no_data() {
    let patch = Patch::new(old_victim());
    let root = patch.root(FS);
    let chunk = patch.volume.chunk_at(root.logical).expect("a chunk");
    let at = chunk.logical.0 + chunk.len - u64::from(patch.superblock.nodesize);
    mends("a leaked node", &patch, true, |patch| {
        let key = |key: &Key, _: &[u8]| {
            *key == Key::new(root.logical.0, Kind::METADATA_ITEM, u64::from(root.level))
        };
        let (_, bytes) = patch.find(TreeId::EXTENT, key).expect("an item");
        patch.insert(TreeId::EXTENT, Key::new(at, Kind::METADATA_ITEM, 0), bytes);
        patch.remove(FS, is_item(ino(patch, "big"), Kind::EXTENT_DATA));
    });
}
