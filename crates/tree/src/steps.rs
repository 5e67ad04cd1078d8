//! Counts the work of walks over trees, so that a test can measure growth without a clock.
//!
//! # Invariants
//!
//! - **ST1** Counts only grow, and counting never makes an operation wait: each thread adds to a
//!   shard with its own cache line.
//! - **ST2** The counts of a store that is gone stay in the total of the process. So a caller can
//!   count the steps of a whole program.

use std::sync::atomic::{AtomicU64, Ordering};

use buttress_base::CachePadded;
use buttress_base::shard::{SHARDS, shard};

/// Work on the trees of a store since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Steps {
    /// Nodes looked at, including nodes in memory.
    pub nodes: u64,
    /// Nodes that came from a device and were verified.
    pub nodes_read: u64,
    /// Keys that cursors, views and merges visited, including deleted keys.
    pub keys: u64,
}

/// The total of all stores that are gone (ST2).
static GONE: [AtomicU64; 3] = [AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0)];

impl Steps {
    /// The work on all stores of this process that are gone. Costs O(1).
    #[must_use]
    pub fn of_gone_stores() -> Self {
        let [nodes, nodes_read, keys] = [0, 1, 2].map(|at: usize| GONE[at].load(Ordering::Relaxed));
        Self { nodes, nodes_read, keys }
    }

    /// The work since `before` was taken. Costs O(1).
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            nodes: self.nodes - before.nodes,
            nodes_read: self.nodes_read - before.nodes_read,
            keys: self.keys - before.keys,
        }
    }
}

#[derive(Debug, Default)]
struct Shard {
    nodes: AtomicU64,
    nodes_read: AtomicU64,
    keys: AtomicU64,
}

/// The counters of all threads.
#[derive(Debug)]
pub(crate) struct StepCounter(Box<[CachePadded<Shard>]>);

impl Default for StepCounter {
    fn default() -> Self {
        Self((0..SHARDS).map(|_| CachePadded::default()).collect())
    }
}

impl Drop for StepCounter {
    fn drop(&mut self) {
        let Steps { nodes, nodes_read, keys } = self.sum();
        for (total, count) in GONE.iter().zip([nodes, nodes_read, keys]) {
            total.fetch_add(count, Ordering::Relaxed);
        }
    }
}

impl StepCounter {
    pub(crate) fn node(&self) {
        self.0[shard()].nodes.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn node_read(&self) {
        self.0[shard()].nodes_read.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn keys(&self, count: u64) {
        self.0[shard()].keys.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn sum(&self) -> Steps {
        let mut all = Steps::default();
        for shard in &self.0 {
            all.nodes += shard.nodes.load(Ordering::Relaxed);
            all.nodes_read += shard.nodes_read.load(Ordering::Relaxed);
            all.keys += shard.keys.load(Ordering::Relaxed);
        }
        all
    }
}
