//! One file, directory or other object of a mounted volume.

use std::ops::ControlFlow;

use crate::attr::{Attr, FileKind, InodeId, SetAttr};
use crate::error::{Error, Result};

/// One file, directory or other object. Cheap to clone.
///
/// As long as one clone lives, the content lives, even when the last name is gone; the last drop
/// of a nameless inode deletes it.
#[derive(Clone, Debug)]
pub struct Inode {
    id: InodeId,
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

impl Inode {
    /// Which inode this is.
    #[must_use]
    pub fn id(&self) -> InodeId {
        self.id
    }

    /// Copies the attributes.
    #[must_use]
    pub fn attr(&self) -> Attr {
        unreachable!("no inode can be had yet")
    }

    /// Finds a name in this directory; crosses into subvolumes.
    ///
    /// # Errors
    ///
    /// `NotFound`, or `NotDir` when this is no directory.
    pub fn lookup(&self, _name: &[u8]) -> Result<Self> {
        Err(Error::unsupported("lookup"))
    }

    /// Where `..` leads: the directory this directory has its name in.
    ///
    /// # Errors
    ///
    /// `NotDir`; for a nameless directory `NotFound`.
    pub fn parent(&self) -> Result<InodeId> {
        Err(Error::unsupported("parent"))
    }

    /// Lists the names behind `cookie` (0 for all) in the order of their creation, until `visit` breaks.
    ///
    /// # Errors
    ///
    /// `NotDir`, or what reading the tree met.
    pub fn read_dir(
        &self,
        _cookie: u64,
        _visit: impl FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        Err(Error::unsupported("read_dir"))
    }

    /// Makes a regular file, pipe, socket or device node, by the type bits of `mode`.
    ///
    /// # Errors
    ///
    /// `Exists`, `NoSpace`, `ReadOnly`.
    pub fn create(&self, _name: &[u8], _mode: u32, _uid: u32, _gid: u32, _rdev: u64) -> Result<Self> {
        Err(Error::unsupported("create"))
    }

    /// Makes a directory.
    ///
    /// # Errors
    ///
    /// `Exists`, `NoSpace`, `ReadOnly`.
    pub fn mkdir(&self, _name: &[u8], _mode: u32, _uid: u32, _gid: u32) -> Result<Self> {
        Err(Error::unsupported("mkdir"))
    }

    /// Makes a symbolic link.
    ///
    /// # Errors
    ///
    /// `Exists`, `NoSpace`, `ReadOnly`; `TooLong` for a target that does not fit one item.
    pub fn symlink(&self, _name: &[u8], _target: &[u8], _uid: u32, _gid: u32) -> Result<Self> {
        Err(Error::unsupported("symlink"))
    }

    /// Reads where a symbolic link points.
    ///
    /// # Errors
    ///
    /// `Invalid` when this is none.
    pub fn read_link(&self) -> Result<Vec<u8>> {
        Err(Error::unsupported("read_link"))
    }

    /// Makes a regular file without a name; [`Inode::link`] may give it one.
    ///
    /// # Errors
    ///
    /// `NoSpace`, `ReadOnly`.
    pub fn tmpfile(&self, _mode: u32, _uid: u32, _gid: u32) -> Result<Self> {
        Err(Error::unsupported("tmpfile"))
    }

    /// Gives `inode` one more name, in this directory.
    ///
    /// # Errors
    ///
    /// `Exists`, `TooManyLinks`, `CrossDevice`, `IsDir`.
    pub fn link(&self, _inode: &Self, _name: &[u8]) -> Result<()> {
        Err(Error::unsupported("link"))
    }

