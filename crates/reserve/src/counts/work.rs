//! What was looked at to count a transaction: leaves of the trees that operations change, as far
//! as items of theirs did, and the trees that commits alone change.

use std::collections::{HashMap, HashSet};

use buttress_format::{
    Generation, Kind, Logical, TreeId,
    header::{FLAG_RELOC, ITEM_LEN},
};
use buttress_space::{Space, SpaceKind};
use buttress_tree::{Changed, Expect, Geometry, Node, NodeSource, Store};

use super::{
    items::{ItemTree, Leaf, Spot},
    parts::Parts,
    tally::{Count, csum_bytes},
    whole::{Whole, is_whole},
};
use crate::shares::{CHILD_REFS, EXTENT_REFS};
use crate::{View, transaction::Transaction};

/// Items of the root tree that a commit changes, beside those of subvolumes.
const ROOTS_MOVED: u64 = 12;

#[derive(Debug, Default)]
pub(crate) struct Work {
    /// What everything below was held against; nothing before the first time.
    pub(crate) roots: Option<Generation>,
    /// It was not possible, and is not tried again with these.
    hopeless: Option<Generation>,
    leaves: HashMap<Logical, Leaf>,
    inner: HashSet<Logical>,
    trees: HashMap<TreeId, ItemTree>,
    /// Bytes of references that what was shared adds (`count::N7`).
    shared_bytes: u64,
    /// Bytes and items that operations changed in trees that are counted as a whole.
    whole_bytes: u64,
    root_items: u64,
    whole: Whole,
}

/// Why nothing was counted: what is not known, or cannot be read.
struct Unknown;

/// Items of a leaf that may name extents.
fn extents_of(node: &Node) -> u64 {
    (0..node.len()).filter(|slot| node.key(*slot).kind == Kind::EXTENT_DATA).count() as u64
}

impl Work {
    /// Adds changed items of one tree, ascending, which lie under a node.
    fn descend(
        &mut self,
        store: &Store,
        tree: TreeId,
        shared: Generation,
        (at, spot): (&Expect, Spot),
        changes: &[Changed],
    ) -> Result<(), Unknown> {
        if changes.is_empty() {
            return Ok(());
        }
        let node = store.node(tree, at).map_err(|_| Unknown)?;
        if node.header().flags & FLAG_RELOC != 0 {
            return Err(Unknown);
        }
        let is_shared = node.header().generation <= shared;
        if node.level() == 0 {
            if is_shared && !self.leaves.contains_key(&node.logical()) {
                self.shared_bytes += extents_of(&node) * EXTENT_REFS;
            }
            return self.leaf(store.geometry(), (tree, spot), &node, changes);
        }
        if self.inner.insert(node.logical()) && is_shared {
            self.shared_bytes += node.len() as u64 * CHILD_REFS;
        }
        let mut rest = changes;
        for slot in 0..node.len() {
            let child = node.expect_child_below(slot, at.below);
            let split = match (slot + 1 < node.len()).then(|| node.key(slot + 1)) {
                Some(next) => rest.partition_point(|(_, key, _)| *key < next),
                None => rest.len(),
            };
            let (mine, others) = rest.split_at(split);
            self.descend(store, tree, shared, (&child, (node.logical(), slot)), mine)?;
            rest = others;
        }
        Ok(())
    }

    fn leaf(
        &mut self,
        geometry: &Geometry,
        (tree, spot): (TreeId, Spot),
        node: &Node,
        changes: &[Changed],
    ) -> Result<(), Unknown> {
        let room = geometry.leaf_room() as u64;
        let weight_of = |slot| (ITEM_LEN + node.item(slot).len()) as u64;
        let before = self.leaves.get(&node.logical()).copied();
        let sums = self.trees.get_mut(&tree).ok_or(Unknown)?;
        // A leaf in two places, or of two trees that say they share nothing: no volume that is
        // sound.
        if before.is_some() != sums.knows(spot) {
            return Err(Unknown);
        }
        let mut leaf = before.unwrap_or_else(|| Leaf {
            weight: node.used_bytes() as u64,
            heaviest: (0..node.len()).map(weight_of).max().unwrap_or(0),
            added: 0,
            removed: 0,
        });
        for (_, key, len) in changes {
            let old = node.search(key).map_or(0, weight_of);
            let new = len.map_or(0, |len| (ITEM_LEN + len) as u64);
            leaf.added += new.saturating_sub(old);
            leaf.removed += old.saturating_sub(new);
            leaf.heaviest = leaf.heaviest.max(new);
        }
        self.leaves.insert(node.logical(), leaf);
        sums.note(spot, before.as_ref(), &leaf, room);
        Ok(())
    }
}

impl Work {
    /// Adds changed items, ascending.
    fn add(&mut self, view: &View, changes: &[Changed]) -> Result<(), Unknown> {
        let mut rest = changes;
        while let Some((tree, _, _)) = rest.first() {
            let tree = *tree;
            let (mine, others) = rest.split_at(rest.partition_point(|(t, _, _)| *t == tree));
            rest = others;
            if is_whole(tree) {
                let len = |change: &Changed| change.2.map_or(0, |len| (ITEM_LEN + len) as u64);
                self.whole_bytes += mine.iter().map(len).sum::<u64>();
                self.root_items += mine.len() as u64;
                continue;
            }
            let root = view.committed_root(tree).ok().flatten().ok_or(Unknown)?;
            let shared = match self.trees.get(&tree) {
                Some(known) => known.shared,
                None => self.meet(view, tree)?,
            };
            let top = Expect::root(root);
            self.descend(view.store(), tree, shared, (&top, (Logical(0), 0)), mine)?;
        }
        Ok(())
    }

