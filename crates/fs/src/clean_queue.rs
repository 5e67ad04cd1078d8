//! The queue of the cleaner: inodes without names or users, and deleted subvolumes.
//!
//! # Invariants
//!
//! - **C1** A thread that waits for the cleaner also waits for inodes that will soon enter the
//!   queue. That wait has a limit: a thread that holds such an inode may itself wait for the
//!   waiting thread.
//! - **C2** A deleted subvolume is listed from its deletion until its last node is given back
//!   durably. A caller that waits until the subvolume is no longer listed finds the subvolume's
//!   space free.
//!
//! # Locks
//!
//! One lock, held for short times.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use buttress_base::clock;
use buttress_base::sync::{Condvar, Mutex};
use buttress_format::TreeId;
use buttress_items::InodeId;

/// The longest wait for inodes that will soon enter the queue (C1).
const LEAVING_MAX: Duration = Duration::from_secs(1);

/// How long the cleaner lets inodes gather before it begins, unless a caller waits. Waking a thread
/// for each inode would cost more than the inode's removal.
const GATHER: Duration = Duration::from_millis(2);

/// The most subvolumes in one step, which takes one commit.
const TREES_MAX: usize = 32;

/// How often the cleaner checks whether a deleted subvolume has lost its last user.
const DROP_PERIOD: Duration = Duration::from_millis(500);

#[derive(Default)]
struct State {
    ids: VecDeque<InodeId>,
    /// Deleted subvolumes. Each step of their removal takes a whole commit, so inodes are removed
    /// first.
    trees: VecDeque<TreeId>,
    /// When the cleaner last checked deleted subvolumes that have users.
    looked: Option<Instant>,
    /// The subvolumes of the current step. Each stays listed until its last step has ended.
    dropping: Vec<TreeId>,
    /// Number of inodes without name or user that still have a cell. A batch of writeback, for
    /// example, holds a cell for a moment.
    leaving: usize,
    is_busy: bool,
    is_stopped: bool,
    /// Whether the cleaner sleeps because the queue is empty.
    is_asleep: bool,
    /// Number of callers that wait for the cleaner.
    waiting: usize,
}

impl State {
    /// Takes the first subvolumes that may be dropped, for one step.
    fn take_trees(&mut self, may: impl Fn(TreeId) -> bool) -> Option<Vec<TreeId>> {
        let (mut taken, mut passed) = (Vec::new(), Vec::new());
        while taken.len() < TREES_MAX
            && let Some(tree) = self.trees.pop_front()
        {
            if may(tree) { taken.push(tree) } else { passed.push(tree) }
        }
        passed.into_iter().rev().for_each(|tree| self.trees.push_front(tree));
        self.dropping.clone_from(&taken);
        (!taken.is_empty()).then_some(taken)
    }
}

/// The next work of the cleaner.
#[derive(Debug)]
pub(crate) enum ToClean {
    Inode(InodeId),
    Trees(Vec<TreeId>),
}

#[derive(Default)]
pub(crate) struct CleanQueue {
    /// Unranked: threads wait on it with a condition variable, and take no other lock under it.
    state: Mutex<State>,
    /// Signalled when the queue gets shorter.
    changed: Condvar,
    /// Signalled when a sleeping cleaner has work, and when it must not wait any longer.
    called: Condvar,
}

impl CleanQueue {
    /// Notes that an inode without names lost its last user. The inode enters the queue when its
    /// cell drops.
    pub(crate) fn note_leaving(&self) {
        self.state.lock().leaving += 1;
    }

    /// Notes that the cell of a nameless inode without users dropped.
    pub(crate) fn note_left(&self) {
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

    /// The deleted subvolumes that wait, and the subvolumes of the current step (C2).
    pub(crate) fn dying(&self) -> Vec<TreeId> {
        let state = self.state.lock();
        state.dropping.iter().chain(&state.trees).copied().collect()
    }

    /// Takes the next work, if there is any. `is_used` returns whether a subvolume must not be
    /// dropped yet.
    pub(crate) fn take(&self, is_used: impl Fn(TreeId) -> bool) -> Option<ToClean> {
        let mut state = self.state.lock();
        if let Some(id) = state.ids.pop_front() {
            return Some(ToClean::Inode(id));
        }
        state.take_trees(|tree| !is_used(tree)).map(ToClean::Trees)
    }

    /// As [`take`](Self::take), but waits for work. `None` if the cleaner must end. After a while
    /// the call also returns used subvolumes, so that the cleaner checks them again.
    pub(crate) fn next(&self, is_used: impl Fn(TreeId) -> bool) -> Option<ToClean> {
        let mut state = self.state.lock();
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
            // Callers of `wait_for_inodes` may wake this thread before the period has passed. So
            // the clock decides whether to check, even if no wait timed out.
            let now = clock::now();
            let looked = *state.looked.get_or_insert(now);
            let left = DROP_PERIOD.saturating_sub(now.saturating_duration_since(looked));
            if let Some(trees) = state.take_trees(|tree| left.is_zero() || !is_used(tree)) {
                if left.is_zero() {
                    state.looked = None;
                }
                return Some(ToClean::Trees(trees));
            }
            state.is_asleep = true;
            if state.trees.is_empty() {
                state.looked = None;
                self.called.wait(&mut state);
            } else {
                self.called.wait_for(&mut state, left);
            }
            state.is_asleep = false;
            if !state.ids.is_empty() && state.waiting == 0 && !state.is_stopped {
                self.called.wait_for(&mut state, GATHER);
            }
        }
    }

    /// Ends the current step. The subvolumes in `goes` need another step; the subvolumes in `waits`
    /// still have users.
    pub(crate) fn end_step(&self, goes: &[TreeId], waits: &[TreeId]) {
        let mut state = self.state.lock();
        state.dropping.clear();
        goes.iter().rev().for_each(|tree| state.trees.push_front(*tree));
        state.trees.extend(waits);
    }

    /// Waits until no inode is left, and for a limited time for inodes that will soon enter the
    /// queue (C1). Returns whether there were inodes.
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

    /// Makes the cleaner end after it has removed the waiting inodes.
    pub(crate) fn stop(&self) {
        self.state.lock().is_stopped = true;
        self.changed.notify_all();
        self.called.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    const TREE: TreeId = TreeId(300);

    /// A used subvolume is checked again every period, also if callers wake the cleaner more often.
    #[test]
    fn used_subvolumes_are_checked_although_callers_come() {
        let queue = CleanQueue::default();
        queue.drop_later(TREE);
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    queue.wait_for_inodes();
                    std::thread::sleep(DROP_PERIOD / 10);
                }
            });
            // If the queue never checked the subvolume, `next` would wait until this thread stops
            // the queue.
            scope.spawn(|| {
                let begun = clock::now();
                while !is_done.load(Ordering::Relaxed) && clock::since(begun) < DROP_PERIOD * 40 {
                    std::thread::sleep(DROP_PERIOD / 10);
                }
                queue.stop();
            });
            let work = queue.next(|_| true);
            is_done.store(true, Ordering::Relaxed);
            queue.stop();
            assert!(matches!(work, Some(ToClean::Trees(trees)) if trees == [TREE]), "no check");
        });
    }
}
