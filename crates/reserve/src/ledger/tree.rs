//! The changes of one transaction to one tree, by leaf of the committed tree.
//!
//! # Invariants
//!
//! - **L1** Every noted key falls into exactly one leaf of the committed tree. The leaf is recorded
//!   here with the weight that it will have: its committed weight, plus or minus the noted changes.
//! - **L2** A merge cuts the items between two clean leaves into as few leaves as possible
//!   (`tree::merge::M6`). So a run of dirty leaves becomes no more leaves than its leaves would
//!   become one by one. Let `w` be the weight of a leaf's items, `b` the weight of its heaviest
//!   item, and `room` the room in a leaf. While `w <= room`, the leaf becomes one leaf. Otherwise
//!   it becomes at most `2w/room + 1` leaves, since two neighbours hold more than one leaf can. It
//!   also becomes at most `w/(room - b) + 1`, and the smaller bound counts.
//! - **L3** Only the last leaf of a run of dirty leaves takes in a clean neighbour. The leaf takes
//!   in a neighbour only while the leaf is under a quarter full (`tree::merge::M5`). For this
//!   neighbour, one more leaf counts. One more inner node counts for each level at which the last
//!   leaf lies under the last child of its parent.
//! - **L4** An inner node is split only if it gets more children. If a level has `d` dirty nodes
//!   and gets `g` new children, at most `min(d, g)` of its nodes are split. One more node is added
//!   for each half node that the new children fill. A node that may lose most of its children takes
//!   in a neighbour. For such a node one more node counts, and one more node for each level above.
//! - **L5** A transaction may be noted on the committed tree while an older one is being committed.
//!   The younger transaction then changes the tree that the older transaction makes. The leaves
//!   that the younger transaction makes have two bounds, and the smaller bound counts.
//!
//! By leaves: each leaf that the older transaction makes is at most full. So the leaf becomes at
//! most three leaves when the younger transaction changes it. Bytes that the younger transaction
//! adds to such leaves count twice. Leaves that only the younger transaction changes count as in
//! L2.
//!
//! By weight: leaves that the older transaction makes count as full. They are packed in runs,
//! together with all items that the younger transaction adds or changes. A dirty leaf of either
//! transaction may become less than a quarter full, and take in neighbours. For each such leaf two
//! more leaves count.
//!
//! Each inner node that the older transaction makes counts as three.

use std::collections::BTreeMap;
use std::sync::Arc;

use buttress_format::header::{FLAG_RELOC, ITEM_LEN};
use buttress_format::{Generation, Key, Logical, TreeId, limits::MAX_LEVEL};
use buttress_tree::{Before, Expect, Node, NodePtr, NodeSource, Store};
use rustc_hash::FxHashMap;

use super::survey::Uncountable;
use crate::View;

/// A leaf of the committed tree that changed items fall into.
#[derive(Debug, Default)]
struct Leaf {
    /// The first key of the next leaf; `None` in the last leaf.
    below: Option<Key>,
    /// The committed leaf; `None` if the tree has no node yet.
    at: Option<Expect>,
    /// The weight of the leaf's items as committed, and with all noted changes.
    committed: u64,
    weight: u64,
    /// `put`: the bytes put into the leaf, whether or not they replace other bytes. `lost`: the
    /// most bytes that the leaf lost.
    put: u64,
    lost: u64,
    /// The weight of the heaviest item, committed or put.
    heaviest: u64,
    /// How many nodes in a row are the last child of their parent, from the leaf upward.
    tail: u8,
    /// Whether the next leaf is clean, or there is none.
    ends_run: bool,
}

/// Sums over the dirty leaves of a tree, or of a part of it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sums {
    /// The number of dirty leaves, their weight, and the bytes put into them.
    pub(crate) leaves: u64,
    pub(crate) weight: u64,
    pub(crate) put: u64,
    /// The weight of the heaviest item.
    heaviest: u64,
    /// The number of leaves that the dirty leaves become, each by itself (L2).
    becomes: u64,
    /// The number of runs of dirty leaves.
    runs: u64,
    /// The number of leaves that take in a neighbour, and the sum of their `tail` (L3).
    edges: u64,
    tails: u64,
}

