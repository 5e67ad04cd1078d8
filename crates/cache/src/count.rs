//! Counters that many threads change without sharing a cache line of the processors.
//!
//! A thread keeps its shard for its lifetime, so all its additions and subtractions change one
//! counter.

use std::sync::atomic::{AtomicU64, Ordering};

use buttress_base::CachePadded;
use buttress_base::shard::{SHARDS, shard};

/// A sharded sum.
#[derive(Debug, Default)]
pub(crate) struct Count([CachePadded<AtomicU64>; SHARDS]);

impl Count {
    pub(crate) fn add(&self, count: u64) {
        self.0[shard()].fetch_add(count, Ordering::Relaxed);
    }

    /// The sum. It is exact only if no thread adds meanwhile.
    pub(crate) fn get(&self) -> u64 {
        self.0.iter().map(|part| part.load(Ordering::Relaxed)).sum()
    }

    pub(crate) fn clear(&self) {
        self.0.iter().for_each(|part| part.store(0, Ordering::Relaxed));
    }
}
