//! Tests of the contents of logs of fsync: a good log has no fault, and each kind of damage is
//! found. A log without a fault can be replayed, and leaves a volume without a fault.

use std::sync::Arc;

use buttress_base::Rng;
use buttress_block::Device;
use buttress_check::{NoProgress, Options, Report, check_devices};
use buttress_format::{
    DirEntry, FileExtent, FileKind, Generation, Ino, InodeExtrefs, InodeItem, InodeRef, InodeRefs,
    Key, Kind, TreeId, name_hash,
};
use buttress_fs::{Filesystem, MountOptions, NewInode, RenameFlags, XattrFlags};

use crate::patch::{LOGS, Patch, get64, put64};
use crate::victim::{Overlay, old_victim, victim};

const LOG: TreeId = TreeId::TREE_LOG;
const FS: TreeId = TreeId::FS;

fn mount(device: &Arc<Overlay>) -> Result<Filesystem, String> {
    let options = MountOptions::parse("rw,noatime,commit=3000").expect("options");
    let device = Arc::clone(device) as Arc<dyn Device>;
    Filesystem::open(vec![device], options).map_err(|error| error.to_string())
}

/// A volume with a log of many kinds of items.
fn logged(device: Arc<Overlay>) -> Patch {
    let fs = mount(&device).expect("a mount");
    let root = fs.root();
    let outer = root.mkdir(b"outer", 0o755, 0, 0).expect("a directory");
    let old = outer.create(b"old", NewInode::file(0o644)).expect("a file");
    old.write_at(0, &[1; 20_000]).expect("a write");
    outer.create(b"other", NewInode::file(0o644)).expect("a file");
    root.create_subvolume(b"sub", 0o755, 0, 0).expect("a subvolume");
    fs.sync().expect("a commit");

    let inner = outer.mkdir(b"inner", 0o755, 0, 0).expect("a directory");
    let new = inner.create(b"new", NewInode::file(0o644)).expect("a file");
    new.write_at(0, &[2; 300_000]).expect("a write");
    new.set_xattr(b"user.new", b"1", XattrFlags::default()).expect("an attribute");
    new.sync().expect("it is durable");
    old.write_at(4096, &[3; 8192]).expect("a write");
    outer.rename(b"old", &inner, b"moved", RenameFlags::default()).expect("a rename");
    old.sync().expect("it is durable");
    let tiny = inner.create(b"tiny", NewInode::file(0o644)).expect("a file");
    tiny.write_at(0, b"tiny").expect("a write");
    tiny.sync().expect("it is durable");
    let patch = Patch::new(device.cut());
    assert_ne!(patch.superblock.log_root.0, 0, "there is a log");
    fs.close().expect("an unmount");
    patch
}

fn is(kind: Kind) -> impl Fn(&Key, &[u8]) -> bool {
    move |key, _| key.kind == kind
}

fn thorough(device: &Arc<Overlay>) -> Report {
    let devices: Vec<Arc<dyn Device>> = vec![Arc::clone(device) as Arc<dyn Device>];
    check_devices(devices, &Options::thorough(), &NoProgress).expect("a check")
}

/// Mounts, which replays the log, and checks the volume.
fn replay(device: &Arc<Overlay>) -> Result<(), String> {
    let fs = mount(device)?;
    fs.close().map_err(|error| error.to_string())?;
    let report = thorough(device);
    if report.is_clean() { Ok(()) } else { Err(report.to_text()) }
}

/// The data of a log is verified, too.
#[test]
fn good_logs() {
    for device in [victim(), old_victim()] {
        let patch = logged(device);
        let report = thorough(&patch.device);
        assert!(report.is_clean() && report.has("log-present"), "{}", report.to_text());
        let before = thorough(&victim()).totals.verified_bytes;
        assert!(report.totals.verified_bytes > before + 300_000, "{:?}", report.totals);
        replay(&patch.device).expect("a good replay");
    }
}

/// Each kind of damage is found, and nothing else.
#[track_caller]
fn finds(expected: &[&str], damage: impl FnOnce(&Patch)) {
    let patch = logged(victim());
    damage(&patch);
    patch.finds(expected);
}

fn file(patch: &Patch, name: &str) -> u64 {
    let has = |key: &Key, bytes: &[u8]| {
        key.kind == Kind::INODE_REF
            && InodeRefs::parse(bytes).is_ok_and(|refs| refs[0].name == name.as_bytes())
    };
    patch.find(LOG, has).expect("a name").0.objectid
}

fn of(ino: u64, kind: Kind) -> impl Fn(&Key, &[u8]) -> bool {
    move |key, _| key.objectid == ino && key.kind == kind
}

