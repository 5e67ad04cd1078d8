//! The users of an extent are the items of files, in every tree, that point to the extent.
//!
//! # Invariants
//!
//! - **L5** Back references only say which files to check; the file's extent item decides. If a
//!   reference disappears after it was read, the check finds no item. The next round over the group
//!   finds an item that appears later (`relocate::L4`).

use std::collections::{BTreeSet, HashMap};

use buttress_format::{BackRef, Extent, ExtentItem, FileExtent, Ino, Key, Kind, Logical, TreeId};
use buttress_tree::{Cursor, Expect, NodePtr, NodeSource, Store};

use buttress_txn::{Error, Result, View};

/// One place that uses a data extent.
pub(super) struct ExtentUser {
    pub(super) tree: TreeId,
    pub(super) key: Key,
    pub(super) item: FileExtent,
    pub(super) offset: u64,
}

/// The inodes to lock while an extent is moved.
pub(super) fn inodes_of(users: &[ExtentUser]) -> BTreeSet<(TreeId, Ino)> {
    users.iter().map(|user| (user.tree, Ino(user.key.objectid))).collect()
}

/// Every subvolume, and the data relocation tree, which has files too.
pub(super) fn file_trees(view: &View) -> Result<Vec<TreeId>> {
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

/// A place at which a file may use an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    ino: Ino,
    /// The offset in the file at which the extent would begin, in bytes.
    pub(super) offset: u64,
    /// [`TreeId::ROOT`] for a file in the root tree; [`TreeId::FS`] stands for all trees of files.
    pub(super) root: TreeId,
}

impl Place {
    /// The first and the last key of items that may point to the extent.
    pub(super) fn keys(&self, extent: Extent) -> (Key, Key) {
        let from = if self.offset > u64::MAX / 2 { 0 } else { self.offset };
        let to = self.offset.wrapping_add(extent.len.max(128 << 10));
        let key = |offset| Key::new(self.ino.0, Kind::EXTENT_DATA, offset);
        (key(from), key(to))
    }
}

/// Every file extent item in these trees that points to an extent. The next round over the group
/// finds items in trees that appear later (`relocate::L4`).
pub(super) fn users(view: &View, trees: &[TreeId], extent: Extent) -> Result<Vec<ExtentUser>> {
    let mut found = Vec::new();
    for place in Places::new(view)?.of(extent)? {
        // The version 1 free-space cache lies in files of the root tree itself.
        let alone = [place.root];
        let trees = if place.root == TreeId::ROOT { &alone[..] } else { trees };
        let (low, high) = place.keys(extent);
        for &tree in trees {
            for entry in view.range(tree, low, high) {
                let (key, bytes) = entry?;
                let item = FileExtent::parse(&bytes).map_err(|source| Error::Item {
                    tree,
                    key,
                    source,
                })?;
                let Some(region) = item.region() else { continue };
                let begins = key.offset.wrapping_sub(region.offset);
                if region.extent() == extent && begins == place.offset {
                    found.push(ExtentUser { tree, key, item, offset: place.offset });
                }
            }
        }
    }
    Ok(found)
}

/// The number of leaves that [`Places`] keeps, so that its memory is bounded.
const LEAVES_MAX: usize = 1024;

/// Looks for places of extents that come in ascending order. A leaf that several extents name is
/// read once.
pub(super) struct Places<'v> {
    view: &'v View,
    root: NodePtr,
    /// A position in the extent tree; `None` before the first search.
    extents: Option<Cursor<'v, Store>>,
    /// The extents of each leaf and the places where files use them, by the leaf's address.
    leaves: HashMap<Logical, Vec<(Extent, Ino, u64)>>,
}

impl<'v> Places<'v> {
    pub(super) fn new(view: &'v View) -> Result<Self> {
        let root = view
            .committed_root(TreeId::EXTENT)?
            .ok_or_else(|| Error::Malformed("there is no extent tree".into()))?;
        Ok(Self { view, root, extents: None, leaves: HashMap::new() })
    }

    /// The places that may use an extent, found by its references and by the items of leaves that
    /// share it.
    pub(super) fn of(&mut self, extent: Extent) -> Result<BTreeSet<Place>> {
        let malformed = |key: Key, source| Error::Item { tree: TreeId::EXTENT, key, source };
        let first = Key::new(extent.start.0, Kind::EXTENT_ITEM, extent.len);
        let (store, root) = (&**self.view.store(), self.root);
        let extents = match &mut self.extents {
            Some(extents) => {
                extents.seek_on(&first)?;
                extents
            }
            none => none.insert(Cursor::seek(store, TreeId::EXTENT, root, &first)?),
        };
        let mut refs = Vec::new();
        while let Some((key, bytes)) = extents.key().zip(extents.item()) {
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
            extents.advance()?;
        }
        let mut places = BTreeSet::new();
        for entry in refs {
            match entry {
                BackRef::Data { root, ino, offset, .. } => {
                    let root = if root == TreeId::ROOT { root } else { TreeId::FS };
                    places.insert(Place { ino, offset, root });
                }
                BackRef::SharedData { parent, .. } => {
                    let leaf = self.leaf(parent)?;
                    let first = leaf.partition_point(|(other, ..)| other.start < extent.start);
                    let mine = leaf[first..].iter().take_while(|(other, ..)| *other == extent);
                    places.extend(mine.map(|&(_, ino, offset)| Place {
                        ino,
                        offset,
                        root: TreeId::FS,
                    }));
                }
                _ => {}
            }
        }
        Ok(places)
    }

    /// The extents of a leaf in ascending order, and where files use them.
    fn leaf(&mut self, leaf: Logical) -> Result<&[(Extent, Ino, u64)]> {
        if !self.leaves.contains_key(&leaf) {
            let found = in_leaf(self.view, leaf)?;
            if self.leaves.len() >= LEAVES_MAX {
                self.leaves.clear();
            }
            self.leaves.insert(leaf, found);
        }
        Ok(self.leaves.get(&leaf).map_or(&[], Vec::as_slice))
    }
}

/// The extents of a leaf in ascending order, and where files use them.
fn in_leaf(view: &View, leaf: Logical) -> Result<Vec<(Extent, Ino, u64)>> {
    let root = view
        .committed_root(TreeId::EXTENT)?
        .ok_or_else(|| Error::Malformed("there is no extent tree".into()))?;
    // The extent item of the leaf has the leaf's generation.
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
        if let Some(region) = item.region() {
            let offset = key.offset.wrapping_sub(region.offset);
            found.push((region.extent(), Ino(key.objectid), offset));
        }
    }
    found.sort_unstable_by_key(|(extent, ino, offset)| (extent.start, extent.len, *ino, *offset));
    Ok(found)
}
