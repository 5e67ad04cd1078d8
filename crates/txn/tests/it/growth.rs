//! Counts the steps of walks over views. The number of steps grows no faster than the work, and the
//! results are right.
//!
//! Steps are counted, not timed. Each load runs at 1, 4 and 16 times its size.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use buttress_base::Rng;
use buttress_format::{Key, Kind, TreeId};
use buttress_txn::{Cost, Engine, ReserveClass, View};

use crate::reservation_cache::engine;

/// The uuid tree can have any items.
const TREE: TreeId = TreeId::UUID;
const OBJECT: u64 = 300;
/// Most steps that a search may take, at any size: 31 deletions that were not noted yet, and a few
/// steps more.
const STEPS_PER_KEY: u64 = 40;

fn key(at: u64) -> Key {
    Key::new(OBJECT, Kind::UUID_KEY_SUBVOL, at)
}

fn change(engine: &Arc<Engine>, keys: &[u64], payload: Option<&[u8]>) {
    for batch in keys.chunks(256) {
        let cost = Cost::of(batch.len() as u32, 64 * batch.len() as u32);
        let handle = engine.begin(engine.reserve(cost, ReserveClass::Normal).expect("space"));
        for at in batch {
            match payload {
                Some(payload) => handle.put(TREE, key(*at), payload),
                None => handle.delete(TREE, key(*at)),
            }
        }
    }
}

fn first(view: &View, low: u64) -> Option<u64> {
    let found = view.at_or_after(TREE, &key(low), &key(u64::MAX)).expect("it reads");
    found.map(|(key, _)| key.offset)
}

fn last(view: &View, high: u64) -> Option<u64> {
    let found = view.at_or_before(TREE, &key(0), &key(high)).expect("it reads");
    found.map(|(key, _)| key.offset)
}

/// The order in which keys are deleted, one after the other, with a search after each deletion.
#[derive(Clone, Copy, Debug)]
enum Order {
    FromTheEnd,
    FromTheFront,
    AtRandom,
}

/// Deletes all of `count` keys, and searches for the remaining keys after each deletion. Returns
/// the steps.
fn drain(order: Order, count: u64, committed: bool) -> u64 {
    let engine = engine(256);
    let mut keys: Vec<u64> = (0..count).collect();
    change(&engine, &keys, Some(&[7; 32]));
    if committed {
        engine.commit().expect("a commit");
    }
    match order {
        Order::FromTheEnd => keys.reverse(),
        Order::FromTheFront => {}
        Order::AtRandom => Rng::new(1).shuffle(&mut keys),
    }
    let store = Arc::clone(engine.view().store());
    let before = store.steps();
    for (index, at) in keys.iter().enumerate() {
        change(&engine, &[*at], None);
        let view = engine.view();
        let left = count - 1 - index as u64;
        let (low, high) = (first(&view, 0), last(&view, u64::MAX));
        match order {
            Order::FromTheEnd => assert_eq!(high, left.checked_sub(1)),
            Order::FromTheFront => assert_eq!(low, (left > 0).then_some(at + 1)),
            Order::AtRandom => assert_eq!(low.is_some(), left > 0),
        }
        assert_eq!((low.is_none(), high.is_none()), (left == 0, left == 0));
    }
    store.steps().since(&before).keys
}

/// Searches pass earlier deletions in a few steps. The order of the deletions makes no difference,
/// nor does a commit of the keys.
#[test]
fn searches_pass_deletions_in_few_steps_whatever_their_order() {
    for committed in [false, true] {
        for order in [Order::FromTheEnd, Order::FromTheFront, Order::AtRandom] {
            for count in [500, 2_000, 8_000] {
                let steps = drain(order, count, committed);
                // Each round has one deletion and a search from each end.
                let most = 2 * STEPS_PER_KEY * count;
                assert!(steps < most, "{order:?} of {count} keys: {steps} steps");
            }
        }
    }
}

