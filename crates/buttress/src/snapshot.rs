//! The state of a volume at one moment, for reading.

use std::path::{Path, PathBuf};

use buttress_fs::Inode;

use crate::dir::ReadDir;
use crate::error::Result;
use crate::file::File;
use crate::look;
use crate::metadata::Metadata;
use crate::walk::Last;

/// The volume at the time of the call of [`Filesystem::snapshot`](crate::Filesystem::snapshot).
/// Later changes do not affect it, so all reads agree with each other.
///
/// It has no name on the volume. Its space is freed some time after the program drops it and all
/// files and listings from it. After a crash, the next opening frees it. Subvolumes below it are
/// empty directories, as in each snapshot of btrfs.
#[derive(Debug)]
pub struct Snapshot {
    top: Inode,
}

impl Snapshot {
    pub(crate) fn new(top: Inode) -> Self {
        Self { top }
    }

    /// Opens a file for reading.
    ///
    /// # Errors
    ///
    /// `NotFound`, `IsADirectory`.
    pub fn open_file(&self, path: impl AsRef<Path>) -> Result<File> {
        look::open_file(&self.top, path.as_ref())
    }

    /// Reads a whole file.
    ///
    /// # Errors
    ///
    /// `NotFound`, `IsADirectory`, `Corrupt`, `Io`.
    pub fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        look::read(&self.top, path.as_ref())
    }

    /// Reads a whole file as UTF-8.
    ///
    /// # Errors
    ///
    /// The errors of [`Snapshot::read`]; `InvalidInput` for other bytes.
    pub fn read_to_string(&self, path: impl AsRef<Path>) -> Result<String> {
        look::read_to_string(&self.top, path.as_ref())
    }

    /// Lists a directory.
    ///
    /// # Errors
    ///
    /// `NotFound`, `NotADirectory`.
    pub fn read_dir(&self, path: impl AsRef<Path>) -> Result<ReadDir> {
        look::read_dir(&self.top, path.as_ref())
    }

    /// Whether the path leads to something; symbolic links are followed.
    ///
    /// # Errors
    ///
    /// Errors of the lookup other than `NotFound`.
    pub fn exists(&self, path: impl AsRef<Path>) -> Result<bool> {
        look::exists(&self.top, path.as_ref())
    }

    /// The metadata of a file; symbolic links are followed.
    ///
    /// # Errors
    ///
    /// `NotFound`, `NotADirectory`.
    pub fn metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        look::metadata(&self.top, path.as_ref(), Last::Follow)
    }

    /// The metadata of a file; a symbolic link at the end is not followed.
    ///
    /// # Errors
    ///
    /// The errors of [`Snapshot::metadata`].
    pub fn symlink_metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        look::metadata(&self.top, path.as_ref(), Last::Keep)
    }

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    ///
    /// `NotFound`; `InvalidInput` where the path is no link.
    pub fn read_link(&self, path: impl AsRef<Path>) -> Result<PathBuf> {
        look::read_link(&self.top, path.as_ref())
    }
}
