//! Tests of damage to the free-space tree.

use buttress_format::{CompatRo, FreeSpaceInfo, Key, Kind, TreeId};

use crate::patch::{Patch, get64, put64};
use crate::victim::victim;

const FAR: u64 = 1 << 40;

fn is(kind: Kind) -> impl Fn(&Key, &[u8]) -> bool {
    move |key, _| key.kind == kind
}

/// Adds a record that no group owns: its head, and one run.
fn insert_record(patch: &Patch, start: u64, len: u64, extent_count: u32, run: u64) {
    let info = FreeSpaceInfo { extent_count, flags: 0 }.to_bytes();
    patch.insert(TreeId::FREE_SPACE, Key::new(start, Kind::FREE_SPACE_INFO, len), info);
    let run = Key::new(start, Kind::FREE_SPACE_EXTENT, run);
    patch.insert(TreeId::FREE_SPACE, run, Vec::new());
}

#[test]
fn free_space_invalid() {
    let patch = Patch::new(victim());
    patch.edit_supers(&[0, 1], |bytes| {
        put64(bytes, 180, get64(bytes, 180) & !CompatRo::FREE_SPACE_TREE_VALID.0);
    });
    let report = patch.report();
    assert!(report.has("free-space-invalid") && report.is_clean(), "{}", report.to_text());
}

#[test]
fn free_space_info_missing() {
    let patch = Patch::new(victim());
    patch.remove(TreeId::FREE_SPACE, is(Kind::FREE_SPACE_INFO));
    patch.finds(&["free-space-info-missing"]);
}

#[test]
fn free_space_unexpected() {
    let patch = Patch::new(victim());
    let info = FreeSpaceInfo { extent_count: 0, flags: 0 }.to_bytes();
    patch.insert(TreeId::FREE_SPACE, Key::new(FAR, Kind::FREE_SPACE_INFO, 1 << 20), info);
    assert!(patch.report().has("free-space-unexpected"));
}

#[test]
fn free_space_mismatch() {
    for more in [4096, 4096_u64.wrapping_neg()] {
        let patch = Patch::new(victim());
        let run = is(Kind::FREE_SPACE_EXTENT);
        patch.edit_key(TreeId::FREE_SPACE, run, |key| key.offset = key.offset.wrapping_add(more));
        patch.finds(&["free-space-mismatch"]);
    }
    let patch = Patch::new(victim());
    patch.remove(TreeId::FREE_SPACE, is(Kind::FREE_SPACE_EXTENT));
    patch.finds(&["free-space-mismatch", "free-space-count"]);
}

#[test]
fn free_space_count() {
    let patch = Patch::new(victim());
    patch.edit(TreeId::FREE_SPACE, is(Kind::FREE_SPACE_INFO), |bytes| bytes[0] += 1);
    patch.finds(&["free-space-count"]);
}

/// The groups that Linux's mkfs began with leave records like this one. A new group never meets
/// them.
#[test]
fn record_of_a_removed_group_in_front_of_others_is_no_fault() {
    let patch = Patch::new(victim());
    insert_record(&patch, 65536, 65536, 1, 65536);
    insert_record(&patch, 131_072, 65536, 1, 65536);
    let report = patch.report();
    assert!(report.issues.is_empty(), "{}", report.to_text());
}

#[test]
fn record_of_a_removed_group_that_is_not_whole_is_found() {
    for (start, len, extent_count, run) in [
        (65536, 65536, 2, 65536),
        (65536, 65536, 0, 65536),
        (65536, 65536, 1, 32768),
        (65536, FAR, 1, FAR),
        (65536, u64::MAX, 1, u64::MAX),
        // A new group would lie here.
        (FAR, 65536, 1, 65536),
    ] {
        let patch = Patch::new(victim());
        insert_record(&patch, start, len, extent_count, run);
        let report = patch.report();
        assert!(report.has("free-space-unexpected"), "{start} {len} {extent_count} {run}");
    }
}
