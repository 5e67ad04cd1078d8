//! A commit writes in long runs, even if free metadata is in pieces. The tests count requests and
//! bytes.

use std::sync::Arc;

use buttress_base::Rng;
use buttress_block::MemoryDevice;
use buttress_format::{Key, Kind, Profile, TreeId};
use buttress_fs::make::{MakeOptions, make};
use buttress_txn::{Cost, Engine, EngineOptions, ReserveClass};
use buttress_volume::Volume;

/// The uuid tree can have any items, because no checker interprets them.
const TREE: TreeId = TreeId::UUID;
const ITEM_BYTES: usize = 1000;

struct Churned {
    /// Nodes that a commit wrote, on average.
    nodes: f64,
    /// Requests that wrote these nodes, on average.
    requests: f64,
}

fn put(engine: &Arc<Engine>, key: u64, rng: &mut Rng) {
    let mut payload = vec![0; ITEM_BYTES];
    rng.fill(&mut payload);
    let cost = Cost::of(1, ITEM_BYTES as u32);
    let handle = engine.begin(engine.reserve(cost, ReserveClass::Normal).expect("space"));
    handle.put(TREE, Key::new(key, Kind::UUID_KEY_SUBVOL, 0), payload);
}

fn volume() -> Arc<Engine> {
    let device = Arc::new(MemoryDevice::new(2 << 30));
    let options =
        MakeOptions { metadata: Some(Profile::Single), seed: Some(1), ..MakeOptions::default() };
    make(&*device, &options).expect("a volume");
    let options = buttress_volume::OpenOptions { writable: true, ..Default::default() };
    let (volume, superblock) = Volume::open(vec![device], options).expect("a volume");
    Engine::open(Arc::new(volume), superblock, EngineOptions::default()).expect("it opens")
}

/// Fills metadata of a small volume. Changes items in random order for many commits until the free
/// space is in pieces, and counts the writes of the last commits.
fn churn(items: u64, per_commit: u64, commits: u64, counted: u64) -> Churned {
    let engine = volume();
    let mut rng = Rng::new(items);
    let mut keys: Vec<u64> = (0..items).collect();
    rng.shuffle(&mut keys);
    for (index, key) in keys.into_iter().enumerate() {
        put(&engine, key, &mut rng);
        if index % 4000 == 3999 {
            engine.commit().expect("the commit");
        }
    }
    let mut before = None;
    for commit in 0..commits {
        if commit == commits - counted {
            before = Some((engine.volume().stats().writes, engine.statistics().nodes_written));
        }
        for _ in 0..per_commit {
            put(&engine, rng.below(items), &mut rng);
        }
        engine.commit().expect("the commit");
    }
    let (writes, nodes) = before.expect("some are counted");
    // The figures for `statfs` come from the accounts. They equal the figures of a walk over the
    // groups.
    let (figures, usage) = (engine.statfs_figures(), engine.usage());
    assert_eq!(figures.data_available, usage.data_available);
    assert_eq!(
        (figures.device_bytes, figures.data_copies),
        (usage.device_bytes, usage.data_copies)
    );
    // Two requests of each commit write superblocks.
    let requests = engine.volume().stats().writes - writes - 2 * counted;
    let nodes = engine.statistics().nodes_written - nodes;
    Churned { nodes: nodes as f64 / counted as f64, requests: requests as f64 / counted as f64 }
}

/// Without runs, commits took the next free piece for each node. A request then had 3.5 nodes in
/// the first case, and 2.6 nodes in the second case.
#[test]
fn a_commit_writes_in_runs() {
    for (per_commit, commits) in [(20, 400), (300, 60)] {
        let Churned { nodes, requests } = churn(60_000, per_commit, commits, commits / 4);
        assert!(nodes >= 8.0 * requests, "{nodes:.1} nodes in {requests:.1} requests");
        assert!(nodes <= 60.0 + per_commit as f64 * 1.1, "{nodes:.1} nodes for {per_commit} items");
    }
}

/// K1: the part of a run that a commit does not need is free again, and the next commit goes on
/// there.
#[test]
fn small_commits_lie_side_by_side() {
    let engine = volume();
    let mut rng = Rng::new(3);
    put(&engine, 0, &mut rng);
    engine.commit().expect("the commit");
    let mut last = None;
    for commit in 0..40 {
        put(&engine, commit, &mut rng);
        engine.commit().expect("the commit");
        let root = engine.view().committed_root(TREE).expect("reads").expect("a root").logical.0;
        // The commit passes over pieces that earlier commits freed, because together they form no
        // run.
        assert!(last.is_none_or(|last| root > last && root - last < 1 << 20), "{last:?}, {root}");
        last = Some(root);
    }
    assert_eq!(engine.reservations().accounts().metadata.reserved, 0, "nothing of a run is left");
}
