//! Each kind of damage to names, inodes, nodes and devices is repaired. The contents are as before,
//! and an undo restores the damaged bytes.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use buttress_block::Device;
use buttress_check::{Report, repair};
use buttress_format::{DirEntry, FileKind, InodeRef, InodeRefs, Key, Kind, TreeId, name_hash};
use buttress_fs::{FileKind as Type, Filesystem, Inode, MountOptions};
use buttress_volume::journal::{Journal, undo};

use crate::patch::{Patch, add64, get64, put64};
use crate::victim::{old_victim, victim};

pub(crate) const FS: TreeId = TreeId::FS;
const TOP: u64 = 256;

pub(crate) fn devices(patch: &Patch) -> Vec<Arc<dyn Device>> {
    vec![Arc::clone(&patch.device) as Arc<dyn Device>]
}

/// The kinds and contents of files, by path, which must be equal before and after the repair.
pub(crate) type Contents = BTreeMap<String, (Type, Vec<u8>)>;

pub(crate) fn contents(patch: &Patch) -> Contents {
    let options = MountOptions::parse("ro").expect("options");
    let fs = Filesystem::open(devices(patch), options).expect("a mount");
    let mut all = Contents::new();
    gather(&fs.root(), "", &mut all);
    fs.close().expect("an unmount");
    all
}

fn gather(dir: &Inode, above: &str, all: &mut Contents) {
    let mut names = Vec::new();
    dir.read_dir(0, |entry| {
        names.push(entry.name.to_vec());
        std::ops::ControlFlow::Continue(())
    })
    .expect("a listing");
    for name in names.iter().filter(|name| !matches!(&name[..], b"." | b"..")) {
        let inode = dir.lookup(name).expect("a name");
        let path = format!("{above}/{}", String::from_utf8_lossy(name));
        let mut bytes = Vec::new();
        if inode.kind() == Type::Regular {
            bytes.resize(inode.attr().size as usize, 0);
            let len = inode.read_at(0, &mut bytes).expect("its bytes");
            assert_eq!(len, bytes.len(), "{path}");
        }
        if inode.kind() == Type::Directory {
            gather(&inode, &path, all);
        }
        all.insert(path, (inode.kind(), bytes));
    }
}

/// The inode of a name in the top directory.
pub(crate) fn ino(patch: &Patch, name: &str) -> u64 {
    let key = Key::new(TOP, Kind::DIR_ITEM, name_hash(name.as_bytes()));
    let (_, bytes) = patch.find(FS, |other, _| *other == key).expect("a name");
    DirEntry::parse_all(&bytes).expect("an entry")[0].location.objectid
}

pub(crate) fn is_item(ino: u64, kind: Kind) -> impl Fn(&Key, &[u8]) -> bool {
    move |key, _| key.objectid == ino && key.kind == kind
}

/// The entry of the top directory with a name, in items of a kind.
pub(crate) fn is_entry(name: &'static str, kind: Kind) -> impl Fn(&Key, &[u8]) -> bool {
    move |key, bytes| {
        let is_it = |all: Vec<DirEntry>| all.iter().any(|one| one.name == name.as_bytes());
        key.objectid == TOP && key.kind == kind && DirEntry::parse_all(bytes).is_ok_and(is_it)
    }
}

/// Whether `btrfs check` reports no error. Returns true if that program is not installed.
pub(crate) fn is_fine_for_progs(patch: &Patch, folder: &Path) -> bool {
    let path = folder.join("image");
    patch.device.write_image(&path);
    let Ok(outcome) = Command::new("btrfs").arg("check").arg(&path).output() else { return true };
    let text = String::from_utf8_lossy(&outcome.stderr).into_owned();
    println!("{text}");
    outcome.status.success()
}

