//! Tests of damage to the stripe tree, with right checksums everywhere. The checker names the
//! fault. Reads go by the chunks, so they still return the right bytes.

use std::sync::Arc;

use buttress_block::{Device, MemoryDevice};
use buttress_check::Severity;
use buttress_format::{Incompat, Key, Kind, Profile, TreeId};
use buttress_fs::make::Features;
use buttress_fs::{Filesystem, InodeFlags, MakeOptions, MountOptions, NewInode};

use crate::patch::{Patch, add64, put64};
use crate::victim::Overlay;

const TREE: TreeId = TreeId::RAID_STRIPE;
/// Several stripe units, and a part of one.
const LEN: usize = 300_000;

fn bytes(seed: u32) -> Vec<u8> {
    (0..LEN as u32).map(|at| (at * 31 + at / 997 + seed) as u8).collect()
}

/// A volume with a file with checksums, a file without, and a file that is a stripe unit long.
fn made() -> Arc<Overlay> {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(256 << 20));
    let features = Features { raid_stripe_tree: true, ..Features::default() };
    let options = MakeOptions { data: Some(Profile::Dup), features, ..MakeOptions::default() };
    Filesystem::make(&*device, &options).expect("a volume");
    let fs = Filesystem::open(vec![Arc::clone(&device)], MountOptions::default()).expect("it");
    for (name, flags) in [("sums", 0), ("none", InodeFlags::NODATACOW)] {
        let file = fs.root().create(name.as_bytes(), NewInode::file(0o644)).expect("a file");
        file.set_flags(flags).expect("an empty file");
        file.write_at(0, &bytes(flags as u32)).expect("a write");
        file.flush_data().expect("written");
    }
    fs.close().expect("a close");
    Arc::new(Overlay::new(device))
}

/// Reads both files of a damaged volume.
#[track_caller]
fn reads(patch: &Patch) {
    let device = Arc::clone(&patch.device) as Arc<dyn Device>;
    let options = MountOptions::parse("ro").expect("options");
    let fs = Filesystem::open(vec![device], options).expect("a mount");
    for (name, flags) in [("sums", 0), ("none", InodeFlags::NODATACOW)] {
        let file = fs.root().lookup(name.as_bytes()).expect("a file");
        let mut found = vec![0; LEN];
        file.read_at(0, &mut found).expect("a read");
        assert!(found == bytes(flags as u32), "{name}");
    }
    fs.close().expect("a close");
}

fn keys(patch: &Patch) -> Vec<Key> {
    let leaves = patch.leaves(TREE);
    leaves.iter().flat_map(|leaf| (0..leaf.len()).map(|slot| leaf.key(slot))).collect()
}

/// The warnings about stripe items.
fn warnings(patch: &Patch) -> Vec<&'static str> {
    let report = patch.report();
    let those = report.issues.iter().filter(|issue| issue.severity() == Severity::Warning);
    those.map(buttress_check::Issue::code).filter(|code| code.starts_with("stripe")).collect()
}

#[test]
fn a_sound_tree_is_sound() {
    let patch = Patch::new(made());
    patch.finds(&[]);
    assert!(warnings(&patch).is_empty());
    assert!(keys(&patch).len() > 8 && keys(&patch).iter().all(|key| key.kind == Kind::RAID_STRIPE));
    reads(&patch);
}

/// Each item is needed, and each byte of it counts.
#[test]
fn every_changed_item_is_found() {
    let device = made();
    let all = keys(&Patch::new(Arc::clone(&device)));
    for key in &all {
        let is = |found: &Key, _: &[u8]| found == key;
        let patch = Patch::new(device.cut());
        patch.remove_at(TREE, key);
        patch.finds(&["stripe-missing"]);
        reads(&patch);
        for at in 0..32 {
            let patch = Patch::new(device.cut());
            patch.edit(TREE, is, |bytes| bytes[at] ^= 0x10);
            patch.finds(&["stripe-invalid"]);
        }
        reads(&patch);
    }
    let first = all[0];
    let is = |found: &Key, _: &[u8]| *found == first;
    for len in [0, 7, 8, 24, 31, 40] {
        let patch = Patch::new(device.cut());
        patch.edit(TREE, is, |bytes| bytes.resize(len, 0));
        patch.finds(&["item-malformed"]);
        reads(&patch);
    }
    for len in [16, 48, 640] {
        let patch = Patch::new(device.cut());
        patch.edit(TREE, is, |bytes| bytes.resize(len, 0));
        patch.finds(&["stripe-invalid"]);
        reads(&patch);
    }
    // The places of the two copies may change sides.
    let patch = Patch::new(device.cut());
    patch.edit(TREE, is, |bytes| bytes.rotate_left(16));
    patch.finds(&[]);
    // Both copies in one place.
    let patch = Patch::new(device.cut());
    patch.edit(TREE, is, |bytes| bytes.copy_within(..16, 16));
    patch.finds(&["stripe-invalid"]);
    // The place of the next sector, where other data is.
    let patch = Patch::new(device.cut());
    patch.edit(TREE, is, |bytes| add64(bytes, 8, 4096));
    patch.finds(&["stripe-invalid"]);
    reads(&patch);
}

