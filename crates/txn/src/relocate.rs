//! Moving what lies in a block group elsewhere, so that the group can go.
//!
//! # Invariants
//!
//! - **L1** A group that is being emptied gives out nothing: what is in it only becomes less.
//! - **L2** Data is copied to a new extent of the same length, and all its users go over in one
//!   transaction: a crash finds the old place or the new one, never both and never neither.
//! - **L3** A node is moved by building it anew: its tree's path to it is merged as if an item there
//!   had changed.
//!
//! # Place
//!
//! For volumes that nobody else changes meanwhile: users of an extent are found in one view and put in
//! a later transaction. Trees that share a node each get one of their own.

use std::collections::BTreeSet;
use std::sync::Arc;

use buttress_format::{
    BackRef, Body, Extent, ExtentItem, FileExtent, Ino, Key, Kind, Logical, TreeId,
};
use buttress_space::SpaceKind;
use buttress_tree::{Cursor, Expect, NodePtr, NodeSource};

use crate::{Cost, DataRef, Engine, Error, Result, Urgency, View, extent_tree, scrub};

/// Rounds over a group before giving up; one is enough but for what one round itself puts there.
const ROUNDS_MAX: u32 = 8;
/// Data and nodes moved between two commits.
const BATCH_BYTES: u64 = 64 << 20;
const BATCH_NODES: usize = 2048;
/// Data written in one go.
const WRITE_BYTES: usize = 4 << 20;

/// One place that uses a data extent.
struct Use {
    tree: TreeId,
    key: Key,
    item: FileExtent,
    offset: u64,
}

impl Engine {
    /// Empties a block group and removes it with its chunk. `watch` is told of bytes that were moved.
    ///
    /// # Errors
    ///
    /// [`Error::NoSpace`] when there is none elsewhere; what reading met. What was moved until then
    /// stays where it is now.
    pub fn relocate_group(
        self: &Arc<Self>,
        start: Logical,
        watch: &mut dyn FnMut(u64),
    ) -> Result<()> {
        self.check_writable()?;
        let group = self
            .space
            .group_at(start)
            .ok_or_else(|| Error::Malformed(format!("there is no block group at {start}")))?;
        let held = self.space.hold_read_only(start)?;
        held.drain();
        // A commit must not be the one to find out that there is no room for its nodes.
        let kind = group.kind();
        let needed = 2 * group.used() + (1 << 20);
        let is_tight = kind != SpaceKind::Data && self.space.account(kind).free() < needed;
        if is_tight && !self.add_chunk(kind)? && self.space.account(kind).free() < group.used() {
            return Err(Error::NoSpace("metadata in another place"));
        }
        // Should that fail, the group can be used again as it is.
        self.empty_group(group.range(), watch).and_then(|()| self.drop_group(start))
    }

    fn empty_group(self: &Arc<Self>, range: Extent, watch: &mut dyn FnMut(u64)) -> Result<()> {
        for _ in 0..ROUNDS_MAX {
            // What was referenced since the last commit is in no tree yet.
            self.commit()?;
            let mut from = range.start;
            let mut any = false;
            while from < range.end() {
                let view = self.view();
                let (found, next) = scrub::extents(&view, from, range.end())?;
                drop(view);
                any |= !found.is_empty();
                self.move_some(&found, watch)?;
                from = next;
            }
            if !any {
                return Ok(());
            }
        }
        let what = "something in a block group cannot be moved";
        Err(Error::Extents { at: range.start, what })
    }

    fn move_some(
        self: &Arc<Self>,
        found: &[scrub::Found],
        watch: &mut dyn FnMut(u64),
    ) -> Result<()> {
        let (mut bytes, mut nodes) = (0, 0);
        for one in found {
            match one.level {
                None => {
                    self.move_data(one.extent)?;
                    bytes += one.extent.len;
                }
                Some(level) => {
                    let ptr =
                        NodePtr { logical: one.extent.start, generation: one.generation, level };
                    self.touch_node(ptr)?;
                    nodes += 1;
                }
            }
            watch(one.extent.len);
            if bytes >= BATCH_BYTES || nodes >= BATCH_NODES {
                self.commit()?;
                (bytes, nodes) = (0, 0);
            }
        }
        self.commit()?;
        Ok(())
    }

