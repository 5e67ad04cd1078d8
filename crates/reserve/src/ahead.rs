//! Calls whoever makes room ahead as soon as promises come to what he said.
//!
//! # Invariants
//!
//! - **A1** Only who was promised space at once calls: while somebody waits, room is made for him.
//! - **A2** One call for each wait, however many are promised space meanwhile.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use buttress_base::sync::{Condvar, Mutex};

/// Where that thread sleeps.
#[derive(Debug)]
pub(crate) struct Ahead {
    /// What is promised, in bytes, as it was when somebody was promised space for the last time.
    promised: AtomicU64,
    /// At how much he wants to be called; never, while he is not there (A2).
    at: AtomicU64,
    /// Unranked: nothing is taken under it.
    called: Mutex<bool>,
    wake: Condvar,
}

impl Default for Ahead {
    fn default() -> Self {
        Self {
            promised: AtomicU64::new(0),
            at: AtomicU64::new(u64::MAX),
            called: Mutex::new(false),
            wake: Condvar::new(),
        }
    }
}

impl Ahead {
    pub(crate) fn note(&self, promised: u64) {
        self.promised.store(promised, Ordering::Relaxed);
    }

    /// After a promise that was made at once (A1).
    pub(crate) fn look(&self) {
        if self.promised.load(Ordering::Relaxed) < self.at.load(Ordering::Relaxed) {
            return;
        }
        if self.at.swap(u64::MAX, Ordering::Relaxed) != u64::MAX {
            *self.called.lock() = true;
            self.wake.notify_one();
        }
    }

    /// Wakes the thread, because it is to end.
    pub(crate) fn call(&self) {
        *self.called.lock() = true;
        self.wake.notify_one();
    }

    /// Sleeps, at most so long, until reservations came to so many bytes more than now and one more
    /// is made at once.
    pub(crate) fn wait(&self, more: Option<u64>, limit: Duration) {
        let mut called = self.called.lock();
        let at = more.map(|more| self.promised.load(Ordering::Relaxed).saturating_add(more));
        self.at.store(at.unwrap_or(u64::MAX), Ordering::Relaxed);
        if !*called {
            self.wake.wait_for(&mut called, limit);
        }
        *called = false;
        self.at.store(u64::MAX, Ordering::Relaxed);
    }
}
