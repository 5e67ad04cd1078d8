//! Subvolumes: what their root items say, and where each has its name.

use std::collections::HashMap;

use buttress_format::{Ino, Key, Kind, RootFlags, RootItem, RootRef, TreeId};
use buttress_txn::View;
use parking_lot::RwLock;

use crate::attr::InodeId;
use crate::error::{Error, NameError, Result};

/// The number of every directory that stands for a subvolume that is not there.
pub(crate) const STUB: Ino = Ino(2);

/// What is remembered of a subvolume while the volume is mounted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TreeInfo {
    pub(crate) read_only: bool,
    pub(crate) root_dir: Ino,
}

#[derive(Debug, Default)]
pub(crate) struct Trees {
    known: RwLock<HashMap<TreeId, TreeInfo>>,
}

impl Trees {
    /// What is remembered of a subvolume; the flag says that this is the first time anybody asked.
    pub(crate) fn info(&self, view: &View, tree: TreeId) -> Result<(TreeInfo, bool)> {
        if let Some(info) = self.known.read().get(&tree) {
            return Ok((*info, false));
        }
        let item = root_item(view, tree)?.ok_or(NameError::NotFound)?;
        let root_dir = if item.root_dirid.0 == 0 { Ino::ROOT_DIR } else { item.root_dirid };
        let info = TreeInfo { read_only: item.flags & RootFlags::READONLY != 0, root_dir };
        let first = self.known.write().insert(tree, info).is_none();
        Ok((info, first))
    }
}

/// The root item of a subvolume.
pub(crate) fn root_item(view: &View, tree: TreeId) -> Result<Option<RootItem>> {
    if !tree.is_fs_tree() {
        return Ok(None);
    }
    let low = Key::new(tree.0, Kind::ROOT_ITEM, 0);
    let high = Key::new(tree.0, Kind::ROOT_ITEM, u64::MAX);
    let Some((_, item)) = view.at_or_before(TreeId::ROOT, &low, &high)? else { return Ok(None) };
    let item = RootItem::parse(&item).map_err(|source| damaged(tree, source))?;
    Ok((item.refs > 0).then_some(item))
}

/// The directory that has a subvolume's name, and the name; nothing for the top level.
pub(crate) fn place(view: &View, tree: TreeId) -> Result<Option<(InodeId, Vec<u8>)>> {
    let low = Key::new(tree.0, Kind::ROOT_BACKREF, 0);
    let high = Key::new(tree.0, Kind::ROOT_BACKREF, u64::MAX);
    let Some((key, item)) = view.at_or_after(TreeId::ROOT, &low, &high)? else { return Ok(None) };
    let place = RootRef::parse(&item).map_err(|source| damaged(tree, source))?;
    Ok(Some((InodeId { tree: TreeId(key.offset), ino: place.dirid }, place.name)))
}

/// Whether a subvolume has its name, this one, in this directory; a snapshot has the entry and not the name.
pub(crate) fn is_here(view: &View, tree: TreeId, dir: InodeId, name: &[u8]) -> Result<bool> {
    let key = Key::new(dir.tree.0, Kind::ROOT_REF, tree.0);
    let Some(item) = view.get(TreeId::ROOT, &key)? else { return Ok(false) };
    let place = RootRef::parse(&item).map_err(|source| damaged(tree, source))?;
    Ok(place.dirid == dir.ino && place.name == name)
}

/// The subvolumes that have their names in this one.
pub(crate) fn children(view: &View, tree: TreeId) -> Result<Vec<TreeId>> {
    let low = Key::new(tree.0, Kind::ROOT_REF, 0);
    let high = Key::new(tree.0, Kind::ROOT_REF, u64::MAX);
    let keys = view.range(TreeId::ROOT, low, high);
    keys.map(|found| Ok(TreeId(found?.0.offset))).collect()
}

fn damaged(tree: TreeId, source: buttress_format::Error) -> Error {
    Error::Format { tree: TreeId::ROOT, ino: Ino(tree.0), source }
}
