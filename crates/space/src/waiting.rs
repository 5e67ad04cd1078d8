//! The primitives of the queue of tickets. `tests/queue` replaces this module by primitives of a
//! scheduler that tries the orders in which threads may run.

use std::time::Duration;

pub(crate) use std::sync::Arc;
pub(crate) use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use buttress_base::sync::Condvar;
use buttress_base::{Rank, Ranked, RankedGuard};

/// The lock of one queue.
#[derive(Debug)]
pub(crate) struct Lock<T>(Ranked<T>);

impl<T> Lock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Ranked::new(Rank::SpaceInfo, value))
    }

    pub(crate) fn lock(&self) -> RankedGuard<'_, T> {
        self.0.lock()
    }
}

/// The event that one waiter sleeps on.
#[derive(Debug, Default)]
pub(crate) struct Event(Condvar);

impl Event {
    pub(crate) fn raise(&self) {
        self.0.notify_one();
    }

    /// Releases the lock until the event is raised, or until `limit` is over. Returns false if
    /// `limit` is over.
    pub(crate) fn wait_for<T>(&self, guard: &mut RankedGuard<'_, T>, limit: Duration) -> bool {
        guard.wait_for(&self.0, limit)
    }
}
