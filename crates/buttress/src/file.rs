//! An open file, and the options for opening it.

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use buttress_fs::{Inode, NewInode, SetAttr};

use crate::error::{Context, Error, ErrorKind, Result};
use crate::metadata::Metadata;

/// An open file of a volume. It stays readable after its last name is removed.
///
/// [`Read`], [`Write`] and [`Seek`] share one position. The methods with names that end in `_at` do
/// not use this position, so many threads may call these methods at once.
#[derive(Debug)]
pub struct File {
    inode: Inode,
    path: PathBuf,
    position: u64,
    read: bool,
    write: bool,
    append: bool,
}

impl File {
    pub(crate) fn new(inode: Inode, path: &Path, options: &FileOptions) -> Self {
        Self {
            inode,
            path: path.to_path_buf(),
            position: 0,
            read: options.read,
            write: options.write || options.append,
            append: options.append,
        }
    }

    /// The path by which the file was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The metadata of the file.
    #[must_use]
    pub fn metadata(&self) -> Metadata {
        Metadata::new(self.inode.attr())
    }

    /// Reads bytes at an offset and returns their number. The number is smaller than the length of
    /// `buf` only at the end of the file.
    ///
    /// # Errors
    ///
    /// `Corrupt` and `Io` if the bytes cannot be read; `PermissionDenied` if the file was not
    /// opened for reading.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.expect(self.read, "read")?;
        self.inode.read_at(offset, buf).context("read", &self.path)
    }

    /// Fills `buf` with the bytes at an offset.
    ///
    /// # Errors
    ///
    /// The errors of [`File::read_at`]; `InvalidInput` where the file ends before `buf` is full.
    pub fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        if self.read_at(buf, offset)? == buf.len() {
            return Ok(());
        }
        let what = "the file ends before the last byte that was asked for";
        Err(Error::new(ErrorKind::InvalidInput, "read", Some(&self.path), what))
    }

    /// Writes all bytes at an offset. A gap between the end of the file and the offset reads as
    /// zeros.
    ///
    /// # Errors
    ///
    /// `StorageFull`, `ReadOnly`, `Aborted`, `Io`; `PermissionDenied` if the file was not opened
    /// for writing.
    pub fn write_all_at(&self, data: &[u8], offset: u64) -> Result<()> {
        self.expect(self.write, "write")?;
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            done += self.inode.write_at(at, &data[done..]).context("write", &self.path)?;
        }
        Ok(())
    }

    /// Truncates the file, or extends it by a hole.
    ///
    /// # Errors
    ///
    /// The errors of [`File::write_all_at`].
    pub fn set_len(&self, len: u64) -> Result<()> {
        self.expect(self.write, "set the length of")?;
        // As with std's, the length that the file has changes the times, too.
        let set =
            SetAttr { size: Some(len), mtime: Some(buttress_fs::now()), ..SetAttr::default() };
        self.inode.set_attr(&set).context("set the length of", &self.path)?;
        Ok(())
    }

    /// Makes content and attributes durable.
    ///
    /// # Errors
    ///
    /// An error from this write. Also reports, once, the first earlier failure to write this file's
    /// data in the background.
    pub fn sync_all(&self) -> Result<()> {
        self.inode.sync().context("sync", &self.path)
    }

    /// The engine's inode, for calls that this type does not offer.
    #[must_use]
    pub fn inode(&self) -> &Inode {
        &self.inode
    }

    pub(crate) fn is_for_writing(&self) -> bool {
        self.write
    }

    fn expect(&self, allowed: bool, operation: &'static str) -> Result<()> {
        if allowed {
            return Ok(());
        }
        let what = "the file was not opened for that";
        Err(Error::new(ErrorKind::PermissionDenied, operation, Some(&self.path), what))
    }
}

/// Reads a whole file.
pub(crate) fn read_whole(inode: &Inode) -> buttress_fs::Result<Vec<u8>> {
    let mut content = Vec::new();
    let mut piece = vec![0; 256 << 10];
    loop {
        let read = inode.read_at(content.len() as u64, &mut piece)?;
        if read == 0 {
            return Ok(content);
        }
        content.extend_from_slice(&piece[..read]);
    }
}

impl Read for File {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let read = self.read_at(buf, self.position)?;
        self.position += read as u64;
        Ok(read)
    }
}

impl Write for File {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        if self.append {
            self.position = self.inode.attr().size;
        }
        self.write_all_at(data, self.position)?;
        self.position += data.len() as u64;
        Ok(data.len())
    }

    /// Does nothing: the engine has the bytes when a write returns. [`File::sync_all`] makes them
    /// durable.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let (base, offset) = match to {
            SeekFrom::Start(at) => (at, 0),
            SeekFrom::End(offset) => (self.inode.attr().size, offset),
            SeekFrom::Current(offset) => (self.position, offset),
        };
        let at = base.checked_add_signed(offset);
        self.position = at.ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidInput, "the position is before the first byte")
        })?;
        Ok(self.position)
    }
}

/// How to open a file of a volume. The methods have the names of [`std::fs::OpenOptions`].
#[derive(Clone, Debug)]
#[must_use = "options do nothing before a file is opened with them"]
pub struct FileOptions {
    pub(crate) read: bool,
    pub(crate) write: bool,
    pub(crate) append: bool,
    pub(crate) truncate: bool,
    pub(crate) create: bool,
    pub(crate) create_new: bool,
    mode: u32,
    owner: (u32, u32),
}

impl Default for FileOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl FileOptions {
    /// Options that allow neither reading nor writing. A new file gets mode 0644 and belongs to
    /// user 0 and group 0.
    pub fn new() -> Self {
        Self {
            read: false,
            write: false,
            append: false,
            truncate: false,
            create: false,
            create_new: false,
            mode: 0o644,
            owner: (0, 0),
        }
    }

    /// Whether the file can be read.
    pub fn read(mut self, read: bool) -> Self {
        self.read = read;
        self
    }

    /// Whether the file can be written.
    pub fn write(mut self, write: bool) -> Self {
        self.write = write;
        self
    }

    /// Whether every write goes to the end of the file.
    pub fn append(mut self, append: bool) -> Self {
        self.append = append;
        self
    }

    /// Whether opening truncates the file to length zero.
    pub fn truncate(mut self, truncate: bool) -> Self {
        self.truncate = truncate;
        self
    }

    /// Whether opening creates the file if it does not exist.
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// Whether opening creates the file, and fails if it exists.
    pub fn create_new(mut self, create_new: bool) -> Self {
        self.create_new = create_new;
        self
    }

    /// Permission bits of a file that is made.
    pub fn mode(mut self, mode: u32) -> Self {
        self.mode = mode;
        self
    }

    /// User and group of a file that is made. In a directory with the set-group-ID bit, a new file
    /// gets the group of the directory.
    pub fn owner(mut self, uid: u32, gid: u32) -> Self {
        self.owner = (uid, gid);
        self
    }

    /// The inode that `make` describes by its permission bits, with the owner of these options.
    pub(crate) fn new_inode(&self, make: impl FnOnce(u32) -> NewInode) -> NewInode {
        let (uid, gid) = self.owner;
        make(self.mode).owner(uid, gid)
    }
}
