//! Whether the reads of a file try first what failed a while ago.
//!
//! # Invariants
//!
//! - **Y1** A stale count costs a read that is made twice. It never makes a read wrong.

use std::sync::atomic::{AtomicU32, Ordering};

/// After a trial that failed, so many reads hold the extents: the trial read its bytes twice.
const BEHIND_VAIN: u32 = 64;

/// Whether reads of a file try again what failed a while ago.
#[derive(Debug, Default)]
pub(crate) struct Backoff(AtomicU32);

impl Backoff {
    /// Whether a read may try. Two threads may lose one count of a few, which does no harm.
    pub(crate) fn may(&self) -> bool {
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