    /// Takes a name away from anything but a directory.
    ///
    /// # Errors
    ///
    /// `NotFound`, `IsDir`.
    pub fn unlink(&self, _name: &[u8]) -> Result<()> {
        Err(Error::unsupported("unlink"))
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    ///
    /// `NotFound`, `NotDir`, `NotEmpty`.
    pub fn rmdir(&self, _name: &[u8]) -> Result<()> {
        Err(Error::unsupported("rmdir"))
    }

    /// Moves the name `old` of this directory to `new` in `target`.
    ///
    /// # Errors
    ///
    /// `NotFound`, `Exists`, `NotEmpty`, `CrossDevice`; `Invalid` when a directory would come to lie below
    /// itself.
    pub fn rename(&self, _old: &[u8], _target: &Self, _new: &[u8], _flags: RenameFlags) -> Result<()> {
        Err(Error::unsupported("rename"))
    }

    /// Changes attributes, all of them or none, and answers the new ones.
    ///
    /// # Errors
    ///
    /// `ReadOnly`, `NoSpace`, `FileTooBig`.
    pub fn set_attr(&self, _set: &SetAttr) -> Result<Attr> {
        Err(Error::unsupported("set_attr"))
    }

    /// Reads at `offset`; fewer bytes than asked only at the end of the file.
    ///
    /// # Errors
    ///
    /// `Io`, or `Corrupt` when no mirror has the right checksum.
    pub fn read_at(&self, _offset: u64, _buf: &mut [u8]) -> Result<usize> {
        Err(Error::unsupported("read_at"))
    }

    /// Writes all of `data` at `offset`, into memory; [`Inode::sync`] makes it durable.
    ///
    /// # Errors
    ///
    /// `NoSpace` now, not later; `FileTooBig`, `ReadOnly`.
    pub fn write_at(&self, _offset: u64, _data: &[u8]) -> Result<usize> {
        Err(Error::unsupported("write_at"))
    }

    /// Hands dirty data to the device, without waiting for it to be durable.
    ///
    /// # Errors
    ///
    /// `Io`, `Aborted`.
    pub fn flush_data(&self) -> Result<()> {
        Err(Error::unsupported("flush_data"))
    }

    /// Makes content and attributes durable.
    ///
    /// # Errors
    ///
    /// `Io`, `Aborted`; the first failure of writing this inode's data in the background, once.
    pub fn sync(&self) -> Result<()> {
        Err(Error::unsupported("sync"))
    }

    /// Allocates, punches or zeroes a range.
    ///
    /// # Errors
    ///
    /// `NoSpace`, `Invalid` for anything but a regular file.
    pub fn fallocate(&self, _offset: u64, _len: u64, _mode: FallocateMode) -> Result<()> {
        Err(Error::unsupported("fallocate"))
    }

    /// The first offset at or after `offset` that holds data.
    ///
    /// # Errors
    ///
    /// `NoSuchRange` when there is none.
    pub fn seek_data(&self, _offset: u64) -> Result<u64> {
        Err(Error::unsupported("seek_data"))
    }

    /// The first offset at or after `offset` in a hole; the end of the file is one.
    ///
    /// # Errors
    ///
    /// `NoSuchRange` at or behind the end of the file.
    pub fn seek_hole(&self, _offset: u64) -> Result<u64> {
        Err(Error::unsupported("seek_hole"))
    }

    /// Copies up to `len` bytes into another file, and says how many; fewer only at the end of this one.
    ///
    /// # Errors
    ///
    /// Those of reading and writing.
    pub fn copy_range(&self, _offset: u64, _target: &Self, _target_offset: u64, _len: u64) -> Result<u64> {
        Err(Error::unsupported("copy_range"))
    }

    /// Reads an extended attribute by its full name (`user.colour`).
    ///
    /// # Errors
    ///
    /// `NoAttribute`.
    pub fn xattr(&self, _name: &[u8]) -> Result<Vec<u8>> {
        Err(Error::unsupported("xattr"))
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    ///
    /// `Exists` or `NoAttribute` by `flags`; `TooBig`, `NoSpace`.
    pub fn set_xattr(&self, _name: &[u8], _value: &[u8], _flags: XattrFlags) -> Result<()> {
        Err(Error::unsupported("set_xattr"))
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    ///
    /// `NoAttribute`.
    pub fn remove_xattr(&self, _name: &[u8]) -> Result<()> {
        Err(Error::unsupported("remove_xattr"))
    }

    /// The full names of all extended attributes.
    ///
    /// # Errors
    ///
    /// What reading the tree met.
    pub fn list_xattrs(&self) -> Result<Vec<Vec<u8>>> {
        Err(Error::unsupported("list_xattrs"))
    }
}
