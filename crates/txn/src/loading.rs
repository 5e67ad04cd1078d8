//! The block groups that wait to be read (`load`).
//!
//! # Invariants
//!
//! - **D1** A group stays in the queue from the request until it is read or excluded. So it is
//!   never queued twice.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use buttress_base::activity::{self, Cause};
use buttress_base::sync::{Condvar, Mutex};
use buttress_space::Group;

/// Maximum number of queued groups. A group beyond this number is not queued, so no thread waits
/// for it.
const WANTED_MAX: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct Loading {
    /// Unranked: nothing is taken under it.
    queue: Mutex<Wanted>,
    /// A group is wanted.
    asked: Condvar,
    /// A group was read, or the last loader left.
    done: Condvar,
    loaded: AtomicU64,
    unreadable: AtomicU64,
}

#[derive(Debug, Default)]
struct Wanted {
    groups: VecDeque<Arc<Group>>,
    loaders: usize,
    called: bool,
}

impl Loading {
    /// Counts one more block group for which the free extents were read.
    pub(crate) fn note_loaded(&self) {
        self.loaded.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts one more block group that could not be read.
    pub(crate) fn note_unreadable(&self) {
        self.unreadable.fetch_add(1, Ordering::Relaxed);
    }

    /// The number of groups that were read, and of those that could not be read.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.loaded.load(Ordering::Relaxed), self.unreadable.load(Ordering::Relaxed))
    }

    /// Counts one more thread that reads wanted groups.
    pub(crate) fn attach(&self) {
        self.queue.lock().loaders += 1;
    }

    /// Counts one reading thread less, and wakes the waiting threads.
    pub(crate) fn detach(&self) {
        self.queue.lock().loaders -= 1;
        self.done.notify_all();
    }

    /// Wakes the loaders, because they must end.
    pub(crate) fn call(&self) {
        self.queue.lock().called = true;
        self.asked.notify_all();
    }

    /// Waits until a group is wanted or `call` wakes the reader, at most `limit`.
    pub(crate) fn wait(&self, limit: Duration) {
        let mut queue = self.queue.lock();
        if queue.groups.is_empty() && !queue.called {
            self.asked.wait_for(&mut queue, limit);
        }
        queue.called = false;
    }

    /// The group to read next. It stays in the queue while it is read (D1).
    pub(crate) fn first(&self) -> Option<Arc<Group>> {
        self.queue.lock().groups.front().cloned()
    }

    /// Removes the first group, which was read or excluded.
    pub(crate) fn end_first(&self) {
        self.queue.lock().groups.pop_front();
        self.done.notify_all();
    }

    /// Queues groups. Returns whether a reader is attached.
    pub(crate) fn enqueue(&self, groups: impl IntoIterator<Item = Arc<Group>>) -> bool {
        let mut queue = self.queue.lock();
        if queue.loaders == 0 {
            return false;
        }
        for group in groups {
            let there = queue.groups.iter().any(|other| Arc::ptr_eq(other, &group));
            if !there && queue.groups.len() < WANTED_MAX {
                queue.groups.push_back(group);
            }
        }
        self.asked.notify_one();
        true
    }

    /// Waits while a group is queued and `needs` holds. Returns whether the group was read or
    /// excluded.
    pub(crate) fn wait_for(&self, group: &Arc<Group>, needs: impl Fn() -> bool) -> bool {
        let mut queue = self.queue.lock();
        let _waiting = activity::wait(Cause::Reader);
        loop {
            if !needs() {
                return true;
            }
            let comes = queue.groups.iter().any(|other| Arc::ptr_eq(other, group));
            if queue.loaders == 0 || !comes {
                return false;
            }
            self.done.wait(&mut queue);
        }
    }
}