/// One tree, and sums over its dirty leaves.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    tree: TreeId,
    root: Option<NodePtr>,
    /// Nodes up to this generation may be shared with snapshots.
    shared: Generation,
    room: u64,
    ptrs_max: u64,
    leaves: BTreeMap<Key, Leaf>,
    /// The leaf of the last lookup, kept because keys arrive in order.
    last: Option<(Key, Arc<Node>)>,
    /// The first key of the dirty leaf that was noted last, and the first key of the next leaf.
    hand: Option<(Key, Option<Key>)>,
    /// Inner nodes above dirty leaves, each with the number of its dirty children.
    inner: FxHashMap<Logical, u64>,
    /// How many inner nodes are dirty, by level.
    levels: [u64; MAX_LEVEL as usize],
    pub(crate) sums: Sums,
    /// Extra nodes for inner nodes that may take in a neighbour (L4).
    thin: u64,
}

fn weight_of(len: usize) -> u64 {
    (ITEM_LEN + len) as u64
}

impl Leaf {
    /// A committed leaf, with no changes noted.
    fn of(node: &Node, at: &Expect, tail: u8) -> Self {
        let weight = node.used_bytes() as u64;
        let heaviest = (0..node.len()).map(|slot| weight_of(node.item(slot).len())).max();
        Self {
            below: at.below,
            at: Some(*at),
            committed: weight,
            weight,
            heaviest: heaviest.unwrap_or(0),
            tail,
            ..Self::default()
        }
    }

    /// Whether the leaf may take in a clean neighbour (L3).
    fn is_edge(&self, room: u64) -> bool {
        self.ends_run && self.below.is_some() && self.weight < room / 4
    }

    /// Whether a part of the leaf may become less than a quarter full, if the older transaction
    /// cuts the leaf in two (L5).
    fn is_thin(&self, room: u64) -> bool {
        (self.committed / 2).saturating_sub(self.lost) < room / 4
    }

    /// The most leaves that this leaf becomes by itself (L2).
    fn becomes(&self, room: u64) -> u64 {
        if self.weight <= room {
            return 1;
        }
        let by_pairs = 2 * (self.weight / room) + 1;
        let by_fill = self.weight / room.saturating_sub(self.heaviest).max(1) + 1;
        by_pairs.min(by_fill)
    }
}

impl Sums {
    /// Adds a leaf to the sums, or takes it out so that it can change. `heaviest` never shrinks.
    fn change(&mut self, leaf: &Leaf, room: u64, adds: bool) {
        let change = |sum: &mut u64, by: u64| if adds { *sum += by } else { *sum -= by };
        let edge = u64::from(leaf.is_edge(room));
        change(&mut self.leaves, 1);
        change(&mut self.weight, leaf.weight);
        change(&mut self.put, leaf.put);
        change(&mut self.becomes, leaf.becomes(room));
        change(&mut self.runs, leaf.ends_run.into());
        change(&mut self.edges, edge);
        change(&mut self.tails, edge * u64::from(leaf.tail));
        self.heaviest = self.heaviest.max(leaf.heaviest);
    }
}

impl Tree {
    /// The committed tree of a view, with no changes noted.
    pub(crate) fn met(view: &View, tree: TreeId) -> Result<Self, Uncountable> {
        let root = view.committed_root(tree).map_err(|_| Uncountable)?;
        let mut shared = Generation(0);
        if tree.is_fs_tree()
            && let Some(item) = view.committed_root_item(tree).map_err(|_| Uncountable)?
        {
            shared = item.last_snapshot;
        }
        let geometry = view.store().geometry();
        let (room, ptrs_max) = (geometry.leaf_room() as u64, geometry.ptrs_max() as u64);
        Ok(Self { tree, root, shared, room, ptrs_max, ..Self::default() })
    }

    /// Notes the new payload length of an item; `None` is a removal. `before` is the length in an
    /// earlier note of this key, if there was one. Calls `meet` for each node that is read for the
    /// first time and may be shared.
    pub(crate) fn note(
        &mut self,
        store: &Store,
        key: &Key,
        (before, len): (Before, Option<usize>),
        meet: &mut dyn FnMut(&Node),
    ) -> Result<(), Uncountable> {
        let first = self.leaf_of(store, key, meet)?;
        let after = len.map_or(0, weight_of);
        if let Some(before) = before {
            let before = before.map_or(0, weight_of);
            self.weigh(&first, (before, after, after), after.saturating_sub(before));
            return Ok(());
        }
        let is_last = self.last.as_ref().is_some_and(|(key, _)| *key == first);
        if !is_last && let Some(at) = self.leaves.get(&first).and_then(|leaf| leaf.at) {
            let node = store.node(self.tree, &at).map_err(|_| Uncountable)?;
            self.last = Some((first, node));
        }
        // An empty tree has no leaf that could hold the key.
        let before = self.last.as_ref().and_then(|(_, node)| {
            let slot = node.search(key).ok()?;
            Some(weight_of(node.item(slot).len()))
        });
        self.weigh(&first, (before.unwrap_or(0), after, after), after);
        Ok(())
    }

