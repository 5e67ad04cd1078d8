//! Finds names in directories, and the directory above.

use std::sync::Arc;

use buttress_format::DirEntry;
use buttress_items::names::{self, Target};
use buttress_items::{Error, InodeId, NameError, Result};

use crate::cell::InodeCell;
use crate::inode::Inode;

impl Inode {
    /// Finds a name in this directory; crosses into subvolumes.
    ///
    /// # Errors
    ///
    /// `NotFound`, or `NotDir` if this inode is no directory.
    pub fn lookup(&self, name: &[u8]) -> Result<Self> {
        self.cell.expect_dir()?;
        if name.len() > buttress_format::limits::NAME_MAX {
            return Err(NameError::TooLong.into());
        }
        let mount = self.mount();
        loop {
            let view = mount.engine.view();
            let entry = names::find(&view, self.id(), name)?.ok_or(NameError::NotFound)?;
            let id = match names::target(&view, self.id(), &entry)? {
                Target::Inode(id) => id,
                Target::Subvolume(tree) => {
                    InodeId { tree, ino: mount.inodes.tree_info(&view, tree)?.root_dir }
                }
                Target::Stub => return Self::new(mount, Arc::new(InodeCell::stub(&self.cell)?)),
            };
            drop(view);
            match Self::of(mount, id) {
                Err(Error::Name(NameError::NotFound)) if self.is_moved_on(&entry)? => {}
                found => return found,
            }
        }
    }

    /// Whether a name no longer has the entry that a caller found earlier. If so, a missing inode
    /// of that entry is no damage: the name was removed or given to another inode.
    pub(super) fn is_moved_on(&self, entry: &DirEntry) -> Result<bool> {
        let now = names::find(&self.mount().engine.view(), self.id(), &entry.name)?;
        Ok(now.is_none_or(|now| now.location != entry.location))
    }

    /// The target of `..`: the directory that contains this one.
    ///
    /// # Errors
    ///
    /// `NotDir`, or `NotFound` for a nameless directory.
    pub fn parent(&self) -> Result<InodeId> {
        self.cell.expect_dir()?;
        self.mount().above(&self.cell)
    }

    /// All names of a file, each with its directory.
    ///
    /// # Errors
    ///
    /// An error from reading the tree.
    pub fn places(&self) -> Result<Vec<(InodeId, Vec<u8>)>> {
        let places = buttress_items::inode_refs::places(&self.mount().engine.view(), self.id())?;
        let tree = self.id().tree;
        Ok(places.into_iter().map(|(ino, name)| (InodeId { tree, ino }, name)).collect())
    }
}
