//! Finding: names in directories, and the directory above.

use std::sync::Arc;

use buttress_format::DirEntry;

use crate::attr::InodeId;
use crate::cell::InodeCell;
use crate::error::{Error, NameError, Result};
use crate::inode::Inode;
use crate::names::{self, Target};
use crate::{inode_refs, trees};

impl Inode {
    /// Finds a name in this directory; crosses into subvolumes.
    ///
    /// # Errors
    ///
    /// `NotFound`, or `NotDir` when this is no directory.
    pub fn lookup(&self, name: &[u8]) -> Result<Self> {
        self.cell.expect_dir()?;
        if name.len() > buttress_format::limits::NAME_MAX {
            return Err(NameError::TooLong.into());
        }
        let shared = self.shared();
        loop {
            let view = shared.engine.view();
            let entry = names::find(&view, self.id(), name)?.ok_or(NameError::NotFound)?;
            let id = match names::target(&view, self.id(), &entry)? {
                Target::Inode(id) => id,
                Target::Subvolume(tree) => {
                    InodeId { tree, ino: shared.tree_info(&view, tree)?.root_dir }
                }
                Target::Stub => return Self::new(Arc::new(InodeCell::stub(&self.cell)?)),
            };
            drop(view);
            match shared.inode(id) {
                Err(Error::Name(NameError::NotFound)) if self.is_moved_on(&entry)? => {}
                found => return found,
            }
        }
    }

    /// Whether an entry that was found is no longer what its name leads to: where the inode behind it is
    /// gone, that says that the name was given to another one, or to none.
    pub(super) fn is_moved_on(&self, entry: &DirEntry) -> Result<bool> {
        let now = names::find(&self.shared().engine.view(), self.id(), &entry.name)?;
        Ok(now.is_none_or(|now| now.location != entry.location))
    }

    /// Where `..` leads: the directory this directory has its name in.
    ///
    /// # Errors
    ///
    /// `NotDir`; for a nameless directory `NotFound`.
    pub fn parent(&self) -> Result<InodeId> {
        self.cell.expect_dir()?;
        above(&self.cell)
    }

    /// All names of a file, each with the directory that it is in.
    ///
    /// # Errors
    ///
    /// What reading the tree met.
    pub fn places(&self) -> Result<Vec<(InodeId, Vec<u8>)>> {
        let places = inode_refs::places(&self.shared().engine.view(), self.id())?;
        let tree = self.id().tree;
        Ok(places.into_iter().map(|(ino, name)| (InodeId { tree, ino }, name)).collect())
    }
}

/// The directory above a directory; the top level's is itself.
pub(super) fn above(cell: &InodeCell) -> Result<InodeId> {
    if let Some(dir) = cell.stub_in {
        return Ok(dir);
    }
    let view = cell.shared.engine.view();
    let id = cell.id;
    if id.ino == cell.shared.tree_info(&view, id.tree)?.root_dir {
        return Ok(trees::place(&view, id.tree)?.map_or(id, |(dir, _)| dir));
    }
    let (ino, _) = inode_refs::place(&view, id)?.ok_or(NameError::NotFound)?;
    Ok(InodeId { tree: id.tree, ino })
}