    /// A tree that was not looked at yet. Answers up to which generation its nodes may be shared.
    fn meet(&mut self, view: &View, tree: TreeId) -> Result<Generation, Unknown> {
        let shared = if tree.is_fs_tree() {
            let item = view.committed_root_item(tree).map_err(|_| Unknown)?;
            item.ok_or(Unknown)?.last_snapshot
        } else {
            Generation(0)
        };
        self.trees.insert(tree, ItemTree::new(shared));
        Ok(shared)
    }

    /// How many leaves have changed items, and bytes that come to them.
    pub(crate) fn dirty(&self) -> (u64, u64) {
        let added = self.trees.values().map(ItemTree::added).sum();
        (self.leaves.len() as u64, added)
    }

    /// The leaf there, if it has changed items.
    pub(crate) fn leaf_at(&self, logical: Logical) -> Option<&Leaf> {
        self.leaves.get(&logical)
    }

    /// Nodes of the trees that operations change, which have so many leaves to come (N1 to N3).
    fn with_inner(&self, leaves: u64, geometry: &Geometry) -> u64 {
        let share = geometry.ptrs_max() as u64 / 2;
        leaves + leaves / share + 3 * self.inner.len() as u64 + 2 * self.trees.len() as u64
    }

    /// Bytes that come to the extent tree.
    fn added_to_extents(&self, transaction: &Transaction) -> u64 {
        transaction.refs.added() + self.shared_bytes
    }

    /// All nodes that a commit makes.
    fn parts(&self, geometry: &Geometry, transaction: &Transaction) -> Parts {
        let room = geometry.leaf_room() as u64;
        let whole = &self.whole;
        let moved = ROOTS_MOVED + self.trees.len() as u64 + self.root_items;
        let extents = whole.extents(geometry, self.added_to_extents(transaction));
        let others = whole.others + 3 * whole.root_leaves.min(moved);
        let above = (extents + others) / (geometry.ptrs_max() as u64 / 2);
        let chunks = transaction.chunks.lock().len() as u64;
        let leaves = self.trees.values().map(|tree| tree.makes(room)).sum();
        Parts {
            items: self.with_inner(leaves, geometry),
            extents,
            others,
            inner: 3 * whole.inner + above + 2 * whole.trees,
            fills: 2 * (self.whole_bytes + csum_bytes(transaction)) / room + 2 * chunks,
        }
    }

    /// The same beside an older transaction, which makes `below` on the same trees (`count::N6`).
    pub(crate) fn parts_beside(
        &self,
        older: &Self,
        below: Parts,
        geometry: &Geometry,
        transaction: &Transaction,
    ) -> Parts {
        let room = geometry.leaf_room() as u64;
        let beside = |(id, tree): (&TreeId, &ItemTree)| match older.trees.get(id) {
            Some(older) => tree.makes_beside(older, room),
            None => tree.makes(room),
        };
        let leaves = self.trees.iter().map(beside).sum();
        let added = self.added_to_extents(transaction);
        let extents = self.whole.extents_of(below.extents, geometry, added);
        // Nodes above leaves: those of both, whichever they come to be under.
        let items = self.with_inner(leaves, geometry) + 3 * older.inner.len() as u64;
        self.parts(geometry, transaction).beside(below, items, extents)
    }

    /// Counts a transaction, or what is new of it.
    pub(crate) fn count(
        &mut self,
        space: &Space,
        view: &View,
        transaction: &Transaction,
        never: bool,
    ) -> Option<Count> {
        let roots = view.roots();
        let anew = self.roots != Some(roots.generation);
        if never || self.hopeless == Some(roots.generation) || !transaction.is_plain() {
            return None;
        }
        if anew {
            *self = Self { hopeless: Some(roots.generation), ..Self::default() };
            let ranges = |kind| {
                let groups = space.groups_of(kind);
                groups.iter().map(|group| group.range()).collect::<Vec<_>>()
            };
            let mut metadata = ranges(SpaceKind::Metadata);
            metadata.sort_unstable_by_key(|group| group.start);
            self.whole = Whole::look(view.store(), roots, &metadata)?;
            self.whole.note_groups(view.store().geometry(), &metadata);
            for kind in [SpaceKind::Data, SpaceKind::System] {
                self.whole.note_groups(view.store().geometry(), &ranges(kind));
            }
        }
        self.hopeless = Some(roots.generation);
        // These first: what comes meanwhile counts twice.
        let overlay = &transaction.overlay;
        let mut count = Count {
            nodes: 0,
            parts: Parts::default(),
            is_of_files: false,
            is_whole: false,
            items: overlay.items(),
            bytes: overlay.bytes(),
            resized: overlay.resized(),
            added: transaction.refs.added(),
            sums: csum_bytes(transaction),
            chunks: transaction.chunks.lock().len() as u64,
            roots: roots.generation,
            below: 0,
            is_settled: false,
        };
        self.add(view, &overlay.changed(anew)).ok()?;
        let geometry = view.store().geometry();
        count.parts = self.parts(geometry, transaction);
        count.nodes = count.parts.nodes(geometry.leaf_room() as u64);
        count.is_of_files = self.root_items == 0;
        self.roots = Some(roots.generation);
        self.hopeless = None;
        Some(count)
    }
}
