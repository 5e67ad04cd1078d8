//! Space that the log of fsync takes beside the trees, until the commit that ends the log.
//!
//! # Invariants
//!
//! - **G1** Only the commit that ends a log frees the space that the log names on disk. This commit
//!   does not free the space while a hold on the log lives. (See also `LogHold::give_back`.)
//! - **G2** The number of ended logs rises under the same lock under which the space is given back.
//!   So state that notes an older number belongs to an ended log.
//!
//! # Locks
//!
//! The lock is taken after the commit lock and before the gate. It is a long lock, since its holder
//! may write to devices.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use buttress_base::sync::{Mutex, MutexGuard};
use buttress_format::{Extent, Logical};

/// The space of one log.
#[derive(Debug, Default)]
pub(crate) struct LogSpace {
    ended: AtomicU64,
    /// The length of each extent, by its address. A node is given back without a look at others.
    /// Unranked: held across writes of the log.
    extents: Mutex<BTreeMap<Logical, u64>>,
}

impl LogSpace {
    /// Space that the log on disk names.
    pub(crate) fn add(&self, extent: Extent) {
        let older = self.extents.lock().insert(extent.start, extent.len);
        debug_assert!(older.is_none(), "G1: {extent:?} has two holders");
    }

    /// Keeps the space from being given back (G1).
    pub(crate) fn hold(&self) -> MutexGuard<'_, BTreeMap<Logical, u64>> {
        self.extents.lock()
    }

    /// Number of ended logs (G2).
    pub(crate) fn ended(&self) -> u64 {
        self.ended.load(Ordering::Relaxed)
    }

    /// Ends the log and returns its space, which the caller frees.
    pub(crate) fn end(&self) -> impl Iterator<Item = Extent> + use<> {
        let mut extents = self.extents.lock();
        self.ended.fetch_add(1, Ordering::Relaxed);
        std::mem::take(&mut *extents).into_iter().map(|(start, len)| Extent::new(start, len))
    }
}
