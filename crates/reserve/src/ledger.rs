//! The ledger: which nodes a transaction makes, by what was noted of it.
//!
//! # Place
//!
//! Each changed item falls into one leaf of a committed tree. The trees of files, the checksum
//! tree and the part of the extent tree that records data are held leaf by leaf (`tree`). What a
//! commit changes by itself is known by its place alone: nodes come and go in metadata groups, so
//! their records lie in the leaves of those groups.
//!
//! # Invariants
//!
//! - **G1** A commit makes no more nodes than `nodes` says. The trees of files are merged once
//!   (`tree`). So are the checksum tree and the leaves that record data.
//! - **G2** Leaves that record metadata may be changed in every round, as other runs: three for
//!   each of them. What their records add is a share of all nodes.
//! - **G3** The free-space tree: of each group that has changes, what it can say at most. A group
//!   changes its form before it has more to say.
//! - **G4** Each first change of a node that may be shared gives what it points to references:
//!   up to two for each extent and each child, where that is recorded.

mod tree;

use std::collections::{BTreeSet, HashMap, hash_map::Entry};

use buttress_format::{
    Body, Chunk, Extent, FileExtent, Generation, Key, Kind, Logical, TreeId, header::ITEM_LEN, ids,
};
use buttress_space::{Space, SpaceKind, free_space_form};
use buttress_tree::{Expect, Node, NodeSource, Roots, Store};

pub(crate) use tree::{Tree, Unknown};

use crate::View;
use crate::transaction::Transaction;

/// Bytes that a node may add to the extent tree.
const NODE_BYTES: u64 = 84;
/// Bytes of references that an extent, or a node, gets where what points to it was shared.
const SHARED_BYTES: u64 = 112;
/// The heaviest item of the free-space tree, a bitmap.
const FREE_SPACE_ITEM: u64 = free_space_form::BITMAP_BITS / 8 + ITEM_LEN as u64;
/// Items of the root tree that a commit changes, beside those of subvolumes.
const ROOTS_MOVED: u64 = 12;
/// Nodes beside all others: a chunk that the commit adds by itself changes some.
const SLACK: u64 = 12;

/// What one transaction changes.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    trees: HashMap<TreeId, Tree>,
    /// Groups with changes, by their first bytes.
    groups: BTreeSet<Logical>,
    /// Leaves of the extent tree that record metadata, and the inner nodes above them.
    meta: u64,
    meta_inner: u64,
    /// Nodes of the small trees that every commit may change as a whole.
    small: u64,
    /// Leaves of the free-space tree that describe metadata groups.
    free_space_meta: u64,
    root_items: u64,
    /// Nodes of the root tree.
    root_nodes: u64,
    /// What is pointed to by nodes that were shared.
    pointed: Vec<Logical>,
}

fn at(start: Logical) -> (Key, Key) {
    let key = |kind, offset| Key { objectid: start.0, kind: Kind(kind), offset };
    (key(0, 0), key(u8::MAX, u64::MAX))
}

/// What a node that may be shared points to (G4).
fn note_pointed(node: &Node, pointed: &mut Vec<Logical>) {
    for slot in 0..node.len() {
        if node.level() > 0 {
            pointed.push(node.child(slot).logical);
        } else if node.key(slot).kind == Kind::EXTENT_DATA
            && let Ok(FileExtent { body: Body::Regular(region) | Body::Prealloc(region), .. }) =
                FileExtent::parse(node.item(slot))
            && !region.is_hole()
        {
            pointed.push(region.disk);
        }
    }
}

impl Ledger {
    /// An empty ledger on these trees.
    pub(crate) fn new(store: &Store, roots: &Roots, space: &Space) -> Result<Self, Unknown> {
        let mut ledger = Self::default();
        for tree in [TreeId::BLOCK_GROUP, TreeId::DEV, TreeId::QUOTA] {
            if let Some(root) = roots.find(tree) {
                ledger.small += nodes_under(store, tree, &Expect::root(root))?;
            }
        }
        let root = roots.find(TreeId::ROOT).ok_or(Unknown)?;
        ledger.root_nodes = nodes_under(store, TreeId::ROOT, &Expect::root(root))?;
        let root = roots.find(TreeId::EXTENT).ok_or(Unknown)?;
        let mut groups: Vec<Extent> =
            space.groups_of(SpaceKind::Metadata).iter().map(|group| group.range()).collect();
        groups.sort_unstable_by_key(|group| group.start);
        ledger.survey(store, &Expect::root(root), &groups)?;
        // A new group lies behind all others.
        ledger.meta += 1;
        for group in groups {
            ledger.free_space_meta += ledger.touch(store, roots, group)?;
        }
        for group in space.groups_of(SpaceKind::System) {
            ledger.touch(store, roots, group.range())?;
        }
        Ok(ledger)
    }

    /// Counts the leaves under a node of the extent tree that record metadata.
    fn survey(&mut self, store: &Store, at: &Expect, groups: &[Extent]) -> Result<(), Unknown> {
        if at.ptr.level == 0 {
            self.meta += 1;
            return Ok(());
        }
        self.meta_inner += 1;
        let node = store.node(TreeId::EXTENT, at).map_err(|_| Unknown)?;
        for slot in 0..node.len() {
            let child = node.expect_child_below(slot, at.below);
            let first = if slot > 0 { node.key(slot).objectid } else { 0 };
            let before = groups.partition_point(|group| group.end().0 <= first);
            let records = child.below.is_none_or(|below| {
                groups.get(before).is_some_and(|group| group.start.0 <= below.objectid)
            });
            if records {
                self.survey(store, &child, groups)?;
            }
        }
        Ok(())
    }

