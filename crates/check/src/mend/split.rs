//! Makes room in full leaves: the items are divided between the leaf and a new leaf.
//!
//! # Invariants
//!
//! - **SP1** A new node lies in a metadata chunk where no tree, no log, no recorded extent and no
//!   superblock is. Nodes of trees that are about to be replaced count as used.
//! - **SP2** A node is split only if its only reference is from the tree for which the node was
//!   written. So the new node has one reference as well, and no other node needs a pointer to the
//!   new node.
//! - **SP3** The same fix records a new node: in the extent tree, in the used bytes of its block
//!   group and of the volume, and in the free-space tree. If the free-space tree cannot be changed,
//!   it is marked as invalid, and the next mount makes it anew. On a volume with a block-group
//!   tree, nothing is split in this case.

use std::sync::Arc;

use buttress_format::header::{HEADER_LEN, Header, PTR_LEN};
use buttress_format::{
    BackRef, BlockGroupItem, Chunk, CompatRo, Extent, ExtentFlags, ExtentItem, FreeSpaceInfo,
    Incompat, Key, Kind, Logical, RootItem, TreeId,
};
use buttress_tree::{Node, NodePtr, NodeSource};
use buttress_volume::Volume;
use buttress_volume::patch::{BYTES_USED_AT, CACHE_GENERATION_AT, COMPAT_RO_AT, write_superblocks};

use crate::error::Result;
use crate::mend::editor::{Editor, Items, leaf_of};
use crate::rebuild;

/// The most new nodes of one round.
const PLACES_MAX: usize = 4096;
/// The value of a superblock's cache generation that means that no free-space cache is valid.
const NO_CACHE: u64 = u64::MAX;

/// Pointers of a node above the leaves.
type Pointers = Vec<(Key, NodePtr)>;

impl Editor {
    /// Writes `items` to a leaf that has no room for all of them, and to a new leaf behind it.
    /// Returns whether that was possible.
    pub(super) fn split_leaf(&self, tree: TreeId, leaf: &Node, items: &Items) -> Result<bool> {
        let Some((cut, left)) = cut(leaf, items) else { return Ok(false) };
        let right = items[cut..].to_vec();
        let Some((ptr, record)) = self.beside(tree, leaf)? else { return Ok(false) };
        let Some(bytes) = leaf_of(&moved(leaf.bytes(), ptr.logical)?, &right) else {
            return Ok(false);
        };
        self.write_node(leaf.ptr(), left)?;
        self.write_node(ptr, bytes)?;
        self.add_pointer(tree, 1, right[0].0, ptr, &record)
    }

    /// Adds a pointer to a new node, then records the node. `level` is the level of the parent.
    fn add_pointer(
        &self,
        tree: TreeId,
        level: u8,
        first: Key,
        ptr: NodePtr,
        record: &ExtentItem,
    ) -> Result<bool> {
        let root = self.root(tree)?;
        let is_added = match root.level < level {
            true => self.grow(tree, root, (first, ptr))?,
            false => self.add_below(tree, level, (first, ptr))?,
        };
        Ok(is_added && self.record(first, ptr, record)?)
    }

    fn add_below(&self, tree: TreeId, level: u8, new: (Key, NodePtr)) -> Result<bool> {
        let node = self.at_level(tree, level, &new.0)?;
        let mut all: Pointers =
            (0..node.len()).map(|slot| (node.key(slot), node.child(slot))).collect();
        let at = all.partition_point(|(key, _)| *key < new.0);
        all.insert(at, new);
        if all.len() <= self.geometry.ptrs_max() {
            self.write_node(node.ptr(), pointing(node.bytes(), &all)?)?;
            return Ok(true);
        }
        let Some((ptr, record)) = self.beside(tree, &node)? else { return Ok(false) };
        let right = all.split_off(all.len() / 2);
        self.write_node(node.ptr(), pointing(node.bytes(), &all)?)?;
        self.write_node(ptr, pointing(&moved(node.bytes(), ptr.logical)?, &right)?)?;
        self.add_pointer(tree, level + 1, right[0].0, ptr, &record)
    }

