//! Calls the preemptive flusher as soon as the reserved sum reaches its mark.
//!
//! # Invariants
//!
//! - **A1** Only a thread that got space at once calls. While a ticket waits, the flusher works
//!   already.
//! - **A2** One call for each wait of the flusher, however many reservations are made meanwhile.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use buttress_base::sync::{Condvar, Mutex};

/// Where that thread sleeps.
#[derive(Debug)]
pub(crate) struct Ahead {
    /// What is reserved, in bytes, as it was at the last reservation.
    reserved: AtomicU64,
    /// The sum at which the flusher wants a call; never, while it does not wait (A2).
    at: AtomicU64,
    /// Unranked: nothing is taken under it.
    called: Mutex<bool>,
    wake: Condvar,
}

impl Default for Ahead {
    fn default() -> Self {
        Self {
            reserved: AtomicU64::new(0),
            at: AtomicU64::new(u64::MAX),
            called: Mutex::new(false),
            wake: Condvar::new(),
        }
    }
}

impl Ahead {
    pub(crate) fn note(&self, reserved: u64) {
        self.reserved.store(reserved, Ordering::Relaxed);
    }

    /// After a reservation that was granted at once (A1).
    pub(crate) fn look(&self) {
        if self.reserved.load(Ordering::Relaxed) < self.at.load(Ordering::Relaxed) {
            return;
        }
        if self.at.swap(u64::MAX, Ordering::Relaxed) != u64::MAX {
            *self.called.lock() = true;
            self.wake.notify_one();
        }
    }

    /// Wakes the thread so that it ends.
    pub(crate) fn call(&self) {
        *self.called.lock() = true;
        self.wake.notify_one();
    }

    /// Sleeps, at most so long, until reservations came to so many bytes more than now and one more
    /// is made at once.
    pub(crate) fn wait(&self, more: Option<u64>, limit: Duration) {
        let mut called = self.called.lock();
        let at = more.map(|more| self.reserved.load(Ordering::Relaxed).saturating_add(more));
        self.at.store(at.unwrap_or(u64::MAX), Ordering::Relaxed);
        if !*called {
            self.wake.wait_for(&mut called, limit);
        }
        *called = false;
        self.at.store(u64::MAX, Ordering::Relaxed);
    }
}
