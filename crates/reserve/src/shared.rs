//! What the first change of a node that trees share takes.
//!
//! A snapshot uses the nodes of its source. The first tree that changes one of them gets a copy of
//! its own. All that the copy points to has one more user from then on: up to two references for
//! each extent that a leaf names. Each extent may be recorded in another leaf of the extent tree.
//!
//! # Invariants
//!
//! - **S1** It is known before a tree is worked in, or cut, that its nodes may be shared. What is
//!   asked for then has the references with it, and of the leaves that record them no more than
//!   there are. Nodes that a balance of Linux moved take the same when they are changed first,
//!   though they are not shared. When Linux moves nodes of a root, it writes into that root that a
//!   snapshot was cut (`last_snapshot`). So they are counted, too.
//! - **S2** Where trees share, the global reserve holds the extent tree once more, if that is no
//!   more than half of all metadata. Linux does the same. So a delete finds room however many
//!   leaves it is the first to change. It takes more than it gives while a snapshot has what it
//!   deletes. `copies` keeps some so that the next one finds room, too. The drop of a subvolume
//!   finds what they leave.

use buttress_format::TreeId;
use buttress_tree::{Roots, Store};

use crate::reservations::Reservations;
use crate::shares::{EXTENT_ITEM, EXTENT_REFS};
use crate::{View, ledger};

/// Bytes of metadata for one of those that record it, at least, with two references more than now
/// for each node.
const RECORDED: u64 = 64;
/// Nodes that a delete takes beside the extent tree, about, and items that others have not put yet.
const BESIDE: u64 = 192;

impl Reservations {
    /// Makes reservations count with nodes that trees share, from now on (S1). Called before a
    /// snapshot of a subvolume is made, and where a subvolume that had one is met.
    pub fn note_shared(&self, view: &View) {
        if !self.is_shared() {
            self.look_at_extents(view.store(), view.roots());
            self.shares.note_any();
            self.size_global_reserve();
        }
    }

    /// Looks at the trees again, after a commit has changed them.
    pub(crate) fn look_again_at_extents(&self, roots: &Roots) {
        if self.is_shared() {
            self.look_at_extents(&self.store, roots);
        }
    }

    fn look_at_extents(&self, store: &Store, roots: &Roots) {
        let nodes = ledger::all_of(store, roots, [TreeId::EXTENT]);
        self.shares.set_extents(nodes.map(|[extents]| extents.sum()));
    }

    pub(crate) fn is_shared(&self) -> bool {
        self.shares.is_any()
    }

    /// Bytes of metadata that so many changed items take beside their paths, where all nodes take
    /// so many.
    pub(crate) fn shared_need(&self, items: u64, used: u64) -> u64 {
        if items == 0 || !self.is_shared() {
            return 0;
        }
        let nodesize = u64::from(self.store.geometry().nodesize);
        let fills = items.saturating_mul(self.shared_fills() * nodesize).min(2 * used);
        let leaves = match self.shared_extents() {
            Some(_) => self.shared_leaves(items),
            None => items.saturating_mul(self.each_leaf()).min(used),
        };
        fills + leaves + self.shared_nodes(used)
    }

    /// Bytes of leaves that record extents which so many changed items take, where it is known
    /// how many there are.
    pub(crate) fn shared_leaves(&self, items: u64) -> u64 {
        let extents = self.shared_extents().unwrap_or(0);
        items.saturating_mul(self.each_leaf()).min(extents)
    }

    /// The same of one that is the first change of a leaf.
    fn each_leaf(&self) -> u64 {
        let geometry = self.store.geometry();
        geometry.leaf_room() as u64 / EXTENT_ITEM * u64::from(geometry.nodesize)
    }

    /// Leaves that record the extents of one leaf, each in another; none where no nodes are shared.
    pub(crate) fn shared_records(&self) -> u64 {
        if self.is_shared() { self.store.geometry().leaf_room() as u64 / EXTENT_ITEM } else { 0 }
    }

    /// Bytes of the extent tree's nodes, where trees share and that is known.
    fn shared_extents(&self) -> Option<u64> {
        let nodes = self.shares.extents().filter(|_| self.is_shared())?;
        Some(nodes.saturating_mul(u64::from(self.store.geometry().nodesize)))
    }

    /// Nodes that the references fill which the first change of one leaf adds, half full as
    /// leaves may be; none where no nodes are shared.
    pub(crate) fn shared_fills(&self) -> u64 {
        if !self.is_shared() {
            return 0;
        }
        let nodesize = u64::from(self.store.geometry().nodesize);
        let room = self.store.geometry().leaf_room() as u64;
        2 * room / EXTENT_ITEM * EXTENT_REFS / nodesize + 1
    }

    /// Bytes that references of nodes take, those of all that there are: a node has one parent in
    /// each tree.
    pub(crate) fn shared_nodes(&self, used: u64) -> u64 {
        if self.is_shared() { used / RECORDED } else { 0 }
    }

    /// What the global reserve is at least, where all nodes take so many bytes (S2).
    pub(crate) fn shared_reserve(&self, used: u64) -> Option<u64> {
        let least = self.shared_extents()? + used / RECORDED;
        // An operation that frees has three quarters of it.
        Some(least / 3 * 4 + BESIDE * u64::from(self.store.geometry().nodesize))
    }
}
