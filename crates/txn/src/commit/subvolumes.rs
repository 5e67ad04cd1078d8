//! Subvolumes in a commit. The commit makes snapshots by copying root nodes of merged trees (the
//! cut).
//!
//! # Invariants
//!
//! - **V1** Only the commit sets the root address, generation and last snapshot in a root item.
//!   Values that an operation put there are older, so the commit replaces them.
//! - **V2** Snapshots are cut after the changes of the transaction's operations are merged, and
//!   before the late items (`Snapshot::late`) are put.

use std::{collections::BTreeMap, sync::Arc};

use buttress_format::{Generation, InodeFlags, Key, Kind, RootFlags, RootItem, Timespec, TreeId};
use buttress_tree::{Change, Cursor, Expect, NodeAlloc, NodePtr, NodeSource, NodeStamp};

use super::{
    settle::{Changes, Settle},
    sharing::RefName,
};
use crate::{Error, Result, reserve::TreeFacts, snapshot::Snapshot};

/// Parses a root item.
pub(super) fn parse_root(key: Key, bytes: &[u8]) -> Result<RootItem> {
    RootItem::parse(bytes).map_err(|source| Error::Item { tree: TreeId::ROOT, key, source })
}

impl Settle<'_> {
    /// Notes the new contents of root items. The snapshot headroom is computed from these contents.
    pub(super) fn note_trees(&mut self, changes: &[(Key, Change)]) {
        for (key, change) in changes.iter().filter(|(key, _)| key.kind == Kind::ROOT_ITEM) {
            let item = change.as_ref().and_then(|bytes| RootItem::parse(bytes).ok());
            self.trees.insert(*key, item.as_ref().map(TreeFacts::of));
        }
    }

    /// Bytes of the nodes of a tree: the bytes in its root item, plus the change in this
    /// transaction.
    pub(super) fn bytes_used_by_now(&self, tree: TreeId, item: &RootItem) -> u64 {
        let delta = self.addresses.node_delta.get(&tree).copied().unwrap_or(0);
        item.bytes_used.saturating_add_signed(delta * i64::from(self.nodesize()))
    }

    /// Sets the present root address and generations in the root items that operations put (V1).
    pub(super) fn keep_places(&mut self, changes: &mut [(Key, Change)]) -> Result<()> {
        let root = self.must_root(TreeId::ROOT)?;
        for (key, change) in changes.iter_mut().filter(|(key, _)| key.kind == Kind::ROOT_ITEM) {
            let Some(payload) = change else { continue };
            let now = self.reading(|source| {
                let found = Cursor::find(source, TreeId::ROOT, root, key)?;
                found.map(|(node, slot)| parse_root(*key, node.item(slot))).transpose()
            })?;
            let Some(now) = now else {
                self.quotas.subvolume_made(TreeId(key.objectid), None);
                continue;
            };
            let put = parse_root(*key, payload)?;
            let item = RootItem {
                bytenr: now.bytenr,
                generation: now.generation,
                level: now.level,
                bytes_used: now.bytes_used,
                last_snapshot: now.last_snapshot,
                ctransid: now.ctransid.max(put.ctransid),
                ..put
            };
            *change = Some(item.to_bytes().into());
        }
        Ok(())
    }

    /// Cuts the snapshots of this transaction, then puts their late items (V2).
    pub(super) fn snapshots(&mut self) -> Result<()> {
        let wanted = self.transaction.snapshots.lock().clone();
        if !wanted.is_empty() {
            self.sum_trail(true);
        }
        for snapshot in &wanted {
            self.cut(snapshot)?;
        }
        let mut late: BTreeMap<TreeId, Changes> = BTreeMap::new();
        for snapshot in wanted {
            for (tree, key, payload) in snapshot.late {
                late.entry(tree).or_default().insert(key, payload.map(Into::into));
            }
        }
        for (tree, changes) in late {
            self.merge(tree, changes)?;
            if tree.is_fs_tree() {
                self.touched.insert(tree);
            }
        }
        Ok(())
    }

    /// Copies a subvolume's root node. From here on the children of that node have one more user,
    /// the copy.
    fn cut(&mut self, snapshot: &Snapshot) -> Result<()> {
        let generation = self.transaction.generation;
        let (source, target) = (snapshot.source, snapshot.target);
        let old = self.root_of(source)?.ok_or_else(|| {
            Error::Malformed(format!("the subvolume {source} to be copied has no tree"))
        })?;
        let root = self.reading(|nodes| Ok(nodes.node(source, &Expect::root(old))?))?;
        let logical = self.addresses.allocate(target, old.level)?;
        let stamp = NodeStamp { logical, generation, owner: target };
        let copy = Arc::new(root.copied(self.owners.storage.store().geometry(), &stamp));
        self.addresses.sharing.add_refs(&copy, 0, RefName::Tree(target), 1)?;
        self.trail_cut(source, target, old.logical, &copy);
        self.fresh.insert(copy);
        self.fresh.protect_tree(source, old.logical);
        for tree in [source, target] {
            self.addresses.set_last_snapshot(tree, generation);
        }
        let ptr = NodePtr { logical, generation, level: old.level };
        self.roots.set(target, ptr);
        self.recorded.insert(target, ptr);
        self.addresses.node_delta.remove(&target);
        self.quotas.subvolume_made(target, Some(source));
        self.record_cut(snapshot, ptr)
    }

    fn record_cut(&mut self, snapshot: &Snapshot, ptr: NodePtr) -> Result<()> {
        let generation = self.transaction.generation;
        let (key, mut source) = self.root_item(snapshot.source)?;
        source.last_snapshot = generation;
        if self.touched.contains(&snapshot.source) {
            source.ctransid = generation;
        }
        let mut item = RootItem {
            generation,
            generation_v2: generation,
            bytenr: ptr.logical,
            level: ptr.level,
            refs: 1,
            uuid: snapshot.uuid,
            parent_uuid: source.uuid,
            otransid: generation,
            otime: snapshot.time,
            bytes_used: self.bytes_used_by_now(snapshot.source, &source),
            ..source
        };
        // Without this flag, Linux treats the root item's flags as garbage of an old kernel and
        // clears them.
        item.inode.flags |= InodeFlags::ROOT_ITEM_INIT;
        if snapshot.read_only {
            item.flags |= RootFlags::READONLY;
        } else {
            // A writable copy may change, so it no longer counts as a received subvolume.
            item.flags &= !RootFlags::READONLY;
            item.received_uuid = [0; 16];
            (item.stransid, item.rtransid) = (Generation(0), Generation(0));
            (item.stime, item.rtime) = (Timespec::default(), Timespec::default());
        }
        let new_key = Key::new(snapshot.target.0, Kind::ROOT_ITEM, generation.0);
        let changes = Changes::from([
            (key, Some(source.to_bytes().into())),
            (new_key, Some(item.to_bytes().into())),
        ]);
        self.merge(TreeId::ROOT, changes)
    }
}
