//! The block groups that wait to be read (`load`).
//!
//! # Invariants
//!
//! - **D1** A group is in the queue from the moment it is wanted until it was read or left: it is
//!   not asked for twice meanwhile.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use buttress_base::sync::{Condvar, Mutex};
use buttress_space::Group;

/// Most groups that wait to be read; a thread that asks for more waits for none of them.
const WANTED_MAX: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct Loading {
    /// Unranked: nothing is taken under it.
    queue: Mutex<Wanted>,
    /// A group is wanted.
    asked: Condvar,
    /// A group was read, or left.
    done: Condvar,
}

#[derive(Debug, Default)]
struct Wanted {
    groups: VecDeque<Arc<Group>>,
    loaders: usize,
    called: bool,
}

impl Loading {
    /// One thread more reads groups that are wanted.
    pub(crate) fn attach(&self) {
        self.queue.lock().loaders += 1;
    }

    /// One less does: waiters look again.
    pub(crate) fn detach(&self) {
        self.queue.lock().loaders -= 1;
        self.done.notify_all();
    }

    /// Wakes the readers, because they are to end.
    pub(crate) fn call(&self) {
        self.queue.lock().called = true;
        self.asked.notify_all();
    }

    /// Waits until a group is wanted or the reader is called, at most so long.
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

    /// The first group was read, or left.
    pub(crate) fn end_first(&self) {
        self.queue.lock().groups.pop_front();
        self.done.notify_all();
    }

    /// Asks for groups; says whether there is a reader.
    pub(crate) fn want(&self, groups: impl IntoIterator<Item = Arc<Group>>) -> bool {
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

    /// Waits while a group is in the queue and `needs` it; says whether the group was read or left.
    pub(crate) fn wait_for(&self, group: &Arc<Group>, needs: impl Fn() -> bool) -> bool {
        let mut queue = self.queue.lock();
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
