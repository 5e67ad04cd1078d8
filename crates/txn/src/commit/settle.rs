//! Turns a frozen transaction into new trees.
//!
//! The file trees are merged first, then the checksum tree. Both merges allocate and free addresses
//! of nodes, and so does every later round. A round turns these allocations into changes of the
//! extent tree, the block groups and the free-space tree. The round merges these changes, which
//! allocates and frees addresses again.
//!
//! # Invariants
//!
//! - **S1** The rounds end, because a node of this transaction keeps its address when it is
//!   rebuilt. So a round causes work for the next one in two ways only. The first way is the first
//!   change of a committed node; every round has fewer such changes. The second way is a split,
//!   which happens only when a leaf gets more new items than fit.
//! - **S2** Nothing is written to a device here, so a failure during this step loses nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use buttress_format::{Chunk, CompatRo, Extent, Incompat, Key, Kind, RootItem, TreeId};
use buttress_tree::{Change, Cursor, Fresh, Merge, Node, NodePtr, Roots};

use super::{
    addresses::{AddressChange, Addresses},
    groups::Groups,
    moves::Moved,
    owners::Owners,
    quota::QuotaDeltas,
    reach::Reachers,
    subvolumes::parse_root,
    superblock,
    trail::Trail,
};
use crate::commits::CommitState;
use crate::devices::known_item;
use crate::{
    Error, Result, Storage,
    extent_tree::{self, BlockForm},
    reserve::{QuotaChanges, TreeFacts},
    transaction::Transaction,
};

mod devices;
mod references;

/// The result of settling, ready to be written.
pub(super) struct Settled {
    pub(super) state: CommitState,
    pub(super) nodes: Vec<Arc<Node>>,
    pub(super) pinned: Vec<Extent>,
    /// Chunks that the commit removes.
    pub(super) removed: Vec<Chunk>,
    pub(super) rounds: u64,
    /// Bytes of metadata that were allocated.
    pub(super) taken: u64,
    /// The part of `taken` for changes of operations.
    pub(super) of_items: u64,
    /// The new contents of root items.
    pub(super) trees: BTreeMap<Key, Option<TreeFacts>>,
    /// The changes that matter for the limits of quotas.
    pub(super) quota_news: QuotaChanges,
}

/// More rounds than any real commit needs. If a commit reaches this number, there is a bug, and the
/// commit fails.
const ROUNDS_MAX: u64 = 100;

pub(super) type Changes = BTreeMap<Key, Change>;

/// Changes that wait for the next round.
#[derive(Default)]
struct Pending {
    extents: Changes,
    groups: Changes,
    free_space: Changes,
}

pub(super) struct Settle<'e> {
    pub(super) owners: Owners<'e>,
    pub(super) transaction: &'e Transaction,
    pub(super) fresh: Fresh,
    pub(super) addresses: Addresses<'e>,
    pub(super) quotas: QuotaDeltas,
    pub(super) quota_news: QuotaChanges,
    pub(super) groups: Groups,
    pub(super) roots: Roots,
    /// The roots in the working root tree.
    pub(super) recorded: BTreeMap<TreeId, NodePtr>,
    /// Trees that this commit removed. Their committed roots do not count any more.
    removed_trees: BTreeSet<TreeId>,
    /// Subvolumes that this transaction changed.
    pub(super) touched: BTreeSet<TreeId>,
    pub(super) moved: Moved,
    device_delta: BTreeMap<u64, i64>,
    pinned: Vec<Extent>,
    removed: Vec<Chunk>,
    skinny: bool,
    group_tree: TreeId,
    new_chunks_seen: usize,
    sys_chunks: Vec<(Key, Chunk)>,
    /// Change of the number of devices, and of their bytes.
    devices_delta: i64,
    total_delta: i64,
    /// The new contents of changed root items.
    pub(super) trees: BTreeMap<Key, Option<TreeFacts>>,
}