fn edit_inode(patch: &Patch, name: &str, change: impl FnOnce(&mut InodeItem)) {
    patch.edit(LOG, of(file(patch, name), Kind::INODE_ITEM), |bytes| {
        let mut item = InodeItem::parse(bytes).expect("an inode item");
        change(&mut item);
        *bytes = item.to_bytes().to_vec();
    });
}

#[test]
fn inode_items() {
    finds(&["log-item"], |patch| edit_inode(patch, "new", |item| item.mode = 0o644));
    finds(&["log-item"], |patch| edit_inode(patch, "new", |item| item.mode |= 1 << 20));
    finds(&["log-item"], |patch| edit_inode(patch, "moved", |item| item.mode = 0o40755));
    finds(&["log-item"], |patch| {
        let later = Generation(patch.superblock.generation.0 + 2);
        edit_inode(patch, "new", |item| item.transid = later);
    });
    finds(&["log-item"], |patch| {
        let ino = file(patch, "new");
        patch.remove(LOG, of(ino, Kind::INODE_ITEM));
    });
    finds(&["log-item"], |patch| {
        patch.edit(LOG, is(Kind::INODE_ITEM), |bytes| bytes.truncate(100));
    });
}

#[test]
fn names() {
    finds(&["log-item"], |patch| patch.edit(LOG, is(Kind::INODE_REF), |bytes| bytes[8] ^= 0x40));
    // The parent is a file.
    finds(&["log-item"], |patch| {
        let (tiny, moved) = (file(patch, "tiny"), file(patch, "moved"));
        patch.edit_key(LOG, of(tiny, Kind::INODE_REF), |key| key.offset = moved);
    });
    // A name of a subvolume, and its index.
    let sub = |key: &Key, bytes: &[u8]| {
        key.kind == Kind::DIR_INDEX
            && DirEntry::parse_all(bytes).is_ok_and(|entries| entries[0].name == b"sub")
    };
    for by_name in [true, false] {
        finds(&["log-item"], |patch| {
            let (at, _) = patch.find(FS, sub).expect("the subvolume");
            let (index, name) = if by_name { (900, &b"sub"[..]) } else { (at.offset, &b"x"[..]) };
            let tiny = file(patch, "tiny");
            let key = patch.remove(LOG, of(tiny, Kind::INODE_REF));
            let bytes = InodeRefs::encode(&[InodeRef { index, name: name.to_vec() }]);
            patch.insert(LOG, Key { offset: Ino::ROOT_DIR.0, ..key }, bytes);
        });
    }
    finds(&["log-item"], |patch| {
        let inner = file(patch, "inner");
        let name = InodeRefs::encode(&[InodeRef { index: 7, name: b"second".to_vec() }]);
        patch.insert(LOG, Key::new(inner, Kind::INODE_REF, Ino::ROOT_DIR.0), name);
    });
    finds(&["log-item"], |patch| {
        let name = buttress_format::InodeExtref {
            parent: Ino::ROOT_DIR,
            index: 70,
            name: b"elsewhere".to_vec(),
        };
        let key = Key::new(file(patch, "new"), Kind::INODE_EXTREF, 12);
        patch.insert(LOG, key, InodeExtrefs::encode(&[name]));
    });
}

/// Linux writes entries of directories into its logs.
#[test]
fn entries() {
    let put = |patch: &Patch, kind: FileKind, index: u64, name: &str| {
        let (ino, inner) = (file(patch, name), file(patch, "inner"));
        let entry = DirEntry {
            location: Key::new(ino, Kind::INODE_ITEM, 0),
            transid: Generation(1),
            kind,
            name: name.as_bytes().to_vec(),
            data: Vec::new(),
        };
        patch.insert(LOG, Key::new(inner, Kind::DIR_INDEX, index), entry.to_bytes());
    };
    let index = |patch: &Patch| {
        let (_, bytes) = patch.find(LOG, of(file(patch, "tiny"), Kind::INODE_REF)).expect("it");
        get64(&bytes, 0)
    };
    finds(&[], |patch| put(patch, FileKind::Regular, index(patch), "tiny"));
    finds(&["log-item"], |patch| put(patch, FileKind::Fifo, index(patch), "tiny"));
    finds(&["log-item"], |patch| put(patch, FileKind::Regular, index(patch) + 90, "tiny"));
    finds(&["log-item"], |patch| put(patch, FileKind::Regular, index(patch), "moved"));
    finds(&["log-item"], |patch| {
        put(patch, FileKind::Regular, index(patch), "tiny");
        let inner = file(patch, "inner");
        patch.edit(LOG, of(inner, Kind::DIR_INDEX), |bytes| bytes[29] = 99);
    });
    // A file with entries, and a wrong hash of an entry for look-up.
    finds(&["log-item"], |patch| {
        let (_, bytes) = patch.find(FS, is(Kind::DIR_INDEX)).expect("an entry");
        patch.insert(LOG, Key::new(file(patch, "tiny"), Kind::DIR_INDEX, 2), bytes);
    });
    finds(&["log-item"], |patch| {
        let (_, bytes) = patch.find(FS, is(Kind::DIR_ITEM)).expect("an entry");
        let wrong = name_hash(b"another name");
        patch.insert(LOG, Key::new(file(patch, "inner"), Kind::DIR_ITEM, wrong), bytes);
    });
}

