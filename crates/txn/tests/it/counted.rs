//! A debug build compares the counted nodes of a transaction with the nodes that its commit makes.
//! These tests make overlays that tests of files do not make. Items of all lengths are added, grow,
//! shrink and are deleted, anywhere in a tree, and also while another commit is under way.

use std::sync::atomic::{AtomicBool, Ordering};

use buttress_base::Rng;
use buttress_format::{Extent, Ino, Key, Kind, TreeId};
use buttress_fs::make::MakeOptions;
use buttress_txn::{Cost, DataRef, Engine, Handle, MetaReservation, ReserveClass};

use crate::checker;

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

/// One operation: some items near each other or anywhere, and now and then an extent of data that
/// comes or goes.
fn operate(
    engine: &std::sync::Arc<Engine>,
    rng: &mut Rng,
    objects: u64,
    kept: &mut Vec<(Extent, DataRef)>,
) {
    let geometry = *engine.store().geometry();
    let items = 1 + rng.below(8) as u32;
    let cost = Cost::of(items + 8, 300_000);
    let Ok(reservation) = engine.reserve(cost, ReserveClass::Normal) else { return };
    let sector = u64::from(geometry.sectorsize);
    let mut born = None;
    if rng.chance(1, 4)
        && let Ok(mut space) = engine.reserve_data(sector)
    {
        born = engine.allocate_data(&mut space, sector, sector, None, rng.below(4)).ok();
    }
    let handle = engine.begin(reservation);
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
        let user = DataRef { root: TreeId::FS, ino: Ino(1 << 20), offset: rng.below(1 << 30) };
        handle.add_data_ref(extent, user);
        handle.insert_csums(extent, vec![1; geometry.csum.size()]);
        kept.push((extent, user));
    }
    if rng.chance(1, 6) && !kept.is_empty() {
        let (extent, user) = kept.swap_remove(rng.below(kept.len() as u64) as usize);
        handle.drop_data_ref(extent, user);
    }
}

fn overlays(seed: u64, nodesize: u32, asked: bool) {
    let dir = tempfile::tempdir().expect("a folder");
    let options = MakeOptions { nodesize, ..MakeOptions::default() };
    let path = checker::volume(dir.path(), 512 << 20, &options);
    let engine = checker::open(&path);
    let mut rng = Rng::new(seed);
    let mut kept = Vec::new();
    beside(&engine, asked, || {
        for _ in 0..12 {
            let objects = [20, 300, 4000][rng.below(3) as usize];
            for _ in 0..[3, 40, 400][rng.below(3) as usize] {
                operate(&engine, &mut rng, objects, &mut kept);
            }
            engine.commit().expect("no commit makes more than was counted");
        }
    });
    engine.shutdown().expect("the last commit");
}

#[test]
fn commits_make_no_more_than_was_counted() {
    for seed in seeds(0, 16) {
        overlays(seed, if seed % 2 == 0 { 16 << 10 } else { 4 << 10 }, false);
    }
}

#[test]
fn nor_beside_commits() {
    for seed in seeds(20, 12) {
        overlays(seed, if seed % 2 == 0 { 16 << 10 } else { 4 << 10 }, true);
    }
}

/// Runs `work`. With `asked`, another thread commits again and again meanwhile.
fn beside<R>(engine: &Engine, asked: bool, work: impl FnOnce() -> R) -> R {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        if asked {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    engine.commit().expect("no commit makes more than was counted");
                }
            });
        }
        let answer = work();
        done.store(true, Ordering::Relaxed);
        answer
    })
}

