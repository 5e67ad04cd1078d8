//! What is counted of a transaction against what its commit makes: a debug build compares the two at the end of each
//! commit. Here are overlays that tests of files do not make: items of all lengths, anywhere, that come, grow, shrink
//! and go, put while another commit is under way.

use std::sync::atomic::{AtomicBool, Ordering};

use buttress_base::Rng;
use buttress_format::{Extent, Ino, Key, Kind, TreeId};
use buttress_fs::make::MakeOptions;
use buttress_txn::{Cost, DataRef, Engine, Urgency};

use crate::judge;

/// Lengths of payloads: mostly small, now and then nearly a leaf.
fn length(rng: &mut Rng, item_max: u64) -> usize {
    let below = match rng.below(20) {
        0 => item_max,
        1..4 => item_max / 3,
        4..8 => 600,
        _ => 90,
    };
    rng.below(below) as usize + 1
}

/// One operation: some items near each other or anywhere, and now and then an extent of data that comes or goes.
fn operate(
    engine: &std::sync::Arc<Engine>,
    rng: &mut Rng,
    objects: u64,
    kept: &mut Vec<(Extent, DataRef)>,
) {
    let geometry = *engine.store().geometry();
    let items = 1 + rng.below(8) as u32;
    let cost = Cost { items: items + 8, bytes: 300_000 };
    let Ok(promise) = engine.reserve(cost, Urgency::Normal) else { return };
    let sector = u64::from(geometry.sectorsize);
    let mut born = None;
    if rng.chance(1, 4)
        && let Ok(mut space) = engine.reserve_data(sector)
    {
        born = engine.allocate_data(&mut space, sector, sector, None, rng.below(4)).ok();
    }
    let handle = engine.begin(promise);
    let object = 1 << 20 | rng.below(objects);
    for _ in 0..items {
        let object = if rng.chance(1, 3) { 1 << 20 | rng.below(objects) } else { object };
        let key = Key::new(object, Kind::XATTR_ITEM, rng.below(6));
        if rng.chance(2, 5) {
            handle.delete(TreeId::FS, key);
        } else {
            handle.put(TreeId::FS, key, vec![7; length(rng, geometry.item_max() as u64)]);
        }
    }
    if let Some(extent) = born {
        let who = DataRef { root: TreeId::FS, ino: Ino(1 << 20), offset: rng.below(1 << 30) };
        handle.add_data_ref(extent, who);
        handle.insert_csums(extent, vec![1; geometry.csum.size()]);
        kept.push((extent, who));
    }
    if rng.chance(1, 6) && !kept.is_empty() {
        let (extent, who) = kept.swap_remove(rng.below(kept.len() as u64) as usize);
        handle.drop_data_ref(extent, who);
    }
}

fn overlays(seed: u64, nodesize: u32, beside: bool) {
    let dir = tempfile::tempdir().expect("a folder");
    let options = MakeOptions { nodesize, ..MakeOptions::default() };
    let path = judge::volume(dir.path(), 512 << 20, &options);
    let engine = judge::open(&path);
    let mut rng = Rng::new(seed);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        if beside {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    engine.commit().expect("no commit makes more than was counted");
                }
            });
        }
        let mut kept = Vec::new();
        for _ in 0..12 {
            let objects = [20, 300, 4000][rng.below(3) as usize];
            for _ in 0..[3, 40, 400][rng.below(3) as usize] {
                operate(&engine, &mut rng, objects, &mut kept);
            }
            engine.commit().expect("no commit makes more than was counted");
        }
        done.store(true, Ordering::Relaxed);
    });
    engine.shutdown().expect("the last commit");
}

#[test]
fn commits_make_no_more_than_was_counted() {
    for seed in 0..16 {
        overlays(seed, if seed % 2 == 0 { 16 << 10 } else { 4 << 10 }, false);
    }
}

#[test]
fn nor_beside_commits() {
    for seed in 20..32 {
        overlays(seed, if seed % 2 == 0 { 16 << 10 } else { 4 << 10 }, true);
    }
}
