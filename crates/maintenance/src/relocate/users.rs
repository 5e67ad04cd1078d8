//! The users of an extent: the items of files that point to it, in every tree.
//!
//! # Invariants
//!
//! - **L5** Back references only say which files to check; the file's extent item decides. If a
//!   reference disappears meanwhile, the check finds no item. The next round over the group finds
//!   an item that appears meanwhile (`relocate::L4`).

use std::collections::BTreeSet;

use buttress_format::{BackRef, Extent, ExtentItem, FileExtent, Ino, Key, Kind, Logical, TreeId};
use buttress_tree::{Cursor, Expect, NodePtr, NodeSource};

use buttress_txn::{Error, Result, View};

/// One place that uses a data extent.
pub(super) struct Use {
    pub(super) tree: TreeId,
    pub(super) key: Key,
    pub(super) item: FileExtent,
    pub(super) offset: u64,
}

/// The inodes to lock while an extent is moved.
pub(super) fn inodes_of(users: &[Use]) -> BTreeSet<(TreeId, Ino)> {
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

/// Every file extent item in these trees that points to an extent. The next round over the group
/// finds items in trees that appear later (`relocate::L4`).
pub(super) fn users(view: &View, trees: &[TreeId], extent: Extent) -> Result<Vec<Use>> {
    let mut found = Vec::new();
    for (ino, offset, root) in places(view, extent)? {
        // The version 1 free-space cache lies in files of the root tree itself.
        let alone = [root];
        let trees = if root == TreeId::ROOT { &alone[..] } else { trees };
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

/// The files and offsets that may use an extent, by its references and those of leaves.
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

/// The files that refer to an extent in a leaf, each with the offset at which the extent would
/// begin.
fn in_leaf(view: &View, leaf: Logical, extent: Extent) -> Result<Vec<(Ino, u64)>> {
    let root = view
        .committed_root(TreeId::EXTENT)?
        .ok_or_else(|| Error::Malformed("there is no extent tree".into()))?;
    // The leaf's extent item has its generation.
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