/// A queue: keys are added at the end and deleted at the front, and each consumer searches for the
/// first key.
#[test]
fn queue_costs_the_same_for_each_entry_however_many_went_before() {
    for count in [500, 2_000, 8_000] {
        let engine = engine(256);
        change(&engine, &(0..50).collect::<Vec<_>>(), Some(&[7; 32]));
        let store = Arc::clone(engine.view().store());
        let before = store.steps();
        for at in 0..count {
            assert_eq!(first(&engine.view(), 0), Some(at));
            change(&engine, &[at], None);
            change(&engine, &[at + 50], Some(&[7; 32]));
            assert_eq!(last(&engine.view(), u64::MAX), Some(at + 50));
        }
        let steps = store.steps().since(&before).keys;
        assert!(steps < 2 * STEPS_PER_KEY * count, "{count} entries: {steps} steps");
    }
}

/// A writer finds each key that it has put. Meanwhile other threads walk over the deletions around
/// this key and note them.
#[test]
fn puts_are_found_while_walks_note_the_gaps_around_them() {
    const KEYS: u64 = 160;
    let engine = engine(256);
    let at = |object, offset| Key::new(object, Kind::UUID_KEY_SUBVOL, offset);
    let object = AtomicU64::new(0);
    let walk = |view: &View, object| {
        let (low, high) = (at(object, 0), at(object, KEYS));
        let first = view.at_or_after(TREE, &low, &high).expect("it reads");
        let last = view.at_or_before(TREE, &low, &high).expect("it reads");
        (first.map(|(key, _)| key.offset), last.map(|(key, _)| key.offset))
    };
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    match object.load(Ordering::Acquire) {
                        u64::MAX => return,
                        object => drop(walk(&engine.view(), object)),
                    }
                }
            });
        }
        let mut rng = Rng::new(3);
        let mut wrong = None;
        for round in 0..4_000 {
            let cost = Cost::of(KEYS as u32, 0);
            let handle = engine.begin(engine.reserve(cost, ReserveClass::Normal).expect("space"));
            (0..KEYS).for_each(|offset| handle.delete(TREE, at(round, offset)));
            object.store(round, Ordering::Release);
            // By now, the walkers are somewhere in the middle.
            (0..rng.below(200)).for_each(|_| std::hint::spin_loop());
            let put = rng.below(KEYS);
            handle.put(TREE, at(round, put), [1; 8]);
            let found = walk(&engine.view(), round);
            drop(handle);
            if found != (Some(put), Some(put)) {
                wrong = Some((put, found));
                break;
            }
        }
        object.store(u64::MAX, Ordering::Release);
        assert_eq!(wrong, None, "what was put, and what was found");
    });
}

fn same(view: &View, model: &BTreeMap<u64, u8>, rng: &mut Rng, why: &str) {
    let (a, b) = (rng.below(SPAN), rng.below(SPAN));
    let (low, high) = (a.min(b), a.max(b));
    let expected: Vec<_> = model.range(low..=high).map(|(at, byte)| (*at, *byte)).collect();
    let found: Vec<_> = view
        .range(TREE, key(low), key(high))
        .map(|found| found.map(|(key, item)| (key.offset, item[0])).expect("it reads"))
        .collect();
    assert_eq!(found, expected, "{why}: {low} to {high}");
    let found = view.at_or_before(TREE, &key(low), &key(high)).expect("it reads");
    let found = found.map(|(key, item)| (key.offset, item[0]));
    assert_eq!(found, expected.last().copied(), "{why}: the last of {low} to {high}");
    let found = view.at_or_after(TREE, &key(low), &key(high)).expect("it reads");
    let found = found.map(|(key, item)| (key.offset, item[0]));
    assert_eq!(found, expected.first().copied(), "{why}: the first of {low} to {high}");
}

/// Keys of the model.
const SPAN: u64 = 600;

