//! The ledger: how many nodes a transaction makes, by the changes that were noted.
//!
//! # Place
//!
//! Each changed item falls into one leaf of a committed tree. The ledger records the changed leaves
//! of file trees, of the checksum tree, and of the part of the extent tree that records data
//! (`tree`). The commit itself makes the other changes, and only their place is known beforehand.
//! Nodes are allocated and freed in metadata groups, so their records lie in the extent-tree leaves
//! for those groups.
//!
//! # Invariants
//!
//! - **G1** A commit makes no more nodes than `nodes` says. The file trees are merged once
//!   (`tree`). The checksum tree and the leaves of the extent tree that record data are merged
//!   once, too.
//! - **G2** Leaves that record metadata may change in each round of the commit. Each round may
//!   merge them in other runs of dirty leaves. So `ledger::tree::L2` bounds a single round only.
//!   Each of these leaves counts instead as a full leaf that is split, which becomes at most three.
//!   The bytes of new records are counted in proportion to the number of all nodes.
//! - **G3** In the free-space tree, a group with changes counts with the most bytes that can
//!   describe its free space. The commit converts a group to bitmaps before its extents take more
//!   bytes.
//! - **G4** The first change of a node that may be shared adds references for everything that the
//!   node points to. The change adds at most two references for each extent and each child. The
//!   bytes of the references count in the leaves that record these extents and children.
//! - **G5** If a transaction commits behind an older one, it makes no more nodes than
//!   `nodes_beside` says. Both transactions were noted on the trees from before the older commit.
//!   The younger transaction may change leaves again that the older transaction makes
//!   (`ledger::tree::L5`). Nodes that every commit changes count for both transactions.
//! - **G6** Later items change records, checksums and free space only in leaves that exist. So
//!   later items make at most `rest` nodes, plus the nodes that the items' bytes fill. A tree with
//!   more than `LEAVES_MAX` leaves has no such bound.

mod span;
mod survey;
mod tree;

use std::collections::{BTreeSet, hash_map::Entry};

use buttress_format::{
    Body, Extent, FileExtent, Key, Kind, Logical, TreeId, header::ITEM_LEN, ids,
};
use buttress_space::{Space, SpaceKind, free_space_form};
use buttress_tree::{Expect, Geometry, Node};
use rustc_hash::FxHashMap;

use survey::Nodes;
pub(crate) use survey::{Uncountable, all_of};
use tree::Tree;

use crate::View;
use crate::transaction::Transaction;
use buttress_transaction::delayed_ref::{RecordChange, inline_max};
use buttress_transaction::sums::SumsChange;

/// The most bytes of references that an extent or child gets when a shared node is first changed:
/// two references with an item each.
pub(crate) const EXTENT_REFS: u64 = 112;
/// Bytes of the smallest extent item in a file tree, with its header.
pub(crate) const EXTENT_ITEM: u64 = ITEM_LEN as u64 + 53;
/// The most bytes that the records of one node add to the extent tree.
const NODE_BYTES: u64 = 84;
/// The heaviest item of the free-space tree, a bitmap.
const FREE_SPACE_ITEM: u64 = free_space_form::BITMAP_BITS / 8 + ITEM_LEN as u64;
/// Root items that a commit changes, besides the root items of subvolumes.
const ROOTS_MOVED: u64 = 12;
/// Nodes added as a margin. They cover a chunk that the commit adds itself.
const SLACK: u64 = 12;
/// Nodes that each new chunk of the transaction adds.
const CHUNK_NODES: u64 = 2;

/// Trees that only commits change, and of which the ledger records single leaves.
const RECORDS: [TreeId; 3] = [TreeId::EXTENT, TreeId::CSUM, TreeId::FREE_SPACE];

