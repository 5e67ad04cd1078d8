//! The locks under the claims, in the form that the scheduler of these tests controls.

use std::ops::{Deref, DerefMut};

pub(crate) use std::sync::Arc;

pub(crate) use buttress_base::Rank;
pub(crate) use shuttle::sync::atomic::{AtomicU64, Ordering};

/// A lock without poisoning. The lock has no rank, because every other test checks the ranks.
#[derive(Debug)]
pub(crate) struct Ranked<T>(shuttle::sync::Mutex<T>);

pub(crate) struct RankedGuard<'a, T>(Option<shuttle::sync::MutexGuard<'a, T>>);

impl<T> Ranked<T> {
    pub(crate) fn new(_: Rank, value: T) -> Self {
        Self(shuttle::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> RankedGuard<'_, T> {
        RankedGuard(Some(self.0.lock().expect("no poison")))
    }
}

impl<T> RankedGuard<'_, T> {
    pub(crate) fn wait(&mut self, changed: &Condvar) {
        let held = self.0.take().expect("held");
        self.0 = Some(changed.0.wait(held).expect("no poison"));
    }

    /// No thread of these tests may abandon its wait.
    pub(crate) fn wait_a_while(&mut self, changed: &Condvar) -> bool {
        self.wait(changed);
        false
    }
}

impl<T> Deref for RankedGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("held")
    }
}

impl<T> DerefMut for RankedGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().expect("held")
    }
}

#[derive(Debug)]
pub(crate) struct Condvar(shuttle::sync::Condvar);

impl Condvar {
    pub(crate) fn new() -> Self {
        Self(shuttle::sync::Condvar::new())
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}
