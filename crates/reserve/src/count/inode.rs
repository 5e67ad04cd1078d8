//! How many nodes the dirty data of one inode can dirty: those of the leaves that its extents lie
//! in.
//!
//! # Invariants
//!
//! - **D1** Of the leaves between its first extent and its last, all but two have nothing but
//!   extents of this inode: items of one length. Dirty together they are packed as leaves of the
//!   extent tree are (N4 of `count`), whichever of them are: between two runs lies one that is
//!   not. The outer two become three each, by themselves (N1), and take in a neighbour; so does
//!   the leaf of the inode's item.
//! - **D2** A part of the data may be finished in this transaction, and the rest in the next.
//!   Either dirties all of them, in the next with what this one adds to them. What is dirty of them
//!   in this one is counted already: no less than its bytes fill. Two runs are excepted, which the
//!   others of its tree may become without it. What is dirty of them in a commit under way comes
//!   back from it, or is waited for before the next freezes (I4 of `reserve::inode`).
//! - **D3** Beside a commit under way its leaves are what that one makes of them: as many as these,
//!   packed, with all bytes that it adds to them (N6).
//! - **D4** What may be shared with snapshots has no bound, as far as can be seen above the leaves.
//!   Neither has what lies in too many leaves to be worth a count.

use buttress_format::{
    Generation, Ino, Key, Kind, TreeId,
    header::{FLAG_RELOC, ITEM_LEN},
};
use buttress_tree::{Expect, Geometry, NodeSource, Store};

use crate::View;
use crate::counts::{whole::packed, work::Work};
use crate::reservations::Reservations;

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
    running: &'w Work,
    frozen: Option<&'w Work>,
    leaves: u64,
    inner: u64,
    /// What the dirty ones of this transaction weigh, and bytes that come to them.
    dirty_weight: u64,
    added: u64,
    /// How many are dirty in the commit under way, and bytes that come to them there.
    frozen_leaves: u64,
    frozen_added: u64,
}

impl Span<'_> {
    /// Adds the part of the tree under `at` that lies between the keys; nothing where it may be
    /// shared (D4).
    fn add(&mut self, at: &Expect) -> Option<()> {
        if at.ptr.generation <= self.shared {
            return None;
        }
        if at.ptr.level == 0 {
            self.leaves += 1;
            let first = at.first_key.unwrap_or(Key::MIN);
            if let Some((weight, put)) = self.running.leaf_at(self.tree, &first) {
                self.dirty_weight += weight;
                self.added += put;
            }
            if let Some((_, put)) = self.frozen.and_then(|frozen| frozen.leaf_at(self.tree, &first))
            {
                self.frozen_leaves += 1;
                self.frozen_added += put;
            }
            return (self.leaves <= LEAVES_MAX).then_some(());
        }
        self.inner += 1;
        let node = self.store.node(self.tree, at).ok()?;
        if node.header().flags & FLAG_RELOC != 0 {
            return None;
        }
        let (first, last) = self.keys;
        (node.child_slot(&first)..=node.child_slot(&last))
            .try_for_each(|slot| self.add(&node.expect_child_below(slot, at.below)))
    }

    /// Nodes that become of it in this transaction and in the next (D2, D3), with paths of so
    /// many levels.
    fn nodes(&self, geometry: &Geometry, levels: u64) -> u64 {
        let room = geometry.leaf_room() as u64;
        let share = geometry.ptrs_max() as u64 / 2;
        let made =
            |leaves: u64, bytes| 3 * ALONE + packed(leaves * room + bytes, room, EXTENT_ITEM);
        let (there, times) = match self.frozen {
            None => (self.leaves, 3),
            Some(_) => (made(self.leaves, self.frozen_added), 6),
        };
        let all = |leaves: u64| leaves + leaves / share + 1 + times * (self.inner + levels);
        let (now, next) = (made(there, 0), made(made(there, self.added), 0));
        let counted = (self.dirty_weight / room).saturating_sub(2).min(now);
        all(now) - counted + all(next) - self.frozen_leaves.min(next)
    }
}

impl Reservations {
    /// Nodes that all dirty data of an inode can dirty at most, beside what was counted already;
    /// `frozen` is what was counted of a commit that is under way.
    pub(crate) fn nodes_of_inode(
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
            running,
            frozen,
            leaves: 0,
            inner: 0,
            dirty_weight: 0,
            added: 0,
            frozen_leaves: 0,
            frozen_added: 0,
        };
        span.add(&Expect::root(root))?;
        Some(span.nodes(view.store().geometry(), self.levels()))
    }
}
