//! Extents that the running transaction names before their data is on a device.
//!
//! An fsync puts the extents of its data into the running transaction. The fsync writes the data
//! together with the log. No commit may begin before the data is written.
//!
//! # Invariants
//!
//! - **B1** A commit takes the commit lock only when no [`UnwrittenPermit`] is open. From this
//!   moment until the freeze no `UnwrittenPermit` can be opened. So the data of all extents that a
//!   commit records is on the devices.
//! - **B2** A thread with an open `UnwrittenPermit` waits only for a log, for readers of its file
//!   and for its own write. None of these waits for a commit.

use buttress_base::activity::{self, Cause};
use buttress_base::sync::{Condvar, Mutex};

use crate::Allocation;

#[derive(Debug, Default)]
struct State {
    open: usize,
    /// Number of commits that wait until `open` is 0, or have not frozen their transaction yet.
    commits: usize,
}

/// Number of threads that may have put extents before their data was written.
#[derive(Debug, Default)]
pub(crate) struct UnwrittenCount {
    /// Unranked: commits wait on it with a condition variable, and nothing is taken under it.
    state: Mutex<State>,
    changed: Condvar,
}

/// The right to put extents with data that is not written yet. It must be dropped when the data is
/// on the device, or when the extents are taken back.
#[derive(Debug)]
#[must_use = "the right ends when it drops"]
pub struct UnwrittenPermit<'e> {
    count: &'e UnwrittenCount,
}

impl Drop for UnwrittenPermit<'_> {
    fn drop(&mut self) {
        let mut state = self.count.state.lock();
        state.open -= 1;
        let wakes = state.open == 0 && state.commits > 0;
        drop(state);
        if wakes {
            self.count.changed.notify_all();
        }
    }
}

/// While this value lives, no right can be opened (B1).
#[derive(Debug)]
pub(crate) struct UnwrittenBarrier<'e> {
    count: &'e UnwrittenCount,
}

impl Drop for UnwrittenBarrier<'_> {
    fn drop(&mut self) {
        self.count.state.lock().commits -= 1;
    }
}

impl UnwrittenCount {
    /// Waits until no [`UnwrittenPermit`] is open. No `UnwrittenPermit` can be opened while the
    /// result lives.
    pub(crate) fn bar(&self) -> UnwrittenBarrier<'_> {
        let mut state = self.state.lock();
        state.commits += 1;
        let _waiting = (state.open > 0).then(|| activity::wait(Cause::Writeback));
        while state.open > 0 {
            self.changed.wait(&mut state);
        }
        UnwrittenBarrier { count: self }
    }
}

impl Allocation {
    /// Opens the right to put extents before their data is written. `None` while a commit is about
    /// to begin.
    pub fn open_unwritten(&self) -> Option<UnwrittenPermit<'_>> {
        let mut state = self.unwritten().state.lock();
        if state.commits > 0 {
            return None;
        }
        state.open += 1;
        Some(UnwrittenPermit { count: self.unwritten() })
    }
}