    /// Copies a data extent elsewhere and sends its users there (L2).
    fn move_data(self: &Arc<Self>, old: Extent) -> Result<()> {
        let (users, sums, owner) = {
            let view = self.view();
            let owner = extent_tree::committed_owner(&view, old)?;
            (users(&view, old)?, self.read_csums(&view, old)?, owner)
        };
        if users.is_empty() {
            return Err(Error::Extents { at: old.start, what: "no file uses it" });
        }
        let new = self.copy_data(old, &sums)?;
        let items = u32::try_from(users.len()).unwrap_or(u32::MAX).saturating_mul(7) + 8;
        let bytes = (sums.sectors() * self.store.geometry().csum.size() + 64 * users.len()) as u64;
        let cost = Cost { items, bytes: u32::try_from(bytes).unwrap_or(u32::MAX) };
        let promise = match self.reserve(cost, Urgency::Normal) {
            Ok(promise) => promise,
            Err(error) => {
                self.free_unused_data(new);
                return Err(error);
            }
        };
        let handle = self.begin(promise);
        for user in users {
            let mut item = user.item;
            if let Body::Regular(region) | Body::Prealloc(region) = &mut item.body {
                region.disk = new.start;
            }
            let who = DataRef { root: user.tree, ino: Ino(user.key.objectid), offset: user.offset };
            handle.put(user.tree, user.key, item.to_bytes());
            handle.add_data_ref(new, who);
            handle.drop_data_ref(old, who);
        }
        // Who made it goes on paying for it.
        handle.transaction().refs.set_owner(new.start, owner);
        for (at, run) in runs(&sums, u64::from(self.store.geometry().sectorsize)) {
            let sector = u64::from(self.store.geometry().sectorsize);
            let len = (run.len() / self.store.geometry().csum.size()) as u64 * sector;
            handle.insert_csums(Extent::new(new.start.end(at), len), run);
        }
        Ok(())
    }

    /// The bytes of an extent in a new one of the same length, checked on their way.
    fn copy_data(&self, old: Extent, sums: &crate::Csums) -> Result<Extent> {
        let geometry = *self.store.geometry();
        let (sector, size) = (geometry.sectorsize as usize, geometry.csum.size());
        let mut promise = self.reserve_data(old.len)?;
        let new = match self.allocate_data(&mut promise, old.len, old.len, None, 0) {
            Ok(new) => new,
            // There is room, but in pieces: a new chunk is all of one.
            Err(Error::NoSpace(_)) if self.add_chunk(SpaceKind::Data)? => {
                self.allocate_data(&mut promise, old.len, old.len, None, 0)?
            }
            Err(error) => return Err(error),
        };
        let copied = (0..old.len).step_by(WRITE_BYTES).try_for_each(|within| -> Result<()> {
            let mut bytes = vec![0; (old.len - within).min(WRITE_BYTES as u64) as usize];
            let first = (within / sector as u64) as usize;
            self.volume.read_verified_by(
                old.start.end(within),
                &mut bytes,
                sector,
                |at, bytes| match sums.sector(first + at / sector) {
                    Some(sum) if geometry.csum.digest(bytes)[..size] != *sum => Err("checksum"),
                    _ => Ok(()),
                },
            )?;
            Ok(self.volume.write(new.start.end(within), &bytes)?)
        });
        match copied {
            Ok(()) => Ok(new),
            Err(error) => {
                self.free_unused_data(new);
                Err(error)
            }
        }
    }

