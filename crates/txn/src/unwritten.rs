//! Extents that the running transaction names before their data is on a device.
//!
//! An fsync puts the extents of its data, and has the data written together with the log that names
//! them. Until that is done no commit may begin.
//!
//! # Invariants
//!
//! - **B1** A commit takes the commit lock only while no [`Unwritten`] is open. None opens from
//!   then until the transaction is frozen. So each commit finds the data of all extents that it
//!   names.
//! - **B2** A thread with an open one waits for a log, for readers of its file, and for its own
//!   write. None of these waits for a commit.

use buttress_base::sync::{Condvar, Mutex};

use crate::Engine;

#[derive(Debug, Default)]
struct State {
    open: usize,
    /// Commits that wait for these, or have not frozen yet.
    commits: usize,
}

/// How many threads have put extents without data.
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
pub struct Unwritten<'e> {
    count: &'e UnwrittenCount,
}

impl Drop for Unwritten<'_> {
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

/// Keeps new rights from opening (B1).
#[derive(Debug)]
pub(crate) struct Barred<'e> {
    count: &'e UnwrittenCount,
}

impl Drop for Barred<'_> {
    fn drop(&mut self) {
        self.count.state.lock().commits -= 1;
    }
}

impl UnwrittenCount {
    /// Waits until none is open, and bars new ones.
    pub(crate) fn bar(&self) -> Barred<'_> {
        let mut state = self.state.lock();
        state.commits += 1;
        while state.open > 0 {
            self.changed.wait(&mut state);
        }
        Barred { count: self }
    }
}

impl Engine {
    /// Opens the right to put extents before their data is written. `None` while a commit is about
    /// to begin.
    pub fn open_unwritten(&self) -> Option<Unwritten<'_>> {
        let mut state = self.unwritten.state.lock();
        if state.commits > 0 {
            return None;
        }
        state.open += 1;
        Some(Unwritten { count: &self.unwritten })
    }
}