/// Settles a frozen transaction.
pub(super) fn settle(
    owners: Owners<'_>,
    transaction: &Transaction,
    state: &mut CommitState,
) -> Result<Settled> {
    let sb = &state.superblock;
    let has_group_tree = sb.compat_ro.has(CompatRo::BLOCK_GROUP_TREE);
    let mut roots = state.roots.clone();
    roots.generation = transaction.generation;
    let extent_root = roots
        .find(TreeId::EXTENT)
        .ok_or_else(|| Error::Malformed("there is no extent tree".into()))?;
    let quotas = QuotaDeltas::read(owners.storage.store(), &state.roots)?;
    let mut settle = Settle {
        owners,
        transaction,
        fresh: Fresh::default(),
        addresses: Addresses::new(owners, transaction, extent_root, quotas.is_simple()),
        quotas,
        quota_news: QuotaChanges::default(),
        // A failure from here on ends all commits, so the records can be moved out of `state`.
        groups: Groups::new(std::mem::take(&mut state.groups)),
        recorded: roots.iter().collect(),
        roots,
        removed_trees: BTreeSet::new(),
        touched: BTreeSet::new(),
        moved: Moved::default(),
        device_delta: BTreeMap::new(),
        pinned: Vec::new(),
        removed: Vec::new(),
        skinny: sb.incompat.has(Incompat::SKINNY_METADATA),
        group_tree: if has_group_tree { TreeId::BLOCK_GROUP } else { TreeId::EXTENT },
        new_chunks_seen: 0,
        sys_chunks: sb.sys_chunks.clone(),
        devices_delta: 0,
        total_delta: 0,
        trees: BTreeMap::new(),
    };
    if settle.quotas.status.is_some()
        && settle.quotas.needs_trail(&transaction.quotas.lock(), state.roots.generation)
    {
        let trail =
            Trail::new(Reachers::new(owners.storage.store(), owners.commits.view(), extent_root));
        settle.addresses.trail = Some(Box::new(trail));
    }
    let mut pending = Pending::default();
    if transaction.rebuild.load(std::sync::atomic::Ordering::Relaxed) {
        settle.rebuild_free_space()?;
    }
    settle.device_stats()?;
    settle.device_items()?;
    settle.moves()?;
    settle.touch()?;
    // Data of this transaction may lie in chunks of this transaction.
    settle.chunks(&mut pending)?;
    let before = settle.addresses.taken();
    settle.merge_overlay()?;
    let of_items = settle.addresses.taken() - before;
    settle.snapshots()?;
    settle.drops()?;
    settle.shared_nodes(&mut pending.extents)?;
    settle.data_refs(&mut pending.extents)?;
    settle.count_quotas()?;
    let mut rounds = 0;
    loop {
        settle.round(&mut pending)?;
        rounds += 1;
        if settle.addresses.is_settled()
            && settle.new_chunks_seen == transaction.chunks.lock().len()
        {
            break;
        }
        if rounds == ROUNDS_MAX {
            return Err(Error::Malformed(format!("a commit did not settle in {rounds} rounds")));
        }
    }
    settle.finish(state, rounds, of_items)
}

/// Reads committed trees and the new nodes of a transaction.
fn over<'n>(storage: &'n Storage, transaction: &Transaction, fresh: &'n mut Fresh) -> Merge<'n> {
    Merge { store: storage.store(), fresh, generation: transaction.generation }
}