/// Items with odd keys, items without an extent, and items for the same bytes.
#[test]
fn odd_keys_are_found() {
    let device = made();
    let all = keys(&Patch::new(Arc::clone(&device)));
    let last = *all.last().expect("items");
    let far = Key::new(last.objectid + (64 << 20), Kind::RAID_STRIPE, 4096);
    let with = |key: Key, len: usize| {
        let patch = Patch::new(device.cut());
        patch.insert(TREE, key, vec![0; len]);
        patch
    };
    let codes: &[(Key, &str)] = &[
        (Key::new(last.objectid + 1, Kind::RAID_STRIPE, 4096), "item-malformed"),
        (Key::new(last.objectid, Kind::RAID_STRIPE, 1), "item-malformed"),
        (Key::new(u64::MAX - 4095, Kind::RAID_STRIPE, u64::MAX), "item-malformed"),
        (Key::new(last.objectid, Kind::EXTENT_CSUM, 4096), "item-unexpected"),
        (Key::new(last.objectid, Kind::RAID_STRIPE, 1 << 50), "stripe-invalid"),
        (Key::new(1 << 60, Kind::RAID_STRIPE, 1 << 60), "stripe-invalid"),
    ];
    for (key, code) in codes {
        let patch = with(*key, 32);
        patch.finds_among_others(&[code]);
        reads(&patch);
    }
    // Linux leaves such items behind, and makes overlapping ones.
    let (_, places) =
        Patch::new(Arc::clone(&device)).find(TREE, |key, _| *key == last).expect("it");
    let patch = Patch::new(device.cut());
    let mut moved = places.clone();
    add64(&mut moved, 8, 64 << 20);
    add64(&mut moved, 24, 64 << 20);
    patch.insert(TREE, far, moved);
    assert_eq!(warnings(&patch), ["stripe-unused"]);
    let patch = Patch::new(device.cut());
    patch.edit_key(TREE, |key, _| *key == last, |key| key.offset += 4096);
    assert_eq!(warnings(&patch), ["stripe-crosses"]);
    let patch = Patch::new(device.cut());
    patch.insert(TREE, Key { offset: 4096, ..last }, places);
    patch.finds(&[]);
    assert_eq!(warnings(&patch), ["stripe-overlap"]);
}

/// The tree itself may be missing or damaged. Then the volume is only read.
#[test]
fn a_missing_tree_is_found() {
    let device = made();
    let patch = Patch::new(device.cut());
    patch.remove(TreeId::ROOT, |key, _| key.objectid == TREE.0);
    patch.finds_among_others(&["root-missing"]);
    reads(&patch);
    let open = || {
        let part = Arc::clone(&patch.device) as Arc<dyn Device>;
        Filesystem::open(vec![part], MountOptions::default()).expect("it is read")
    };
    assert!(open().read_only_reason().is_some_and(|why| why.contains("stripe tree")));
    let patch = Patch::new(device.cut());
    patch.edit_root_node(TREE, |bytes| put64(bytes, 48, 4096));
    patch.finds_among_others(&["node-damaged"]);
}

/// Without the flag, the tree has no meaning.
#[test]
fn the_flag_decides() {
    let patch = Patch::new(made());
    patch.edit_supers(&[0, 1], |bytes| {
        let flags = u64::from_le_bytes(std::array::from_fn(|at| bytes[188 + at]));
        let flags = flags & !Incompat::RAID_STRIPE_TREE.0;
        bytes[188..196].copy_from_slice(&flags.to_le_bytes());
    });
    patch.finds(&[]);
}