    /// Has the running transaction build a node anew, in every tree that has it (L3).
    fn touch_node(&self, ptr: NodePtr) -> Result<()> {
        let view = self.view();
        let node = view.store().node(TreeId::ROOT, &Expect::root(ptr))?;
        let key = if node.is_empty() { Key::MIN } else { node.key(0) };
        let owner = node.owner();
        let trees = if owner.is_fs_tree() { file_trees(&view)? } else { vec![owner] };
        let mut touched = Vec::new();
        for tree in trees {
            if passes(&view, tree, &key, ptr)? {
                touched.push((tree, key));
            }
        }
        if touched.is_empty() {
            let what = "a tree node that no tree has";
            return Err(Error::Extents { at: ptr.logical, what });
        }
        drop(view);
        let _gate = self.gate.read();
        self.view.load().running().touched.lock().extend(touched);
        Ok(())
    }

    /// Removes an empty group and its chunk, and makes that durable.
    fn drop_group(&self, start: Logical) -> Result<()> {
        for _ in 0..100 {
            self.release_pinned();
            let state = self.commit.lock();
            let Some(group) = self.space.group_at(start).filter(|group| group.start() == start)
            else {
                drop(state);
                // The commit found it empty and was quicker.
                self.commit()?;
                return Ok(());
            };
            let usage = group.usage();
            if usage.used + usage.reserved + usage.pinned == 0 {
                let _gate = self.gate.read();
                self.space.remove_group(start)?;
                self.devices.lock().keep_addresses(group.range());
                let chunk = self.volume.remove_chunk(start)?;
                let running = Arc::clone(self.view.load().running());
                running.removed.lock().push(buttress_format::Chunk::clone(&chunk));
                self.devices.lock().uncount_group(group.flags());
                drop(_gate);
                drop(state);
                self.commit()?;
                return Ok(());
            }
            drop(state);
            // A reader of older roots still holds what was freed.
            buttress_base::thread::sleep(std::time::Duration::from_millis(5));
        }
        Err(Error::Extents { at: start, what: "a block group that was emptied is still in use" })
    }
}

/// Runs of sectors that have checksums: where they begin in the extent, and the sums.
fn runs(sums: &crate::Csums, sector: u64) -> Vec<(u64, Vec<u8>)> {
    let mut found: Vec<(u64, Vec<u8>)> = Vec::new();
    let mut open = false;
    for index in 0..sums.sectors() {
        match sums.sector(index) {
            Some(sum) => {
                if !open {
                    found.push((index as u64 * sector, Vec::new()));
                }
                if let Some((_, run)) = found.last_mut() {
                    run.extend_from_slice(sum);
                }
                open = true;
            }
            None => open = false,
        }
    }
    found
}

/// Every subvolume, and the trees beside them that hold files.
fn file_trees(view: &View) -> Result<Vec<TreeId>> {
    let mut trees = BTreeSet::new();
    let low = Key::new(0, Kind::ROOT_ITEM, 0);
    for entry in view.range(TreeId::ROOT, low, Key::new(u64::MAX, Kind(u8::MAX), u64::MAX)) {
        let (key, _) = entry?;
        let tree = TreeId(key.objectid);
        if key.kind == Kind::ROOT_ITEM && (tree.is_fs_tree() || tree == TreeId::DATA_RELOC) {
            trees.insert(tree);
        }
    }
    Ok(trees.into_iter().collect())
}

/// Whether the way to a key in a tree leads through a node.
fn passes(view: &View, tree: TreeId, key: &Key, ptr: NodePtr) -> Result<bool> {
    let Some(mut at) = view.committed_root(tree)? else { return Ok(false) };
    while at.level > ptr.level {
        let node = view.store().node(tree, &Expect::root(at))?;
        at = node.child(node.child_slot(key));
    }
    Ok(at.logical == ptr.logical)
}

