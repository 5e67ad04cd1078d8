//! Orphan items: inodes without names, found at mount and removed when their last user has gone.
//!
//! # Invariants
//!
//! - **N1** The operation that takes the last name of an inode puts its orphan item in the same
//!   handle. The handle that deletes the inode item deletes the orphan item. After a crash in
//!   between, the orphan item names an inode, which the next mount removes.

use buttress_format::{Ino, Key, Kind, TreeId, ids};
use buttress_txn::View;

use crate::attr::InodeId;
use crate::error::Result;

/// The key under which an inode without names is found.
pub(crate) fn key(ino: Ino) -> Key {
    Key::new(ids::ORPHAN, Kind::ORPHAN_ITEM, ino.0)
}

/// The orphans of a subvolume.
pub(crate) fn list(view: &View, tree: TreeId) -> Result<Vec<InodeId>> {
    let items = view.range(tree, key(Ino(0)), key(Ino(u64::MAX)));
    items.map(|found| Ok(InodeId { tree, ino: Ino(found?.0.offset) })).collect()
}