    /// Puts a new root above the old one.
    fn grow(&self, tree: TreeId, root: NodePtr, new: (Key, NodePtr)) -> Result<bool> {
        // The superblock names the roots of these trees, and a split does not change these fields.
        if tree == TreeId::ROOT || tree == TreeId::CHUNK {
            return Ok(false);
        }
        let Some((key, bytes)) = self.root_item(tree)? else { return Ok(false) };
        let Ok(mut item) = RootItem::parse(&bytes) else { return Ok(false) };
        let old = self.store().root(tree, root)?;
        let Some((beside, record)) = self.beside(tree, &old)? else { return Ok(false) };
        let above = NodePtr { level: root.level + 1, ..beside };
        if above.level >= buttress_format::limits::MAX_LEVEL {
            return Ok(false);
        }
        let mut header = Header::parse(old.bytes())?;
        (header.bytenr, header.level) = (above.logical, above.level);
        let mut bytes = vec![0; old.bytes().len()];
        header.write_to(&mut bytes);
        let first = old.key(0);
        self.write_node(above, pointing(&bytes, &vec![(first, root), new])?)?;
        (item.bytenr, item.level) = (above.logical, above.level);
        let is_named = self.edit_leaf(TreeId::ROOT, &key, |items| {
            items.iter_mut().filter(|(other, _)| *other == key).for_each(|(_, bytes)| {
                *bytes = item.to_bytes();
            });
        })?;
        Ok(is_named && self.record(first, above, &record)?)
    }

    /// The node of a level that a search for a key goes through.
    fn at_level(&self, tree: TreeId, level: u8, key: &Key) -> Result<Arc<Node>> {
        let store = self.store();
        let mut node = store.root(tree, self.root(tree)?)?;
        while node.level() > level {
            node = store.node(tree, &node.expect_child(node.child_slot(key)))?;
        }
        Ok(node)
    }

    /// The place of a new node beside `node`, and the record of the new node. `None` if `node` may
    /// not be split (SP2), or there is no place.
    fn beside(&self, tree: TreeId, node: &Node) -> Result<Option<(NodePtr, ExtentItem)>> {
        let superblock = &self.superblock;
        // A mixed chunk can hold data that only the extent tree still knows. With simple quotas, a
        // new node needs more than an extent item. If there is a log, a new node could overwrite
        // nodes that a replay needs.
        let is_odd = superblock.incompat.has(Incompat::MIXED_GROUPS)
            || superblock.incompat.has(Incompat::SIMPLE_QUOTA)
            || superblock.log_root.0 != 0;
        if is_odd || tree == TreeId::CHUNK {
            return Ok(None);
        }
        let Some(record) = self.own_record(tree, node)? else { return Ok(None) };
        Ok(self.place()?.map(|logical| (NodePtr { logical, ..node.ptr() }, record)))
    }

    /// Whether no other tree uses the nodes on the path to a key.
    pub(super) fn owns_path(&self, tree: TreeId, key: &Key) -> Result<bool> {
        let store = self.store();
        let mut node = store.root(tree, self.root(tree)?)?;
        loop {
            if self.own_record(tree, &node)?.is_none() {
                return Ok(false);
            }
            if node.level() == 0 {
                return Ok(true);
            }
            node = store.node(tree, &node.expect_child(node.child_slot(key)))?;
        }
    }

    /// The extent item of a node that one tree uses alone. `None` for any other node.
    fn own_record(&self, tree: TreeId, node: &Node) -> Result<Option<ExtentItem>> {
        if node.owner() != tree {
            return Ok(None);
        }
        let mut found = None;
        for key in self.keys(node.logical(), node.level()) {
            let Some(bytes) = self.get(TreeId::EXTENT, &key)? else { continue };
            found = ExtentItem::parse(&key, &bytes).ok();
        }
        let own = [BackRef::TreeBlock { root: tree }];
        let is_own = |item: &ExtentItem| {
            item.refs == 1 && item.flags == ExtentFlags::TREE_BLOCK && item.inline == own
        };
        Ok(found.filter(is_own))
    }

    /// The keys that the extent item of a node can have: the new kind and the old kind.
    fn keys(&self, at: Logical, level: u8) -> [Key; 2] {
        let len = u64::from(self.geometry.nodesize);
        [
            Key::new(at.0, Kind::METADATA_ITEM, u64::from(level)),
            Key::new(at.0, Kind::EXTENT_ITEM, len),
        ]
    }

