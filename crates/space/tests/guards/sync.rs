//! The primitives of the guards, under a scheduler that tries the orders in which threads may run.

use std::ops::{Deref, DerefMut};

pub(crate) use shuttle::sync::Arc;
pub(crate) use shuttle::sync::atomic::{AtomicUsize, Ordering};

/// There are few shards and buckets, so that the threads meet in all of them.
pub(crate) const SHARDS: usize = 2;
pub(crate) const BUCKETS: usize = 1;

shuttle::thread_local! {
    static MINE: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Sets the shard of this thread.
pub(crate) fn set_shard(shard: usize) {
    MINE.with(|mine| mine.set(shard % SHARDS));
}

pub(crate) fn shard() -> usize {
    MINE.with(std::cell::Cell::get)
}

/// A lock without poisoning, like the lock that it replaces.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);

pub(crate) struct MutexGuard<'a, T>(Option<shuttle::sync::MutexGuard<'a, T>>);

impl<T> Mutex<T> {
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard(Some(self.0.lock().expect("no poison")))
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("held")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().expect("held")
    }
}

#[derive(Debug, Default)]
pub(crate) struct Condvar(shuttle::sync::Condvar);

impl Condvar {
    pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let held = guard.0.take().expect("held");
        guard.0 = Some(self.0.wait(held).expect("no poison"));
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}