    /// Notes a change in a range of keys. It adds `after` bytes in total, of which `before` bytes
    /// were noted already. No item is heavier than `heaviest`. Returns the number of leaves in the
    /// range.
    pub(crate) fn note_range(
        &mut self,
        store: &Store,
        (from, to): (Key, Key),
        (before, after): (u64, u64),
        heaviest: u64,
    ) -> Result<u64, Uncountable> {
        let (mut at, mut count) = (from, 0);
        loop {
            let first = self.leaf_of(store, &at, &mut |_| ())?;
            // Add the bytes to each leaf, since it is unknown which leaf gets them.
            self.weigh(&first, (before, after, heaviest), after.saturating_sub(before));
            count += 1;
            match self.hand {
                Some((_, Some(next))) if next <= to => at = next,
                _ => return Ok(count),
            }
        }
    }

    /// Marks the leaf of a key as dirty, and returns the first key of the leaf.
    fn leaf_of(
        &mut self,
        store: &Store,
        key: &Key,
        meet: &mut dyn FnMut(&Node),
    ) -> Result<Key, Uncountable> {
        if let Some((first, below)) = self.hand
            && first <= *key
            && below.is_none_or(|below| *key < below)
        {
            return Ok(first);
        }
        if let Some((&first, leaf)) = self.find(key) {
            self.hand = Some((first, leaf.below));
            return Ok(first);
        }
        let Some(root) = self.root else {
            self.enter(Key::MIN, Leaf::default());
            return Ok(Key::MIN);
        };
        let (mut at, mut tail, mut first) = (Expect::root(root), 0, Key::MIN);
        loop {
            let node = store.node(self.tree, &at).map_err(|_| Uncountable)?;
            if node.header().flags & FLAG_RELOC != 0 {
                return Err(Uncountable);
            }
            if node.header().generation <= self.shared
                && (at.ptr.level == 0 || !self.inner.contains_key(&at.ptr.logical))
            {
                meet(&node);
            }
            if at.ptr.level == 0 {
                self.enter(first, Leaf::of(&node, &at, tail));
                self.last = Some((first, node));
                return Ok(first);
            }
            let slot = node.child_slot(key);
            let child = node.expect_child_below(slot, at.below);
            self.enter_inner(&at, node.len() as u64, &child);
            tail = if slot + 1 == node.len() { tail + 1 } else { 0 };
            if slot > 0 {
                first = node.key(slot);
            }
            at = child;
        }
    }

    fn enter_inner(&mut self, at: &Expect, children: u64, child: &Expect) {
        let above = u64::from(self.root.map_or(0, |root| root.level) - at.ptr.level);
        let quarter = self.ptrs_max / 4;
        // A leaf is entered only once, but an inner child may already be known.
        let is_new_child = child.ptr.level == 0 || !self.inner.contains_key(&child.ptr.logical);
        let dirty = self.inner.entry(at.ptr.logical).or_insert_with(|| {
            self.levels[usize::from(at.ptr.level)] += 1;
            0
        });
        let is_thin =
            |dirty: u64| dirty > 0 && above > 0 && children.saturating_sub(dirty) < quarter;
        let was_thin = is_thin(*dirty);
        *dirty += u64::from(is_new_child);
        if !was_thin && is_thin(*dirty) {
            self.thin += 1 + above;
        }
    }

    /// Adds a dirty leaf. The dirty leaf before it no longer ends a run.
    fn enter(&mut self, first: Key, mut leaf: Leaf) {
        if let Some((_, before)) = self.leaves.range_mut(..first).next_back()
            && before.below == Some(first)
        {
            self.sums.change(before, self.room, false);
            before.ends_run = false;
            self.sums.change(before, self.room, true);
        }
        leaf.ends_run = !leaf.below.is_some_and(|below| self.leaves.contains_key(&below));
        self.sums.change(&leaf, self.room, true);
        self.hand = Some((first, leaf.below));
        self.leaves.insert(first, leaf);
    }

