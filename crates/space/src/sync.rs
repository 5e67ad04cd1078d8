//! What the guards of in-place writers and the index's bitmaps are built on. The tests have others of these, of a model checker.

pub(crate) use std::sync::Arc;
pub(crate) use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

pub(crate) use buttress_base::sync::{Condvar, Mutex};

/// Counters that processors have of their own, if there are no more of them.
pub(crate) use buttress_base::apart::{STRIPES, stripe};

/// Groups with different remainders are drained apart.
pub(crate) const BUCKETS: usize = 16;