/// The noted changes of one transaction.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    trees: FxHashMap<TreeId, Tree>,
    /// Start addresses of the groups with changes.
    groups: BTreeSet<Logical>,
    /// Leaves of the extent tree that record metadata, and the inner nodes above them.
    meta: Nodes,
    /// Nodes of the small trees. Every commit may change all of them.
    small: u64,
    /// Leaves of the free-space tree that describe metadata groups.
    free_space_meta: u64,
    root_items: u64,
    /// Number of nodes of the root tree.
    root_nodes: u64,
    chunks: u64,
    /// Whether an operation changed an item of a tree that commits change, too.
    is_mixed: bool,
    /// The nodes of each tree of [`RECORDS`]; `None` for a tree with too many leaves.
    all: [Option<Nodes>; 3],
}

fn at(start: Logical) -> (Key, Key) {
    let key = |kind, offset| Key { objectid: start.0, kind: Kind(kind), offset };
    (key(0, 0), key(u8::MAX, u64::MAX))
}

fn csum_key(at: Logical) -> Key {
    Key::new(ids::EXTENT_CSUM, Kind::EXTENT_CSUM, at.0)
}

/// Adds the addresses of all that a possibly shared node points to (G4).
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

/// The most bytes that can describe a group in the free-space tree (G3).
fn free_space_bytes(geometry: &Geometry, group: Extent) -> u64 {
    let extents = free_space_form::upper_threshold(group.len, geometry.sectorsize) + 1;
    extents * ITEM_LEN as u64 + FREE_SPACE_ITEM
}

impl Ledger {
    /// Creates an empty ledger on the committed trees `roots`.
    pub(crate) fn new(view: &View, space: &Space) -> Result<Self, Uncountable> {
        let (store, roots) = (view.store(), view.roots());
        if roots.find(TreeId::RAID_STRIPE).is_some() {
            return Err(Uncountable);
        }
        let mut ledger = Self::default();
        for tree in [TreeId::BLOCK_GROUP, TreeId::DEV, TreeId::QUOTA] {
            ledger.small += all_of(store, roots, tree)?.sum();
        }
        roots.find(TreeId::ROOT).ok_or(Uncountable)?;
        ledger.root_nodes = all_of(store, roots, TreeId::ROOT)?.sum();
        ledger.all = RECORDS.map(|tree| all_of(store, roots, tree).ok());
        let root = roots.find(TreeId::EXTENT).ok_or(Uncountable)?;
        let mut groups: Vec<Extent> =
            space.groups_of(SpaceKind::Metadata).iter().map(|group| group.range()).collect();
        groups.sort_unstable_by_key(|group| group.start);
        survey::recording(store, &Expect::root(root), &groups, &mut ledger.meta)?;
        // The records of a new group would go behind the records of all other groups.
        ledger.meta.leaves += 1;
        for group in groups {
            ledger.free_space_meta += ledger.touch(view, group)?;
        }
        for group in space.groups_of(SpaceKind::System) {
            ledger.touch(view, group.range())?;
        }
        Ok(ledger)
    }

