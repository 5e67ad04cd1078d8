//! How a group is stopped: what tells allocators and writers in place, and how those are waited for who began before.
//!
//! # Place
//!
//! The parts of [`Group`] under `quiesce`, which says what they come to together. `tests/transition` runs both as they
//! stand here under a scheduler that tries the orders of threads, on a group of its own.
//!
//! # Locks
//!
//! All but [`Group::is_stopped`] take the group's, and waiting gives it up.

use std::sync::atomic::Ordering;

use crate::Group;
use crate::group_state::State;

impl Group {
    /// Tells writers in place whether they may, and who drains whether it still matters; to be called after what decides it
    /// changed.
    pub(crate) fn mark_stopped(&self) {
        let state = self.state.lock();
        self.stopped.store(state.read_only > 0 || state.removed, Ordering::SeqCst);
        if state.read_only == 0 {
            self.settled.notify_all();
        }
    }

    /// Whether it is read-only or gone: what writers in place look at, after they were counted.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    /// Wakes those who wait for what was reserved, once nothing is; to be called after every change that may make it
    /// less, with the lock still held, and what was reserved before.
    pub(crate) fn tell_settled(&self, state: &State, before: u64) {
        if state.read_only > 0 && state.reserved.bytes() == 0 && before > 0 {
            self.settled.notify_all();
        }
    }

    /// Waits until nothing is reserved in a group, as long as it is read-only.
    pub(crate) fn wait_for_reserved(&self) {
        let mut state = self.state.lock();
        while state.read_only > 0 && state.reserved.bytes() > 0 {
            state.wait(&self.settled);
        }
    }

    /// Of the baselines: counts a writer in, if it may write.
    #[cfg(feature = "baselines")]
    pub(crate) fn writer_enters(&self) -> bool {
        let state = self.state.lock();
        let may = state.read_only == 0 && !state.removed;
        if may {
            self.writers.fetch_add(1, Ordering::Relaxed);
        }
        may
    }

    #[cfg(feature = "baselines")]
    pub(crate) fn writer_left(&self) {
        if self.writers.fetch_sub(1, Ordering::Release) == 1 {
            drop(self.state.lock());
            self.settled.notify_all();
        }
    }

    /// Of the baselines: waits until no writer is left in a group, as long as it is read-only.
    #[cfg(feature = "baselines")]
    pub(crate) fn wait_for_writers(&self) {
        let mut state = self.state.lock();
        while state.read_only > 0 && self.writers.load(Ordering::Acquire) > 0 {
            state.wait(&self.settled);
        }
    }
}
