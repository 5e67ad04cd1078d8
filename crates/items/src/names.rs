//! Names in directories: the two items that each name has.
//!
//! # On disk
//!
//! ```text
//! (dir, DIR_ITEM, hash of the name)   every entry with a name of that hash, in sequence
//! (dir, DIR_INDEX, index)             the entry that was made with that index
//! ```
//!
//! The first item finds a name. The second item lists names in the order of their creation. A
//! directory's length is twice the sum of its names' lengths.

use buttress_format::{DirEntry, Ino, Key, Kind, TreeId, limits, name_hash};
use buttress_txn::View;

use crate::attr::{FileKind, InodeId};
use crate::batch::{Batch, Change, Current, NOW, entry_len};
use crate::error::{Error, NameError, Result};
use crate::roots;

/// Bytes of a node that an item cannot use: the header of the node, and the head of the item.
const NODE_OVERHEAD: usize = 101 + 25;

/// Longest item of a tree with nodes of this length.
pub fn item_len_max(nodesize: u32) -> usize {
    nodesize as usize - NODE_OVERHEAD
}

/// Refuses names that the format cannot store, and names with a fixed meaning (`.`, `..`).
pub fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > limits::NAME_MAX {
        return Err(NameError::TooLong.into());
    }
    match name {
        b"" => Err(Error::invalid("an empty name")),
        b"." | b".." => Err(NameError::Exists.into()),
        _ if name.contains(&b'/') || name.contains(&0) => {
            Err(Error::invalid("a name with a slash or a zero byte"))
        }
        _ => Ok(()),
    }
}

/// The key of the item that holds the entries of all names with the same hash as `name`.
pub fn item_key(dir: Ino, name: &[u8]) -> Key {
    Key::new(dir.0, Kind::DIR_ITEM, name_hash(name))
}

/// Reads the entries of an item.
pub fn parse(tree: TreeId, ino: Ino, bytes: &[u8]) -> Result<Vec<DirEntry>> {
    DirEntry::parse_all(bytes).map_err(|source| Error::Format { tree, ino, source })
}

/// Finds a name.
pub fn find(view: &View, dir: InodeId, name: &[u8]) -> Result<Option<DirEntry>> {
    let Some(item) = view.get(dir.tree, &item_key(dir.ino, name))? else { return Ok(None) };
    let entries = parse(dir.tree, dir.ino, &item)?;
    Ok(entries.into_iter().find(|entry| entry.name == name))
}

/// The index of a name, for callers that have no reference (`inode_refs`) to read it from. Searches
/// the whole directory.
pub fn index_of(view: &View, dir: InodeId, name: &[u8]) -> Result<Option<u64>> {
    let low = Key::new(dir.ino.0, Kind::DIR_INDEX, 0);
    let high = Key::new(dir.ino.0, Kind::DIR_INDEX, u64::MAX);
    for found in view.range(dir.tree, low, high) {
        let (key, item) = found?;
        if parse(dir.tree, dir.ino, &item)?.iter().any(|entry| entry.name == name) {
            return Ok(Some(key.offset));
        }
    }
    Ok(None)
}

/// The target of an entry: an inode of the same tree, a subvolume, or a subvolume that is missing
/// here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// An inode of the same tree.
    Inode(InodeId),
    /// A subvolume that has its name here.
    Subvolume(TreeId),
    /// A subvolume that has its name elsewhere: its directory was snapshotted.
    Stub,
}

/// Reads an entry's location.
pub fn target(view: &View, dir: InodeId, entry: &DirEntry) -> Result<Target> {
    match entry.location.kind {
        Kind::INODE_ITEM => {
            Ok(Target::Inode(InodeId { tree: dir.tree, ino: Ino(entry.location.objectid) }))
        }
        Kind::ROOT_ITEM => {
            let tree = TreeId(entry.location.objectid);
            // The root tree has one entry, for the default subvolume. The subvolume's real name is
            // in another directory.
            let here = dir.tree == TreeId::ROOT || roots::is_here(view, tree, dir, &entry.name)?;
            Ok(if here { Target::Subvolume(tree) } else { Target::Stub })
        }
        _ => Err(Error::Item {
            tree: dir.tree,
            ino: dir.ino,
            what: "an entry leads neither to an inode nor to a subvolume",
        }),
    }
}

/// The type of the inode according to an entry.
pub fn kind(entry: &DirEntry) -> Option<FileKind> {
    FileKind::from_mode(entry.kind.mode_bits())
}

/// An entry for the name of an inode.
pub fn entry(name: &[u8], ino: Ino, kind: FileKind) -> DirEntry {
    DirEntry {
        location: Key::new(ino.0, Kind::INODE_ITEM, 0),
        transid: NOW,
        kind: buttress_format::FileKind::from_mode(kind.mode_bits()),
        name: name.to_vec(),
        data: Vec::new(),
    }
}

/// The length that a name adds to its directory.
pub fn size_of(name: &[u8]) -> u64 {
    2 * name.len() as u64
}

impl Batch {
    /// The entries that share an item with a name.
    fn entries(&self, view: &View, dir: Ino, key: &Key) -> Result<Vec<DirEntry>> {
        match self.current(view, key)? {
            Current::Absent => Ok(Vec::new()),
            Current::Mine(Change::Names(entries)) => Ok(entries.clone()),
            Current::Mine(_) => unreachable!("entries are put as entries"),
            Current::Item(item) => parse(self.tree(), dir, &item),
        }
    }

    /// Finds a name as the batch sees the directory, with the batch's own changes.
    pub fn find_name(&self, view: &View, dir: Ino, name: &[u8]) -> Result<Option<DirEntry>> {
        let entries = self.entries(view, dir, &item_key(dir, name))?;
        Ok(entries.into_iter().find(|entry| entry.name == name))
    }

    /// Adds a name to a directory. Fails if the name exists.
    pub fn add_name(
        &mut self,
        view: &View,
        dir: Ino,
        index: u64,
        entry: DirEntry,
        item_len_max: usize,
    ) -> Result<()> {
        let key = item_key(dir, &entry.name);
        let mut entries = self.entries(view, dir, &key)?;
        if entries.iter().any(|there| there.name == entry.name) {
            return Err(NameError::Exists.into());
        }
        let len: usize = entries.iter().map(entry_len).sum();
        if len + entry_len(&entry) > item_len_max {
            return Err(NameError::TooBig.into());
        }
        self.set(Key::new(dir.0, Kind::DIR_INDEX, index), Change::Names(vec![entry.clone()]));
        entries.push(entry);
        self.set(key, Change::Names(entries));
        Ok(())
    }

    /// Removes a name from a directory.
    pub fn remove_name(&mut self, view: &View, dir: Ino, index: u64, name: &[u8]) -> Result<()> {
        let key = item_key(dir, name);
        let mut entries = self.entries(view, dir, &key)?;
        let there = entries.iter().position(|entry| entry.name == name);
        entries.remove(there.ok_or(NameError::NotFound)?);
        let rest = if entries.is_empty() { Change::Delete } else { Change::Names(entries) };
        self.set(key, rest);
        self.set(Key::new(dir.0, Kind::DIR_INDEX, index), Change::Delete);
        Ok(())
    }
}
