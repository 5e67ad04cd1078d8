//! A writer ends at any request. The store always has the last commit as a whole.

use std::collections::BTreeMap;

use buttress_base::Rng;
use buttress_block::{Device, MemoryDevice};
use buttress_remote::Options;
use buttress_remote::store::simulated::{Change, SimStore};
use std::sync::Arc;

use crate::{create, open, options, store};

const LEN: u64 = 72 << 20;

/// Every prefix of the changes of a store opens, and has exactly the content of the newest commit
/// that is complete. Some of the changes are checkpoints.
#[test]
fn every_prefix_of_the_store_is_a_commit() {
    let store = store(3);
    let device = create(&store, LEN);
    let mut rng = Rng::new(8);
    let model = MemoryDevice::new(LEN);
    // The state after each flush, by the number of changes that the store had after it.
    let mut states = BTreeMap::from([(store.changes().len(), model.fork())]);
    for round in 0..30 {
        for _ in 0..4 {
            let at = rng.below(LEN / 4096 - 20) * 4096;
            let mut content = vec![0; 4096 * (1 + rng.below(12) as usize)];
            rng.fill(&mut content);
            device.write_at(at, &content).expect("within");
            model.write_at(at, &content).expect("within");
        }
        if round % 7 == 3 {
            let at = rng.below(LEN / 8192) * 4096;
            device.discard(at, 5 << 20).expect("within");
            model.discard(at, 5 << 20).expect("within");
        }
        device.flush().expect("a good store");
        states.insert(store.changes().len(), model.fork());
    }
    let changes = store.changes();
    let first = *states.keys().next().expect("some");
    for count in first..=changes.len() {
        let cut = Arc::new(SimStore::replay(&changes[..count], 1));
        let reader = open(&cut, Options { write: false, ..options() }).expect("every prefix opens");
        // A commit is complete once the store has its manifest, which is the last change of a
        // flush.
        let (_, state) = states.range(..=count).next_back().expect("the first");
        same(&reader, state, count);
    }
    drop(device);
}

/// A new writer continues after a crash at any change. Its objects never have the names of objects
/// of the dead writer.
#[test]
fn a_writer_goes_on_after_any_crash() {
    let store = store(5);
    let device = create(&store, LEN);
    let mut rng = Rng::new(2);
    let mut content = vec![0; 100 << 10];
    for _ in 0..10 {
        rng.fill(&mut content);
        device.write_at(rng.below(1000) * 4096, &content).expect("within");
        device.flush().expect("a good store");
    }
    let changes = store.changes();
    let first = changes
        .iter()
        .position(|change| matches!(change, Change::Put(name, _) if name.contains("data/")));
    for count in first.expect("data")..changes.len() {
        let cut = Arc::new(SimStore::replay(&changes[..count], 1));
        cut.advance_ms(60_000);
        let before = open(&cut, Options { write: false, ..options() }).expect("opens");
        let mut right = vec![0; 8 << 20];
        before.read_at(0, &mut right).expect("whole");
        let next = open(&cut, options()).expect("the dead writer is old");
        let mut found = vec![0; 8 << 20];
        next.read_at(0, &mut found).expect("whole");
        assert!(found == right, "after {count} changes");
        next.write_at(0, &content).expect("within");
        next.close().expect("a good store");
        let last = open(&cut, Options { write: false, ..options() }).expect("opens");
        last.read_at(0, &mut found).expect("whole");
        right[..content.len()].copy_from_slice(&content);
        assert!(found == right, "after {count} changes, and more");
    }
    drop(device);
}

fn same(device: &dyn Device, right: &MemoryDevice, count: usize) {
    let mut found = vec![0; 1 << 20];
    let mut wanted = vec![0; 1 << 20];
    for at in (0..LEN).step_by(1 << 20) {
        device.read_at(at, &mut found).expect("whole");
        right.read_at(at, &mut wanted).expect("whole");
        assert!(found == wanted, "after {count} changes the content at {at} differs");
    }
}
