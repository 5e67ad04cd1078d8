//! The claim: the right to write a file back. One thread has it at a time.
//!
//! # Invariants
//!
//! - **B2** One thread at a time writes back a file. Only the thread with the claim allocates for
//!   the file, finishes its ordered extents, truncates it or punches holes into it.

use buttress_base::activity::{self, Cause};

use crate::file::File;

/// The right to write a file back; other threads wait for it (B2).
#[derive(Debug)]
#[must_use = "given back when dropped"]
pub(crate) struct Claim<'f> {
    file: &'f File,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.file.dirty.lock().busy = false;
        self.file.idle.notify_all();
    }
}

impl File {
    /// Waits until no thread writes this file back, and takes the claim.
    pub(crate) fn claim(&self) -> Claim<'_> {
        let mut dirty = self.dirty.lock();
        let _waiting = dirty.busy.then(|| activity::wait(Cause::Writeback));
        while dirty.busy {
            dirty.wait(&self.idle);
        }
        dirty.busy = true;
        Claim { file: self }
    }

    pub(crate) fn try_claim(&self) -> Option<Claim<'_>> {
        let mut dirty = self.dirty.lock();
        if dirty.busy {
            return None;
        }
        dirty.busy = true;
        Some(Claim { file: self })
    }
}