/// Runs of puts and deletions at random, commits between them, and readers that keep an older view.
#[test]
fn views_find_what_a_model_has_between_puts_deletions_and_commits() {
    for seed in 0..6 {
        let mut rng = Rng::new(seed);
        let engine = engine(128);
        let mut model: BTreeMap<u64, u8> = BTreeMap::new();
        let clear: Vec<u64> = (0..SPAN + 64).collect();
        change(&engine, &clear, None);
        let mut held = None;
        for step in 0..400_u64 {
            let start = rng.below(SPAN);
            let run = if rng.chance(1, 3) { 1 } else { 1 + rng.below(200) };
            let keys: Vec<u64> = (start..(start + run).min(SPAN)).collect();
            if rng.chance(1, 3) {
                change(&engine, &keys, Some(&[step as u8; 8]));
                model.extend(keys.iter().map(|at| (*at, step as u8)));
            } else {
                change(&engine, &keys, None);
                model.retain(|at, _| !keys.contains(at));
            }
            let view = engine.view();
            for _ in 0..4 {
                same(&view, &model, &mut rng, &format!("seed {seed}, step {step}"));
            }
            match rng.below(20) {
                0 => {
                    engine.commit().expect("a commit");
                    // The view has the state from before the commit, and nothing was changed since.
                    same(&view, &model, &mut rng, &format!("seed {seed}, step {step}, held"));
                }
                1 => held = Some((engine.view(), model.clone(), step)),
                2 => {
                    if let Some((view, _, since)) = held.take() {
                        // The view has an overlay that changed until a commit froze it. A search in
                        // such a view must not fail.
                        for found in view.range(TREE, key(0), key(SPAN)) {
                            found.unwrap_or_else(|e| panic!("seed {seed}, since {since}: {e}"));
                        }
                    }
                }
                _ => {}
            }
        }
    }
}

/// Walks in both directions over ranges of several objects, while another thread commits. Each
/// object lies in a shard of its own. Walks pass the gaps that walks within an object noted, and
/// miss nothing.
#[test]
fn ranges_over_objects_find_what_a_model_has_beside_commits() {
    const OBJECTS: u64 = 5;
    let at = |(object, offset)| Key::new(OBJECT + object, Kind::UUID_KEY_SUBVOL, offset);
    let plain = |key: Key| (key.objectid - OBJECT, key.offset);
    for seed in 0..4 {
        let mut rng = Rng::new(seed);
        let engine = engine(128);
        let mut model: BTreeMap<(u64, u64), u8> = BTreeMap::new();
        let done = AtomicU64::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while done.load(Ordering::Acquire) == 0 {
                    engine.commit().expect("a commit");
                    std::thread::sleep(std::time::Duration::from_millis(3));
                }
            });
            let mut wrong = None;
            for step in 0..1_500_u64 {
                let (object, start) = (rng.below(OBJECTS), rng.below(300));
                let run = if rng.chance(1, 3) { 1 } else { 1 + rng.below(120) };
                let puts = rng.chance(1, 3);
                let cost = Cost::of(run as u32, 8 * run as u32);
                let handle =
                    engine.begin(engine.reserve(cost, ReserveClass::Normal).expect("space"));
                for offset in start..start + run {
                    if puts {
                        handle.put(TREE, at((object, offset)), [step as u8; 8]);
                        model.insert((object, offset), step as u8);
                    } else {
                        handle.delete(TREE, at((object, offset)));
                        model.remove(&(object, offset));
                    }
                }
                drop(handle);
                let view = engine.view();
                // First a range within the object, which notes gaps; then a range over several
                // objects.
                let (a, b) = (rng.below(OBJECTS), rng.below(OBJECTS));
                let over = (a.min(b), rng.below(400))..=(a.max(b), rng.below(400));
                for range in [(object, 0)..=(object, 500), over] {
                    if range.start() > range.end() {
                        continue;
                    }
                    let (low, high) = (at(*range.start()), at(*range.end()));
                    let expected: Vec<_> =
                        model.range(range).map(|(k, byte)| (*k, *byte)).collect();
                    let one = |(key, item): (Key, buttress_tree::Item)| (plain(key), item[0]);
                    let all = view.range(TREE, low, high);
                    let all: Vec<_> = all.map(|found| one(found.expect("it reads"))).collect();
                    let first = view.at_or_after(TREE, &low, &high).expect("it reads").map(one);
                    let last = view.at_or_before(TREE, &low, &high).expect("it reads").map(one);
                    let ends = (expected.first().copied(), expected.last().copied());
                    if all != expected || (first, last) != ends {
                        wrong.get_or_insert((step, low, high));
                    }
                }
            }
            done.store(1, Ordering::Release);
            assert_eq!(wrong, None, "seed {seed}: the first step and range that differ");
        });
    }
}