    /// Records a new node (SP3).
    fn record(&self, first: Key, ptr: NodePtr, like: &ExtentItem) -> Result<bool> {
        let [skinny, plain] = self.keys(ptr.logical, ptr.level);
        let is_skinny = self.superblock.incompat.has(Incompat::SKINNY_METADATA);
        let mut item = like.clone();
        item.generation = ptr.generation;
        item.tree_block = (!is_skinny).then_some((first, ptr.level));
        let key = if is_skinny { skinny } else { plain };
        let bytes = item.to_bytes();
        let is_put = self.edit_leaf(TreeId::EXTENT, &key, |items| {
            let at = items.partition_point(|(other, _)| *other < key);
            items.insert(at, (key, bytes));
        })?;
        Ok(is_put && self.count(ptr.logical)?)
    }

    /// Counts a new node for its block group and for the volume.
    fn count(&self, at: Logical) -> Result<bool> {
        let len = u64::from(self.geometry.nodesize);
        let Some(chunk) = self.volume.chunk_at(at) else { return Ok(false) };
        let has_own = self.superblock.compat_ro.has(CompatRo::BLOCK_GROUP_TREE);
        let tree = if has_own { TreeId::BLOCK_GROUP } else { TreeId::EXTENT };
        let key = Key::new(chunk.logical.0, Kind::BLOCK_GROUP_ITEM, chunk.len);
        let Some(bytes) = self.get(tree, &key)? else { return Ok(false) };
        let Ok(mut group) = BlockGroupItem::parse(&bytes) else { return Ok(false) };
        let Some(used) = group.used.checked_add(len) else { return Ok(false) };
        group.used = used;
        let is_put = self.edit_leaf(tree, &key, |items| {
            items.iter_mut().filter(|(other, _)| *other == key).for_each(|(_, bytes)| {
                *bytes = group.to_bytes().to_vec();
            });
        })?;
        let is_noted = self.take_free(&chunk, Extent::new(at, len))?;
        if !is_noted && has_own {
            // Linux mounts no volume that has a block-group tree and an invalid free-space tree.
            return Ok(false);
        }
        for device in &self.devices {
            let now = Volume::read_superblock(&**device)?;
            let used = now.bytes_used.saturating_add(len);
            let mut changes = vec![(BYTES_USED_AT, used.to_le_bytes().to_vec())];
            if !is_noted {
                changes.push((COMPAT_RO_AT, Vec::new()));
            }
            // Zero means that the volume never has a cache.
            if now.cache_generation != 0 {
                changes.push((CACHE_GENERATION_AT, NO_CACHE.to_le_bytes().to_vec()));
            }
            write_superblocks(&**device, &changes)?;
        }
        Ok(is_put)
    }

    /// Takes the place of a new node out of the free-space tree. Returns whether that was possible.
    fn take_free(&self, chunk: &Chunk, taken: Extent) -> Result<bool> {
        let flags = self.superblock.compat_ro;
        if !flags.has(CompatRo::FREE_SPACE_TREE) || !flags.has(CompatRo::FREE_SPACE_TREE_VALID) {
            return Ok(true);
        }
        let tree = TreeId::FREE_SPACE;
        let info_key = Key::new(chunk.logical.0, Kind::FREE_SPACE_INFO, chunk.len);
        let Some(bytes) = self.get(tree, &info_key)? else { return Ok(false) };
        let Ok(info) = FreeSpaceInfo::parse(&bytes) else { return Ok(false) };
        let after = Key::new(taken.start.0 + 1, Kind(0), 0);
        let Some(run) = self.last_below(tree, &after)? else { return Ok(false) };
        let free = Extent::new(Logical(run.objectid), run.offset);
        let is_in = free.start.checked_add(free.len).is_some_and(|end| end >= taken.end());
        if info.uses_bitmaps() || run.kind != Kind::FREE_SPACE_EXTENT || !is_in {
            return Ok(false);
        }
        let sides = [
            Extent::new(free.start, taken.start.distance(free.start)),
            Extent::new(taken.end(), free.end().distance(taken.end())),
        ];
        let left = sides.into_iter().filter(|side| side.len > 0);
        let left: Items = left
            .map(|side| (Key::new(side.start.0, Kind::FREE_SPACE_EXTENT, side.len), Vec::new()))
            .collect();
        let (more, fewer) = (left.len() as u32, 1);
        let is_cut = self.edit_leaf(tree, &run, |items| {
            if let Some(at) = items.iter().position(|(key, _)| *key == run) {
                items.splice(at..=at, left);
            }
        })?;
        // If the edit has split a leaf of this tree, the new leaf has taken free space and changed
        // the count. So the count is read again.
        let is_counted = self.edit_leaf(tree, &info_key, |items| {
            for (_, bytes) in items.iter_mut().filter(|(key, _)| *key == info_key) {
                if let Ok(mut info) = FreeSpaceInfo::parse(bytes) {
                    let count = info.extent_count.saturating_add(more).saturating_sub(fewer);
                    info.extent_count = count;
                    *bytes = info.to_bytes();
                }
            }
        })?;
        Ok(is_cut && is_counted)
    }

