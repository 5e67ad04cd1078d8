//! The threads that write dirty data back for tickets that wait for space.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use buttress_base::sync::{Condvar, Mutex};

/// The number of flushers, and the condition variable that wakes them.
#[derive(Debug, Default)]
pub struct Flushers {
    count: AtomicUsize,
    /// Whether a flusher is wanted or must end. Unranked: no lock is taken under it.
    called: Mutex<bool>,
    wake: Condvar,
}

impl Flushers {
    pub(crate) fn attach(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn detach(&self) {
        self.count.fetch_sub(1, Ordering::SeqCst);
    }

    /// Whether a flusher is attached.
    #[must_use]
    pub fn any(&self) -> bool {
        self.count.load(Ordering::SeqCst) > 0
    }

    /// Sleeps until a call, at most `limit`.
    pub(crate) fn wait(&self, limit: Duration) {
        let mut called = self.called.lock();
        if !*called {
            self.wake.wait_for(&mut called, limit);
        }
        *called = false;
    }

    /// Wakes the flushers, because a ticket waits or because they must end.
    pub fn call(&self) {
        *self.called.lock() = true;
        self.wake.notify_all();
    }
}
