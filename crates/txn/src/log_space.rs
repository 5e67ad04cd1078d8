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

use std::sync::atomic::{AtomicU64, Ordering};

use buttress_base::sync::{Mutex, MutexGuard};
use buttress_format::Extent;

/// The space of one log.
#[derive(Debug, Default)]
pub(crate) struct LogSpace {
    ended: AtomicU64,
    /// Unranked: held across writes of the log.
    nodes: Mutex<Vec<Extent>>,
}

impl LogSpace {
    /// Space that the log on disk names.
    pub(crate) fn add(&self, extent: Extent) {
        self.nodes.lock().push(extent);
    }

    /// Keeps the space from being given back (G1).
    pub(crate) fn hold(&self) -> MutexGuard<'_, Vec<Extent>> {
        self.nodes.lock()
    }

    /// Number of ended logs (G2).
    pub(crate) fn ended(&self) -> u64 {
        self.ended.load(Ordering::Relaxed)
    }

    /// Ends the log and returns its space, which the caller frees.
    pub(crate) fn end(&self) -> Vec<Extent> {
        let mut nodes = self.nodes.lock();
        self.ended.fetch_add(1, Ordering::Relaxed);
        std::mem::take(&mut *nodes)
    }
}