    /// A place for a new node (SP1).
    fn place(&self) -> Result<Option<Logical>> {
        if self.places.borrow().is_none() {
            // A node that cannot be read would seem to be free space. So if `gaps` fails, no place
            // is used.
            let gaps = rebuild::gaps(&self.devices, &self.options).unwrap_or_default();
            *self.places.borrow_mut() = Some(self.places_in(gaps));
        }
        loop {
            let next = self.places.borrow_mut().as_mut().and_then(Vec::pop);
            let Some(place) = next else { return Ok(None) };
            if self.is_unrecorded(place)? {
                return Ok(Some(place));
            }
        }
    }

    /// Places in gaps, the best last. The best place is the end of the largest gap, because a node
    /// of an older root is least likely there. A rescue could need such a node.
    fn places_in(&self, mut gaps: Vec<Extent>) -> Vec<Logical> {
        let len = u64::from(self.geometry.nodesize);
        gaps.sort_by_key(|gap| std::cmp::Reverse(gap.len));
        let each = |gap: Extent| {
            let first = gap.start.0.next_multiple_of(len);
            let count = gap.end().0.saturating_sub(first) / len;
            (0..count).rev().map(move |index| Logical(first + index * len))
        };
        let mut places: Vec<Logical> = gaps.into_iter().flat_map(each).take(PLACES_MAX).collect();
        places.reverse();
        places
    }

    fn is_unrecorded(&self, place: Logical) -> Result<bool> {
        let len = u64::from(self.geometry.nodesize);
        let first = Key::new(place.0.saturating_sub(len - 1), Kind(0), 0);
        let items = self.items_from(TreeId::EXTENT, first, |key| key.objectid < place.0 + len)?;
        let is_extent = |key: &Key| matches!(key.kind, Kind::EXTENT_ITEM | Kind::METADATA_ITEM);
        Ok(!items.iter().any(|(key, _)| is_extent(key)))
    }
}

/// Returns where items are cut so that each half fits a leaf, and the bytes of the first half.
fn cut(leaf: &Node, items: &Items) -> Option<(usize, Vec<u8>)> {
    let sizes = items.iter().map(|(_, item)| item.len() + buttress_format::header::ITEM_LEN);
    let total: usize = sizes.clone().sum();
    let mut reached = 0;
    let half = sizes.take_while(|size| {
        reached += size;
        reached * 2 <= total
    });
    let cut = half.count().max(1);
    let (left, right) = items.split_at_checked(cut)?;
    let fits = |part: &[(Key, Vec<u8>)]| leaf_of(leaf.bytes(), &part.to_vec());
    let (left, _) = fits(left).zip(fits(right).filter(|_| !right.is_empty()))?;
    Some((cut, left))
}

/// The bytes of a node with another address in its header.
fn moved(bytes: &[u8], to: Logical) -> Result<Vec<u8>> {
    let mut header = Header::parse(bytes)?;
    header.bytenr = to;
    let mut bytes = bytes.to_vec();
    header.write_to(&mut bytes);
    Ok(bytes)
}

/// The bytes of a node with the header of `old` and these pointers.
fn pointing(old: &[u8], pointers: &Pointers) -> Result<Vec<u8>> {
    let mut header = Header::parse(old)?;
    header.nritems = pointers.len() as u32;
    let mut bytes = vec![0; old.len()];
    header.write_to(&mut bytes);
    for (slot, (key, ptr)) in pointers.iter().enumerate() {
        let at = HEADER_LEN + slot * PTR_LEN;
        key.write_to(&mut bytes[at..]);
        let words = [ptr.logical.0, ptr.generation.0].map(u64::to_le_bytes).concat();
        bytes[at + Key::LEN..at + PTR_LEN].copy_from_slice(&words);
    }
    Ok(bytes)
}
