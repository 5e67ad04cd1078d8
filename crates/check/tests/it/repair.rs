//! A repaired volume is clean. Damage without a safe repair stays as it is.

use std::sync::Arc;

use buttress_block::Device;
use buttress_check::{Repairs, repair};
use buttress_format::{Key, Kind, TreeId};

use crate::patch::{Patch, add64, put64};
use crate::victim::{old_victim, victim};

fn mend(patch: &Patch) -> Repairs {
    let devices: Vec<Arc<dyn Device>> = vec![Arc::clone(&patch.device) as Arc<dyn Device>];
    repair(&devices, &patch.report()).expect("a repair")
}

#[track_caller]
fn is_mended(patch: &Patch) {
    let repairs = mend(patch);
    assert!(!repairs.done.is_empty() && repairs.left.is_empty(), "{repairs:?}");
    let report = patch.report();
    assert!(report.is_clean(), "{repairs:?}\n{}", report.to_text());
}

/// Each copy of the superblock is restored from the other copy.
#[test]
fn superblock_copies() {
    for at in [64 << 10, 64 << 20] {
        let patch = Patch::new(victim());
        patch.device.write_at(at + 100, b"damage").expect("a write");
        is_mended(&patch);
        assert!(!patch.report().has("super-copy-damaged"));
    }
}

/// A log that cannot be replayed is removed.
#[test]
fn log() {
    let patch = Patch::new(victim());
    patch.edit_supers(&[0, 1], |bytes| put64(bytes, 96, 1 << 40));
    is_mended(&patch);
    assert!(!patch.report().has("log-present"));
}

/// Wrong used bytes of block groups, and of the superblock, are repaired.
#[test]
fn block_groups() {
    for device in [victim(), old_victim()] {
        let patch = Patch::new(device);
        for tree in [TreeId::BLOCK_GROUP, TreeId::EXTENT] {
            let groups: Vec<Key> = patch
                .find(TreeId::ROOT, |key, _| key.objectid == tree.0 && key.kind == Kind::ROOT_ITEM)
                .map(|_| patch.leaves(tree))
                .unwrap_or_default()
                .iter()
                .flat_map(|leaf| (0..leaf.len()).map(|slot| leaf.key(slot)).collect::<Vec<_>>())
                .filter(|key| key.kind == Kind::BLOCK_GROUP_ITEM)
                .collect();
            for group in groups {
                patch.edit(tree, |key, _| *key == group, |bytes| add64(bytes, 0, 8192));
            }
        }
        patch.edit_supers(&[0, 1], |bytes| add64(bytes, 120, 4096));
        is_mended(&patch);
    }
}

/// A repair marks the free-space tree as invalid, and the next mount rebuilds it.
#[test]
fn free_space() {
    let patch = Patch::new(victim());
    patch.remove(TreeId::FREE_SPACE, |key, _| key.kind == Kind::FREE_SPACE_EXTENT);
    is_mended(&patch);
    assert!(patch.report().has("free-space-invalid"));
}

/// If damage has no safe repair, nothing that depends on extents is changed.
#[test]
fn repair_keeps_sums_without_a_safe_repair() {
    let patch = Patch::new(victim());
    let is_root = |key: &Key, _: &[u8]| *key == Key::new(TreeId::FS.0, Kind::ROOT_ITEM, 0);
    patch.edit(TreeId::ROOT, is_root, |bytes| add64(bytes, 168, 1));
    patch.edit_supers(&[0, 1], |bytes| add64(bytes, 120, 4096));
    let before = patch.report().to_text();
    let repairs = mend(&patch);
    assert!(repairs.done.is_empty() && !repairs.left.is_empty(), "{repairs:?}");
    assert_eq!(patch.report().to_text(), before);
}
