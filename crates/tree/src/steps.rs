//! Counts of the work that walks over trees do, so that a test sees growth without a clock.
//!
//! # Invariants
//!
//! - **ST1** Counts only grow, and counting never makes an operation wait: each thread adds to a
//!   shard with its own cache line.

use std::sync::atomic::{AtomicU64, Ordering};

use buttress_base::CachePadded;
use buttress_base::shard::{SHARDS, shard};

/// Work that was done on the trees of a store since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Steps {
    /// Nodes looked at, those in memory included.
    pub nodes: u64,
    /// Nodes that came from a device and were verified.
    pub nodes_read: u64,
    /// Keys that cursors, views and merges came to, deleted ones included.
    pub keys: u64,
}

impl Steps {
    /// What was done since `before` was taken.
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

/// Where threads count their steps.
#[derive(Debug)]
pub(crate) struct StepCounter(Box<[CachePadded<Shard>]>);

impl Default for StepCounter {
    fn default() -> Self {
        Self((0..SHARDS).map(|_| CachePadded::default()).collect())
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
