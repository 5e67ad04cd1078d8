//! A device that is a regular file or a block device of the machine.
//!
//! No other code of the program opens storage. All reads and writes are positioned system calls, so
//! any number of threads can share one descriptor.
//!
//! # Invariants
//!
//! - **F1** While a writer has the file open, every other program that asks for the lock is
//!   refused: see `lock`. A writer also claims a block device, so that the kernel does not mount
//!   it. The claim is refused if the kernel uses the device. If the kernel mounts the device for
//!   this program, the kernel's claim replaces the writer's claim (`yield_claim`). A device that is
//!   open for reading can become writable later, if no other program has it open.
//! - **F2** In direct mode, requests through the direct descriptor are aligned in memory, in place
//!   and in length. All other requests go through a second, buffered descriptor. The kernel keeps
//!   both descriptors coherent: a direct read first writes back dirty pages, and a direct write
//!   drops cached pages.
//!
//! # Failure
//!
//! The kernel releases the lock when it closes the descriptor: on drop, on exit, on a crash.

mod claim;
mod open;

use std::fs::File;
use std::io::{self, IoSlice, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use buttress_base::{AlignedBuf, text};
use parking_lot::Mutex;
use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use self::claim::claim;
pub use self::open::OpenOptions;
use self::open::{Opened, is_read_only, open_direct, open_error, open_options};
use crate::device::{
    Class, Content, Device, Extent, FailedWrite, Space, Unfinished, Write, check, total_len,
    write_each_zero,
};
use crate::error::{Error, Operation};
use crate::lock;
use crate::queue;
use crate::ring::Rings;

/// A regular file or a block device.
#[derive(Debug)]
pub struct FileDevice {
    path: PathBuf,
    len: u64,
    writable: bool,
    is_block_device: bool,
    /// Holds the lock.
    file: File,
    /// Claims a block device that is written, until the kernel's own claim replaces it (F1).
    ///
    /// Unranked: a leaf.
    claim: Mutex<Option<File>>,
    /// In direct mode, the same file with `O_DIRECT`, which bypasses the page cache.
    pub(crate) direct: Option<File>,
    /// The same files opened for writing, if [`Device::begin_writing`] made the device writable
    /// later.
    writer: OnceLock<Writer>,
    /// Rings of io_uring, for batches of requests in direct mode.
    pub(crate) rings: Rings,
    /// In direct mode, whether a durable write also makes earlier writes durable.
    pub(crate) flushes_with_writes: bool,
}

/// The files of a device, open for reading and writing.
#[derive(Debug)]
struct Writer {
    file: File,
    direct: Option<File>,
}

/// How many buffers the kernel takes in one call.
pub(crate) const IOVEC_MAX: usize = 1024;

impl FileDevice {
    /// Opens an existing file or device.
    ///
    /// # Errors
    ///
    /// [`Error::NotADevice`] and [`Error::Empty`] for a path that cannot be a device,
    /// [`Error::Locked`] and [`Error::Busy`] if another process or the kernel uses the file, else
    /// [`Error::Open`].
    pub fn open(path: impl AsRef<Path>, options: OpenOptions) -> Result<Self, Error> {
        let path = path.as_ref();
        Self::from_opened(path, open::open(path, options, None)?, options)
    }

    /// Creates a sparse file of `len` bytes and opens it exclusively for writing.
    ///
    /// An existing regular file keeps its content. It is grown if it is shorter, and never
    /// truncated. A block device is opened as by [`FileDevice::open`] and keeps its length.
    ///
    /// # Errors
    ///
    /// Those of [`FileDevice::open`]; [`Error::Grow`] if the file cannot be that long.
    pub fn create(path: impl AsRef<Path>, len: u64) -> Result<Self, Error> {
        let path = path.as_ref();
        let options = OpenOptions::WRITE;
        Self::from_opened(path, open::open(path, options, Some(len))?, options)
    }

    /// Returns the path the device was opened by.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Gives up the lock, for a device that will write no more and stays open for a while.
    pub fn unlock(&self) {
        lock::unlock(&self.file);
    }

    /// Gives up the claim on a block device, so that the kernel can mount it for this program and
    /// claim it. The lock stays. Returns whether there was a claim.
    pub fn yield_claim(&self) -> bool {
        let claim = self.claim.lock().take();
        claim.is_some()
    }

    /// Takes the claim again after [`Self::yield_claim`], if the kernel has not claimed the device.
    ///
    /// # Errors
    ///
    /// [`Error::Busy`] if the kernel or another program has claimed the device meanwhile.
    pub fn take_claim(&self) -> Result<(), Error> {
        let claimed = claim(&self.path)?;
        *self.claim.lock() = Some(claimed);
        Ok(())
    }

    /// Says whether this is a block device, as opposed to a regular file.
    #[must_use]
    pub fn is_block_device(&self) -> bool {
        self.is_block_device
    }

    fn from_opened(path: &Path, opened: Opened, options: OpenOptions) -> Result<Self, Error> {
        let Opened { mut file, claim, is_block_device } = opened;
        // Uses the open file, because its path may name another file by now. Seeking to the end
        // gives the length of a block device, too.
        let len = file.seek(SeekFrom::End(0)).map_err(open_error(path))?;
        if len == 0 {
            return Err(Error::Empty { path: path.to_owned() });
        }
        let direct = if options.direct { Some(open_direct(path, &file, options)?) } else { None };
        let writable = options.write;
        let flushes_with_writes = is_block_device && queue::flushes_with_writes(&file);
        let (path, rings) = (path.to_owned(), Rings::default());
        let writer = OnceLock::new();
        Ok(Self {
            path,
            len,
            writable,
            is_block_device,
            file,
            claim: Mutex::new(claim),
            direct,
            writer,
            rings,
            flushes_with_writes,
        })
    }

    pub(crate) fn io_error(
        &self,
        operation: Operation,
        offset: u64,
        len: u64,
        source: io::Error,
    ) -> Error {
        // The file is shorter than at the open: another program truncated it.
        if source.kind() == io::ErrorKind::UnexpectedEof {
            let device_len = self.file.metadata().map_or(self.len, |metadata| metadata.len());
            return Error::PastEnd { device: self.name(), operation, offset, len, device_len };
        }
        Error::Io { device: self.name(), operation, offset, len, source }
    }

    /// The direct descriptor, if there is one and the offset and length are aligned for it (F2).
    /// Does not check the alignment in memory.
    pub(crate) fn direct_for(&self, offset: u64, len: u64) -> Option<&File> {
        let align = AlignedBuf::ALIGN as u64;
        self.past_cache().filter(|_| offset.is_multiple_of(align) && len.is_multiple_of(align))
    }

    /// The descriptor that goes through the page cache.
    fn file(&self) -> &File {
        self.writer.get().map_or(&self.file, |writer| &writer.file)
    }

    /// In direct mode, the descriptor that bypasses the page cache.
    pub(crate) fn past_cache(&self) -> Option<&File> {
        match self.writer.get() {
            Some(writer) => writer.direct.as_ref(),
            None => self.direct.as_ref(),
        }
    }

    /// Opens the files for writing and excludes other programs. The lock stays on the descriptor
    /// that was opened first.
    fn open_for_writing(&self) -> Result<(), Error> {
        if self.writable || self.writer.get().is_some() {
            return Ok(());
        }
        let options = OpenOptions { direct: self.direct.is_some(), ..OpenOptions::WRITE };
        let opened = self.open_alone(options);
        if opened.is_err() {
            // The attempt may have given up the shared lock. If another writer has taken the lock
            // since then, this device stays open for reading without a lock, and readers see that
            // writer's changes.
            if let Err(error) = lock::lock(&self.file, &self.path, false) {
                tracing::warn!(%error, "a file that is read is not locked any more");
            }
        }
        // If two threads open the files at the same time, the files of the first thread stay. The
        // files of the second thread are equal.
        let _ = self.writer.set(opened?);
        Ok(())
    }

    fn open_alone(&self, options: OpenOptions) -> Result<Writer, Error> {
        lock::lock(&self.file, &self.path, true)?;
        lock::check_not_looped(&self.file, &self.path)?;
        // Opens through the descriptor, because the path may name another file by now.
        let own = PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd()));
        let named = |error| match error {
            Error::Open { source, .. } => Error::Open { path: self.path.clone(), source },
            Error::Busy { .. } => Error::Busy { path: self.path.clone() },
            error => error,
        };
        let claimed = match self.is_block_device {
            true => Some(claim(&own).map_err(named)?),
            false => None,
        };
        let file = open_options(options).open(&own).map_err(open_error(&self.path))?;
        // For a read-only block device, the kernel allows the open but refuses each write.
        if self.is_block_device && is_read_only(&file) {
            let source = io::Error::from(Errno::ROFS);
            return Err(Error::Open { path: self.path.clone(), source });
        }
        let direct = match options.direct {
            true => Some(open_direct(&own, &file, options).map_err(named)?),
            false => None,
        };
        *self.claim.lock() = claimed;
        Ok(Writer { file, direct })
    }
}

