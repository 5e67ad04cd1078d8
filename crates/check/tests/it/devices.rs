//! Tests of damage to superblocks, chunks, devices and block groups.

use std::sync::Arc;

use buttress_block::Device;
use buttress_check::{Options, repair};
use buttress_format::{BlockGroupFlags, BlockGroupItem, DevExtent, Key, Kind, Logical, TreeId};

use crate::patch::{Patch, add64, finds, get64, put64};
use crate::victim::{old_victim, victim};

const FAR: u64 = 1 << 40;

fn is(kind: Kind) -> impl Fn(&Key, &[u8]) -> bool {
    move |key, _| key.kind == kind
}

/// A volume that the engine wrote is clean, and so is its data.
#[test]
fn an_undamaged_volume() {
    for device in [victim(), old_victim()] {
        let report = Patch::new(device).report_with(&Options::thorough());
        assert!(report.issues.is_empty(), "{}", report.to_text());
        assert!(report.totals.inodes > 200 && report.totals.verified_bytes > 300_000);
    }
}

/// A check with little memory has the same result.
#[test]
fn an_undamaged_volume_with_little_memory() {
    let options = Options { memory_bytes: 1, threads: Some(3), ..Options::thorough() };
    let report = Patch::new(victim()).report_with(&options);
    assert!(report.issues.is_empty(), "{}", report.to_text());
}

#[test]
fn super_copy_damaged() {
    let patch = Patch::new(victim());
    patch.device.write_at((64 << 20) + 100, b"damage").expect("a write");
    patch.finds(&["super-copy-damaged"]);
    // If the first copy is damaged, the volume is opened from the other copy.
    let patch = Patch::new(victim());
    patch.device.write_at((64 << 10) + 100, b"damage").expect("a write");
    patch.finds(&["super-copy-damaged"]);
}

/// A copy of the superblock that this volume never wrote is a warning. A restored dump lacks the
/// copy, or the place has bytes from before the volume was made.
#[test]
fn super_copy_missing() {
    let whole = Patch::new(victim());
    whole.device.write_at(64 << 20, &[0; 4096]).expect("a write");
    let foreign = Patch::new(victim());
    foreign.edit_supers(&[1], |bytes| bytes[32] ^= 1);
    for patch in [&whole, &foreign] {
        patch.finds(&[]);
        assert!(patch.report().has("super-copy-missing"), "{}", patch.report().to_text());
        let devices = [Arc::clone(&patch.device) as Arc<dyn Device>];
        repair(&devices, &patch.report()).expect("a repair");
        assert!(patch.report().issues.is_empty(), "{}", patch.report().to_text());
    }
}

#[test]
fn super_copy_stale() {
    let patch = Patch::new(victim());
    patch.edit_supers(&[1], |bytes| add64(bytes, 72, u64::MAX));
    assert!(patch.report().has("super-copy-stale"));
}

#[test]
fn super_copy_mismatch() {
    let patch = Patch::new(victim());
    patch.edit_supers(&[1], |bytes| add64(bytes, 120, 4096));
    patch.finds(&["super-copy-mismatch"]);
}

#[test]
fn super_field() {
    let patch = Patch::new(victim());
    patch.edit_supers(&[0, 1], |bytes| add64(bytes, 120, 4096));
    patch.finds(&["super-field"]);
}

#[test]
fn super_chunk() {
    let patch = Patch::new(victim());
    let system = |key: &Key, bytes: &[u8]| {
        key.kind == Kind::CHUNK_ITEM && get64(bytes, 24) & BlockGroupFlags::SYSTEM.0 != 0
    };
    patch.edit(TreeId::CHUNK, system, |bytes| bytes[32] ^= 1);
    patch.finds(&["super-chunk", "chunk-invalid"]);
}

#[test]
fn log_present_and_damaged() {
    let patch = Patch::new(victim());
    patch.edit_supers(&[0, 1], |bytes| put64(bytes, 96, FAR));
    patch.finds_among_others(&["log-present", "log-damaged"]);
}

#[test]
fn device_field() {
    let patch = Patch::new(victim());
    patch.edit(TreeId::CHUNK, is(Kind::DEV_ITEM), |bytes| bytes[66] ^= 1);
    patch.finds(&["device-field"]);
}

#[test]
fn device_used() {
    let patch = Patch::new(victim());
    patch.edit(TreeId::CHUNK, is(Kind::DEV_ITEM), |bytes| add64(bytes, 16, 65536));
    patch.finds(&["device-used"]);
}

#[test]
fn device_missing_and_unknown() {
    let patch = Patch::new(victim());
    patch.edit_key(TreeId::CHUNK, is(Kind::DEV_ITEM), |key| key.offset = 7);
    patch.finds(&["device-missing", "device-unknown", "device-used"]);
}

#[test]
fn dev_extent_missing() {
    let patch = Patch::new(victim());
    patch.remove(TreeId::DEV, is(Kind::DEV_EXTENT));
    patch.finds(&["dev-extent-missing", "device-used"]);
}

fn dev_extent(length: u64) -> Vec<u8> {
    let chunk_offset = Logical(FAR);
    let (chunk_tree, chunk_objectid, chunk_tree_uuid) = (3, 256, [0; 16]);
    DevExtent { chunk_tree, chunk_objectid, chunk_offset, length, chunk_tree_uuid }.to_bytes()
}

