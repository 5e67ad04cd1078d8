//! Calls that read by path below a directory. An open volume and a snapshot share them.
//!
//! # What must hold
//!
//! - Nothing here changes the volume, except access times.
//! - Every error has the operation and the path that the caller gave.

use std::path::{Path, PathBuf};

use buttress_fs::Inode;

use crate::dir::ReadDir;
use crate::error::{Context, Error, ErrorKind, Result};
use crate::file::{File, FileOptions, read_whole};
use crate::metadata::Metadata;
use crate::walk::{self, Last};

/// Opens a regular file for reading.
pub(crate) fn open_file(top: &Inode, path: &Path) -> Result<File> {
    let inode = walk::file_at(top, path).context("open", path)?;
    Ok(File::new(inode, path, &FileOptions::new().read(true)))
}

/// Reads a whole file.
pub(crate) fn read(top: &Inode, path: &Path) -> Result<Vec<u8>> {
    read_whole(open_file(top, path)?.inode()).context("read", path)
}

/// Reads a whole file as UTF-8.
pub(crate) fn read_to_string(top: &Inode, path: &Path) -> Result<String> {
    String::from_utf8(read(top, path)?)
        .map_err(|error| Error::new(ErrorKind::InvalidInput, "read", Some(path), error))
}

/// Lists a directory.
pub(crate) fn read_dir(top: &Inode, path: &Path) -> Result<ReadDir> {
    let dir = walk::dir_at(top, path).context("list", path)?;
    Ok(ReadDir::new(dir, path))
}

/// Whether a path leads to something.
pub(crate) fn exists(top: &Inode, path: &Path) -> Result<bool> {
    match metadata(top, path, Last::Follow) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// The metadata of a file.
pub(crate) fn metadata(top: &Inode, path: &Path, last: Last) -> Result<Metadata> {
    let inode = walk::find_from(top, path, last).context("stat", path)?;
    Ok(Metadata::new(inode.attr()))
}

/// Returns the target of a symbolic link.
pub(crate) fn read_link(top: &Inode, path: &Path) -> Result<PathBuf> {
    walk::link_at(top, path).context("read link", path)
}
