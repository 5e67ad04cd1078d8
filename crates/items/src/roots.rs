//! Root items of subvolumes, and the places of their names, as readers find them.

use buttress_format::{Ino, Key, Kind, RootItem, RootRef, TreeId};
use buttress_txn::View;

use crate::attr::InodeId;
use crate::error::{Error, Result};

/// The root item of a subvolume.
pub fn root_item(view: &View, tree: TreeId) -> Result<Option<RootItem>> {
    Ok(root_entry(view, tree)?.map(|(_, item)| item))
}

/// The root item of a subvolume that was not deleted, and its key.
pub fn root_entry(view: &View, tree: TreeId) -> Result<Option<(Key, RootItem)>> {
    if !tree.is_fs_tree() {
        return Ok(None);
    }
    let low = Key::new(tree.0, Kind::ROOT_ITEM, 0);
    let high = Key::new(tree.0, Kind::ROOT_ITEM, u64::MAX);
    let Some((key, item)) = view.at_or_before(TreeId::ROOT, &low, &high)? else { return Ok(None) };
    let item = RootItem::parse(&item).map_err(|source| damaged(tree, source))?;
    Ok((item.refs > 0).then_some((key, item)))
}

/// The directory that contains a subvolume's name, and the name. `None` for the top level.
pub fn place(view: &View, tree: TreeId) -> Result<Option<(InodeId, Vec<u8>)>> {
    let low = Key::new(tree.0, Kind::ROOT_BACKREF, 0);
    let high = Key::new(tree.0, Kind::ROOT_BACKREF, u64::MAX);
    let Some((key, item)) = view.at_or_after(TreeId::ROOT, &low, &high)? else { return Ok(None) };
    let place = RootRef::parse(&item).map_err(|source| damaged(tree, source))?;
    Ok(Some((InodeId { tree: TreeId(key.offset), ino: place.dirid }, place.name)))
}

/// Whether `dir` contains this name of the subvolume. In a snapshot of the directory's subvolume
/// the answer is false: the snapshot has a copy of the entry, but no reference.
pub fn is_here(view: &View, tree: TreeId, dir: InodeId, name: &[u8]) -> Result<bool> {
    let key = Key::new(dir.tree.0, Kind::ROOT_REF, tree.0);
    let Some(item) = view.get(TreeId::ROOT, &key)? else { return Ok(false) };
    let place = RootRef::parse(&item).map_err(|source| damaged(tree, source))?;
    Ok(place.dirid == dir.ino && place.name == name)
}

/// The subvolumes with names inside this subvolume.
pub fn children(view: &View, tree: TreeId) -> Result<Vec<TreeId>> {
    let low = Key::new(tree.0, Kind::ROOT_REF, 0);
    let high = Key::new(tree.0, Kind::ROOT_REF, u64::MAX);
    let keys = view.range(TreeId::ROOT, low, high);
    keys.map(|found| Ok(TreeId(found?.0.offset))).collect()
}

/// The subvolumes that were not deleted, in ascending order, with or without names.
pub fn living(view: &View) -> Result<Vec<TreeId>> {
    let mut found = Vec::new();
    let (low, high) =
        (Key::new(TreeId::FS.0, Kind(0), 0), Key::new(Ino::LAST_FREE.0, Kind(u8::MAX), u64::MAX));
    for item in view.range(TreeId::ROOT, low, high) {
        let (key, bytes) = item?;
        let tree = TreeId(key.objectid);
        if key.kind == Kind::ROOT_ITEM && tree.is_fs_tree() {
            let item = RootItem::parse(&bytes).map_err(|source| damaged(tree, source))?;
            found.extend((item.refs > 0).then_some(tree));
        }
    }
    Ok(found)
}

fn damaged(tree: TreeId, source: buttress_format::Error) -> Error {
    Error::Format { tree: TreeId::ROOT, ino: Ino(tree.0), source }
}
