//! Orphan items of inodes without names. The inodes are removed when their last user has gone, or
//! at the next mount.
//!
//! # Invariants
//!
//! - **N1** The operation that removes the last name of an inode puts its orphan item in the same
//!   handle. The handle that deletes the inode item deletes the orphan item. After a crash in
//!   between, the next mount finds the inode by its orphan item and removes it.

use buttress_format::{Ino, Key, Kind, TreeId, ids};
use buttress_txn::View;

use crate::attr::InodeId;
use crate::error::Result;

/// The key of the orphan item of an inode without names.
pub fn key(ino: Ino) -> Key {
    Key::new(ids::ORPHAN, Kind::ORPHAN_ITEM, ino.0)
}

/// The orphans of a subvolume.
pub fn list(view: &View, tree: TreeId) -> Result<Vec<InodeId>> {
    let items = view.range(tree, key(Ino(0)), key(Ino(u64::MAX)));
    items.map(|found| Ok(InodeId { tree, ino: Ino(found?.0.offset) })).collect()
}
