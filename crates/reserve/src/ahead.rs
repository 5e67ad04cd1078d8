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

use super::Reservations;

/// Where that thread sleeps.
#[derive(Debug)]
pub(crate) struct Ahead {
    /// What is promised, in bytes, as it was when somebody was promised space for the last time.
    promised: AtomicU64,
    /// At how much he wants to be called; never, while he is not there (A2).
    at: AtomicU64,
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
    pub(super) fn note(&self, promised: u64) {
        self.promised.store(promised, Ordering::Relaxed);
    }

    /// After a promise that was made at once (A1).
    pub(super) fn look(&self) {
        if self.promised.load(Ordering::Relaxed) < self.at.load(Ordering::Relaxed) {
            return;
        }
        if self.at.swap(u64::MAX, Ordering::Relaxed) != u64::MAX {
            *self.called.lock() = true;
            self.wake.notify_one();
        }
    }
}

impl Reservations {
    /// Wakes whoever makes room ahead, because he is to end.
    pub fn call_ahead(&self) {
        *self.ahead.called.lock() = true;
        self.ahead.wake.notify_one();
    }

    /// Sleeps until promises that stand by themselves (`promise=levels`) came to so many bytes more than now and
    /// somebody is promised space at once, at most so long. Others come to that slowly, and call nobody.
    pub fn wait_for_promises(&self, more: Option<u64>, limit: Duration) {
        let ahead = &self.ahead;
        let mut called = ahead.called.lock();
        let more = more.filter(|_| self.policy.is_levels());
        let at = more.map(|more| ahead.promised.load(Ordering::Relaxed).saturating_add(more));
        ahead.at.store(at.unwrap_or(u64::MAX), Ordering::Relaxed);
        if !*called {
            ahead.wake.wait_for(&mut called, limit);
        }
        *called = false;
        ahead.at.store(u64::MAX, Ordering::Relaxed);
    }
}
