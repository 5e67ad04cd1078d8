//! The metadata that the commit of the frozen transaction may still allocate.

use std::sync::atomic::{AtomicU64, Ordering};

/// The need of one commit at a time, and how much of it is taken.
#[derive(Debug, Default)]
pub struct FrozenNeed {
    /// Bytes of metadata that the commit may allocate in total; 0 if none is under way.
    need: AtomicU64,
    /// Bytes that it has allocated so far.
    taken: AtomicU64,
    /// With parity, the bytes of a row that the nodes of one commit may leave unused. The rest of
    /// the last row cannot be allocated later.
    row_rest: AtomicU64,
}

impl FrozenNeed {
    /// A commit begins, which may allocate at most `need` bytes.
    pub fn begin(&self, need: u64) {
        self.taken.store(0, Ordering::Relaxed);
        self.need.store(need, Ordering::Release);
    }

    /// A closer bound of the same commit.
    pub(crate) fn bound(&self, need: u64) {
        self.need.fetch_min(need, Ordering::Relaxed);
    }

    /// The commit allocates no more.
    pub(crate) fn end(&self) {
        self.need.store(0, Ordering::Relaxed);
    }

    /// The commit allocates bytes. Called after the account was changed.
    pub fn take(&self, bytes: u64) {
        self.taken.fetch_add(bytes, Ordering::Release);
    }

    /// The commit gives bytes back. Called before the account is changed.
    pub fn give_back(&self, bytes: u64) {
        self.taken.fetch_sub(bytes, Ordering::Release);
    }

    /// Bytes that the commit may allocate in total.
    pub(crate) fn whole(&self) -> u64 {
        self.need.load(Ordering::Relaxed)
    }

    /// Bytes that the commit may still allocate.
    pub fn left(&self) -> u64 {
        let need = self.need.load(Ordering::Acquire);
        need.saturating_sub(self.taken.load(Ordering::Acquire))
    }

    /// Notes that a commit may leave `bytes` of a row unused.
    pub(crate) fn note_row_rest(&self, bytes: u64) {
        self.row_rest.fetch_max(bytes, Ordering::Relaxed);
    }

    pub(crate) fn row_rest(&self) -> u64 {
        self.row_rest.load(Ordering::Relaxed)
    }
}
