//! Whether trees share nodes (`shared`).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use buttress_format::header::ITEM_LEN;

/// The most bytes of references that each extent of a leaf, or child of a node, gets: two users
/// with an item each.
pub(crate) const EXTENT_REFS: u64 = 112;
/// The smallest item that names an extent, with its header.
pub(crate) const EXTENT_ITEM: u64 = ITEM_LEN as u64 + 53;

/// Whether trees share nodes, and the size of the extent tree.
#[derive(Debug)]
pub(crate) struct Shares {
    any: AtomicBool,
    /// Number of the extent tree's nodes; `u64::MAX` if unknown.
    extents: AtomicU64,
}

impl Default for Shares {
    fn default() -> Self {
        Self { any: AtomicBool::new(false), extents: AtomicU64::new(u64::MAX) }
    }
}

impl Shares {
    /// Whether trees may share nodes.
    pub(crate) fn is_any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Trees share nodes from now on.
    pub(crate) fn note_any(&self) {
        self.any.store(true, Ordering::Release);
    }

    /// Nodes of the extent tree, where that is known.
    pub(crate) fn extents(&self) -> Option<u64> {
        Some(self.extents.load(Ordering::Relaxed)).filter(|nodes| *nodes != u64::MAX)
    }

    /// The extent tree has so many nodes, or it is not known how many.
    pub(crate) fn set_extents(&self, nodes: Option<u64>) {
        self.extents.store(nodes.unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}