    /// The noted changes of one tree.
    fn tree(&mut self, view: &View, tree: TreeId) -> Result<&mut Tree, Uncountable> {
        Ok(match self.trees.entry(tree) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => place.insert(Tree::met(view, tree)?),
        })
    }

    /// Notes that the free space and the block group item of a group change (G3). Returns how many
    /// leaves of the free-space tree describe the group.
    fn touch(&mut self, view: &View, group: Extent) -> Result<u64, Uncountable> {
        if !self.groups.insert(group.start) {
            return Ok(0);
        }
        let store = view.store();
        if view.roots().find(TreeId::BLOCK_GROUP).is_none() {
            let extents = self.tree(view, TreeId::EXTENT)?;
            extents.note_range(store, at(group.start), (0, 0), 0)?;
        }
        let most = free_space_bytes(store.geometry(), group);
        let range = (at(group.start).0, at(Logical(group.end().0 - 1)).1);
        let free = self.tree(view, TreeId::FREE_SPACE)?;
        free.note_range(store, range, (0, most), FREE_SPACE_ITEM)
    }

    /// Notes the changes of a transaction since the last call, or all its changes if `anew`.
    pub(crate) fn feed(
        &mut self,
        view: &View,
        space: &Space,
        transaction: &Transaction,
        anew: bool,
    ) -> Result<(), Uncountable> {
        let store = view.store();
        // Addresses of the extents and nodes that shared nodes point to.
        let mut pointed = Vec::new();
        for (tree, key, before, len) in transaction.overlay.take_changes(anew) {
            self.root_items += u64::from(tree == TreeId::ROOT);
            self.is_mixed |= is_mixed(tree);
            let of = self.tree(view, tree)?;
            of.note(store, &key, (before, len), &mut |node| note_pointed(node, &mut pointed))?;
        }
        self.note_records(view, space, pointed.iter().map(|start| (*start, (0, EXTENT_REFS))))?;
        let records = transaction.refs.take_changes(anew);
        let of = |change: &RecordChange| (change.extent.start, (change.before, change.bytes_max));
        self.note_records(view, space, records.iter().map(of))?;
        let dropped = records.iter().filter(|change| change.loses_users).map(|change| {
            let last = Logical(change.extent.end().0 - 1);
            ((csum_key(change.extent.start), csum_key(last)), (0, ITEM_LEN as u64))
        });
        self.note_ranges(view, TreeId::CSUM, dropped, 0)?;
        let of = |change: SumsChange| {
            let key = csum_key(change.start);
            ((key, key), (change.before, change.bytes_max))
        };
        let sums = transaction.sums.take_changes(anew).into_iter().map(of);
        self.note_ranges(view, TreeId::CSUM, sums, store.geometry().item_max() as u64)?;
        let added: Vec<_> = transaction.chunks.lock().iter().map(|new| new.chunk.clone()).collect();
        self.chunks = added.len() as u64;
        let removed: Vec<_> = transaction.removed.lock().clone();
        for chunk in added.into_iter().chain(removed) {
            let group = Extent { start: chunk.logical, len: chunk.len };
            self.touch(view, group)?;
        }
        Ok(())
    }

    /// Notes changes in ranges of keys of one tree (see [`Tree::note_range`]).
    fn note_ranges(
        &mut self,
        view: &View,
        tree: TreeId,
        ranges: impl Iterator<Item = ((Key, Key), (u64, u64))>,
        heaviest: u64,
    ) -> Result<(), Uncountable> {
        for (range, bytes) in ranges {
            self.tree(view, tree)?.note_range(view.store(), range, bytes, heaviest)?;
        }
        Ok(())
    }

    /// Notes changed records of extents and nodes, each with its bytes before and after. Their
    /// groups change, too.
    fn note_records(
        &mut self,
        view: &View,
        space: &Space,
        records: impl Iterator<Item = (Logical, (u64, u64))> + Clone,
    ) -> Result<(), Uncountable> {
        let ranges = records.clone().map(|(start, bytes)| (at(start), bytes));
        let heaviest = heaviest_record(view.store().geometry());
        self.note_ranges(view, TreeId::EXTENT, ranges, heaviest)?;
        let mut last = None::<Extent>;
        for (start, _) in records {
            if last.is_some_and(|group| group.contains(start)) {
                continue;
            }
            last = space.group_at(start).map(|group| group.range());
            if let Some(group) = last {
                self.touch(view, group)?;
            }
        }
        Ok(())
    }

    /// The most nodes that a commit of all noted changes makes (G1). A leaf has `room` bytes.
    pub(crate) fn nodes(&self, room: u64) -> u64 {
        with_records(self.trees.values().map(Tree::nodes).sum::<u64>() + self.fixed(), room)
    }

    /// The most nodes that a commit of all noted changes makes behind the commit of an `older`
    /// transaction. Both transactions were noted on the same trees (G5).
    pub(crate) fn nodes_beside(&self, older: &Self, room: u64) -> u64 {
        let beside = |(id, tree): (&TreeId, &Tree)| match older.trees.get(id) {
            Some(older) => tree.nodes_beside(older),
            None => tree.nodes(),
        };
        let noted: u64 = self.trees.iter().map(beside).sum();
        with_records(noted + self.fixed() + older.fixed(), room)
    }

    /// The most nodes that the commit makes in trees and leaves that every commit changes (G2).
    fn fixed(&self) -> u64 {
        let records = 3 * self.meta.leaves + 4 * self.meta.inner;
        let moved = ROOTS_MOVED + self.trees.len() as u64 + self.root_items;
        let roots = 3 * moved.min(self.root_nodes);
        let chunks = CHUNK_NODES * self.chunks;
        records + 3 * self.small + 2 * self.free_space_meta + roots + chunks + SLACK
    }

    /// The most nodes that later items make in leaves of records, checksums and free space that are
    /// still clean (G6). Leaves of the extent tree are packed again. A checksum leaf counts twice.
    /// After a merge, any two neighbours hold more bytes than fit in one leaf, so leaves are at
    /// least half full on average. Clean groups count with all bytes that can describe them.
    pub(crate) fn rest(&self, space: &Space, geometry: &Geometry) -> Option<u64> {
        let room = geometry.leaf_room() as u64;
        let packed = |bytes: u64, heaviest| bytes / (room - heaviest) + 1;
        let [Some(extents), Some(csums), Some(free)] = self.all else { return None };
        let groups = [SpaceKind::Data, SpaceKind::Metadata, SpaceKind::System]
            .into_iter()
            .flat_map(|kind| space.groups_of(kind));
        let clean = groups.map(|group| group.range()).filter(|g| !self.groups.contains(&g.start));
        let says: u64 = clean.map(|group| free_space_bytes(geometry, group)).sum();
        let made = packed(extents.leaves * room, heaviest_record(geometry))
            + 2 * csums.leaves
            + packed(free.leaves * room + says, FREE_SPACE_ITEM)
            + 3;
        let dirty = |tree: &TreeId| self.trees.get(tree).map_or(0, |tree| tree.sums.leaves);
        let inner = extents.inner + csums.inner + free.inner;
        let above = made / (geometry.ptrs_max() as u64 / 2);
        Some((made + above + 3 * inner).saturating_sub(RECORDS.iter().map(dirty).sum()))
    }

    /// The most leaves by which this transaction increases the `rest` of a younger transaction
    /// (G5).
    pub(crate) fn growth(&self) -> u64 {
        let grown = |tree: &TreeId| self.trees.get(tree).map_or(0, Tree::growth);
        2 * RECORDS.iter().map(grown).sum::<u64>()
    }

    /// The most nodes made in trees that operations change. `None` if operations changed a tree
    /// that commits change, too.
    pub(crate) fn nodes_of_items(&self) -> Option<u64> {
        let of_items = self.trees.iter().filter(|(tree, _)| !RECORDS.contains(tree));
        (!self.is_mixed).then(|| of_items.map(|(_, tree)| tree.nodes()).sum())
    }

    /// The number of dirty leaves in trees that operations change, and the bytes put into them.
    pub(crate) fn dirty(&self) -> (u64, u64) {
        let of_items = self.trees.iter().filter(|(tree, _)| !RECORDS.contains(tree));
        of_items.fold((0, 0), |sum, (_, tree)| (sum.0 + tree.sums.leaves, sum.1 + tree.sums.put))
    }
}

/// Adds the nodes that the records of `nodes` nodes need.
fn with_records(nodes: u64, room: u64) -> u64 {
    nodes + 2 * NODE_BYTES * nodes / room + 2
}

fn heaviest_record(geometry: &Geometry) -> u64 {
    (inline_max(geometry.nodesize) + ITEM_LEN) as u64
}

/// Whether both operations and commits change a tree.
fn is_mixed(tree: TreeId) -> bool {
    let small = [TreeId::ROOT, TreeId::BLOCK_GROUP, TreeId::DEV, TreeId::QUOTA];
    small.contains(&tree) || RECORDS.contains(&tree)
}