#[test]
fn dev_extent_unused() {
    let patch = Patch::new(victim());
    let key = Key::new(1, Kind::DEV_EXTENT, 250 << 20);
    patch.insert(TreeId::DEV, key, dev_extent(1 << 20));
    patch.finds(&["dev-extent-unused", "device-used"]);
}

#[test]
fn dev_extent_length() {
    let patch = Patch::new(victim());
    patch.edit(TreeId::DEV, is(Kind::DEV_EXTENT), |bytes| {
        add64(bytes, 24, 65536_u64.wrapping_neg());
    });
    patch.finds(&["dev-extent-length", "device-used"]);
}

#[test]
fn dev_extent_overlap() {
    let patch = Patch::new(victim());
    let (key, _) = patch.find(TreeId::DEV, is(Kind::DEV_EXTENT)).expect("an extent");
    let key = Key { offset: key.offset + 65536, ..key };
    patch.insert(TreeId::DEV, key, dev_extent(65536));
    patch.finds_among_others(&["dev-extent-overlap", "dev-extent-unused"]);
}

#[test]
fn dev_extent_past_end() {
    let patch = Patch::new(victim());
    let key = Key::new(1, Kind::DEV_EXTENT, (256 << 20) - 65536);
    patch.insert(TreeId::DEV, key, dev_extent(1 << 20));
    patch.finds(&["dev-extent-past-end", "dev-extent-unused", "device-used"]);
}

#[test]
fn chunk_invalid() {
    let patch = Patch::new(victim());
    let data = |key: &Key, bytes: &[u8]| {
        key.kind == Kind::CHUNK_ITEM && get64(bytes, 24) == BlockGroupFlags::DATA.0
    };
    patch.edit(TreeId::CHUNK, data, |bytes| put64(bytes, 56, FAR));
    patch.finds_among_others(&["chunk-invalid", "chunk-missing", "extent-outside"]);
}

/// Opening a volume reads only chunk items of one object.
#[test]
fn chunk_of_another_object() {
    let patch = Patch::new(victim());
    let leaves = patch.leaves(TreeId::CHUNK);
    let last = leaves.last().expect("a leaf");
    let last = last.key(last.len() - 1);
    assert_eq!(last.kind, Kind::CHUNK_ITEM);
    patch.edit_key(TreeId::CHUNK, |key, _| *key == last, |key| key.objectid += 1);
    patch.finds(&["item-malformed"]);
}

fn group_tree(patch: &Patch) -> TreeId {
    use buttress_format::CompatRo;
    let own = patch.superblock.compat_ro.has(CompatRo::BLOCK_GROUP_TREE);
    if own { TreeId::BLOCK_GROUP } else { TreeId::EXTENT }
}

#[test]
fn block_group_missing() {
    for device in [victim(), old_victim()] {
        let patch = Patch::new(device);
        patch.remove(group_tree(&patch), is(Kind::BLOCK_GROUP_ITEM));
        patch.finds_among_others(&["block-group-missing", "extent-outside"]);
    }
}

#[test]
fn chunk_missing() {
    for device in [victim(), old_victim()] {
        let patch = Patch::new(device);
        let item = BlockGroupItem { used: 0, chunk_objectid: 256, flags: BlockGroupFlags::DATA };
        let key = Key::new(FAR, Kind::BLOCK_GROUP_ITEM, 1 << 20);
        patch.insert(group_tree(&patch), key, item.to_bytes());
        patch.finds(&["chunk-missing"]);
    }
}

/// If two block groups begin at one address, one of them has another length than the chunk. The
/// wrong group is reported, whichever of the two groups the check meets first.
#[test]
fn block_group_twice() {
    for device in [victim(), old_victim()] {
        let patch = Patch::new(device);
        let tree = group_tree(&patch);
        let (key, bytes) = patch.find(tree, is(Kind::BLOCK_GROUP_ITEM)).expect("a block group");
        for aside in [4096, u64::MAX - 4095] {
            let twin = Key::new(key.objectid, key.kind, key.offset.wrapping_add(aside));
            patch.insert(tree, twin, bytes.clone());
        }
        patch.finds(&["block-group-mismatch"]);
    }
}

#[test]
fn block_group_mismatch() {
    for device in [victim(), old_victim()] {
        let patch = Patch::new(device);
        let tree = group_tree(&patch);
        patch.edit(tree, is(Kind::BLOCK_GROUP_ITEM), |bytes| {
            bytes[16] ^= BlockGroupFlags::DUP.0 as u8;
        });
        patch.finds(&["block-group-mismatch"]);
    }
}

#[test]
fn block_group_used() {
    for device in [victim(), old_victim()] {
        let patch = Patch::new(device);
        let tree = group_tree(&patch);
        patch.edit(tree, is(Kind::BLOCK_GROUP_ITEM), |bytes| add64(bytes, 0, 4096));
        patch.finds(&["block-group-used"]);
    }
}

/// A check that reads all copies of a node finds a bad copy.
#[test]
fn node_copy_damaged() {
    let patch = Patch::new(victim());
    let ptr = patch.root(TreeId::FS);
    let chunk = patch.volume.chunk_at(ptr.logical).expect("a chunk");
    let second = chunk.stripes[1].offset + ptr.logical.distance(chunk.logical);
    patch.device.write_at(second + 500, b"damage").expect("a write");
    let report = patch.report_with(&Options::thorough());
    finds(&report, &["node-copy-damaged"]);
}
