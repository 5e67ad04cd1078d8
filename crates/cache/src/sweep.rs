//! The state of write-back between two batches.
//!
//! # Invariants
//!
//! - The pending versions are written to the origin, and the origin was not flushed since then
//!   (`drain::B2`).
//! - The lock around this state lets one sweep run at a time. Only the holder of the lock changes
//!   the state.

use buttress_base::AlignedBuf;

use crate::units::{OriginBlock, Slot};

/// The most runs that are handled under one lock.
pub(crate) const RUNS_MAX: usize = 64;

/// The progress of write-back.
#[derive(Debug, Default)]
pub(crate) struct Sweep {
    /// The first block that this sweep has not looked at.
    pub(crate) cursor: OriginBlock,
    /// Versions that were written to the origin, which was not flushed since then.
    pub(crate) pending: Vec<(OriginBlock, Slot)>,
    /// Whether this sweep met blocks that could not be written back yet.
    pub(crate) missed: bool,
    /// The buffer through which batches are copied. It is kept, because the pages of a new buffer
    /// cost more than the copy.
    pub(crate) buf: AlignedBuf,
}

impl Sweep {
    /// Returns whether no written version waits for a flush of the origin.
    pub(crate) fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }

    /// Frees memory after a sweep.
    pub(crate) fn rest(&mut self) {
        self.buf = AlignedBuf::default();
        self.pending.shrink_to_fit();
    }
}
