//! One file, directory or other object of a mounted volume.
//!
//! The operations are in `ops`, one file each.

use std::sync::Arc;

use crate::attr::{Attr, FileKind, InodeId};
use crate::cell::InodeCell;
use crate::error::Result;
use crate::mount::Mount;

/// One file, directory or other object. Cheap to clone.
///
/// As long as one clone lives, the content lives, even when the last name is gone; the last drop
/// of a nameless inode deletes it.
pub struct Inode {
    mount: Arc<Mount>,
    pub(crate) cell: Arc<InodeCell>,
}

impl std::fmt::Debug for Inode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inode").field("cell", &self.cell).finish_non_exhaustive()
    }
}

/// One name of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// The name.
    pub name: &'a [u8],
    /// What it leads to; the root of another tree for a subvolume.
    pub id: InodeId,
    /// What that is.
    pub kind: FileKind,
    /// Continue a listing behind this entry by giving this value.
    pub cookie: u64,
}

/// How a rename treats a taken name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RenameFlags {
    /// Refuse when the new name is taken.
    pub no_replace: bool,
    /// Swap the two names.
    pub exchange: bool,
}

/// How setting an attribute treats one that exists, or does not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XattrFlags {
    /// Refuse when the attribute exists.
    pub create: bool,
    /// Refuse when it does not.
    pub replace: bool,
}

/// What to do with a range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FallocateMode {
    /// Set space aside; the file grows to hold the range unless `keep_size`.
    Allocate {
        /// Leave the length alone.
        keep_size: bool,
    },
    /// Give the space back; the range reads as zeros, the length stays.
    PunchHole,
    /// Make the range read as zeros, with space set aside.
    ZeroRange {
        /// Leave the length alone.
        keep_size: bool,
    },
}

/// No path goes deeper: what does is a loop, made by damage.
pub(crate) const DEPTH_MAX: usize = 4096;

impl Clone for Inode {
    fn clone(&self) -> Self {
        self.cell.join().expect("it has a user, so it is not going");
        Self { mount: Arc::clone(&self.mount), cell: Arc::clone(&self.cell) }
    }
}

impl Drop for Inode {
    fn drop(&mut self) {
        self.cell.leave(&self.mount.files);
    }
}

impl Inode {
    /// Makes one more user of a cell; `NotFound` when its last one has gone, and its last name too.
    pub(crate) fn new(mount: &Arc<Mount>, cell: Arc<InodeCell>) -> Result<Self> {
        cell.join()?;
        Ok(Self { mount: Arc::clone(mount), cell })
    }

    /// Makes one more user of an inode that has a name, or a user.
    pub(crate) fn of(mount: &Arc<Mount>, id: InodeId) -> Result<Self> {
        Self::new(mount, mount.inodes.cell(id)?)
    }

    /// Which inode this is.
    #[must_use]
    pub fn id(&self) -> InodeId {
        self.cell.id
    }

    /// What it is.
    #[must_use]
    pub fn kind(&self) -> FileKind {
        self.cell.kind
    }

    /// Copies the attributes.
    #[must_use]
    pub fn attr(&self) -> Attr {
        self.cell.attr(&self.mount.files)
    }

    pub(crate) fn mount(&self) -> &Arc<Mount> {
        &self.mount
    }
}
