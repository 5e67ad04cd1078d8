//! Extended attributes as items: names and values beside an inode.
//!
//! # On disk
//!
//! `(ino, XATTR_ITEM, hash of the name)` holds every attribute with a name of that hash, in the
//! layout of directory entries. Name and value together must fit one item.

use buttress_format::{DirEntry, FileKind, Ino, Key, Kind, name_hash};
use buttress_txn::View;

use crate::attr::InodeId;
use crate::batch::NOW;
use crate::error::Result;
use crate::names;

/// The key of the item that holds the attributes of all names with the same hash as `name`.
pub fn key(ino: Ino, name: &[u8]) -> Key {
    Key::new(ino.0, Kind::XATTR_ITEM, name_hash(name))
}

/// An attribute in the form of its item.
pub fn attribute(name: &[u8], value: &[u8]) -> DirEntry {
    DirEntry {
        location: Key::new(0, Kind(0), 0),
        transid: NOW,
        kind: FileKind::Xattr,
        name: name.to_vec(),
        data: value.to_vec(),
    }
}

/// The attributes that share an item with a name.
pub fn entries(view: &View, id: InodeId, name: &[u8]) -> Result<Vec<DirEntry>> {
    match view.get(id.tree, &key(id.ino, name))? {
        None => Ok(Vec::new()),
        Some(item) => names::parse(id.tree, id.ino, &item),
    }
}

/// Reads an attribute.
pub fn read(view: &View, id: InodeId, name: &[u8]) -> Result<Option<Vec<u8>>> {
    let found = entries(view, id, name)?.into_iter().find(|entry| entry.name == name);
    Ok(found.map(|entry| entry.data))
}
