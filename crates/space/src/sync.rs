//! Locks and atomics, as the guards of in-place writers and the index's bitmaps use them. Tests
//! replace this module by a model checker's primitives.

pub(crate) use std::sync::Arc;
pub(crate) use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

pub(crate) use buttress_base::sync::{Condvar, Mutex};

/// Number of shards of counters; each thread has one.
pub(crate) use buttress_base::shard::{SHARDS, shard};

/// Number of buckets of writer counts. Groups share a bucket if their slots have the same
/// remainder, and each bucket is drained separately.
pub(crate) const BUCKETS: usize = 16;