#[test]
fn lost_names() {
    let range = is(Kind::DIR_LOG_INDEX);
    finds(&["log-item"], |patch| patch.edit(LOG, &range, |bytes| bytes.truncate(4)));
    finds(&["log-item"], |patch| patch.edit(LOG, &range, |bytes| put64(bytes, 0, 0)));
    finds(&["log-item"], |patch| {
        let key = Key::new(file(patch, "new"), Kind::DIR_LOG_INDEX, 2);
        patch.insert(LOG, key, 9_u64.to_le_bytes().to_vec());
    });
    // All names of the top directory, and a subvolume's among them.
    finds(&["log-item"], |patch| {
        let (_, inode) = patch.find(FS, of(256, Kind::INODE_ITEM)).expect("the top");
        let root = Ino::ROOT_DIR.0;
        patch.insert(LOG, Key::new(root, Kind::INODE_ITEM, 0), inode);
        let all = Key::new(root, Kind::DIR_LOG_INDEX, 2);
        patch.insert(LOG, all, u64::MAX.to_le_bytes().to_vec());
    });
}

#[test]
fn attributes_and_kinds() {
    finds(&["log-item"], |patch| {
        patch.edit(LOG, is(Kind::XATTR_ITEM), |bytes| bytes[29] = FileKind::Regular as u8);
    });
    finds(&["log-item"], |patch| patch.edit_key(LOG, is(Kind::XATTR_ITEM), |key| key.offset ^= 1));
    finds(&["log-item"], |patch| {
        let key = Key::new(file(patch, "new"), Kind::ORPHAN_ITEM, 0);
        patch.insert(LOG, key, Vec::new());
    });
    finds(&["log-item"], |patch| {
        let (_, item) = patch.find(LOG, is(Kind::INODE_ITEM)).expect("an item");
        patch.insert(LOG, Key::new(12, Kind::INODE_ITEM, 0), item);
    });
}

/// The extent item of a file in the log that has its own extent.
fn extent(patch: &Patch, name: &str) -> (Key, FileExtent) {
    let (key, bytes) = patch.find(LOG, of(file(patch, name), Kind::EXTENT_DATA)).expect("data");
    (key, FileExtent::parse(&bytes).expect("an extent"))
}

fn edit_extent(patch: &Patch, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
    patch.edit(LOG, of(file(patch, name), Kind::EXTENT_DATA), change);
}

#[test]
fn extents() {
    let disk = 21;
    finds(&["log-item"], |patch| edit_extent(patch, "new", |bytes| bytes[20] = 9));
    finds(&["log-item"], |patch| {
        let (key, _) = extent(patch, "new");
        let (_, bytes) = patch.find(LOG, |at, _| *at == key).expect("it");
        patch.insert(LOG, Key { offset: key.offset + 4096, ..key }, bytes);
    });
    finds(&["log-item"], |patch| {
        let (key, _) = extent(patch, "new");
        let (_, bytes) = patch.find(LOG, |at, _| *at == key).expect("it");
        patch.insert(LOG, Key { objectid: file(patch, "inner"), ..key }, bytes);
    });
    // Outside of all groups, in a group of nodes, over a node, and over committed data.
    finds(&["log-extent", "log-csum-missing"], |patch| {
        edit_extent(patch, "new", |bytes| put64(bytes, disk, 1 << 40));
    });
    finds(&["log-extent", "log-csum-missing"], |patch| {
        let node = patch.root(FS).logical;
        edit_extent(patch, "new", |bytes| put64(bytes, disk, node.0));
    });
    finds(&["log-extent"], |patch| {
        let (_, bytes) = patch
            .find(FS, |key, bytes| {
                key.kind == Kind::EXTENT_DATA
                    && FileExtent::parse(bytes).is_ok_and(|extent| {
                        extent.region().is_some_and(|region| region.disk_len == 20_480)
                    })
            })
            .expect("the committed data");
        let from = get64(&bytes, disk);
        let written = Key::new(file(patch, "moved"), Kind::EXTENT_DATA, 4096);
        patch.edit(LOG, |key, _| *key == written, |bytes| put64(bytes, disk, from));
    });
    // Two extents of the log share a sector.
    finds(&["log-extent"], |patch| {
        let (_, new) = extent(patch, "new");
        let at = new.region().expect("a region").disk.0 + 4096;
        let written = Key::new(file(patch, "moved"), Kind::EXTENT_DATA, 4096);
        patch.edit(LOG, |key, _| *key == written, |bytes| put64(bytes, disk, at));
    });
}

