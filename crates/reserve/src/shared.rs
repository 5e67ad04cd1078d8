//! The metadata that the first change of a shared node takes.
//!
//! A snapshot uses the nodes of its source. The first tree that changes a shared node gets its own
//! copy. Everything that the copy points to gets one more user. A leaf's copy adds at most two
//! references for each extent that it names. Each of these references may lie in another leaf of
//! the extent tree.
//!
//! # Invariants
//!
//! - **S1** Before a tree is changed or snapshotted, reservations know whether its nodes may be
//!   shared. If so, each request includes the added references. It also includes the extent-tree
//!   leaves that record these references, at most as many as exist. The first change of a node that
//!   a balance of Linux moved takes the same space, though the node is not shared. Linux marks the
//!   root of such nodes like the root of a snapshot (`last_snapshot`), so these nodes are counted,
//!   too.
//! - **S2** If trees share nodes, the global reserve grows by the size of the extent tree, as in
//!   Linux, up to half of all metadata. So a delete finds space, however many shared leaves it is
//!   the first to change. While a snapshot shares the deleted data, the delete takes more than it
//!   frees. `copies` keeps space so that the next delete finds space, too. The drop of the snapshot
//!   uses the space that the deletes leave.

use buttress_format::TreeId;
use buttress_tree::Roots;

use crate::View;
use crate::ledger::{EXTENT_ITEM, EXTENT_REFS, all_of};
use crate::reservations::Reservations;

/// References to nodes take at most one byte for each `RECORDED` bytes of nodes, because each node
/// gets at most two more references.
const RECORDED: u64 = 64;
/// A margin, in nodes, for the nodes outside the extent tree that a delete takes, and for items
/// that other operations reserve.
const BESIDE: u64 = 192;

impl Reservations {
    /// From now on, reservations expect shared nodes (S1). Called before a snapshot of a subvolume
    /// is made, and when a subvolume that has had a snapshot is found.
    pub fn note_shared(&self, view: &View) {
        if !self.is_shared() {
            self.look_at_extents(view.roots());
            self.shape.note_shared();
            self.size_global_reserve();
        }
    }

    /// Counts the nodes of the extent tree: before trees share nodes, and after each commit then.
    pub(crate) fn look_at_extents(&self, roots: &Roots) {
        let nodes = all_of(&self.parts.store, roots, TreeId::EXTENT);
        self.shape.set_extent_nodes(nodes.map(|nodes| nodes.sum()).ok());
    }

    pub(crate) fn is_shared(&self) -> bool {
        self.shape.has_shared()
    }

    /// The bytes of metadata that `items` changed items take for shared nodes, in addition to their
    /// paths. All existing nodes take `used` bytes.
    pub(crate) fn shared_need(&self, items: u64, used: u64) -> u64 {
        if items == 0 || !self.is_shared() {
            return 0;
        }
        let fills = items.saturating_mul(self.shared_fills() * self.nodesize()).min(2 * used);
        fills + self.shared_leaves(items, used) + self.shared_nodes(used)
    }

    /// Bytes of the extent-tree leaves that `items` changed items dirty, if each item is the first
    /// change of a leaf. At most all bytes of the extent tree, or `most` if its size is unknown.
    pub(crate) fn shared_leaves(&self, items: u64, most: u64) -> u64 {
        let each = self.extents_of_leaf() * self.nodesize();
        items.saturating_mul(each).min(self.shared_extents().unwrap_or(most))
    }

    /// The most extents of one leaf. Each may be recorded in another leaf of the extent tree.
    pub(crate) fn extents_of_leaf(&self) -> u64 {
        self.parts.store.geometry().leaf_room() as u64 / EXTENT_ITEM
    }

    /// The most extent-tree leaves that record the extents of one leaf. 0 if trees share no nodes.
    pub(crate) fn shared_records(&self) -> u64 {
        if self.is_shared() { self.extents_of_leaf() } else { 0 }
    }

    /// Bytes of all nodes of the extent tree; `None` if unknown, or if trees share no nodes.
    fn shared_extents(&self) -> Option<u64> {
        Some(self.shape.extent_nodes()?.saturating_mul(self.nodesize()))
    }

    /// Nodes that the added references fill when a leaf is first changed. These nodes may be only
    /// half full. 0 if trees share no nodes.
    pub(crate) fn shared_fills(&self) -> u64 {
        if !self.is_shared() {
            return 0;
        }
        let room = self.parts.store.geometry().leaf_room() as u64;
        2 * room / EXTENT_ITEM * EXTENT_REFS / self.nodesize() + 1
    }

    /// The most bytes that references to nodes can add, if `used` bytes of nodes exist.
    pub(crate) fn shared_nodes(&self, used: u64) -> u64 {
        if self.is_shared() { used / RECORDED } else { 0 }
    }

    /// The least size of the global reserve if trees share nodes and all nodes take `used` bytes
    /// (S2). `None` if the extent tree's size is unknown.
    pub(crate) fn shared_reserve(&self, used: u64) -> Option<u64> {
        let least = self.shared_extents()? + used / RECORDED;
        // An operation that frees space may use three quarters of the reserve.
        Some(least / 3 * 4 + BESIDE * self.nodesize())
    }
}
