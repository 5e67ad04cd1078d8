//! Space that the log of fsync takes beside the trees, until the commit that ends the log.
//!
//! # Invariants
//!
//! - **G1** Only the commit that ends a log gives back what the log names on disk, and not while a
//!   hold on it lives.
//! - **G2** The number of ended logs changes with that, under the same lock: what was kept of an
//!   ended log is recognised by it.
//!
//! # Locks
//!
//! After the commit lock, before the gate. A holder may write to devices: it is no short lock.

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

    /// How many logs have ended (G2).
    pub(crate) fn ended(&self) -> u64 {
        self.ended.load(Ordering::Relaxed)
    }

    /// The log ends: its space, to be given back.
    pub(crate) fn end(&self) -> Vec<Extent> {
        let mut nodes = self.nodes.lock();
        self.ended.fetch_add(1, Ordering::Relaxed);
        std::mem::take(&mut *nodes)
    }
}
