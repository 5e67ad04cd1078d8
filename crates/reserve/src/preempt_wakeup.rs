//! Wakes the preemptive flusher as soon as the reserved bytes reach the sum that the flusher waits
//! for.
//!
//! # Invariants
//!
//! - **A1** Only a thread that got its reservation at once wakes the flusher. While a ticket waits,
//!   the flusher already works.
//! - **A2** However many reservations are made during one sleep of the flusher, they wake the
//!   flusher at most once.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use buttress_base::sync::{Condvar, Mutex};

/// The state on which the thread of the preemptive flusher waits.
#[derive(Debug)]
pub(crate) struct PreemptWakeup {
    /// Reserved bytes, as of the last reservation.
    reserved: AtomicU64,
    /// The sum at which the flusher wants to be woken; `u64::MAX` while it does not wait (A2).
    at: AtomicU64,
    /// Whether the flusher was woken. Unranked: nothing is taken under it.
    called: Mutex<bool>,
    wake: Condvar,
}

impl Default for PreemptWakeup {
    fn default() -> Self {
        Self {
            reserved: AtomicU64::new(0),
            at: AtomicU64::new(u64::MAX),
            called: Mutex::new(false),
            wake: Condvar::new(),
        }
    }
}

impl PreemptWakeup {
    pub(crate) fn note(&self, reserved: u64) {
        self.reserved.store(reserved, Ordering::Relaxed);
    }

    /// Wakes the flusher if the reserved bytes have reached `at`. Called after a reservation that
    /// was granted at once (A1).
    pub(crate) fn look(&self) {
        if self.reserved.load(Ordering::Relaxed) < self.at.load(Ordering::Relaxed) {
            return;
        }
        if self.at.swap(u64::MAX, Ordering::Relaxed) != u64::MAX {
            *self.called.lock() = true;
            self.wake.notify_one();
        }
    }

    /// Wakes the flusher's thread so that the thread can end.
    pub(crate) fn call(&self) {
        *self.called.lock() = true;
        self.wake.notify_one();
    }

    /// Sleeps for at most `limit`. With `more`, a reservation granted at once ends the sleep if the
    /// reserved bytes have grown by `more` since the call. With `None`, reservations do not end the
    /// sleep.
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
