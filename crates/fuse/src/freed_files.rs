//! Counts of removed names and of freed files. `front_end/space` uses them to decide whether to
//! wait for space.
//!
//! # What must hold
//!
//! - `freed` counts a file after it was dropped: a request that sees the count finds the free
//!   space.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use buttress_base::clock;

/// Counts of removed names, and of deleted files.
#[derive(Debug)]
pub(crate) struct FreedFiles {
    begun: Instant,
    /// The time of the last removal of a name, in nanoseconds since `begun`; zero before the first
    /// removal.
    removed: AtomicU64,
    /// The number of forget requests in progress.
    pub(crate) forgetting: AtomicUsize,
    /// Files without names that were forgotten.
    pub(crate) freed: AtomicU64,
    /// Requests that wait for a file to be freed, on threads that read requests.
    pub(crate) waiting: AtomicUsize,
    /// Writes that wait for a file to be freed, on the separate thread.
    pub(crate) waiting_writes: AtomicUsize,
}

impl FreedFiles {
    pub(crate) fn new() -> Self {
        Self {
            begun: clock::now(),
            removed: AtomicU64::new(0),
            forgetting: AtomicUsize::new(0),
            freed: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            waiting_writes: AtomicUsize::new(0),
        }
    }

    /// Records that a name was removed.
    pub(crate) fn note_removed(&self) {
        let since = clock::since(self.begun).as_nanos() as u64;
        self.removed.store(since.max(1), Ordering::Relaxed);
    }

    /// Whether the last removal of a name is at most `limit` ago.
    pub(crate) fn is_recent(&self, limit: Duration) -> bool {
        let removed = self.removed.load(Ordering::Relaxed);
        removed > 0 && clock::since(self.begun) < Duration::from_nanos(removed) + limit
    }

    /// Runs `forget`, which returns whether it dropped a file without a name.
    pub(crate) fn forget(&self, forget: impl FnOnce() -> bool) {
        self.forgetting.fetch_add(1, Ordering::SeqCst);
        let had_no_name = forget();
        self.freed.fetch_add(u64::from(had_no_name), Ordering::SeqCst);
        self.forgetting.fetch_sub(1, Ordering::SeqCst);
    }
}
