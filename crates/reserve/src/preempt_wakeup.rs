//! Wakes the preemptive flusher as soon as the reserved bytes reach the sum that the flusher waits
//! for.
//!
//! # Invariants
//!
//! - **A1** Only a thread that got its reservation at once wakes the flusher. While a ticket waits,
//!   the flusher already works.
//! - **A2** However many reservations are made during one sleep of the flusher, they wake the
//!   flusher at most once.

use std::time::Duration;

use buttress_base::sync::{Condvar, Mutex};

/// The state on which the thread of the preemptive flusher waits.
#[derive(Debug, Default)]
pub(crate) struct PreemptWakeup {
    /// Unranked: nothing is taken under it.
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The sum of reserved bytes at which the flusher wants to be woken. `None` if reservations do
    /// not wake it, or have woken it (A2).
    at: Option<u64>,
    /// Whether the flusher was woken.
    is_called: bool,
}

impl PreemptWakeup {
    /// Wakes the flusher if the reserved bytes have reached `at`. Called after a reservation that
    /// was granted at once (A1).
    pub(crate) fn look(&self, reserved: u64) {
        let mut state = self.state.lock();
        if state.at.is_some_and(|at| at <= reserved) {
            *state = State { at: None, is_called: true };
            self.wake.notify_one();
        }
    }

    /// Wakes the flusher's thread so that the thread can end.
    pub(crate) fn call(&self) {
        self.state.lock().is_called = true;
        self.wake.notify_one();
    }

    /// Sleeps for at most `limit`. A reservation granted at once ends the sleep if the reserved
    /// bytes have reached `at`. With `None`, reservations do not end the sleep.
    pub(crate) fn wait(&self, at: Option<u64>, limit: Duration) {
        let mut state = self.state.lock();
        state.at = at;
        if !state.is_called {
            self.wake.wait_for(&mut state, limit);
        }
        *state = State::default();
    }
}