/// Every file extent item that points to an extent, in every tree.
fn users(view: &View, extent: Extent) -> Result<Vec<Use>> {
    let mut found = Vec::new();
    let trees = file_trees(view)?;
    for (ino, offset, root) in places(view, extent)? {
        // Version 1 free space is kept in files of the root tree itself.
        let alone = [root];
        let trees = if root == TreeId::ROOT { &alone[..] } else { &trees[..] };
        let from = if offset > u64::MAX / 2 { 0 } else { offset };
        let to = offset.wrapping_add(extent.len.max(128 << 10));
        for &tree in trees {
            let low = Key::new(ino.0, Kind::EXTENT_DATA, from);
            let high = Key::new(ino.0, Kind::EXTENT_DATA, to);
            for entry in view.range(tree, low, high) {
                let (key, bytes) = entry?;
                let item = FileExtent::parse(&bytes).map_err(|source| Error::Item {
                    tree,
                    key,
                    source,
                })?;
                let Some(region) = item.region() else { continue };
                let begins = key.offset.wrapping_sub(region.offset);
                if region.extent() == extent && begins == offset {
                    found.push(Use { tree, key, item, offset });
                }
            }
        }
    }
    Ok(found)
}

/// Which files may use an extent, and where: what its references say, those of leaves included.
fn places(view: &View, extent: Extent) -> Result<BTreeSet<(Ino, u64, TreeId)>> {
    let root = view
        .committed_root(TreeId::EXTENT)?
        .ok_or_else(|| Error::Malformed("there is no extent tree".into()))?;
    let malformed = |key: Key, source| Error::Item { tree: TreeId::EXTENT, key, source };
    let key = Key::new(extent.start.0, Kind::EXTENT_ITEM, extent.len);
    let mut cursor = Cursor::seek(&**view.store(), TreeId::EXTENT, root, &key)?;
    let mut refs = Vec::new();
    while let Some((key, bytes)) = cursor.key().zip(cursor.item()) {
        if key.objectid != extent.start.0 {
            break;
        }
        match key.kind {
            Kind::EXTENT_ITEM => {
                let item = ExtentItem::parse(&key, bytes).map_err(|e| malformed(key, e))?;
                refs.extend(item.inline);
            }
            Kind::EXTENT_DATA_REF | Kind::SHARED_DATA_REF => {
                refs.push(BackRef::keyed_parse(&key, bytes).map_err(|e| malformed(key, e))?);
            }
            _ => {}
        }
        cursor.advance()?;
    }
    let mut places = BTreeSet::new();
    for entry in refs {
        match entry {
            BackRef::Data { root, ino, offset, .. } => {
                let root = if root == TreeId::ROOT { root } else { TreeId::FS };
                places.insert((ino, offset, root));
            }
            BackRef::SharedData { parent, .. } => {
                for (ino, offset) in in_leaf(view, parent, extent)? {
                    places.insert((ino, offset, TreeId::FS));
                }
            }
            _ => {}
        }
    }
    Ok(places)
}

/// The files that a leaf says use an extent.
fn in_leaf(view: &View, leaf: Logical, extent: Extent) -> Result<Vec<(Ino, u64)>> {
    let root = view
        .committed_root(TreeId::EXTENT)?
        .ok_or_else(|| Error::Malformed("there is no extent tree".into()))?;
    // The leaf's own item says when it was written.
    let first = Key::new(leaf.0, Kind(0), 0);
    let cursor = Cursor::seek(&**view.store(), TreeId::EXTENT, root, &first)?;
    let unknown = Error::Extents { at: leaf, what: "no item for a leaf that refers to data" };
    let (key, bytes) = cursor.key().zip(cursor.item()).ok_or(unknown)?;
    let item = ExtentItem::parse(&key, bytes).map_err(|source| Error::Item {
        tree: TreeId::EXTENT,
        key,
        source,
    })?;
    let ptr = NodePtr { logical: leaf, generation: item.generation, level: 0 };
    let node = view.store().node(TreeId::FS, &Expect::root(ptr))?;
    let mut found = Vec::new();
    for slot in 0..node.len() {
        let key = node.key(slot);
        if key.kind != Kind::EXTENT_DATA {
            continue;
        }
        let item = FileExtent::parse(node.item(slot)).map_err(|source| Error::Item {
            tree: node.owner(),
            key,
            source,
        })?;
        if let Some(region) = item.region()
            && region.extent() == extent
        {
            found.push((Ino(key.objectid), key.offset.wrapping_sub(region.offset)));
        }
    }
    Ok(found)
}