    /// Replaces `before` bytes of a leaf's weight by `after`. `heaviest` is the weight of the
    /// heaviest item put; `put` is the number of bytes put.
    fn weigh(&mut self, first: &Key, (before, after, heaviest): (u64, u64, u64), put: u64) {
        let Some(leaf) = self.leaves.get_mut(first) else { return };
        self.sums.change(leaf, self.room, false);
        // A leaf cannot lose more than it had.
        leaf.weight = (leaf.weight + after).saturating_sub(before);
        leaf.heaviest = leaf.heaviest.max(heaviest);
        leaf.put += put;
        leaf.lost += before.saturating_sub(after);
        self.sums.change(leaf, self.room, true);
    }

    /// The most leaves that a merge adds to the tree.
    pub(crate) fn growth(&self) -> u64 {
        self.made().saturating_sub(self.sums.leaves)
    }

    /// The dirty leaves in a range of keys.
    pub(crate) fn dirty_in(&self, (first, last): (Key, Key)) -> Sums {
        let from = self.find(&first).map_or(first, |(from, _)| *from);
        let mut sums = Sums::default();
        let leaves = self.leaves.range(from..=last);
        leaves.for_each(|(_, leaf)| sums.change(leaf, self.room, true));
        sums
    }

    fn find(&self, key: &Key) -> Option<(&Key, &Leaf)> {
        let (first, leaf) = self.leaves.range(..=key).next_back()?;
        leaf.below.is_none_or(|below| *key < below).then_some((first, leaf))
    }

    /// The most leaves that one merge of this tree makes (L2, L3).
    fn made(&self) -> u64 {
        let Sums { weight, heaviest, runs, becomes, edges, .. } = self.sums;
        let packed = weight / self.room.saturating_sub(heaviest).max(1) + runs;
        becomes.min(packed) + edges
    }

    /// The most nodes made in addition to the nodes that `below` makes from the same committed tree
    /// (L5).
    pub(crate) fn nodes_beside(&self, below: &Self) -> u64 {
        let made = below.made();
        let is_dirty = |key: &Key| self.leaves.contains_key(key) || below.leaves.contains_key(key);
        let ends_run = |leaf: &&Leaf| !leaf.below.is_some_and(|next| is_dirty(&next));
        let (both, mine): (Vec<_>, Vec<_>) =
            self.leaves.iter().partition(|(first, _)| below.leaves.contains_key(first));
        let put: u64 = both.iter().map(|(_, leaf)| leaf.put).sum();
        let alone: u64 = mine.iter().map(|(_, leaf)| leaf.becomes(self.room)).sum();
        let by_leaf = alone + 3 * made + 2 * put / self.room + 1 + self.sums.edges;
        let weight: u64 = mine.iter().map(|(_, leaf)| leaf.weight).sum();
        let thin = |tree: &Self| {
            tree.leaves.values().filter(|leaf| leaf.is_thin(tree.room)).count() as u64
        };
        let all = mine.iter().map(|(_, leaf)| *leaf).chain(below.leaves.values());
        let runs = all.filter(ends_run).count() as u64;
        let room = self.room.saturating_sub(self.sums.heaviest.max(below.sums.heaviest)).max(1);
        let packed = (made * self.room + put + weight) / room;
        let leaves = by_leaf.min(packed + runs + 2 * (thin(self) + thin(below)));
        let inner = self.nodes() - self.made() + 3 * (below.nodes() - made);
        leaves + inner + 2 * leaves / self.ptrs_max
    }

    /// The most nodes that one merge of this tree makes, leaves and inner nodes.
    pub(crate) fn nodes(&self) -> u64 {
        if self.leaves.is_empty() {
            return 0;
        }
        let leaves = self.made();
        // New children of the dirty nodes, level by level (L4). Packing leaves under one inner node
        // makes no space in another.
        let mut grown = self.sums.becomes + self.sums.edges - self.sums.leaves;
        let mut inner = self.sums.tails + self.thin;
        for dirty in self.levels.iter().skip(1).take_while(|dirty| **dirty > 0) {
            let more = grown.min(*dirty) + 2 * grown / self.ptrs_max;
            inner += dirty + more;
            grown = more;
        }
        // A split root gets a new root above it, and so on.
        let mut top = grown;
        if self.levels.iter().skip(1).all(|dirty| *dirty == 0) {
            top = leaves - 1;
        }
        while top > 0 {
            let more = 2 * (top + 1) / self.ptrs_max + 1;
            inner += more;
            top = more - 1;
        }
        leaves + inner
    }
}
