//! References from an inode to its names.
//!
//! # On disk
//!
//! ```text
//! (ino, INODE_REF, dir)       index and name of each name in `dir` that fits in this item
//! (ino, INODE_EXTREF, hash)   directory, index and name of names that did not fit
//! ```
//!
//! The hash is computed from the directory and the name.

use std::ops::Range;

use buttress_format::{
    Incompat, Ino, InodeExtref, InodeExtrefs, InodeRef, InodeRefs, Key, Kind, Superblock,
    extref_hash,
};
use buttress_txn::View;

use crate::attr::InodeId;
use crate::batch::{Batch, Change, Current};
use crate::error::{Error, NameError, Result};
use crate::names::item_len_max;

fn ref_key(ino: Ino, dir: Ino) -> Key {
    Key::new(ino.0, Kind::INODE_REF, dir.0)
}

fn extref_key(ino: Ino, dir: Ino, name: &[u8]) -> Key {
    Key::new(ino.0, Kind::INODE_EXTREF, extref_hash(dir, name))
}

/// The parent directory of a directory, and the directory's name in it.
pub fn place(view: &View, dir: InodeId) -> Result<Option<(Ino, Vec<u8>)>> {
    let low = Key::new(dir.ino.0, Kind::INODE_REF, 0);
    let high = Key::new(dir.ino.0, Kind::INODE_REF, u64::MAX);
    let Some((key, item)) = view.at_or_after(dir.tree, &low, &high)? else { return Ok(None) };
    let refs = InodeRefs::parse(&item).map_err(|source| Error::Format {
        tree: dir.tree,
        ino: dir.ino,
        source,
    })?;
    Ok(refs.into_iter().next().map(|found| (Ino(key.offset), found.name)))
}

/// All present names of an inode, each with its directory.
pub fn places(view: &View, id: InodeId) -> Result<Vec<(Ino, Vec<u8>)>> {
    let format = |source| Error::Format { tree: id.tree, ino: id.ino, source };
    let mut places = Vec::new();
    let low = Key::new(id.ino.0, Kind::INODE_REF, 0);
    let high = Key::new(id.ino.0, Kind::INODE_EXTREF, u64::MAX);
    for found in view.range(id.tree, low, high) {
        let (key, item) = found?;
        if key.kind == Kind::INODE_REF {
            let refs = InodeRefs::parse(&item).map_err(format)?;
            places.extend(refs.into_iter().map(|found| (Ino(key.offset), found.name)));
        } else if key.kind == Kind::INODE_EXTREF {
            let refs = InodeExtrefs::parse(&item).map_err(format)?;
            places.extend(refs.into_iter().map(|found| (found.parent, found.name)));
        }
    }
    Ok(places)
}

impl Batch {
    /// Calls `look` with the bytes of an item as the batch sees it. The bytes are empty if there is
    /// no item.
    fn look<R>(&self, view: &View, key: &Key, look: impl FnOnce(&[u8]) -> Result<R>) -> Result<R> {
        match self.current(view, key)? {
            Current::Mine(Change::Bytes(bytes)) => look(bytes),
            Current::Item(item) => look(&item),
            Current::Absent | Current::Mine(_) => look(&[]),
        }
    }

    /// Finds the entry of a name among the names of one directory. Returns the range of the entry's
    /// bytes, and the index of the name.
    fn find_ref(&self, ino: Ino, refs: &[u8], name: &[u8]) -> Result<Option<(Range<usize>, u64)>> {
        let found = InodeRefs::find(refs, name);
        found.map_err(|source| Error::Format { tree: self.tree(), ino, source })
    }

    fn extrefs(&self, view: &View, ino: Ino, key: &Key) -> Result<Vec<InodeExtref>> {
        let tree = self.tree();
        self.look(view, key, |bytes| {
            InodeExtrefs::parse(bytes).map_err(|source| Error::Format { tree, ino, source })
        })
    }

    /// Records the first name of an inode that is being made.
    pub fn add_first_ref(&mut self, ino: Ino, dir: Ino, index: u64, name: &[u8]) {
        let refs = [InodeRef { index, name: name.to_vec() }];
        self.set(ref_key(ino, dir), Change::Bytes(InodeRefs::encode(&refs)));
    }

    /// Records a name. `extended` allows an extended reference when the plain item is full.
    pub fn add_ref(
        &mut self,
        view: &View,
        ino: Ino,
        dir: Ino,
        index: u64,
        name: &[u8],
        limits: RefLimits,
    ) -> Result<()> {
        let key = ref_key(ino, dir);
        let len = InodeRefs::HEAD_LEN + name.len();
        let longer = self.look(view, &key, |refs| {
            if refs.len() + len > limits.item_len_max {
                return Ok(None);
            }
            // Do not append to a damaged item.
            self.find_ref(ino, refs, name)?;
            let mine = InodeRefs::encode(&[InodeRef { index, name: name.to_vec() }]);
            Ok(Some([refs, &mine].concat()))
        })?;
        if let Some(longer) = longer {
            self.set(key, Change::Bytes(longer));
            return Ok(());
        }
        if !limits.extended {
            return Err(NameError::TooManyLinks.into());
        }
        let key = extref_key(ino, dir, name);
        let mut refs = self.extrefs(view, ino, &key)?;
        refs.push(InodeExtref { parent: dir, index, name: name.to_vec() });
        let encoded = InodeExtrefs::encode(&refs);
        if encoded.len() > limits.item_len_max {
            return Err(NameError::TooManyLinks.into());
        }
        self.set(key, Change::Bytes(encoded));
        Ok(())
    }

    /// Forgets a name. Returns the index that the name had.
    pub fn remove_ref(&mut self, view: &View, ino: Ino, dir: Ino, name: &[u8]) -> Result<u64> {
        let key = ref_key(ino, dir);
        let found = self.look(view, &key, |refs| {
            let found = self.find_ref(ino, refs, name)?;
            Ok(found.map(|(at, index)| ([&refs[..at.start], &refs[at.end..]].concat(), index)))
        })?;
        if let Some((refs, index)) = found {
            let rest = if refs.is_empty() { Change::Delete } else { Change::Bytes(refs) };
            self.set(key, rest);
            return Ok(index);
        }
        let key = extref_key(ino, dir, name);
        let mut refs = self.extrefs(view, ino, &key)?;
        let there = refs.iter().position(|found| found.parent == dir && found.name == name);
        let there = there.ok_or(Error::Item {
            tree: self.tree(),
            ino,
            what: "a directory has a name for it that it does not know",
        })?;
        let index = refs.remove(there).index;
        let rest = if refs.is_empty() {
            Change::Delete
        } else {
            Change::Bytes(InodeExtrefs::encode(&refs))
        };
        self.set(key, rest);
        Ok(index)
    }
}

/// The limits of the volume for many names of one inode.
#[derive(Clone, Copy, Debug)]
pub struct RefLimits {
    /// Longest item of the volume.
    pub item_len_max: usize,
    /// Whether the volume may have extended references.
    pub extended: bool,
}

impl RefLimits {
    /// The limits of the volume with this superblock.
    #[must_use]
    pub fn of(superblock: &Superblock) -> Self {
        Self {
            item_len_max: item_len_max(superblock.nodesize),
            extended: superblock.incompat.has(Incompat::EXTENDED_IREF),
        }
    }
}
