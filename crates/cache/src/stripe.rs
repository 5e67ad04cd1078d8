//! Numbers that many threads change without meeting on one line of the processors' caches.
//!
//! # Invariants
//!
//! - **S1** A thread has one stripe for ever, so what it adds and takes away meets in one place.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// More than processors that write at a time gain nothing; fewer meet.
pub(crate) const STRIPES: usize = 16;

/// Something with lines of its own. Processors fetch lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Apart<T>(pub(crate) T);

/// The stripe of this thread; threads get them in turn (S1).
pub(crate) fn stripe() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static MINE: usize = NEXT.fetch_add(1, Ordering::Relaxed) % STRIPES;
    }
    MINE.with(|mine| *mine)
}

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
