//! Tests that the checker gives an answer for any damage, and does not panic.

use std::sync::Arc;

use buttress_base::Rng;
use buttress_block::Device;
use buttress_check::{NoProgress, Options, check_devices};
use buttress_format::TreeId;

use crate::patch::Patch;
use crate::victim::{old_victim, victim};

/// Flips bits in nodes, and makes the checksums fit. Each check ends with a report.
/// `BUTTRESS_FLIPS` is the number of flips. The seed of a flip is its number.
#[test]
fn flipped_bits_with_good_checksums() {
    let flips = std::env::var("BUTTRESS_FLIPS").ok().and_then(|text| text.parse().ok());
    let trees = [
        TreeId::ROOT,
        TreeId::CHUNK,
        TreeId::EXTENT,
        TreeId::DEV,
        TreeId::FS,
        TreeId::CSUM,
        TreeId::FREE_SPACE,
        TreeId::UUID,
    ];
    for seed in 0..flips.unwrap_or(300) {
        let mut rng = Rng::new(seed);
        let patch = Patch::new(if rng.chance(1, 2) { victim() } else { old_victim() });
        for _ in 0..rng.range(1..4) {
            let tree = trees[rng.below(trees.len() as u64) as usize];
            let Ok(leaves) =
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| patch.leaves(tree)))
            else {
                continue;
            };
            let leaf = &leaves[rng.below(leaves.len() as u64) as usize];
            let mut bytes = leaf.bytes().to_vec();
            let used = (leaf.used_bytes() as u64).max(1);
            // Half of the flips hit the header and the table of items. The others hit the items.
            let at = if rng.chance(1, 2) {
                32 + rng.below((69 + leaf.len() as u64 * 25).min(bytes.len() as u64 - 32))
            } else {
                bytes.len() as u64 - 1 - rng.below(used.min(bytes.len() as u64 - 32))
            };
            bytes[at as usize] ^= 1 << rng.below(8);
            patch.write_node(leaf.ptr(), bytes);
        }
        let devices: Vec<Arc<dyn Device>> = vec![Arc::clone(&patch.device) as Arc<dyn Device>];
        let outcome = check_devices(devices, &Options::thorough(), &NoProgress);
        assert!(outcome.is_ok(), "seed {seed}: {:?}", outcome.err());
    }
}

/// Superblocks with flipped bits are refused, or the check reports them.
#[test]
fn flipped_bits_in_superblocks() {
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let patch = Patch::new(victim());
        let at = 32 + rng.below(900) as usize;
        let bit = 1 << rng.below(8);
        patch.edit_supers(&[0, 1], |bytes| bytes[at] ^= bit);
        let devices: Vec<Arc<dyn Device>> = vec![Arc::clone(&patch.device) as Arc<dyn Device>];
        let _ = check_devices(devices, &Options::default(), &NoProgress);
    }
}
