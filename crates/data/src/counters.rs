//! Counts of dirty and written data of files, and the first lost write.

use std::sync::atomic::{AtomicU64, Ordering};

use buttress_base::{Rank, Ranked};

use crate::error::Error;

/// Counts of all files of a volume.
#[derive(Debug)]
pub struct Counters {
    dirty_bytes: AtomicU64,
    ordered_bytes: AtomicU64,
    finished_bytes: AtomicU64,
    shortfalls: AtomicU64,
    /// The first loss of any file's data since the last call of [`Counters::take_error`].
    lost: Ranked<Option<Error>>,
}

impl Counters {
    pub(crate) fn new() -> Self {
        Self {
            dirty_bytes: AtomicU64::new(0),
            ordered_bytes: AtomicU64::new(0),
            finished_bytes: AtomicU64::new(0),
            shortfalls: AtomicU64::new(0),
            lost: Ranked::new(Rank::Leaf, None),
        }
    }

    /// Takes the first failure of background writes of any file. This call reports the failure
    /// once. An fsync of the file reports it as well.
    pub fn take_error(&self) -> Option<Error> {
        self.lost.lock().take()
    }

    /// Keeps a failure of background writes for the next call of [`Counters::take_error`].
    pub fn keep_error(&self, error: &Error) {
        self.lost.lock().get_or_insert_with(|| error.clone());
    }

    /// Dirty bytes of all files, including bytes on their way to the devices.
    #[must_use]
    pub fn dirty_bytes(&self) -> u64 {
        self.dirty_bytes.load(Ordering::Relaxed)
    }

    /// Dirty bytes that are on their way to the devices.
    #[must_use]
    pub fn ordered_bytes(&self) -> u64 {
        self.ordered_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn count_ordered(&self, bytes: u64) {
        self.ordered_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn count_finished(&self, bytes: u64) {
        self.ordered_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.finished_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Total of bytes that were written back, or were lost on their way to the devices.
    #[must_use]
    pub fn finished_bytes(&self) -> u64 {
        self.finished_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn note_shortfall(&self) {
        self.shortfalls.fetch_add(1, Ordering::Relaxed);
    }

    /// Total of ordered extents that needed more metadata than their reservation to finish.
    #[must_use]
    pub fn shortfalls(&self) -> u64 {
        self.shortfalls.load(Ordering::Relaxed)
    }

    pub(crate) fn count_dirty(&self, bytes: u64) {
        self.dirty_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn count_clean(&self, bytes: u64) {
        self.dirty_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}
