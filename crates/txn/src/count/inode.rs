//! How many nodes the dirty data of one inode can dirty: those of the leaves that its extents lie in.
//!
//! # Invariants
//!
//! - **D1** Of the leaves between its first extent and its last, all but two have nothing but extents of this inode: items of
//!   one length. Dirty together they are packed as leaves of the extent tree are (N4 of `count`), whichever of them are: between
//!   two runs lies one that is not. The outer two become three each, by themselves (N1), and take in a neighbour; so
//!   does the leaf of the inode's item.
//! - **D2** A part of the data may land in this transaction, and the rest in the next: either dirties all of them. What is dirty of
//!   them in this one is counted already: no less than its bytes fill, but for the two runs that the others of its tree may
//!   become without it. What is dirty of them in a commit under way is free again before the next can be frozen.
//! - **D3** Beside a commit under way its leaves are what that one makes of them: as many as these, packed, with all bytes
//!   that it adds to the tree (N6).
//! - **D4** What may be shared with snapshots has no bound, nor what lies in too many leaves to be worth it.

use buttress_format::{Generation, Ino, Key, Kind, Logical, TreeId, header::ITEM_LEN};
use buttress_tree::{Expect, Geometry, NodeSource, Store};

use super::{
    items::{ItemTree, Spot},
    whole::packed,
    work::Work,
};
use crate::{Engine, View};

/// An item of an extent that does not lie in the tree.
const EXTENT_ITEM: u64 = ITEM_LEN as u64 + 53;

/// Three, and a neighbour (D1).
const ALONE: u64 = 4;

/// More leaves than this are not counted.
const LEAVES_MAX: u64 = 4096;

/// Leaves that hold an inode's extents, and the nodes above them.
struct Span<'w> {
    store: &'w Store,
    tree: TreeId,
    shared: Generation,
    keys: (Key, Key),
    /// What is dirty in the tree: in this transaction, and in the one that is frozen.
    running: Option<&'w ItemTree>,
    frozen: Option<&'w ItemTree>,
    leaves: u64,
    inner: u64,
    /// What the dirty ones of this transaction weigh, and how many are of the other.
    dirty_weight: u64,
    frozen_leaves: u64,
}

impl Span<'_> {
    /// Adds what of the tree under `at` lies between the keys; nothing where it may be shared (D4).
    fn add(&mut self, at: &Expect, spot: Spot) -> Option<()> {
        if at.ptr.generation <= self.shared {
            return None;
        }
        if at.ptr.level == 0 {
            let weight = |tree: Option<&ItemTree>| tree.and_then(|tree| tree.weight_at(spot));
            self.leaves += 1;
            self.dirty_weight += weight(self.running).unwrap_or(0);
            self.frozen_leaves += u64::from(weight(self.frozen).is_some());
            return (self.leaves <= LEAVES_MAX).then_some(());
        }
        self.inner += 1;
        let node = self.store.node(self.tree, at).ok()?;
        let (first, last) = self.keys;
        (node.child_slot(&first)..=node.child_slot(&last)).try_for_each(|slot| {
            self.add(&node.expect_child_below(slot, at.below), (node.logical(), slot))
        })
    }

    /// Nodes that become of it in this transaction and in the next (D2); `grown` are the bytes that a commit under way adds,
    /// if there is one (D3).
    fn nodes(&self, geometry: &Geometry, height: u64, grown: Option<u64>) -> u64 {
        let room = geometry.leaf_room() as u64;
        let share = geometry.ptrs_max() as u64 / 2;
        let made =
            |leaves: u64, bytes| 3 * ALONE + packed(leaves * room + bytes, room, EXTENT_ITEM);
        let (leaves, times) = match grown {
            None => (made(self.leaves, 0), 3),
            Some(bytes) => (made(made(self.leaves, bytes), 0), 6),
        };
        let once = leaves + leaves / share + 1 + times * (self.inner + height);
        let now = once - (self.dirty_weight / room).saturating_sub(2).min(leaves);
        now + once - self.frozen_leaves.min(leaves)
    }
}

impl Engine {
    /// Nodes that all dirty data of an inode can dirty at most, beside what was counted already; `frozen` is what was counted of
    /// a commit that is under way.
    pub(super) fn nodes_of_inode(
        &self,
        view: &View,
        (tree, ino): (TreeId, Ino),
        running: &Work,
        frozen: Option<&Work>,
    ) -> Option<u64> {
        let root = view.committed_root(tree).ok().flatten()?;
        let mut span = Span {
            store: view.store(),
            tree,
            shared: view.committed_root_item(tree).ok().flatten()?.last_snapshot,
            keys: (
                Key::new(ino.0, Kind::EXTENT_DATA, 0),
                Key::new(ino.0, Kind::EXTENT_DATA, u64::MAX),
            ),
            running: running.tree(tree),
            frozen: frozen.and_then(|frozen| frozen.tree(tree)),
            leaves: 0,
            inner: 0,
            dirty_weight: 0,
            frozen_leaves: 0,
        };
        span.add(&Expect::root(root), (Logical(0), 0))?;
        let grown = frozen.map(|_| span.frozen.map_or(0, ItemTree::added));
        Some(span.nodes(view.store().geometry(), self.levels(), grown))
    }
}
