//! The state of a volume at one moment, for reading.

use std::path::{Path, PathBuf};

use buttress_fs::Inode;

use crate::dir::ReadDir;
use crate::error::{Context, Error, ErrorKind, Result};
use crate::file::{File, FileOptions, read_whole};
use crate::metadata::Metadata;
use crate::walk::{self, Last};

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
        let path = path.as_ref();
        let inode = walk::file_at(&self.top, path).context("open", path)?;
        Ok(File::new(inode, path, &FileOptions::new().read(true)))
    }

    /// Reads a whole file.
    ///
    /// # Errors
    ///
    /// `NotFound`, `IsADirectory`, `Corrupt`, `Io`.
    pub fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        let path = path.as_ref();
        read_whole(self.open_file(path)?.inode()).context("read", path)
    }

    /// Reads a whole file as UTF-8.
    ///
    /// # Errors
    ///
    /// As [`Snapshot::read`]; `InvalidInput` for other bytes.
    pub fn read_to_string(&self, path: impl AsRef<Path>) -> Result<String> {
        let path = path.as_ref();
        String::from_utf8(self.read(path)?)
            .map_err(|error| Error::new(ErrorKind::InvalidInput, "read", Some(path), error))
    }

    /// Lists a directory.
    ///
    /// # Errors
    ///
    /// `NotFound`, `NotADirectory`.
    pub fn read_dir(&self, path: impl AsRef<Path>) -> Result<ReadDir> {
        let path = path.as_ref();
        let dir = walk::dir_at(&self.top, path).context("list", path)?;
        Ok(ReadDir::new(dir, path))
    }

    /// Whether the path leads to something; symbolic links are followed.
    ///
    /// # Errors
    ///
    /// Errors of the lookup other than `NotFound`.
    pub fn exists(&self, path: impl AsRef<Path>) -> Result<bool> {
        match self.metadata(path) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The metadata of a file; symbolic links are followed.
    ///
    /// # Errors
    ///
    /// `NotFound`, `NotADirectory`.
    pub fn metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        let path = path.as_ref();
        let inode = walk::find_from(&self.top, path, Last::Follow).context("stat", path)?;
        Ok(Metadata::new(inode.attr()))
    }

    /// The metadata of a file; a symbolic link at the end is not followed.
    ///
    /// # Errors
    ///
    /// As [`Snapshot::metadata`].
    pub fn symlink_metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        let path = path.as_ref();
        let inode = walk::find_from(&self.top, path, Last::Keep).context("stat", path)?;
        Ok(Metadata::new(inode.attr()))
    }

    /// Where a symbolic link points.
    ///
    /// # Errors
    ///
    /// `NotFound`; `InvalidInput` where the path is no link.
    pub fn read_link(&self, path: impl AsRef<Path>) -> Result<PathBuf> {
        let path = path.as_ref();
        walk::link_at(&self.top, path).context("read link", path)
    }
}
