//! Tests that the checker gives an answer for any damage, and does not panic.

use std::collections::BTreeSet;
use std::sync::Arc;

use buttress_base::Rng;
use buttress_block::Device;
use buttress_check::{Issue, NoProgress, Options, Report, Severity, check_devices, repair};
use buttress_format::TreeId;
use buttress_volume::journal::{Journal, undo};

use crate::doubles::double;
use crate::mend::{contents, devices, is_fine_for_progs};
use crate::patch::Patch;
use crate::victim::{nested_victim, old_victim, victim};

/// The number of flips of a test: `BUTTRESS_FLIPS`, or as many as the test has time for. The number
/// of a flip is its seed.
fn flips(usual: u64) -> std::ops::Range<u64> {
    let asked = std::env::var("BUTTRESS_FLIPS").ok().and_then(|text| text.parse().ok());
    0..asked.unwrap_or(usual)
}

/// A volume with bits of nodes flipped, and with checksums that fit.
fn flipped(seed: u64) -> Patch {
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
        // Half of the flips hit the header and the table of items, and half hit the items.
        let at = if rng.chance(1, 2) {
            32 + rng.below((69 + leaf.len() as u64 * 25).min(bytes.len() as u64 - 32))
        } else {
            bytes.len() as u64 - 1 - rng.below(used.min(bytes.len() as u64 - 32))
        };
        bytes[at as usize] ^= 1 << rng.below(8);
        patch.write_node(leaf.ptr(), bytes);
    }
    patch
}

/// Codes of the errors that a check finds.
fn errors(report: &Report) -> BTreeSet<&'static str> {
    let errors = report.issues.iter().filter(|issue| issue.severity() == Severity::Error);
    errors.map(Issue::code).collect()
}

/// Whatever is wrong, a repair adds no kind of error and names the faults that it leaves. An undo
/// gives the damaged bytes back.
#[test]
fn repairs_of_flipped_bits() {
    let folder = tempfile::tempdir().expect("a folder");
    let (mut damaged, mut mended) = (0, 0);
    // Two seeds that once failed: chunks that contradict each other, and errors below a damaged
    // node.
    for seed in flips(150).chain([1098, 1113]) {
        let patch = flipped(seed);
        let devices: Vec<Arc<dyn Device>> = vec![Arc::clone(&patch.device) as Arc<dyn Device>];
        let check = || check_devices(devices.clone(), &Options::thorough(), &NoProgress);
        let Ok(before) = check() else { continue };
        let blocks = patch.device.blocks();
        let path = folder.path().join(seed.to_string());
        let Ok((_, journaled)) = Journal::create(&path, &devices) else { continue };
        let repairs = repair(&journaled, &before).unwrap_or_else(|error| {
            panic!("seed {seed}: {error}\n{}", before.to_text());
        });
        let after = check().expect("a volume that opened before");
        let says =
            || format!("seed {seed}: {repairs:?}\n{}\n{}", before.to_text(), after.to_text());
        // Errors below a damaged node of the extent tree show once the node is mended.
        let is_hidden = before
            .issues
            .iter()
            .any(|issue| matches!(issue, Issue::NodeDamaged { tree: TreeId::EXTENT, .. }));
        assert!(is_hidden || errors(&after).is_subset(&errors(&before)), "{}", says());
        assert!(after.is_clean() == repairs.left.is_empty(), "{}", says());
        damaged += u32::from(!before.is_clean());
        mended += u32::from(!before.is_clean() && after.is_clean());
        undo(&devices, &path).expect("an undo");
        patch.device.expect_blocks(&blocks);
    }
    println!("{mended} of {damaged} are mended");
    assert!(mended > 0 && mended < damaged);
}

/// Directories with several names, names with several inodes, and checksums that overlap are mended
/// in any combination. All contents stay, and an undo gives the damaged bytes back.
#[test]
fn repairs_of_what_is_there_twice() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut damaged = 0;
    for seed in flips(40) {
        let patch = Patch::new(nested_victim());
        let before: BTreeSet<Vec<u8>> =
            contents(&patch).into_values().map(|(_, bytes)| bytes).collect();
        double(&patch, &mut Rng::new(seed));
        let report = patch.report();
        let blocks = patch.device.blocks();
        let path = folder.path().join(seed.to_string());
        let (_, journaled) = Journal::create(&path, &devices(&patch)).expect("a journal");
        let repairs = repair(&journaled, &report).expect("a repair");
        let after = patch.report();
        let says =
            || format!("seed {seed}: {repairs:?}\n{}\n{}", report.to_text(), after.to_text());
        assert!(after.is_clean() && repairs.left.is_empty(), "{}", says());
        assert!(is_fine_for_progs(&patch, folder.path()), "{}", says());
        let kept: BTreeSet<Vec<u8>> =
            contents(&patch).into_values().map(|(_, bytes)| bytes).collect();
        assert!(kept == before, "a file is lost: {}", says());
        damaged += u32::from(!report.is_clean());
        undo(&devices(&patch), &path).expect("an undo");
        patch.device.expect_blocks(&blocks);
    }
    println!("{damaged} were damaged");
    assert!(damaged > 25);
}

/// Each check of flipped bits ends, and reports something sensible.
#[test]
fn flipped_bits_with_good_checksums() {
    for seed in flips(300) {
        let patch = flipped(seed);
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
