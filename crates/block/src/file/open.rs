//! Opens files and block devices by their paths, with the claim and the lock (`file::F1`).

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

use super::claim::claim;
use crate::error::{Error, NotADevice};
use crate::lock;

/// How to open a file or block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenOptions {
    /// Whether to allow writes.
    pub write: bool,
    /// Whether to lock the device. A writer then excludes all other programs, and a reader excludes
    /// writers. A reader without a lock may see changes at any time. A writer claims a block device
    /// in any case.
    pub lock: bool,
    /// Whether to bypass the kernel's page cache.
    pub direct: bool,
}

impl OpenOptions {
    /// Opens for reading; other readers are allowed.
    pub const READ: Self = Self { write: false, lock: true, direct: false };
    /// Opens for writing, and excludes all other programs.
    pub const WRITE: Self = Self { write: true, lock: true, direct: false };
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self::READ
    }
}

/// A file or block device that is open, claimed and locked.
pub(super) struct Opened {
    pub(super) file: File,
    /// Claims a block device that is written.
    pub(super) claim: Option<File>,
    pub(super) is_block_device: bool,
}

/// Opens a file or a block device. With a length, a file is made, or made longer.
pub(super) fn open(path: &Path, options: OpenOptions, len: Option<u64>) -> Result<Opened, Error> {
    // The kind is checked before opening, since opening a named pipe would wait for its other end.
    let is_block_device = match std::fs::metadata(path) {
        Ok(metadata) => check_kind(path, &metadata)?,
        Err(error) if len.is_some() && error.kind() == io::ErrorKind::NotFound => false,
        Err(source) => return Err(Error::Open { path: path.to_owned(), source }),
    };
    // Each writer of a block device claims it, also one with a length or without a lock: the kernel
    // may have the device mounted.
    let claim = if is_block_device && options.write { Some(claim(path)?) } else { None };
    let makes = len.is_some() && !is_block_device;
    let file = open_options(options).create(makes).open(path).map_err(open_error(path))?;
    let metadata = file.metadata().map_err(open_error(path))?;
    // The path may name another file by now, which nothing has claimed.
    if check_kind(path, &metadata)? != is_block_device {
        return Err(named_anew(path));
    }
    if let Some(claim) = &claim {
        expect_same(path, &file, claim)?;
    }
    // The file is locked before any change, since another program may be writing it.
    if options.lock {
        lock::lock(&file, path, options.write)?;
    }
    if options.write {
        lock::check_not_looped(&file, path)?;
    }
    if let Some(len) = len.filter(|_| makes) {
        grow(&file, len).map_err(|source| Error::Grow { path: path.to_owned(), len, source })?;
    }
    Ok(Opened { file, claim, is_block_device })
}

pub(super) fn open_error(path: &Path) -> impl Fn(io::Error) -> Error {
    move |source| Error::Open { path: path.to_owned(), source }
}

/// Makes a file longer, or leaves it as it is.
fn grow(file: &File, len: u64) -> io::Result<()> {
    if file.metadata()?.len() < len {
        file.set_len(len)?;
    }
    Ok(())
}

/// Checks that a path is a regular file or a block device. Returns true for a block device.
fn check_kind(path: &Path, metadata: &Metadata) -> Result<bool, Error> {
    let kind = metadata.file_type();
    let found = if kind.is_file() {
        return Ok(false);
    } else if kind.is_block_device() {
        return Ok(true);
    } else if kind.is_dir() {
        NotADevice::Directory
    } else if kind.is_fifo() {
        NotADevice::Fifo
    } else if kind.is_char_device() {
        NotADevice::CharacterDevice
    } else if kind.is_socket() {
        NotADevice::Socket
    } else {
        NotADevice::Unknown
    };
    Err(Error::NotADevice { path: path.to_owned(), found })
}

/// Whether a block device refuses writes, as far as the kernel says.
pub(super) fn is_read_only(file: &File) -> bool {
    let Ok(metadata) = file.metadata() else { return false };
    let number = metadata.rdev();
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let said = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/ro"));
    said.is_ok_and(|said| said.trim() == "1")
}

pub(super) fn open_options(options: OpenOptions) -> std::fs::OpenOptions {
    let mut std_options = std::fs::OpenOptions::new();
    std_options.read(true).write(options.write);
    std_options
}

/// Opens the file behind `file` once more, for direct I/O.
pub(super) fn open_direct(path: &Path, file: &File, options: OpenOptions) -> Result<File, Error> {
    let direct = std::fs::OpenOptions::new()
        .read(true)
        .write(options.write)
        .custom_flags(OFlags::DIRECT.bits().cast_signed())
        .open(path)
        .map_err(open_error(path))?;
    expect_same(path, file, &direct)?;
    Ok(direct)
}

/// Checks that two openings of a path have found the same file.
fn expect_same(path: &Path, first: &File, second: &File) -> Result<(), Error> {
    let (first, second) =
        (first.metadata().map_err(open_error(path))?, second.metadata().map_err(open_error(path))?);
    match (first.dev(), first.ino()) == (second.dev(), second.ino()) {
        true => Ok(()),
        false => Err(named_anew(path)),
    }
}

fn named_anew(path: &Path) -> Error {
    let source = io::Error::other("the path names another file now");
    Error::Open { path: path.to_owned(), source }
}
