//! The signal by which a mount ends its threads.

use std::time::Duration;

use buttress_base::clock;
use buttress_base::sync::{Condvar, Mutex};

/// A flag that is set once, when the mount ends. Threads check it or wait for it.
#[derive(Default)]
pub(crate) struct StopSignal {
    /// Unranked: threads wait on it with a condition variable, and take no other lock under it.
    is_set: Mutex<bool>,
    wake: Condvar,
}

impl StopSignal {
    /// Tells all threads to end.
    pub(crate) fn set(&self) {
        *self.is_set.lock() = true;
        self.wake.notify_all();
    }

    /// Whether the threads must end.
    pub(crate) fn is_set(&self) -> bool {
        *self.is_set.lock()
    }

    /// Waits for `limit`, or until the threads must end. Returns whether the threads must end.
    pub(crate) fn wait(&self, limit: Duration) -> bool {
        let mut is_set = self.is_set.lock();
        let begun = clock::now();
        while !*is_set {
            let left = limit.saturating_sub(clock::since(begun));
            if left.is_zero() {
                break;
            }
            self.wake.wait_for(&mut is_set, left);
        }
        *is_set
    }
}
