//! The list of inodes with dirty data, oldest first, and the requests to the threads that write
//! back.
//!
//! # Locks
//!
//! The list has one lock, held for short times. Each cell has a mark that says whether it is listed
//! (`InodeCell::keep_listed`). The mark changes outside of the list's lock, or for a moment under
//! that lock.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use buttress_base::clock;
use buttress_base::sync::{Condvar, Mutex};
use buttress_data::Files;
use buttress_format::TreeId;
use buttress_txn::Round;

use crate::cell::InodeCell;

/// The most inodes of one batch.
pub(super) const BATCH_INODES: usize = 128;

/// The conditions under which a thread writes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ThreadRole {
    /// The thread writes when dirty data is old or exceeds a limit.
    Usual,
    /// The thread writes while writeback waits for devices (`writeback::G3`).
    Spare,
}

/// The next action of a thread after a wait.
pub(super) enum Call {
    /// End the thread.
    Stop,
    /// Make a round of preemptive flushing.
    Round(Round),
    /// Check the dirty data.
    Look,
}

#[derive(Default)]
struct State {
    cells: VecDeque<(Weak<InodeCell>, Instant)>,
    is_kicked: bool,
    /// Whether spare threads are needed.
    is_crowded: bool,
    /// Rounds of preemptive flushing that wait for idle threads.
    asked: Vec<Round>,
    /// Number of idle threads, by [`ThreadRole`].
    idle: [usize; 2],
    is_stopped: bool,
}

/// The list of inodes with dirty data.
#[derive(Default)]
pub(super) struct DirtyList {
    /// Unranked: threads wait on it with condition variables. The lock of a cell's mark is taken
    /// under this lock.
    state: Mutex<State>,
    /// The number of entries, written under the lock.
    len: AtomicUsize,
    wanted: Condvar,
    spare_wanted: Condvar,
}

impl DirtyList {
    /// Lists an inode that was made dirty.
    pub(super) fn enlist(&self, cell: &Arc<InodeCell>) {
        if cell.keep_listed() {
            let mut state = self.state.lock();
            state.cells.push_back((Arc::downgrade(cell), clock::now()));
            self.len.store(state.cells.len(), Ordering::Relaxed);
        }
    }

    /// The number of entries. Some of them may be clean or gone.
    pub(super) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// The cells in the list.
    pub(super) fn listed(&self) -> Vec<Arc<InodeCell>> {
        self.state.lock().cells.iter().filter_map(|(cell, _)| cell.upgrade()).collect()
    }

    /// Takes every cell out of the list.
    pub(super) fn drain(&self) -> Vec<Arc<InodeCell>> {
        let listed = {
            let mut state = self.state.lock();
            self.len.store(0, Ordering::Relaxed);
            std::mem::take(&mut state.cells)
        };
        let cells: Vec<_> = listed.iter().filter_map(|(cell, _)| cell.upgrade()).collect();
        for cell in &cells {
            cell.unlist();
        }
        cells
    }

    /// Takes the oldest cells out of the list, up to a batch of `limit` bytes.
    pub(super) fn take_batch(
        &self,
        older_than: Option<Instant>,
        limit: u64,
    ) -> Vec<Arc<InodeCell>> {
        let mut batch = Vec::new();
        let mut bytes = 0;
        let mut state = self.state.lock();
        while batch.len() < BATCH_INODES && bytes < limit {
            let Some((_, since)) = state.cells.front() else { break };
            if older_than.is_some_and(|limit| *since > limit) {
                break;
            }
            let Some((cell, _)) = state.cells.pop_front() else { break };
            let Some(cell) = cell.upgrade() else { continue };
            cell.unlist();
            bytes += cell.file.dirty_bytes();
            batch.push(cell);
        }
        self.len.store(state.cells.len(), Ordering::Relaxed);
        batch
    }

    /// Forgets the dirty data of a deleted subvolume.
    pub(super) fn forget_tree(&self, files: &Files, tree: TreeId) {
        for cell in self.listed().iter().filter(|cell| cell.tree() == tree) {
            files.forget_waiting(&cell.file);
            cell.unlist();
        }
    }

    /// Asks an idle thread to make a round, a spare thread if possible. Returns false if no thread
    /// is idle.
    pub(super) fn ask_idle(&self, round: Round) -> bool {
        let mut state = self.state.lock();
        let [usual, spare] = state.idle;
        // A thread that was asked and has not woken yet still counts as idle.
        if state.asked.len() >= usual + spare {
            return false;
        }
        state.asked.push(round);
        let is_for_spare = state.asked.len() <= spare;
        drop(state);
        if is_for_spare { &self.spare_wanted } else { &self.wanted }.notify_one();
        true
    }

    /// Wakes a usual thread to check the dirty data, and the spare threads if `is_crowded`.
    pub(super) fn kick(&self, is_crowded: bool) {
        let mut state = self.state.lock();
        let calls = !state.is_kicked;
        let calls_spare = is_crowded && !state.is_crowded;
        (state.is_kicked, state.is_crowded) = (true, state.is_crowded || is_crowded);
        drop(state);
        if calls {
            self.wanted.notify_one();
        }
        if calls_spare {
            self.spare_wanted.notify_all();
        }
    }

    /// Waits for a request. A usual thread waits for `period` at most, a spare thread without
    /// limit.
    pub(super) fn wait(&self, role: ThreadRole, period: Duration) -> Call {
        let mut state = self.state.lock();
        let is_called = match role {
            ThreadRole::Usual => state.is_kicked,
            ThreadRole::Spare => state.is_crowded,
        };
        if !is_called && state.asked.is_empty() && !state.is_stopped {
            state.idle[role as usize] += 1;
            match role {
                ThreadRole::Usual => {
                    self.wanted.wait_for(&mut state, period);
                }
                ThreadRole::Spare => self.spare_wanted.wait(&mut state),
            }
            state.idle[role as usize] -= 1;
        }
        if state.is_stopped {
            return Call::Stop;
        }
        if let Some(round) = state.asked.pop() {
            return Call::Round(round);
        }
        if role == ThreadRole::Usual {
            state.is_kicked = false;
        }
        Call::Look
    }

    /// Notes that a spare thread has no more work.
    pub(super) fn end_crowding(&self) {
        self.state.lock().is_crowded = false;
    }

    /// Tells the threads to end.
    pub(super) fn stop(&self) {
        self.state.lock().is_stopped = true;
        self.wanted.notify_all();
        self.spare_wanted.notify_all();
    }
}
