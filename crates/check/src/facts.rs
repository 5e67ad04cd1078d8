//! Facts that one step of a check finds and a later step uses.
//!
//! # Invariants
//!
//! - **F1** This file depends on no step of the check, but each step may use these types.

use std::collections::BTreeMap;

use buttress_base::{Rank, Ranked};
use buttress_format::{BlockGroupFlags, Extent, Generation, Key, Logical, TreeId};

/// A block group as the volume records it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group {
    pub(crate) extent: Extent,
    pub(crate) flags: BlockGroupFlags,
    pub(crate) used: u64,
}

/// An item and the leaf that holds it.
pub(crate) struct Item<'i> {
    pub(crate) key: Key,
    pub(crate) bytes: &'i [u8],
    pub(crate) leaf: Logical,
}

/// Bytes that each subvolume owns by simple quotas: the bytes of the extents that it allocated.
#[derive(Debug)]
pub(crate) struct OwnedBytes {
    /// Extents of older transactions are not counted.
    since: Generation,
    bytes: Ranked<BTreeMap<TreeId, u64>>,
}

impl OwnedBytes {
    /// Counts extents from the transaction `since` on.
    pub(crate) fn new(since: Generation) -> Self {
        Self { since, bytes: Ranked::new(Rank::Leaf, BTreeMap::new()) }
    }

    /// Counts an extent that was met for the first time.
    pub(crate) fn add(&self, owner: TreeId, generation: Generation, len: u64) {
        if generation >= self.since && owner.is_fs_tree() {
            let mut bytes = self.bytes.lock();
            let sum = bytes.entry(owner).or_default();
            *sum = sum.saturating_add(len);
        }
    }

    /// The bytes that `subvolume` owns.
    pub(crate) fn of(&self, subvolume: TreeId) -> u64 {
        self.bytes.lock().get(&subvolume).copied().unwrap_or(0)
    }
}
