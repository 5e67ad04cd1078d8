//! What waits for the cleaner: inodes without names or users, and deleted subvolumes.
//!
//! # Invariants
//!
//! - **C1** A thread that waits for the cleaner also waits for inodes that are on their way to it.
//!   That wait has a limit: a thread that holds such an inode may itself wait for the waiting
//!   thread.
//! - **C2** A deleted subvolume is listed from its deletion until its last node is given back
//!   durably. A caller that waits until it is no longer listed finds its space free.
//!
//! # Locks
//!
//! One short lock.

use std::collections::VecDeque;
use std::time::Duration;

use buttress_base::clock;
use buttress_base::sync::{Condvar, Mutex};
use buttress_format::TreeId;

use crate::attr::InodeId;

/// The longest wait for inodes that are on their way to the queue (C1).
const LEAVING_MAX: Duration = Duration::from_secs(1);

/// How long inodes gather before the cleaner begins with them, unless a caller waits for it. To
/// wake a thread for each would cost more than to remove it.
const GATHER: Duration = Duration::from_millis(2);

/// How often the cleaner looks whether the last user of a deleted subvolume has gone.
const DROP_PERIOD: Duration = Duration::from_millis(500);

#[derive(Default)]
struct State {
    ids: VecDeque<InodeId>,
    /// Deleted subvolumes. Each step of one commits, so inodes come first.
    trees: VecDeque<TreeId>,
    /// The subvolume that a step is taken of. It stays listed until its last step is over.
    dropping: Option<TreeId>,
    /// Inodes without name or user, with a cell that is still held for a moment, as by a batch of
    /// writeback.
    leaving: usize,
    is_busy: bool,
    is_stopped: bool,
    /// The cleaner waits for something to do.
    is_asleep: bool,
    /// Callers that wait for the cleaner.
    waiting: usize,
}

impl State {
    /// Takes the first subvolume that may be dropped a step further.
    fn take_tree(&mut self, may: impl Fn(TreeId) -> bool) -> Option<TreeId> {
        let ready = self.trees.iter().position(|tree| may(*tree));
        self.dropping = ready.and_then(|index| self.trees.remove(index));
        self.dropping
    }
}

/// What the cleaner does next.
pub(crate) enum ToClean {
    Inode(InodeId),
    Tree(TreeId),
}

/// How far the drop of a subvolume is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Dropping {
    /// It is gone, or cannot be dropped.
    Done,
    /// There is another step.
    Goes,
    /// A file of it has a user.
    Waits,
}

#[derive(Default)]
pub(crate) struct CleanQueue {
    /// Unranked: threads wait on it with a condition variable, and take nothing under it.
    state: Mutex<State>,
    /// Signalled when the queue is shorter.
    changed: Condvar,
    /// Signalled when there is something to do for a cleaner that sleeps, and when it is to hurry.
    called: Condvar,
}

impl CleanQueue {
    /// Notes that an inode without names lost its last user. It comes when its cell drops.
    pub(crate) fn leaves(&self) {
        self.state.lock().leaving += 1;
    }

    /// Notes that the cell of such an inode dropped.
    pub(crate) fn has_left(&self) {
        self.state.lock().leaving -= 1;
        self.changed.notify_all();
    }

    /// Adds an inode without names or users.
    pub(crate) fn clean_later(&self, id: InodeId) {
        let mut state = self.state.lock();
        state.ids.push_back(id);
        let is_asleep = std::mem::take(&mut state.is_asleep);
        drop(state);
        if is_asleep {
            self.called.notify_all();
        }
    }

    /// Adds a deleted subvolume.
    pub(crate) fn drop_later(&self, tree: TreeId) {
        self.state.lock().trees.push_back(tree);
        self.called.notify_all();
    }

    /// The deleted subvolumes that wait, or that a step is taken of (C2).
    pub(crate) fn dying(&self) -> Vec<TreeId> {
        let state = self.state.lock();
        state.dropping.into_iter().chain(state.trees.iter().copied()).collect()
    }

    /// Takes what is to be cleaned next, if there is something. `is_used` says which subvolumes are
    /// not to be dropped yet.
    pub(crate) fn take(&self, is_used: impl Fn(TreeId) -> bool) -> Option<ToClean> {
        let mut state = self.state.lock();
        if let Some(id) = state.ids.pop_front() {
            return Some(ToClean::Inode(id));
        }
        state.take_tree(|tree| !is_used(tree)).map(ToClean::Tree)
    }

    /// As [`take`](Self::take), and waits for something. `None` when the cleaner is to end. After a
    /// while it offers used subvolumes too, so that the cleaner looks at them again.
    pub(crate) fn next(&self, is_used: impl Fn(TreeId) -> bool) -> Option<ToClean> {
        let mut state = self.state.lock();
        let mut waited = false;
        loop {
            if let Some(id) = state.ids.pop_front() {
                state.is_busy = true;
                return Some(ToClean::Inode(id));
            }
            if std::mem::take(&mut state.is_busy) {
                self.changed.notify_all();
            }
            if state.is_stopped {
                return None;
            }
            if let Some(tree) = state.take_tree(|tree| waited || !is_used(tree)) {
                return Some(ToClean::Tree(tree));
            }
            state.is_asleep = true;
            if state.trees.is_empty() {
                self.called.wait(&mut state);
            } else {
                waited = self.called.wait_for(&mut state, DROP_PERIOD).timed_out();
            }
            state.is_asleep = false;
            if !state.ids.is_empty() && state.waiting == 0 && !state.is_stopped {
                self.called.wait_for(&mut state, GATHER);
            }
        }
    }

    /// Ends a step of a subvolume that was taken.
    pub(crate) fn end_step(&self, tree: TreeId, step: Dropping) {
        let mut state = self.state.lock();
        state.dropping = None;
        match step {
            Dropping::Done => {}
            Dropping::Goes => state.trees.push_front(tree),
            Dropping::Waits => state.trees.push_back(tree),
        }
    }

    /// Waits until no inode is left, and a while for those on their way (C1). Returns whether there
    /// were any.
    pub(crate) fn wait_for_inodes(&self) -> bool {
        let begun = clock::now();
        let mut state = self.state.lock();
        state.waiting += 1;
        self.called.notify_all();
        let mut had_any = false;
        while !state.is_stopped {
            if state.is_busy || !state.ids.is_empty() {
                had_any = true;
                self.changed.wait(&mut state);
                continue;
            }
            let left = LEAVING_MAX.saturating_sub(clock::since(begun));
            if state.leaving == 0 || left.is_zero() {
                break;
            }
            had_any = true;
            self.changed.wait_for(&mut state, left);
        }
        state.waiting -= 1;
        had_any
    }

    /// Has the cleaner end after the inodes that wait.
    pub(crate) fn stop(&self) {
        self.state.lock().is_stopped = true;
        self.changed.notify_all();
        self.called.notify_all();
    }
}
