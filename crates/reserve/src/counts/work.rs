//! What a count of a transaction has looked at: the leaves with changed items of the trees that
//! operations change, and the trees that commits alone change.

use std::collections::{HashMap, hash_map::Entry};

use buttress_format::{Generation, Key, Kind, TreeId, header::ITEM_LEN};
use buttress_space::{Space, SpaceKind};
use buttress_tree::{Changed, Geometry, Node};

use super::{
    parts::Parts,
    tally::{Count, csum_bytes},
    whole::{Whole, is_whole},
};
use crate::ledger::{Tree, Unknown};
use crate::shares::{CHILD_REFS, EXTENT_REFS};
use crate::{View, transaction::Transaction};

/// Items of the root tree that a commit changes, beside those of subvolumes.
const ROOTS_MOVED: u64 = 12;

#[derive(Debug, Default)]
pub(crate) struct Work {
    /// What everything below was held against; nothing before the first time.
    pub(crate) roots: Option<Generation>,
    /// The count was not possible on these trees, and is not tried again.
    hopeless: Option<Generation>,
    trees: HashMap<TreeId, Tree>,
    /// Bytes of references that what was shared adds (`count::N7`).
    shared_bytes: u64,
    /// Bytes and items that operations changed in trees that are counted as a whole.
    whole_bytes: u64,
    root_items: u64,
    whole: Whole,
}

/// Items of a leaf that may name extents.
fn extents_of(node: &Node) -> u64 {
    (0..node.len()).filter(|slot| node.key(*slot).kind == Kind::EXTENT_DATA).count() as u64
}

impl Work {
    /// Adds changed items, ascending.
    fn add(&mut self, view: &View, changes: &[Changed]) -> Result<(), Unknown> {
        let mut rest = changes;
        while let Some((tree, ..)) = rest.first() {
            let tree = *tree;
            let (mine, others) = rest.split_at(rest.partition_point(|(t, ..)| *t == tree));
            rest = others;
            if is_whole(tree) {
                let len = |change: &Changed| change.3.map_or(0, |len| (ITEM_LEN + len) as u64);
                self.whole_bytes += mine.iter().map(len).sum::<u64>();
                self.root_items += mine.len() as u64;
                continue;
            }
            let Self { trees, shared_bytes, .. } = self;
            let known = match trees.entry(tree) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(place) => place.insert(Tree::met(view, tree)?),
            };
            let mut meet = |node: &Node| {
                *shared_bytes += match node.level() {
                    0 => extents_of(node) * EXTENT_REFS,
                    _ => node.len() as u64 * CHILD_REFS,
                }
            };
            for (_, key, before, len) in mine {
                known.note(view.store(), key, (*before, *len), &mut meet)?;
            }
        }
        Ok(())
    }

    /// How many leaves have changed items, and bytes that come to them.
    pub(crate) fn dirty(&self) -> (u64, u64) {
        self.trees
            .values()
            .map(Tree::dirty)
            .fold((0, 0), |sum, tree| (sum.0 + tree.0, sum.1 + tree.1))
    }

    /// What the leaf weighs that a key falls into, and what was put there, if it has changed items.
    pub(crate) fn leaf_at(&self, tree: TreeId, key: &Key) -> Option<(u64, u64)> {
        self.trees.get(&tree)?.leaf_at(key)
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
        Parts {
            items: self.trees.values().map(Tree::nodes).sum(),
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
        let beside = |(id, tree): (&TreeId, &Tree)| match older.trees.get(id) {
            Some(older) => tree.nodes_beside(older),
            None => tree.nodes(),
        };
        let items = self.trees.iter().map(beside).sum();
        let added = self.added_to_extents(transaction);
        let extents = self.whole.extents_of(below.extents, geometry, added);
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
        // Read first: items that arrive meanwhile count twice.
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
