//! Whether trees share nodes (`shared`).

use std::sync::atomic::{AtomicBool, AtomicU64};

use buttress_format::header::ITEM_LEN;

/// The most bytes of references that each extent of a leaf, or child of a node, gets: two users
/// with an item each.
pub(crate) const EXTENT_REFS: u64 = 112;
/// The smallest item that names an extent, with its header.
pub(crate) const EXTENT_ITEM: u64 = ITEM_LEN as u64 + 53;
/// Whether trees share nodes, and the size of the extent tree.
#[derive(Debug)]
pub(crate) struct Shares {
    pub(crate) any: AtomicBool,
    /// Number of the extent tree's nodes; `u64::MAX` if unknown.
    pub(crate) extents: AtomicU64,
}

impl Default for Shares {
    fn default() -> Self {
        Self { any: AtomicBool::new(false), extents: AtomicU64::new(u64::MAX) }
    }
}
