//! One moment of a volume, for reading.

use std::path::{Path, PathBuf};

use buttress_fs::Inode;

use crate::dir::ReadDir;
use crate::error::Result;
use crate::file::File;
use crate::look;
use crate::metadata::Metadata;
use crate::walk::Last;

/// The volume as it was when [`Filesystem::snapshot`](crate::Filesystem::snapshot) was called:
/// whatever changes afterwards, all reads here agree with each other.
///
/// It has no name on the volume. Its space comes back some time after it is dropped, with all files
/// and listings from it, or at the next opening. Subvolumes below it are empty directories, as in
/// each snapshot of btrfs.
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
    /// As [`Snapshot::read`]; `InvalidInput` for other bytes.
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
    /// What looking it up met, but for its absence.
    pub fn exists(&self, path: impl AsRef<Path>) -> Result<bool> {
        look::exists(&self.top, path.as_ref())
    }

    /// What is known of a file; symbolic links are followed.
    ///
    /// # Errors
    ///
    /// `NotFound`, `NotADirectory`.
    pub fn metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        look::metadata(&self.top, path.as_ref(), Last::Follow)
    }

    /// What is known of a file; a symbolic link at the end is not followed.
    ///
    /// # Errors
    ///
    /// As [`Snapshot::metadata`].
    pub fn symlink_metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        look::metadata(&self.top, path.as_ref(), Last::Keep)
    }

    /// Where a symbolic link points.
    ///
    /// # Errors
    ///
    /// `NotFound`; `InvalidInput` for what is no link.
    pub fn read_link(&self, path: impl AsRef<Path>) -> Result<PathBuf> {
        look::read_link(&self.top, path.as_ref())
    }
}