impl Drop for FileDevice {
    fn drop(&mut self) {
        lock::unlock(&self.file);
    }
}

impl Device for FileDevice {
    fn name(&self) -> String {
        text::encode(self.path.as_os_str().as_bytes())
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn writable(&self) -> bool {
        self.writable || self.writer.get().is_some()
    }

    fn begin_writing(&self) -> Result<(), Error> {
        self.open_for_writing()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        let len = buf.len() as u64;
        check(self, Operation::Read, offset, len)?;
        let result = match self.direct_for(offset, len) {
            Some(direct) if is_aligned(buf) => direct.read_exact_at(buf, offset),
            Some(direct) => {
                let mut bounce = AlignedBuf::zeroed(buf.len());
                direct.read_exact_at(&mut bounce, offset).map(|()| buf.copy_from_slice(&bounce))
            }
            None => self.file().read_exact_at(buf, offset),
        };
        result.map_err(|source| self.io_error(Operation::Read, offset, len, source))
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), Error> {
        let len = buf.len() as u64;
        check(self, Operation::Write, offset, len)?;
        let result = match self.direct_for(offset, len) {
            Some(direct) if is_aligned(buf) => direct.write_all_at(buf, offset),
            Some(direct) => direct.write_all_at(&AlignedBuf::copy_of(buf), offset),
            None => self.file().write_all_at(buf, offset),
        };
        result.map_err(|source| self.io_error(Operation::Write, offset, len, source))
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<(), Error> {
        let len = total_len(bufs);
        check(self, Operation::Write, offset, len)?;
        if let [buf] = bufs {
            return self.write_at(offset, buf);
        }
        let result = match self.direct_for(offset, len) {
            Some(direct) if bufs.iter().all(|buf| may_go_direct(buf)) => {
                write_all_vectored(direct, offset, bufs)
            }
            Some(direct) => direct.write_all_at(&gather(bufs, len), offset),
            None => write_all_vectored(self.file(), offset, bufs),
        };
        result.map_err(|source| self.io_error(Operation::Write, offset, len, source))
    }

    fn write_many(&self, writes: &[Write<'_>]) -> Result<(), FailedWrite> {
        self.write_at_once(writes)
    }

    fn writes_at_once(&self) -> bool {
        self.past_cache().is_some() && self.rings.may_be()
    }

    fn write_many_and_flush(&self, writes: &[Write<'_>]) -> Result<(), Unfinished> {
        self.write_at_once_and_flush(writes)
    }

    fn write_durably(&self, offset: u64, buf: &[u8], class: Class) -> Result<(), Error> {
        if self.write_with_flush(offset, buf)? {
            return Ok(());
        }
        self.write_classed_at(offset, &[IoSlice::new(buf)], class)?;
        self.flush()
    }

    fn flush(&self) -> Result<(), Error> {
        if !self.writable() {
            return Ok(());
        }
        self.file()
            .sync_data()
            .map_err(|source| self.io_error(Operation::Flush, 0, self.len, source))
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), Error> {
        check(self, Operation::Discard, offset, len)?;
        if len == 0 {
            return Ok(());
        }
        let result = if self.is_block_device {
            discard_blocks(self.file(), offset, len)
        } else {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(self.file(), flags, offset, len)
        };
        match result {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOTTY) => Ok(()),
            Err(errno) => {
                Err(self.io_error(Operation::Discard, offset, len, io::Error::from(errno)))
            }
        }
    }

    fn write_zeroes(&self, offset: u64, len: u64, space: Space) -> Result<(), Error> {
        check(self, Operation::Write, offset, len)?;
        if len == 0 {
            return Ok(());
        }
        // Both modes of `fallocate` also work on block devices, where the kernel zeroes or unmaps
        // the sectors. For a block device the kernel accepts only whole sectors. It refuses other
        // ranges before it changes anything.
        let zeroing = match space {
            Space::Keep => FallocateFlags::ZERO_RANGE,
            Space::Free => FallocateFlags::PUNCH_HOLE,
        };
        let flags = zeroing | FallocateFlags::KEEP_SIZE;
        match rustix::fs::fallocate(self.file(), flags, offset, len) {
            Ok(()) => Ok(()),
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NODEV | Errno::INVAL) => {
                write_each_zero(offset, len, |at, buf| self.write_at(at, buf))
            }
            Err(errno) => Err(self.io_error(Operation::Write, offset, len, io::Error::from(errno))),
        }
    }

    /// Finds holes of a regular file. For a block device, and on a filesystem without `SEEK_HOLE`,
    /// the result is [`Content::Data`].
    fn extent_at(&self, offset: u64, len: u64) -> Result<Extent, Error> {
        check(self, Operation::Read, offset, len)?;
        let all = |content| Ok(Extent { len, content });
        let upto = |next: u64, content| Ok(Extent { len: len.min(next - offset), content });
        if self.is_block_device || len == 0 {
            return all(Content::Data);
        }
        // These calls move the file position. Nothing uses the position, because all other calls
        // have offsets.
        match rustix::fs::seek(self.file(), rustix::fs::SeekFrom::Data(offset)) {
            Ok(data) if data > offset => upto(data, Content::Hole),
            Ok(_) => match rustix::fs::seek(self.file(), rustix::fs::SeekFrom::Hole(offset)) {
                Ok(hole) if hole > offset => upto(hole, Content::Data),
                // The range became a hole meanwhile, or the call failed. `Data` is always correct.
                Ok(_) | Err(_) => all(Content::Data),
            },
            // The file has no data from here to its end. A file that is shorter than at the open is
            // not reported as a hole, so that a read finds the error.
            Err(Errno::NXIO) if self.file().metadata().is_ok_and(|now| now.len() >= self.len) => {
                all(Content::Hole)
            }
            Err(_) => all(Content::Data),
        }
    }
}

pub(crate) fn is_aligned(buf: &[u8]) -> bool {
    buf.as_ptr().addr().is_multiple_of(AlignedBuf::ALIGN)
}

pub(crate) fn may_go_direct(buf: &[u8]) -> bool {
    is_aligned(buf) && buf.len().is_multiple_of(AlignedBuf::ALIGN)
}

/// Copies `bufs` into one buffer that is aligned for direct I/O (F2).
pub(crate) fn gather(bufs: &[IoSlice<'_>], len: u64) -> AlignedBuf {
    let mut joined = AlignedBuf::zeroed(len as usize);
    let mut at = 0;
    for buf in bufs {
        joined[at..at + buf.len()].copy_from_slice(buf);
        at += buf.len();
    }
    joined
}

fn write_all_vectored(file: &File, offset: u64, bufs: &[IoSlice<'_>]) -> io::Result<()> {
    let mut bufs = bufs.to_vec();
    let mut rest = bufs.as_mut_slice();
    let mut at = offset;
    // Skips empty buffers at the front. Otherwise a write of zero bytes would look like a full
    // device.
    IoSlice::advance_slices(&mut rest, 0);
    while !rest.is_empty() {
        let count = rest.len().min(IOVEC_MAX);
        match rustix::io::pwritev(file, &rest[..count], at) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                at += written as u64;
                IoSlice::advance_slices(&mut rest, written);
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Discards the whole sectors of a range of a block device.
#[expect(unsafe_code, reason = "there is no safe call for this request")]
fn discard_blocks(file: &File, offset: u64, len: u64) -> Result<(), Errno> {
    /// `_IO(0x12, 119)`: takes two numbers of 64 bits, start and length.
    const BLKDISCARD: rustix::ioctl::Opcode = 0x1277;
    const SECTOR: u64 = 512;

    let start = offset.next_multiple_of(SECTOR);
    let end = (offset + len) / SECTOR * SECTOR;
    if start >= end {
        return Ok(());
    }
    // SAFETY: BLKDISCARD reads exactly the two `u64` that this `Setter` passes, and writes nothing
    // back. An older kernel without this request answers with an error.
    unsafe {
        let request = rustix::ioctl::Setter::<BLKDISCARD, [u64; 2]>::new([start, end - start]);
        rustix::ioctl::ioctl(file, request)
    }
}

#[cfg(test)]
mod tests;
