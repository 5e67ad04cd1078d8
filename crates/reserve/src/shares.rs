//! Whether trees share nodes (`shared`).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use buttress_format::header::ITEM_LEN;

/// Bytes that a leaf's extents, or a node's children, get of references at most, each: two users
/// of an extent, or of a node, with items of their own.
pub(crate) const EXTENT_REFS: u64 = 112;
/// The smallest item that names an extent, with its header.
pub(crate) const EXTENT_ITEM: u64 = ITEM_LEN as u64 + 53;

/// Whether trees share nodes, and what the extent tree takes.
#[derive(Debug)]
pub(crate) struct Shares {
    any: AtomicBool,
    /// Nodes of the extent tree; the highest number where that is not known.
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
