//! Notes on block groups, kept beside the groups' accounts.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use buttress_base::sync::{Mutex, MutexGuard};
use buttress_format::Logical;

/// Notes on block groups.
#[derive(Debug)]
pub(crate) struct GroupNotes {
    /// Unranked: held while a chunk is added because free space is fragmented.
    growing: Mutex<()>,
    /// Starts of groups that may be empty now. Unranked: nothing is taken under it.
    empties: Mutex<BTreeSet<Logical>>,
    trusts_free_space: AtomicBool,
    row_bytes: AtomicU64,
}

impl Default for GroupNotes {
    fn default() -> Self {
        Self {
            growing: Mutex::default(),
            empties: Mutex::default(),
            trusts_free_space: AtomicBool::new(true),
            row_bytes: AtomicU64::new(0),
        }
    }
}

impl GroupNotes {
    /// The right to add a chunk because free space is fragmented; `None` while another thread has
    /// it.
    pub(crate) fn try_grow(&self) -> Option<MutexGuard<'_, ()>> {
        self.growing.try_lock()
    }

    /// Notes that the group at `start` may be empty now.
    pub(crate) fn note_empty(&self, start: Logical) {
        self.empties.lock().insert(start);
    }

    /// Takes the groups that may be empty.
    pub(crate) fn take_empties(&self) -> BTreeSet<Logical> {
        std::mem::take(&mut *self.empties.lock())
    }

    /// Whether the free-space tree of the last commit is valid.
    pub(crate) fn trusts_free_space(&self) -> bool {
        self.trusts_free_space.load(Ordering::Relaxed)
    }

    pub(crate) fn trust_free_space(&self, trust: bool) {
        self.trusts_free_space.store(trust, Ordering::Relaxed);
    }

    /// Bytes of the longest row in which data is allocated; zero without parity.
    pub(crate) fn row_bytes(&self) -> u64 {
        self.row_bytes.load(Ordering::Relaxed)
    }

    /// Notes that data is also allocated in rows of `bytes` bytes.
    pub(crate) fn note_row(&self, bytes: u64) {
        self.row_bytes.fetch_max(bytes, Ordering::Relaxed);
    }
}
