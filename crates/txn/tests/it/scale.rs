//! Inserts, overwrites and deletes in random key order over deep trees, clean at every commit.
//!
//! Other implementations passed thousands of lines of tests, and still corrupted volumes with 600
//! files. Trees break when leaves are split in their middle, at random and many times.

use std::collections::BTreeMap;

use buttress_base::Rng;
use buttress_format::{Key, Kind, TreeId};
use buttress_fs::make::MakeOptions;
use buttress_txn::{Cost, Engine, ReserveClass};

use crate::checker;

/// The uuid tree can have any items, because no checker interprets them.
const TREE: TreeId = TreeId::UUID;

fn same(engine: &Engine, model: &BTreeMap<Key, Vec<u8>>) {
    let view = engine.view();
    let mut expected = model.iter();
    for found in view.range(TREE, Key::MIN, Key::MAX) {
        let (key, item) = found.expect("the tree reads");
        let (want_key, want) = expected.next().expect("no item too many");
        assert_eq!((&key, &*item), (want_key, &want[..]));
    }
    assert_eq!(expected.next(), None, "no item is missing");
}

/// The amount of changes to a tree.
struct Churn {
    nodesize: u32,
    steps: u64,
    per_commit: u64,
    payload_max: u64,
    seed: u64,
    /// The level that the tree must reach. With a lower tree, the run would test too little.
    min_level: u8,
}

fn churn(plan: &Churn) {
    let Churn { nodesize, steps, per_commit, payload_max, seed, min_level } = *plan;
    let dir = tempfile::tempdir().expect("a folder");
    let options = MakeOptions { nodesize, seed: Some(1), ..MakeOptions::default() };
    let path = checker::volume(dir.path(), 4 << 30, &options);
    let mut engine = checker::open(&path);
    let mut model: BTreeMap<Key, Vec<u8>> = BTreeMap::new();
    for found in engine.view().range(TREE, Key::MIN, Key::MAX) {
        let (key, item) = found.expect("the tree reads");
        model.insert(key, item.to_vec());
    }
    let mut rng = Rng::new(seed);
    let mut highest = 0;
    let mut done = 0;
    while done < steps {
        // The tree grows in three phases, shrinks in one, so that leaves are joined again, and
        // grows once more.
        let grows = done / (steps / 5).max(1) != 3;
        for _ in 0..per_commit {
            let key = Key::new(rng.below(1_000_000), Kind::UUID_KEY_SUBVOL, rng.below(8));
            let remove = rng.chance(if grows { 1 } else { 8 }, 10);
            let key = if remove {
                match model.range(key..).next() {
                    Some((key, _)) => *key,
                    None => continue,
                }
            } else {
                key
            };
            let len = if rng.chance(1, 200) { 1500 } else { rng.below(payload_max) } as usize;
            let cost = Cost::of(1, len as u32);
            let handle = engine.begin(engine.reserve(cost, ReserveClass::Normal).expect("space"));
            if remove {
                handle.delete(TREE, key);
                model.remove(&key);
            } else {
                let mut payload = vec![0; len];
                rng.fill(&mut payload);
                handle.put(TREE, key, payload.clone());
                model.insert(key, payload);
            }
        }
        done += per_commit;
        engine.commit().expect("the commit");
        let root = engine.view().committed_root(TREE).expect("reads").expect("a root");
        highest = highest.max(root.level);
        same(&engine, &model);
        checker::check(&path);
        if rng.chance(1, 4) {
            drop(engine);
            engine = checker::open(&path);
            same(&engine, &model);
        }
    }
    assert!(highest >= min_level, "seed {seed}: only level {highest} was reached");
}

#[test]
fn three_levels_of_16k_nodes_in_random_order() {
    churn(&Churn {
        nodesize: 16384,
        steps: 200_000,
        per_commit: 10_000,
        payload_max: 400,
        seed: 7,
        min_level: 2,
    });
}

#[test]
fn four_levels_of_4k_nodes_in_random_order() {
    churn(&Churn {
        nodesize: 4096,
        steps: 200_000,
        per_commit: 10_000,
        payload_max: 1200,
        seed: 8,
        min_level: 3,
    });
}

#[test]
fn every_node_size() {
    for (nodesize, seed) in [(4096, 1), (8192, 2), (32768, 3), (65536, 4)] {
        let (steps, per_commit, payload_max) = (6_000, 1_000, 200);
        churn(&Churn { nodesize, steps, per_commit, payload_max, seed, min_level: 1 });
    }
}

#[test]
fn emptying_a_tree_leaves_one_leaf() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = checker::volume(dir.path(), 1 << 30, &MakeOptions::default());
    let engine = checker::open(&path);
    let keys: Vec<_> = (0..5000).map(|i| Key::new(i, Kind::UUID_KEY_SUBVOL, 0)).collect();
    for filled in [true, false] {
        for key in &keys {
            let cost = Cost::of(1, 100);
            let handle = engine.begin(engine.reserve(cost, ReserveClass::Normal).expect("space"));
            if filled { handle.put(TREE, *key, vec![1; 100]) } else { handle.delete(TREE, *key) }
        }
        engine.commit().expect("the commit");
        checker::check(&path);
    }
    let root = engine.view().committed_root(TREE).expect("reads").expect("a root");
    assert_eq!(root.level, 0);
}