#[test]
fn checksums() {
    let sums = is(Kind::EXTENT_CSUM);
    finds(&["log-item", "log-csum-missing"], |patch| {
        patch.edit(LOG, &sums, |bytes| bytes.truncate(bytes.len() - 1));
    });
    finds(&["log-csum-missing"], |patch| {
        patch.edit(LOG, &sums, |bytes| bytes.truncate(bytes.len() - 4));
    });
    finds(&["log-csum-missing"], |patch| {
        patch.remove(LOG, &sums);
    });
    let patch = logged(victim());
    patch.edit(LOG, &sums, |bytes| bytes[0] ^= 1);
    patch.finds(&[]);
    crate::patch::finds(&patch.report_with(&Options::thorough()), &["data-damaged"]);
}

#[test]
fn trees() {
    let patch = logged(victim());
    patch.edit_key(LOGS, is(Kind::ROOT_ITEM), |key| key.offset = 300);
    patch.finds(&[]);
    assert!(patch.report().has("log-unused"));
    replay(&patch.device).expect("it is left out");

    finds(&["log-damaged"], |patch| {
        patch.edit_key(LOGS, is(Kind::ROOT_ITEM), |key| key.objectid = 5);
    });
    finds(&["log-damaged"], |patch| {
        patch.edit(LOGS, is(Kind::ROOT_ITEM), |bytes| bytes.truncate(10));
    });
    finds(&["log-damaged"], |patch| patch.edit_root_node(LOG, |bytes| put64(bytes, 88, FS.0)));
    // Two logs that are one tree.
    finds(&["log-damaged"], |patch| {
        let (key, bytes) = patch.find(LOGS, is(Kind::ROOT_ITEM)).expect("a log");
        patch.insert(LOGS, Key { offset: 256, ..key }, bytes);
    });
}

/// A repair removes a log that cannot be replayed.
#[test]
fn repair() {
    let patch = logged(victim());
    patch.edit(LOG, is(Kind::INODE_REF), |bytes| bytes[8] ^= 0x40);
    assert!(replay(&Arc::clone(&patch.device.cut())).is_err());
    let devices: Vec<Arc<dyn Device>> = vec![Arc::clone(&patch.device) as Arc<dyn Device>];
    let repairs = buttress_check::repair(&devices, &patch.report()).expect("a repair");
    assert!(repairs.left.is_empty(), "{repairs:?}");
    patch.finds(&[]);
    assert!(!patch.report().has("log-present"));
}

/// A repair keeps a log that contradicts damaged trees: the log may be right.
#[test]
fn repair_beside_damage() {
    let patch = logged(victim());
    patch.edit(LOG, is(Kind::INODE_REF), |bytes| bytes[8] ^= 0x40);
    let own = |key: &Key, bytes: &[u8]| key.kind == Kind::XATTR_ITEM && !bytes.is_empty();
    patch.edit(FS, own, |bytes| bytes[27] = 0);
    patch.finds(&["log-item", "item-malformed"]);
    let devices: Vec<Arc<dyn Device>> = vec![Arc::clone(&patch.device) as Arc<dyn Device>];
    let repairs = buttress_check::repair(&devices, &patch.report()).expect("a repair");
    assert!(!repairs.left.is_empty(), "{repairs:?}");
    assert!(patch.report().has("log-present"), "{repairs:?}");
}

/// A log with random damage either has a fault, or can be replayed without harm.
#[test]
fn random_damage() {
    let whole = logged(victim());
    let mut clean = 0;
    for seed in 1..=200 {
        let mut rng = Rng::new(seed);
        let patch = Patch::new(whole.device.cut());
        let leaves = patch.leaves(LOG);
        let leaf = &leaves[rng.below(leaves.len() as u64) as usize];
        let slot = rng.below(leaf.len() as u64) as usize;
        let key = leaf.key(slot);
        let at = rng.below(leaf.item(slot).len().max(1) as u64) as usize;
        patch.edit(
            LOG,
            |other, _| *other == key,
            |bytes| {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << rng.below(8);
                }
            },
        );
        if !thorough(&patch.device).is_clean() {
            continue;
        }
        clean += 1;
        let text = format!("seed {seed}: byte {at} of {key}");
        replay(&patch.device).unwrap_or_else(|what| panic!("{text}: {what}"));
    }
    assert!(clean > 0, "no damage was harmless");
}
