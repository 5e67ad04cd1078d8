//! Locks of the scheduler, which replace the locks of `src/waiting.rs`.

use std::time::Duration;

pub(crate) use shuttle::sync::Arc;
pub(crate) use shuttle::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use shuttle::sync::{Condvar, Mutex, MutexGuard};

#[derive(Debug)]
pub(crate) struct Lock<T>(Mutex<T>);

/// Holds the guard of a lock. A wait takes the guard out, and puts it back.
pub(crate) struct RankedGuard<'a, T>(Option<MutexGuard<'a, T>>);

impl<T> std::ops::Deref for RankedGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("held but while it waits")
    }
}

impl<T> std::ops::DerefMut for RankedGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().expect("held but while it waits")
    }
}

impl<T> Lock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> RankedGuard<'_, T> {
        RankedGuard(Some(self.0.lock().expect("no model panics with a lock held")))
    }
}

#[derive(Debug, Default)]
pub(crate) struct Event(Condvar);

impl Event {
    pub(crate) fn raise(&self) {
        self.0.notify_one();
    }

    /// A limit of zero is over at once. Any other limit is infinite, so that a lost wake-up is a
    /// deadlock, which the scheduler finds.
    pub(crate) fn wait_for<'a, T>(&self, held: &mut RankedGuard<'a, T>, limit: Duration) -> bool {
        let guard: MutexGuard<'a, T> = held.0.take().expect("held but while it waits");
        if limit.is_zero() {
            held.0 = Some(guard);
            return false;
        }
        held.0 = Some(self.0.wait(guard).expect("no model panics with a lock held"));
        true
    }
}
