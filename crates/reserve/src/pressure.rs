//! How much of the free metadata is reserved.

use std::sync::atomic::{AtomicU64, Ordering};

/// The reserved part of the free metadata, in thousandths, above which metadata is tight. Above
/// this part, `Reservations::pressure` reports a value, and shards keep no reservations that come
/// back.
const TIGHT: u64 = 500;

/// The reserved part of the free metadata, in thousandths. Space for changes already put does not
/// count as free.
#[derive(Debug, Default)]
pub(crate) struct Pressure(AtomicU64);

impl Pressure {
    /// Records the part. A value that stays is not written again: its cache line is shared.
    pub(crate) fn note(&self, thousandths: u64) {
        if self.0.load(Ordering::Relaxed) != thousandths {
            self.0.store(thousandths, Ordering::Relaxed);
        }
    }

    /// The part, if metadata is tight.
    pub(crate) fn tight(&self) -> Option<u64> {
        Some(self.0.load(Ordering::Relaxed)).filter(|part| *part > TIGHT)
    }
}