/// Adds and drops references all over an extent tree of many leaves: in runs, single references in
/// a leaf, and many references to one extent.
fn references(engine: &std::sync::Arc<Engine>, rng: &mut Rng, kept: &mut Vec<(Extent, DataRef)>) {
    let sector = u64::from(engine.store().geometry().sectorsize);
    let user =
        |rng: &mut Rng| DataRef { root: TreeId::FS, ino: Ino(257), offset: rng.below(1 << 40) };
    let first = kept.is_empty();
    let count = if first { 15_000 } else { [30, 300, 3000][rng.below(3) as usize] };
    let goes = if first || rng.chance(1, 2) { 0 } else { rng.below(100) };
    let shared = if first { 5 } else { [5, 50, 95][rng.below(3) as usize] };
    let at = rng.below(kept.len().max(1) as u64) as usize;
    let in_runs = rng.chance(1, 2);
    for step in 0..count {
        let cost = Cost { items: 1, commit_items: 9, bytes: 300 };
        let reservation = engine.reserve(cost, ReserveClass::Normal).expect("there is room");
        if rng.below(100) < goes && kept.len() > 1 {
            let index = if in_runs { at + step } else { rng.below(1 << 30) as usize };
            let (extent, user) = kept.swap_remove(index % kept.len());
            engine.begin(reservation).drop_data_ref(extent, user);
            continue;
        }
        if rng.below(100) < shared && !kept.is_empty() {
            let extent = kept[rng.below(kept.len() as u64) as usize].0;
            let user = user(rng);
            engine.begin(reservation).add_data_ref(extent, user);
            kept.push((extent, user));
            continue;
        }
        let mut space = engine.reserve_data(sector).expect("there is room");
        let extent = engine.allocate_data(&mut space, sector, sector, None, rng.below(3));
        let (extent, user) = (extent.expect("there is room"), user(rng));
        let handle = engine.begin(reservation);
        handle.add_data_ref(extent, user);
        handle.insert_csums(extent, vec![1; engine.store().geometry().csum.size()]);
        kept.push((extent, user));
    }
}

fn many_leaves(seed: u64, asked: bool) {
    let dir = tempfile::tempdir().expect("a folder");
    let options = MakeOptions { nodesize: 4 << 10, ..MakeOptions::default() };
    let path = checker::volume(dir.path(), 1 << 30, &options);
    let engine = checker::open(&path);
    let mut rng = Rng::new(seed);
    let mut kept = Vec::new();
    references(&engine, &mut rng, &mut kept);
    beside(&engine, asked, || {
        for _ in 0..13 {
            references(&engine, &mut rng, &mut kept);
            engine.commit().expect("no commit makes more than was counted");
        }
    });
    engine.shutdown().expect("the last commit");
}

#[test]
fn nor_of_an_extent_tree_of_many_leaves() {
    for seed in seeds(40, 8) {
        many_leaves(seed, seed % 4 == 3);
    }
}

fn extent_key(ino: Ino, block: u64) -> Key {
    Key::new(ino.0, Kind::EXTENT_DATA, block * 4096)
}

/// Puts an extent of one inode anywhere, splits an extent in two, or removes an extent. Each change
/// uses its share of the reservation. Without `grows`, all extents exist already.
fn finish(handle: &Handle<'_>, rng: &mut Rng, ino: Ino, blocks: u64, grows: bool) {
    let key = |block| extent_key(ino, block);
    let at = rng.below(blocks);
    handle.put(TreeId::FS, Key::new(ino.0, Kind::INODE_ITEM, 0), [1; 160]);
    match rng.below(8) {
        _ if !grows => handle.put(TreeId::FS, key(at), [6; 53]),
        0 => handle.delete(TreeId::FS, key(at)),
        1 => {
            handle.put(TreeId::FS, key(at), [2; 53]);
            handle.put(TreeId::FS, key(at + 1), [3; 53]);
        }
        _ => handle.put(TreeId::FS, key(at), [4; 53]),
    }
}

