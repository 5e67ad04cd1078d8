//! Whether trees share nodes (`shared`).

use std::sync::atomic::{AtomicBool, AtomicU64};

use buttress_format::header::ITEM_LEN;

/// Bytes that a leaf's extents, or a node's children, get of references at most, each: two users
/// of an extent, or of a node, with items of their own.
pub(crate) const EXTENT_REFS: u64 = 112;
/// The smallest item that names an extent, with its header.
pub(crate) const EXTENT_ITEM: u64 = ITEM_LEN as u64 + 53;
/// Whether trees share nodes, and what the extent tree takes.
#[derive(Debug)]
pub(crate) struct Shares {
    pub(crate) any: AtomicBool,
    /// Nodes of the extent tree; the highest number where that is not known.
    pub(crate) extents: AtomicU64,
}

impl Default for Shares {
    fn default() -> Self {
        Self { any: AtomicBool::new(false), extents: AtomicU64::new(u64::MAX) }
    }
}
