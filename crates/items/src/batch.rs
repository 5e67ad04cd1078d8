//! The changes of one operation, collected before its handle begins.
//!
//! # Place
//!
//! An operation reads the trees and collects its changes here. The operation also sees its own
//! changes, so that two changes of one item combine. Then it reserves their cost, and applies them
//! in one handle.

use std::collections::BTreeMap;

use buttress_format::{DirEntry, FileExtent, Generation, Key, TreeId};
use buttress_txn::{Cost, Handle, View};

use crate::error::Result;

/// A placeholder for the generation of the handle that applies the batch.
pub const NOW: Generation = Generation(u64::MAX);

/// A change of one item.
pub enum Change {
    /// The item goes.
    Delete,
    /// The item gets these bytes.
    Bytes(Vec<u8>),
    /// Entries with the generation in which they were made.
    Names(Vec<DirEntry>),
    /// An extent that the handle creates.
    Extent(FileExtent),
}

impl Change {
    fn len(&self) -> usize {
        match self {
            Self::Delete => 0,
            Self::Bytes(bytes) => bytes.len(),
            Self::Names(entries) => entries.iter().map(entry_len).sum(),
            Self::Extent(extent) => extent.to_bytes().len(),
        }
    }
}

/// Bytes of an entry on disk.
pub fn entry_len(entry: &DirEntry) -> usize {
    DirEntry::HEAD_LEN + entry.name.len() + entry.data.len()
}

/// Changes to the items of one tree.
pub struct Batch {
    tree: TreeId,
    /// An operation looks each item up before it changes it, and may change thousands of them.
    changes: BTreeMap<Key, Change>,
}

/// The content of an item as the batch sees it: the content in the trees, with the batch's own
/// changes.
pub enum Current<'b> {
    /// There is no such item.
    Absent,
    /// The batch puts the item.
    Mine(&'b Change),
    /// The trees have the item, and the batch leaves it.
    Item(buttress_tree::Item),
}

impl Batch {
    /// A batch without changes for one tree.
    #[must_use]
    pub fn new(tree: TreeId) -> Self {
        Self { tree, changes: BTreeMap::new() }
    }

    /// The tree that the batch changes.
    #[must_use]
    pub fn tree(&self) -> TreeId {
        self.tree
    }

    /// The item as it will be once the batch is applied.
    pub fn current(&self, view: &View, key: &Key) -> Result<Current<'_>> {
        if let Some(change) = self.changes.get(key) {
            return Ok(match change {
                Change::Delete => Current::Absent,
                change => Current::Mine(change),
            });
        }
        Ok(view.get(self.tree, key)?.map_or(Current::Absent, Current::Item))
    }

    /// Collects a change, in place of an earlier change of the same item.
    pub fn set(&mut self, key: Key, change: Change) {
        self.changes.insert(key, change);
    }

    /// The cost of the batch, with `inodes` inode items to be added.
    pub fn cost(&self, inodes: u32) -> Cost {
        let bytes: usize = self.changes.values().map(Change::len).sum();
        Cost::of(self.changes.len() as u32 + inodes, bytes as u32 + 160 * inodes)
    }

    /// Applies the changes in a handle.
    pub fn apply(self, handle: &Handle<'_>) {
        for (tree, key, payload) in self.into_items(handle.generation()) {
            match payload {
                Some(payload) => handle.put(tree, key, payload),
                None => handle.delete(tree, key),
            }
        }
    }

    /// The items to put, in the order of their keys, with `generation` in place of [`NOW`].
    pub fn into_items(
        self,
        generation: Generation,
    ) -> impl Iterator<Item = (TreeId, Key, Option<Vec<u8>>)> {
        let tree = self.tree;
        self.changes.into_iter().map(move |(key, change)| {
            let payload = match change {
                Change::Delete => None,
                Change::Bytes(bytes) => Some(bytes),
                Change::Extent(mut extent) => {
                    extent.generation = generation;
                    Some(extent.to_bytes())
                }
                Change::Names(mut entries) => {
                    for entry in entries.iter_mut().filter(|entry| entry.transid == NOW) {
                        entry.transid = generation;
                    }
                    Some(DirEntry::encode_all(&entries))
                }
            };
            (tree, key, payload)
        })
    }
}
