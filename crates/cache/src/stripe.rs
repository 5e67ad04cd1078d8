//! Numbers that many threads change without meeting on one line of the processors' caches.
//!
//! A thread has one stripe for ever, so what it adds and takes away meets in one place.

use std::sync::atomic::{AtomicU64, Ordering};

use buttress_base::Apart;
use buttress_base::apart::{STRIPES, stripe};

/// A sum.
#[derive(Debug, Default)]
pub(crate) struct Count([Apart<AtomicU64>; STRIPES]);

impl Count {
    pub(crate) fn add(&self, count: u64) {
        self.0[stripe()].0.fetch_add(count, Ordering::Relaxed);
    }

    /// The sum, of one moment only if nobody adds.
    pub(crate) fn get(&self) -> u64 {
        self.0.iter().map(|part| part.0.load(Ordering::Relaxed)).sum()
    }

    pub(crate) fn clear(&self) {
        self.0.iter().for_each(|part| part.0.store(0, Ordering::Relaxed));
    }
}
