//! Whether trees share nodes (`shared`).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use buttress_format::header::ITEM_LEN;

/// The most bytes of references that an extent or child gets when a shared node is first changed:
/// two references with an item each.
pub(crate) const EXTENT_REFS: u64 = 112;
/// Bytes of the smallest extent item in a file tree, with its header.
pub(crate) const EXTENT_ITEM: u64 = ITEM_LEN as u64 + 53;

/// Whether trees share nodes, and the size of the extent tree.
#[derive(Debug)]
pub(crate) struct SharingFacts {
    any: AtomicBool,
    /// Number of the extent tree's nodes; `u64::MAX` if unknown.
    extents: AtomicU64,
}

impl Default for SharingFacts {
    fn default() -> Self {
        Self { any: AtomicBool::new(false), extents: AtomicU64::new(u64::MAX) }
    }
}

impl SharingFacts {
    /// Whether trees may share nodes.
    pub(crate) fn is_any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Records that trees share nodes from now on.
    pub(crate) fn note_any(&self) {
        self.any.store(true, Ordering::Release);
    }

    /// The number of the extent tree's nodes; `None` if unknown.
    pub(crate) fn extents(&self) -> Option<u64> {
        Some(self.extents.load(Ordering::Relaxed)).filter(|nodes| *nodes != u64::MAX)
    }

    /// Records the number of the extent tree's nodes; `None` if unknown.
    pub(crate) fn set_extents(&self, nodes: Option<u64>) {
        self.extents.store(nodes.unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}