/// Inodes reserve as much as fits: thousands of items, in leaves that the inodes share. Random
/// parts of the data are finished, in this transaction or in later ones. No commit needs any of the
/// global reserve.
fn inodes(seed: u64, nodesize: u32, asked: bool) {
    let grows = seed.is_multiple_of(3);
    let cost = if grows { Cost { items: 4, commit_items: 8, bytes: 456 } } else { Cost::of(2, 0) };
    let dir = tempfile::tempdir().expect("a folder");
    let options = MakeOptions { nodesize, ..MakeOptions::default() };
    let path = checker::volume(dir.path(), 256 << 20, &options);
    let engine = checker::open(&path);
    // Takes all data space, so that no chunk can be added any more.
    let mut kept = Vec::new();
    while let Ok(Some(space)) = engine.reserve_data_at_once(8 << 20) {
        kept.push(space);
    }
    let mut rng = Rng::new(seed);
    let metadata = engine.reservations().accounts().metadata.total;
    let blocks = [800, 6000, 20_000, 30_000][rng.below(4) as usize];
    let inos: Vec<_> = (0..4).map(|index| Ino(1 << 21 | index)).collect();
    for (ino, block) in inos.iter().flat_map(|ino| (0..blocks).map(move |block| (*ino, block))) {
        if grows {
            break;
        }
        let reservation =
            engine.reserve(Cost::of(1, 53), ReserveClass::Normal).expect("there is room");
        engine.begin(reservation).put(TreeId::FS, extent_key(ino, block), [5; 53]);
        if block == blocks - 1 {
            engine.commit().expect("there is room");
        }
    }
    let filled = metadata / 100 * (66 + rng.below(16));
    for at in 0.. {
        if engine.reservations().accounts().metadata.used > filled {
            break;
        }
        for item in 0..100 {
            let reservation =
                engine.reserve(Cost::of(1, 3000), ReserveClass::Normal).expect("there is room");
            let key = Key::new(1 << 22 | at, Kind::XATTR_ITEM, item);
            engine.begin(reservation).put(TreeId::FS, key, [5; 3000]);
        }
        engine.commit().expect("there is room");
    }
    let mut inodes: Vec<_> = inos
        .into_iter()
        .map(|ino| {
            (
                ino,
                engine.reservations().inode_reserve(TreeId::FS, ino),
                None::<MetaReservation>,
                0_u32,
            )
        })
        .collect();
    let (mut finished, mut most) = (0, 0);
    beside(&engine, asked, || {
        for round in 0..40 {
            for (_, reserve, reserved, waits) in &mut inodes {
                for _ in 0..rng.below(200) {
                    let more = rng.below(16) as u32 + 1;
                    let token = engine.reserve_at_once(cost.times(more), ReserveClass::Normal);
                    let Some(mut token) = token.expect("it can be written to") else { break };
                    token.bind(reserve);
                    match &mut *reserved {
                        Some(all) => all.merge(token),
                        None => *reserved = Some(token),
                    }
                    *waits += more;
                }
            }
            most = most.max(inodes.iter().map(|(_, _, _, waits)| waits).sum());
            for (ino, _, reserved, waits) in &mut inodes {
                let part = rng.below(u64::from(*waits) + 1) as u32;
                let Some(all) = reserved else { continue };
                for _ in 0..part {
                    let (token, short) = all.split_cost(cost);
                    assert_eq!(short, Cost::default());
                    finish(&engine.begin(token), &mut rng, *ino, blocks, grows);
                }
                *waits -= part;
                finished += part;
            }
            if rng.chance(1, 3) || round == 39 {
                engine.commit().expect("no commit makes more than was counted");
            }
        }
    });
    let taken = engine.statistics().reserve_taken_max;
    assert_eq!(taken, 0, "{seed}: {finished} finished, {most} at once");
    drop((inodes, kept));
    engine.shutdown().expect("the last commit");
}

#[test]
fn reservations_of_inodes_cover_what_is_finished() {
    for seed in seeds(60, 16) {
        inodes(seed, if seed % 2 == 0 { 16 << 10 } else { 4 << 10 }, seed % 4 == 3);
    }
}

/// `count` seeds from `first` on, or as many seeds as `BUTTRESS_COUNTS` says.
fn seeds(first: u64, count: u64) -> std::ops::Range<u64> {
    let asked = std::env::var("BUTTRESS_COUNTS").ok().and_then(|count| count.parse().ok());
    first..first + asked.unwrap_or(count)
}