/// Damages a volume, repairs it, and asserts the results that the header of this file names.
/// `is_same` says whether all contents must have their former names. Returns the contents after the
/// repair.
#[track_caller]
pub(crate) fn mends(
    what: &str,
    patch: &Patch,
    is_same: bool,
    damage: impl FnOnce(&Patch),
) -> Contents {
    let folder = tempfile::tempdir().expect("a folder");
    let before = contents(patch);
    damage(patch);
    let damaged = patch.report();
    assert!(!damaged.is_clean(), "{what}: no damage");
    let blocks = patch.device.blocks();
    let path = folder.path().join("journal");
    let (_, journaled) = Journal::create(&path, &devices(patch)).expect("a journal");
    let repairs = repair(&journaled, &damaged).expect("a repair");
    assert!(!repairs.done.is_empty() && repairs.left.is_empty(), "{what}: {repairs:?}");
    let report = patch.report();
    assert!(report.is_clean(), "{what}: {repairs:?}\n{}", report.to_text());
    assert!(is_fine_for_progs(patch, folder.path()), "{what}: btrfs check: {repairs:?}");
    let after = contents(patch);
    if is_same {
        for (path, content) in &before {
            assert!(after.get(path) == Some(content), "{what}: {path}: {repairs:?}");
        }
    }
    let kept = |all: &Contents| all.values().filter(|(_, bytes)| bytes.len() > 60_000).count();
    assert!(kept(&after) >= kept(&before), "{what}: a file is lost: {repairs:?}");
    undo(&devices(patch), &path).expect("an undo");
    patch.device.expect_blocks(&blocks);
    // Several threads find issues, so their order may differ.
    let lines = |report: &Report| {
        let mut lines: Vec<String> = report.to_text().lines().map(str::to_owned).collect();
        lines.sort_unstable();
        lines
    };
    assert_eq!(lines(&patch.report()), lines(&damaged), "{what}");
    after
}

#[test]
fn repair_mends_names_that_two_of_three_items_have() {
    let same = |what: &str, damage: &dyn Fn(&Patch)| {
        mends(what, &Patch::new(victim()), true, damage);
    };
    same("no index", &|patch| {
        patch.remove(FS, is_entry("big", Kind::DIR_INDEX));
    });
    same("no lookup", &|patch| {
        patch.remove(FS, is_entry("big", Kind::DIR_ITEM));
    });
    same("no reference", &|patch| {
        patch.remove(FS, is_item(ino(patch, "big"), Kind::INODE_REF));
    });
    same("neither index nor lookup", &|patch| {
        patch.remove(FS, is_entry("dir", Kind::DIR_ITEM));
        patch.remove(FS, is_entry("dir", Kind::DIR_INDEX));
    });
    same("neither index nor reference", &|patch| {
        patch.remove(FS, is_item(ino(patch, "big"), Kind::INODE_REF));
        patch.remove(FS, is_entry("big", Kind::DIR_INDEX));
    });
    same("a doubled index", &|patch| {
        let (key, bytes) = patch.find(FS, is_entry("big", Kind::DIR_INDEX)).expect("an index");
        patch.insert(FS, Key { offset: key.offset + 1000, ..key }, bytes);
    });
    same("an index with another name", &|patch| {
        patch.edit(FS, is_entry("big", Kind::DIR_INDEX), |bytes| bytes[30] = b'p');
    });
    same("a reference with another name", &|patch| {
        patch.edit(FS, is_item(ino(patch, "big"), Kind::INODE_REF), |bytes| {
            let mut names = InodeRefs::parse(bytes).expect("names");
            names[0].name = b"pig".to_vec();
            *bytes = InodeRefs::encode(&names);
        });
    });
    same("a reference with another index", &|patch| {
        patch.edit(FS, is_item(ino(patch, "big"), Kind::INODE_REF), |bytes| add64(bytes, 0, 500));
    });
    same("a lookup at a wrong hash", &|patch| {
        patch.edit_key(FS, is_entry("big", Kind::DIR_ITEM), |key| key.offset += 1);
    });
    same("entries of another kind", &|patch| {
        for kind in [Kind::DIR_ITEM, Kind::DIR_INDEX] {
            patch.edit(FS, is_entry("big", kind), |bytes| bytes[29] = FileKind::Fifo as u8);
        }
    });
    same("a name for nothing", &|patch| {
        let entry = DirEntry {
            location: Key::new(9999, Kind::INODE_ITEM, 0),
            transid: patch.superblock.generation,
            kind: FileKind::Regular,
            name: b"nothing".to_vec(),
            data: Vec::new(),
        };
        patch.insert(FS, Key::new(TOP, Kind::DIR_INDEX, 5000), entry.to_bytes());
        let hash = name_hash(b"nothing");
        patch.insert(FS, Key::new(TOP, Kind::DIR_ITEM, hash), entry.to_bytes());
    });
    same("a name in a directory that is not there", &|patch| {
        let name = InodeRef { index: 7, name: b"gone".to_vec() };
        let key = Key::new(ino(patch, "big"), Kind::INODE_REF, 9999);
        patch.insert(FS, key, InodeRefs::encode(&[name]));
    });
}

