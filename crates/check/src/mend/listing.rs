//! The entries of a directory, kept from one proposal to the next, so that a large directory is
//! read once.
//!
//! # Invariants
//!
//! - **LI1** A kept listing equals the listing that a new read of the tree would give. Each edit
//!   changes the kept listing, or drops the listing.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

use buttress_format::{DirEntry, Ino, Key, Kind, TreeId};

use crate::error::Result;
use crate::mend::editor::{Edit, Editor};

/// The entries of a directory by index, and the indexes of each name.
#[derive(Clone, Debug, Default)]
pub(super) struct Listing {
    entries: BTreeMap<u64, Vec<DirEntry>>,
    indexes: HashMap<Vec<u8>, BTreeSet<u64>>,
}

/// A listing with its tree and directory.
pub(super) type Kept = Option<(TreeId, Ino, Rc<Listing>)>;

impl Listing {
    /// Entries with a name, and their indexes.
    pub(super) fn named<'l>(&'l self, name: &'l [u8]) -> impl Iterator<Item = (u64, &'l DirEntry)> {
        let indexes = self.indexes.get(name).into_iter().flatten();
        let each = indexes.flat_map(|index| self.at(*index).iter().map(|entry| (*index, entry)));
        each.filter(move |(_, entry)| entry.name == name)
    }

    /// Entries with an index.
    pub(super) fn at(&self, index: u64) -> &[DirEntry] {
        self.entries.get(&index).map_or(&[], Vec::as_slice)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &DirEntry> {
        self.entries.values().flatten()
    }

    /// Sets the entries of an index.
    fn set(&mut self, index: u64, entries: Vec<DirEntry>) {
        for old in self.entries.remove(&index).unwrap_or_default() {
            if let Some(indexes) = self.indexes.get_mut(&old.name) {
                indexes.remove(&index);
            }
        }
        for entry in &entries {
            self.indexes.entry(entry.name.clone()).or_default().insert(index);
        }
        self.entries.insert(index, entries);
    }
}

/// Returns the entries of a directory.
pub(super) fn of(editor: &Editor, tree: TreeId, dir: Ino) -> Result<Rc<Listing>> {
    if let Some((of, its, listing)) = &*editor.listing.borrow()
        && (*of, *its) == (tree, dir)
    {
        return Ok(Rc::clone(listing));
    }
    let mut listing = Listing::default();
    for (key, bytes) in editor.items(tree, dir.0, Kind::DIR_INDEX)? {
        listing.set(key.offset, DirEntry::parse_all(&bytes).unwrap_or_default());
    }
    let listing = Rc::new(listing);
    *editor.listing.borrow_mut() = Some((tree, dir, Rc::clone(&listing)));
    Ok(listing)
}

/// Applies an edit of the tree to the kept listing (LI1).
pub(super) fn follow(kept: &mut Kept, edit: &Edit) {
    let (tree, key, bytes) = match edit {
        Edit::Put(tree, key, bytes) => (tree, key, &bytes[..]),
        Edit::Remove(tree, key) => (tree, key, &[][..]),
        Edit::Node(..) => return *kept = None,
        Edit::Super(..) => return,
    };
    let is_of = |key: &Key, dir: Ino| key.kind == Kind::DIR_INDEX && key.objectid == dir.0;
    match kept {
        Some((of, dir, listing)) if is_of(key, *dir) && of == tree => {
            let entries = DirEntry::parse_all(bytes).unwrap_or_default();
            Rc::make_mut(listing).set(key.offset, entries);
        }
        // Another tree may share the leaf.
        Some((_, dir, _)) if is_of(key, *dir) => *kept = None,
        _ => {}
    }
}