impl Settle<'_> {
    fn sectorsize(&self) -> u32 {
        self.owners.storage.store().geometry().sectorsize
    }

    pub(super) fn nodesize(&self) -> u32 {
        self.owners.storage.store().geometry().nodesize
    }

    /// Applies changes to a tree and notes its new root.
    pub(super) fn merge(&mut self, tree: TreeId, changes: Changes) -> Result<()> {
        if changes.is_empty() {
            return Ok(());
        }
        let changes: Vec<_> = changes.into_iter().collect();
        self.merge_sorted(tree, &changes)
    }

    pub(super) fn merge_sorted(&mut self, tree: TreeId, changes: &[(Key, Change)]) -> Result<()> {
        if tree == TreeId::ROOT {
            self.note_trees(changes);
        }
        let root = self.root_of(tree)?;
        let mut merge = over(self.owners.storage, self.transaction, &mut self.fresh);
        let root = merge.apply(&mut self.addresses, tree, root, changes)?;
        self.roots.set(tree, root);
        Ok(())
    }

    /// The present root of a tree. `None` for a tree that does not exist, or that this commit
    /// removed.
    pub(super) fn root_of(&self, tree: TreeId) -> Result<Option<NodePtr>> {
        match self.roots.find(tree) {
            Some(root) => Ok(Some(root)),
            None if self.removed_trees.contains(&tree) => Ok(None),
            None => Ok(self.owners.commits.peek().committed_root(tree)?),
        }
    }

    /// Forgets a tree of which all nodes are dropped. A later tree with this number begins empty.
    pub(super) fn remove_tree(&mut self, tree: TreeId) {
        self.roots.remove(tree);
        self.recorded.remove(&tree);
        self.addresses.node_delta.remove(&tree);
        self.removed_trees.insert(tree);
    }

    pub(super) fn must_root(&self, tree: TreeId) -> Result<NodePtr> {
        self.roots.find(tree).ok_or_else(|| Error::Malformed(format!("there is no {tree}")))
    }

    /// Calls `read` with a source that also has the nodes of this transaction.
    pub(super) fn reading<R>(&mut self, read: impl FnOnce(&Merge<'_>) -> Result<R>) -> Result<R> {
        let merge = over(self.owners.storage, self.transaction, &mut self.fresh);
        read(&merge)
    }

    /// Merges the changes of operations, tree by tree.
    fn merge_overlay(&mut self) -> Result<()> {
        let sorted = self.transaction.overlay.sorted();
        let mut rest = &sorted[..];
        while let Some((tree, _, _)) = rest.first() {
            let tree = *tree;
            let (mine, others) = rest.split_at(rest.partition_point(|(t, _, _)| *t == tree));
            rest = others;
            let is_left = |key: &Key| !self.moved.items.contains(&(tree, *key));
            let mine = mine.iter().filter(|(_, key, _)| is_left(key));
            let mut changes: Vec<_> = mine.map(|(_, k, c)| (*k, c.clone())).collect();
            if changes.is_empty() {
                continue;
            }
            if tree == TreeId::ROOT {
                self.keep_places(&mut changes)?;
            }
            self.merge_sorted(tree, &changes)?;
            if tree.is_fs_tree() {
                self.touched.insert(tree);
            }
        }
        Ok(())
    }

    fn form(&self) -> BlockForm {
        BlockForm { skinny: self.skinny, nodesize: self.nodesize() }
    }

    fn pin(&mut self, extent: Extent) -> Result<()> {
        self.owners.storage.space().pin(extent)?;
        self.pinned.push(extent);
        Ok(())
    }

    fn account(&mut self, extent: Extent, in_use: bool) -> Result<()> {
        let root = self.roots.find(TreeId::FREE_SPACE);
        let sectorsize = self.sectorsize();
        let merge = over(self.owners.storage, self.transaction, &mut self.fresh);
        self.groups.change(&merge, root, sectorsize, extent, in_use)
    }

    /// Makes one round (S1).
    fn round(&mut self, pending: &mut Pending) -> Result<()> {
        self.chunks(pending)?;
        let Pending { mut extents, mut groups, mut free_space } = std::mem::take(pending);
        let generation = self.transaction.generation;
        let (form, nodesize) = (self.form(), self.nodesize());
        let root = self.must_root(TreeId::EXTENT)?;
        for (at, address_change) in self.addresses.take_changes() {
            let extent = Extent { start: at, len: u64::from(nodesize) };
            match address_change {
                AddressChange::New { tree, level } => {
                    let mut change = self.addresses.sharing.blocks.remove(&at).unwrap_or_default();
                    change.level = level;
                    extent_tree::new_block(at, tree, &change, generation, form, &mut extents)?;
                    self.account(extent, true)?;
                }
                AddressChange::Retired { level } | AddressChange::Cancelled { level } => {
                    let key = self.reading(|source| {
                        extent_tree::find_tree_block(source, root, at, level, nodesize)
                    })?;
                    extents.insert(key, None);
                    self.account(extent, false)?;
                    if matches!(address_change, AddressChange::Retired { .. }) {
                        self.pin(extent)?;
                    } else {
                        self.owners.storage.space().free(extent);
                    }
                }
            }
        }
        let sectorsize = self.sectorsize();
        self.groups.changes(sectorsize, &mut groups, &mut free_space);
        if self.group_tree == TreeId::EXTENT {
            extents.append(&mut groups);
        }
        self.merge(TreeId::EXTENT, extents)?;
        self.merge(self.group_tree, groups)?;
        self.merge(TreeId::FREE_SPACE, free_space)?;
        self.record_roots()
    }

    /// Rebuilds the nodes on the paths to the keys in `to_rebuild`, by putting one existing item at
    /// each key again.
    fn touch(&mut self) -> Result<()> {
        let mut places: BTreeMap<TreeId, Vec<Key>> = BTreeMap::new();
        for (tree, key) in self.transaction.to_rebuild.change(std::mem::take) {
            places.entry(tree).or_default().push(key);
        }
        for (tree, keys) in places {
            let Some(root) = self.root_of(tree)? else { continue };
            let mut changes = Changes::new();
            for key in keys {
                changes.extend(self.first_item(tree, root, &key)?);
            }
            if changes.is_empty() {
                // In a tree without items, adding and removing an item moves the only leaf.
                self.merge(tree, Changes::from([(Key::MIN, Some(Vec::new().into()))]))?;
                changes.insert(Key::MIN, None);
            }
            self.merge(tree, changes)?;
        }
        Ok(())
    }

    /// The first item from a key on, as a change that puts the same item again.
    fn first_item(
        &mut self,
        tree: TreeId,
        root: NodePtr,
        key: &Key,
    ) -> Result<Option<(Key, Change)>> {
        self.reading(|source| {
            let cursor = Cursor::seek(source, tree, root, key)?;
            Ok(cursor.key().zip(cursor.item()).map(|(key, item)| (key, Some(item.into()))))
        })
    }

    /// Records new roots in the root tree.
    fn record_roots(&mut self) -> Result<()> {
        let mut changes = Changes::new();
        let moved: Vec<_> = self
            .roots
            .iter()
            .filter(|(tree, root)| self.recorded.get(tree) != Some(root))
            .filter(|(tree, _)| !matches!(*tree, TreeId::ROOT | TreeId::CHUNK))
            .collect();
        for (tree, root) in moved {
            let (key, mut item) = self.root_item(tree)?;
            item.bytenr = root.logical;
            item.generation = root.generation;
            item.level = root.level;
            item.bytes_used = self.bytes_used_by_now(tree, &item);
            if self.moved.trees.contains(&tree) {
                item.last_snapshot = self.transaction.generation;
            }
            self.addresses.node_delta.remove(&tree);
            if self.touched.contains(&tree) {
                item.ctransid = self.transaction.generation;
            }
            changes.insert(key, Some(item.to_bytes().into()));
            self.recorded.insert(tree, root);
        }
        let root = self.must_root(TreeId::ROOT)?;
        if changes.is_empty() && root.generation != self.transaction.generation {
            // This commit has no changes, but ends a log. The next mount requires that the root
            // node of the root tree has the superblock's generation.
            changes.extend(self.first_item(TreeId::ROOT, root, &Key::MIN)?);
        }
        self.merge(TreeId::ROOT, changes)
    }

    pub(super) fn root_item(&mut self, tree: TreeId) -> Result<(Key, RootItem)> {
        let root = self.must_root(TreeId::ROOT)?;
        let last = Key::new(tree.0, Kind::ROOT_ITEM, u64::MAX);
        self.reading(|source| {
            let cursor = Cursor::seek_before(source, TreeId::ROOT, root, &last)?;
            match cursor.key().zip(cursor.item()) {
                Some((key, item)) if key.objectid == tree.0 && key.kind == Kind::ROOT_ITEM => {
                    Ok((key, parse_root(key, item)?))
                }
                _ => Err(Error::Malformed(format!("the root tree does not know {tree}"))),
            }
        })
    }

    fn finish(mut self, state: &CommitState, rounds: u64, of_items: u64) -> Result<Settled> {
        let Owners { storage, commits, reservations, .. } = self.owners;
        self.addresses.close();
        // No tree references these extents. After this commit, a crash cannot bring back the log
        // that references them.
        self.pinned.append(&mut self.transaction.tracked.take_kept());
        for (id, delta) in &self.device_delta {
            let mut devices = storage.devices();
            let mut item = known_item(&devices, buttress_format::DeviceId(*id))?;
            item.bytes_used = item.bytes_used.saturating_add_signed(*delta);
            devices.set_item(item);
            storage.volume().update_device(item);
        }
        let height = self.roots.iter().map(|(_, root)| root.level).max().unwrap_or(0);
        reservations.note_height(height);
        let mut superblock = superblock::next(
            &state.superblock,
            &self.roots,
            self.groups.used_delta,
            self.sys_chunks,
        )?;
        if self.transaction.rebuild.load(std::sync::atomic::Ordering::Relaxed) {
            let flags = CompatRo::FREE_SPACE_TREE.with(CompatRo::FREE_SPACE_TREE_VALID);
            superblock.compat_ro = superblock.compat_ro.with(flags);
        }
        let needed = commits.needed_features();
        superblock.incompat.0 |= needed;
        superblock.compat_ro.0 |= commits.needed_features_ro();
        superblock.total_bytes = superblock.total_bytes.saturating_add_signed(self.total_delta);
        superblock.num_devices = superblock.num_devices.saturating_add_signed(self.devices_delta);
        Ok(Settled {
            state: CommitState { superblock, roots: self.roots, groups: self.groups.records },
            nodes: self.fresh.into_sorted(),
            pinned: self.pinned,
            removed: self.removed,
            rounds,
            taken: self.addresses.taken(),
            of_items,
            trees: self.trees,
            quota_news: self.quota_news,
        })
    }
}
