//! The facts about trees on which bounds rest: the tallest, and whether trees share nodes.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

/// The facts about all known trees. They only get larger while a volume is open, but for the
/// number of nodes.
#[derive(Debug)]
pub(crate) struct TreeShape {
    height: AtomicU8,
    has_shared: AtomicBool,
    extent_nodes: AtomicU64,
}

impl TreeShape {
    pub(crate) fn new(height: u8) -> Self {
        Self {
            height: AtomicU8::new(height),
            has_shared: AtomicBool::new(false),
            extent_nodes: AtomicU64::new(u64::MAX),
        }
    }

    /// The level of the root of the tallest known tree; a leaf has level 0.
    pub(crate) fn height(&self) -> u8 {
        self.height.load(Ordering::Relaxed)
    }

    /// From now on, a tree of this height is known.
    pub(crate) fn note_height(&self, height: u8) {
        self.height.fetch_max(height, Ordering::Relaxed);
    }

    /// Whether trees share nodes (`shared`).
    pub(crate) fn has_shared(&self) -> bool {
        self.has_shared.load(Ordering::Acquire)
    }

    /// From now on, trees share nodes. The number of the extent tree's nodes is noted before.
    pub(crate) fn note_shared(&self) {
        self.has_shared.store(true, Ordering::Release);
    }

    /// The number of the extent tree's nodes; `None` if unknown, or if trees share no nodes.
    pub(crate) fn extent_nodes(&self) -> Option<u64> {
        let nodes = self.extent_nodes.load(Ordering::Relaxed);
        (self.has_shared() && nodes != u64::MAX).then_some(nodes)
    }

    /// Notes the number of the extent tree's nodes, or that it is unknown.
    pub(crate) fn set_extent_nodes(&self, nodes: Option<u64>) {
        self.extent_nodes.store(nodes.unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}