#[test]
fn repair_mends_inodes_by_what_refers_to_them() {
    let old = |what: &str, is_same: bool, damage: &dyn Fn(&Patch)| {
        mends(what, &Patch::new(old_victim()), is_same, damage);
    };
    let field = |what: &str, name: &'static str, damage: fn(&mut Vec<u8>)| {
        old(what, true, &|patch| {
            let ino = if name.is_empty() { TOP } else { ino(patch, name) };
            patch.edit(FS, is_item(ino, Kind::INODE_ITEM), damage);
        });
    };
    field("links", "big", |bytes| bytes[40] = 7);
    field("links of a directory", "dir", |bytes| bytes[40] = 2);
    field("bytes", "big", |bytes| add64(bytes, 24, 4096));
    field("size of a directory", "", |bytes| add64(bytes, 16, 2));
    field("no type", "big", |bytes| bytes[53] &= 0x0f);
    field("unknown bits of the mode", "big", |bytes| bytes[54] = 7);
    field("the type of a directory", "big", |bytes| bytes[53] = 0x41);
    field("no type of a directory", "dir", |bytes| bytes[53] &= 0x0f);
    field("generation", "big", |bytes| put64(bytes, 0, 1 << 40));
    field("transaction", "dir", |bytes| put64(bytes, 8, 1 << 40));
    field("an immutable link", "link", |bytes| {
        let flags = get64(bytes, 64) | buttress_format::InodeFlags::IMMUTABLE;
        put64(bytes, 64, flags);
    });
    old("no inode of a directory", true, &|patch| {
        patch.remove(FS, is_item(ino(patch, "dir"), Kind::INODE_ITEM));
    });
    old("no item for a hole", true, &|patch| {
        let ino = ino(patch, "sparse");
        patch.remove(FS, |key, _| {
            key.objectid == ino && key.kind == Kind::EXTENT_DATA && key.offset == 0
        });
    });
    old("no item for data", true, &|patch| {
        patch.remove(FS, is_item(ino(patch, "big"), Kind::EXTENT_DATA));
    });
    old("an impossible address", true, &|patch| {
        patch.edit(FS, is_item(ino(patch, "big"), Kind::EXTENT_DATA), |bytes| {
            put64(bytes, 21, 755_944_791);
        });
    });
    old("a wrong length of inline data", true, &|patch| {
        patch.edit(FS, is_item(ino(patch, "small"), Kind::EXTENT_DATA), |bytes| {
            add64(bytes, 8, 1);
        });
    });
    old("no name at all", false, &|patch| {
        patch.remove(FS, is_item(ino(patch, "big"), Kind::INODE_REF));
        patch.remove(FS, is_entry("big", Kind::DIR_INDEX));
        patch.remove(FS, is_entry("big", Kind::DIR_ITEM));
    });
}

#[test]
fn repair_mends_nodes_and_devices_with_a_derived_field() {
    let same = |what: &str, damage: &dyn Fn(&Patch)| {
        mends(what, &Patch::new(victim()), true, damage);
    };
    let first_leaf = |patch: &Patch, change: &dyn Fn(&mut Vec<u8>)| {
        let leaf = &patch.leaves(FS)[0];
        let mut bytes = leaf.bytes().to_vec();
        change(&mut bytes);
        patch.write_node(leaf.ptr(), bytes);
    };
    same("generation of a leaf", &|patch| {
        first_leaf(patch, &|bytes| put64(bytes, 80, 1 << 40));
    });
    same("an offset of a leaf", &|patch| {
        first_leaf(patch, &|bytes| bytes[101 + 25 * 3 + 17] ^= 8);
    });
    same("bytes of a device", &|patch| {
        patch.edit(TreeId::CHUNK, is_item(1, Kind::DEV_ITEM), |bytes| add64(bytes, 16, 4096));
    });
    same("count of devices", &|patch| {
        patch.edit_supers(&[0, 1], |bytes| put64(bytes, 136, 8));
    });
    same("bytes of the volume", &|patch| {
        patch.edit_supers(&[0, 1], |bytes| add64(bytes, 112, 4096));
    });
}

/// A node with a wrong checksum has unknown content.
#[test]
fn repair_leaves_a_node_with_a_wrong_checksum() {
    let patch = Patch::new(victim());
    let at = patch.leaves(FS)[0].ptr().logical;
    let mut bytes = patch.leaves(FS)[0].bytes().to_vec();
    bytes[80] ^= 1;
    patch.volume.write(at, &bytes).expect("a write");
    let before = patch.device.blocks();
    let repairs = repair(&devices(&patch), &patch.report()).expect("a repair");
    assert!(repairs.done.is_empty() && !repairs.left.is_empty(), "{repairs:?}");
    patch.device.expect_blocks(&before);
}
