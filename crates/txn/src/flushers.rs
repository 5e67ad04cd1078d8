//! The threads that write dirty data back for those that wait for space.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use buttress_base::sync::{Condvar, Mutex};

/// How many there are, and how they are woken.
#[derive(Debug, Default)]
pub(crate) struct Flushers {
    count: AtomicUsize,
    /// One is wanted, or is to end. Unranked: nothing is taken under it.
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

    /// Whether there is one.
    pub(crate) fn any(&self) -> bool {
        self.count.load(Ordering::SeqCst) > 0
    }

    /// Sleeps until a call, at most so long.
    pub(crate) fn wait(&self, limit: Duration) {
        let mut called = self.called.lock();
        if !*called {
            self.wake.wait_for(&mut called, limit);
        }
        *called = false;
    }

    /// Wakes them.
    pub(crate) fn call(&self) {
        *self.called.lock() = true;
        self.wake.notify_all();
    }
}