    fn tree<'l>(
        trees: &'l mut HashMap<TreeId, Tree>,
        store: &Store,
        roots: &Roots,
        tree: TreeId,
    ) -> &'l mut Tree {
        trees
            .entry(tree)
            .or_insert_with(|| Tree::new(store.geometry(), tree, roots.find(tree), Generation(0)))
    }

    /// Notes that the free space of a group changes, and its own item (G3). Returns how many leaves
    /// describe it.
    fn touch(&mut self, store: &Store, roots: &Roots, group: Extent) -> Result<u64, Unknown> {
        if !self.groups.insert(group.start) {
            return Ok(0);
        }
        if roots.find(TreeId::BLOCK_GROUP).is_none() {
            let extents = Self::tree(&mut self.trees, store, roots, TreeId::EXTENT);
            extents.note_range(store, at(group.start), 0, 0)?;
        }
        let extents = free_space_form::upper_threshold(group.len, store.geometry().sectorsize) + 1;
        let most = extents * ITEM_LEN as u64 + FREE_SPACE_ITEM;
        let range = (at(group.start).0, at(Logical(group.end().0 - 1)).1);
        let free = Self::tree(&mut self.trees, store, roots, TreeId::FREE_SPACE);
        free.note_range(store, range, most, FREE_SPACE_ITEM)
    }

    /// Notes an item that an operation changed.
    fn note(
        &mut self,
        view: &View,
        tree: TreeId,
        key: &Key,
        len: Option<usize>,
    ) -> Result<(), Unknown> {
        self.root_items += u64::from(tree == TreeId::ROOT);
        let Self { trees, pointed, .. } = self;
        let of = match trees.entry(tree) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => place.insert(Tree::met(view, tree)?),
        };
        of.note(view.store(), key, (None, len), &mut |node| note_pointed(node, pointed))
    }

    /// Notes the references that children and extents of shared nodes get (G4).
    fn settle_pointed(&mut self, view: &View, space: &Space) -> Result<(), Unknown> {
        for start in std::mem::take(&mut self.pointed) {
            self.note_record(view, space, start, SHARED_BYTES)?;
        }
        Ok(())
    }

    /// Notes that the record of an extent or a node changes, and that so many bytes come to it.
    fn note_record(
        &mut self,
        view: &View,
        space: &Space,
        start: Logical,
        added: u64,
    ) -> Result<(), Unknown> {
        let (store, roots) = (view.store(), view.roots());
        let extents = Self::tree(&mut self.trees, store, roots, TreeId::EXTENT);
        let heaviest = (buttress_transaction::delayed_ref::inline_max(store.geometry().nodesize)
            + ITEM_LEN) as u64;
        extents.note_range(store, at(start), added, heaviest)?;
        if let Some(group) = space.group_at(start) {
            self.touch(store, roots, group.range())?;
        }
        Ok(())
    }

    /// Notes all that a transaction holds, on trees that nothing was noted of yet.
    pub(crate) fn note_all(
        &mut self,
        view: &View,
        space: &Space,
        transaction: &Transaction,
    ) -> Result<(), Unknown> {
        for (tree, key, payload) in transaction.overlay.sorted() {
            self.note(view, tree, &key, payload.map(|payload| payload.len()))?;
        }
        self.settle_pointed(view, space)?;
        let (store, roots) = (view.store(), view.roots());
        for change in transaction.refs.sorted() {
            self.note_record(view, space, change.extent.start, change.adds())?;
            if change.drops() {
                let key = |at| Key::new(ids::EXTENT_CSUM, Kind::EXTENT_CSUM, at);
                let range = (key(change.extent.start.0), key(change.extent.end().0 - 1));
                let csums = Self::tree(&mut self.trees, store, roots, TreeId::CSUM);
                csums.note_range(store, range, ITEM_LEN as u64, 0)?;
            }
        }
        for (extent, sums) in transaction.sums.sorted() {
            let key = Key::new(ids::EXTENT_CSUM, Kind::EXTENT_CSUM, extent.start.0);
            let bytes = (sums.len() + sums.len() / 64 + ITEM_LEN) as u64;
            let csums = Self::tree(&mut self.trees, store, roots, TreeId::CSUM);
            csums.note_range(store, (key, key), bytes, store.geometry().item_max() as u64)?;
        }
        let range = |chunk: &Chunk| Extent { start: chunk.logical, len: chunk.len };
        let added: Vec<_> = transaction.chunks.lock().iter().map(|new| range(&new.chunk)).collect();
        let removed: Vec<_> = transaction.removed.lock().iter().map(range).collect();
        for group in added.into_iter().chain(removed) {
            self.touch(store, roots, group)?;
        }
        Ok(())
    }

    /// Nodes that a commit of all that was noted makes at most (G1).
    pub(crate) fn nodes(&self, room: u64) -> u64 {
        let records = 3 * self.meta + 4 * self.meta_inner;
        let fixed = records + 3 * self.small + 2 * self.free_space_meta;
        let moved = ROOTS_MOVED + self.trees.len() as u64 + self.root_items;
        let noted: u64 = self.trees.values().map(Tree::nodes).sum();
        let sum = noted + fixed + 3 * moved.min(self.root_nodes) + SLACK;
        sum + 2 * NODE_BYTES * sum / room + 2
    }
}

/// How many nodes there are under one, with itself.
fn nodes_under(store: &Store, tree: TreeId, at: &Expect) -> Result<u64, Unknown> {
    if at.ptr.level == 0 {
        return Ok(1);
    }
    let node = store.node(tree, at).map_err(|_| Unknown)?;
    (0..node.len()).try_fold(1, |sum, slot| {
        Ok(sum + nodes_under(store, tree, &node.expect_child_below(slot, at.below))?)
    })
}
