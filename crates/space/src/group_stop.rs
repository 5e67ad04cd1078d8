//! Stopping of a group: the mark for allocators and writers in place, and the wait for threads that
//! began before the mark was set.
//!
//! # Place
//!
//! `quiesce` uses these methods of [`Group`] and states their common invariants. `tests/transition`
//! includes this file and runs it on a simpler group, under a scheduler that tries the orders of
//! threads.
//!
//! # Locks
//!
//! All methods except [`Group::is_stopped`] take the group's lock. A wait releases it.

use std::sync::atomic::Ordering;

use crate::Group;
use crate::group_state::State;

impl Group {
    /// Sets or clears the mark that writers in place read. If the group is not read-only any more,
    /// wakes threads that wait for it to drain. This is called after a change of `read_only` or
    /// `removed`.
    pub(crate) fn mark_stopped(&self) {
        let state = self.state.lock();
        self.stopped.store(state.read_only > 0 || state.removed, Ordering::SeqCst);
        if state.read_only == 0 {
            self.drained.notify_all();
        }
    }

    /// Whether the group is read-only or removed. Writers in place check this after they were
    /// counted.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    /// Wakes drains that wait for reserved extents, if no reserved bytes are left. This is called
    /// with the lock still held, after every change that may reduce the reserved extents. `before`
    /// is the number of reserved bytes before that change.
    pub(crate) fn wake_drains(&self, state: &State, before: u64) {
        if state.read_only > 0 && state.reserved.bytes() == 0 && before > 0 {
            self.drained.notify_all();
        }
    }

    /// Waits until no bytes are reserved in the group, as long as the group is read-only.
    pub(crate) fn wait_for_reserved(&self) {
        let mut state = self.state.lock();
        while state.read_only > 0 && state.reserved.bytes() > 0 {
            state.wait(&self.drained);
        }
    }

    /// Counts a writer in place that begins, unless the group is stopped. Returns whether the
    /// writer may write. Only the published baselines call this.
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
            self.drained.notify_all();
        }
    }

    /// Waits until no writer in place is left in a group, as long as the group is read-only. Only
    /// the published baselines call this.
    #[cfg(feature = "baselines")]
    pub(crate) fn wait_for_writers(&self) {
        let mut state = self.state.lock();
        while state.read_only > 0 && self.writers.load(Ordering::Acquire) > 0 {
            state.wait(&self.drained);
        }
    }
}
