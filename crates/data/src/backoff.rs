//! Decides when the reads of a file repeat an attempt that failed before.
//!
//! # Invariants
//!
//! - **Y1** A stale count makes at most one read do its work twice. It never makes a read wrong.

use std::sync::atomic::{AtomicU32, Ordering};

/// The number of reads that do not try again after a failed attempt. Each failed attempt costs a
/// second read of its bytes.
const BEHIND_VAIN: u32 = 64;

/// The number of reads of a file before a read tries again.
#[derive(Debug, Default)]
pub(crate) struct Backoff(AtomicU32);

impl Backoff {
    /// Counts one read, and returns whether this read may try. If two threads count at once, one of
    /// the counts may be lost, which does no harm.
    pub(crate) fn take_turn(&self) -> bool {
        let left = self.0.load(Ordering::Relaxed);
        if left > 0 {
            self.0.store(left - 1, Ordering::Relaxed);
        }
        left == 0
    }

    pub(crate) fn note_vain(&self) {
        self.0.store(BEHIND_VAIN, Ordering::Relaxed);
    }
}
