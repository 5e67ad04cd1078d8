//! One file, directory or other object of a mounted volume.
//!
//! The operations are in `ops`, one file each.

use std::sync::Arc;

use buttress_items::{Attr, FileKind, InodeId, Result};

use crate::cell::InodeCell;
use crate::mount::Mount;

/// One file, directory or other object. Cheap to clone.
///
/// The content exists as long as one clone lives, even after the last name is removed. The last
/// drop of a nameless inode deletes the inode.
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
    /// The inode that the name refers to. For a subvolume, this inode is the root directory of
    /// another tree.
    pub id: InodeId,
    /// The type of that inode.
    pub kind: FileKind,
    /// The cookie to continue a listing after this entry.
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

/// How setting an attribute treats an existing or a missing attribute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XattrFlags {
    /// Refuse when the attribute exists.
    pub create: bool,
    /// Refuse when the attribute does not exist.
    pub replace: bool,
}

/// The operation on a range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FallocateMode {
    /// Preallocate space. The file grows to include the range unless `keep_size`.
    Allocate {
        /// Keep the length unchanged.
        keep_size: bool,
    },
    /// Free the space of the range. The range reads as zeros, and the length does not change.
    PunchHole,
    /// Make the range read as zeros, with preallocated space.
    ZeroRange {
        /// Keep the length unchanged.
        keep_size: bool,
    },
}

/// The longest chain of parent directories. A longer chain is a loop that damage has made.
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
    /// Makes one more user of a cell. `NotFound` when the inode has lost its last user and its last
    /// name.
    pub(crate) fn new(mount: &Arc<Mount>, cell: Arc<InodeCell>) -> Result<Self> {
        cell.join()?;
        Ok(Self { mount: Arc::clone(mount), cell })
    }

    /// Makes one more user of an inode that still has a name or a user.
    pub(crate) fn of(mount: &Arc<Mount>, id: InodeId) -> Result<Self> {
        Self::new(mount, mount.inodes.cell(id)?)
    }

    /// The identity of the inode.
    #[must_use]
    pub fn id(&self) -> InodeId {
        self.cell.id
    }

    /// The type of the inode.
    #[must_use]
    pub fn kind(&self) -> FileKind {
        self.cell.kind
    }

    /// Whether the inode is a stub, an empty directory in place of a subvolume. Stubs share one
    /// number, so [`Filesystem::inode`](crate::Filesystem::inode) finds none of them.
    #[must_use]
    pub fn is_stub(&self) -> bool {
        self.cell.stub_in.is_some()
    }

    /// Whether the subvolume of the inode was deleted. Its inodes stay until nothing uses them.
    #[must_use]
    pub fn is_in_deleted_subvolume(&self) -> bool {
        self.cell.home.is_dead()
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
