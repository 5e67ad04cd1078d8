//! The operations of every device.
//!
//! # Invariants
//!
//! - **D1** A request is served whole or fails; there are no short reads and writes.
//! - **D2** A request past the end fails and changes nothing.
//! - **D3** When `flush` has returned, every write that ended before that call survives a crash.
//!   Without a flush, any part of a write may or may not survive, in units of 512 bytes.
//!
//! # Failure
//!
//! A failed write leaves its range in any state: old, new or mixed. A failed flush leaves
//! everything written since the last good flush in doubt. A second flush proves nothing.

use std::fmt;
use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;

use buttress_base::AlignedBuf;

use crate::error::{Error, Operation};

/// A run of bytes that can be read and written at any place, by many threads at once.
pub trait Device: Send + Sync + fmt::Debug {
    /// Names the device for a user: mostly a path.
    fn name(&self) -> String;

    /// Returns the length in bytes. While the device is open, only [`Device::grow`] changes it.
    fn len(&self) -> u64;

    /// Returns whether the length is zero.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Says whether [`Device::grow`] works. The free part of a device that can grow takes no space,
    /// so the device is never made shorter.
    fn can_grow(&self) -> bool {
        false
    }

    /// Makes the device at least `len` bytes long. The new part reads as zeroes. When the call has
    /// returned, the length survives a crash, also without a flush. After an error the length may
    /// be the old or the new one.
    ///
    /// # Errors
    ///
    /// [`Error::Fixed`] if the length of the device cannot change, [`Error::ReadOnly`], and
    /// [`Error::Io`] if the device fails.
    fn grow(&self, len: u64) -> Result<(), Error> {
        match self.len() >= len {
            true => Ok(()),
            false => Err(Error::Fixed { device: self.name(), len: self.len() }),
        }
    }

    /// Says whether writes are allowed.
    fn writable(&self) -> bool;

    /// Allows writes from now on, on a device that was opened for reading. If this fails, writes
    /// stay refused.
    ///
    /// # Errors
    ///
    /// [`Error::ReadOnly`] for a device that cannot be written; [`Error::Locked`] and
    /// [`Error::Busy`] if another program has the device open, too.
    fn begin_writing(&self) -> Result<(), Error> {
        match self.writable() {
            true => Ok(()),
            false => Err(Error::ReadOnly { device: self.name(), operation: Operation::Write }),
        }
    }

    /// Fills `buf` with the bytes at `offset`.
    ///
    /// # Errors
    ///
    /// [`Error::PastEnd`] if the range does not lie within the device; [`Error::Io`] if the device
    /// fails.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error>;

    /// Serves several reads, in any order or at once. For a device where each request takes long,
    /// one call with many reads is much faster than a call for each read.
    ///
    /// # Errors
    ///
    /// Those of [`Device::read_at`] for one of the failed reads. After a failure the content of all
    /// buffers is undefined.
    fn read_many(&self, reads: &mut [Read<'_>]) -> Result<(), Error> {
        reads.iter_mut().try_for_each(|read| self.read_at(read.offset, read.buf))
    }

    /// Whether [`Device::read_many`] waits once for all reads, and keeps the bytes in memory for a
    /// while. If so, a caller that needs many pieces one by one should first read them all in one
    /// call.
    fn reads_at_once(&self) -> bool {
        false
    }

    /// How many bytes ahead of a sequential reader a caller should say by [`Device::expect`] what
    /// comes. Zero if the device gains nothing by it.
    fn ahead_bytes(&self) -> u64 {
        0
    }

    /// Says which ranges a reader will probably ask for soon, in this order. Returns at once. The
    /// device may read all of them, a part, or none.
    fn expect(&self, ranges: &[Range<u64>]) {
        let _ = ranges;
    }

    /// Writes `buf` at `offset`.
    ///
    /// # Errors
    ///
    /// Those of [`Device::read_at`], and [`Error::ReadOnly`].
    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), Error>;

    /// Writes `bufs`, one after the other, from `offset` on.
    ///
    /// # Errors
    ///
    /// Those of [`Device::write_at`].
    fn write_vectored_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<(), Error> {
        check(self, Operation::Write, offset, total_len(bufs))?;
        let mut at = offset;
        for buf in bufs {
            self.write_at(at, buf)?;
            at += buf.len() as u64;
        }
        Ok(())
    }

    /// Writes as [`Device::write_vectored_at`] does, with the class of the bytes. A device that
    /// treats all classes alike ignores the class.
    ///
    /// # Errors
    ///
    /// Those of [`Device::write_at`].
    fn write_classed_at(
        &self,
        offset: u64,
        bufs: &[IoSlice<'_>],
        _class: Class,
    ) -> Result<(), Error> {
        self.write_vectored_at(offset, bufs)
    }

    /// Serves several writes that do not overlap, in any order or at once.
    ///
    /// # Errors
    ///
    /// Those of [`Device::write_at`] for one of the failed writes. The error does not say which
    /// other writes were served.
    fn write_many(&self, writes: &[Write<'_>]) -> Result<(), FailedWrite> {
        for (index, write) in writes.iter().enumerate() {
            self.write_classed_at(write.offset, &write.bufs, write.class)
                .map_err(|error| FailedWrite { index, error })?;
        }
        Ok(())
    }

    /// Whether [`Device::write_many`] waits once for all writes. If not, a caller with several
    /// threads may be faster when each thread writes a part.
    fn writes_at_once(&self) -> bool {
        false
    }

    /// Serves several writes as [`Device::write_many`] does. Then makes all writes so far durable,
    /// including these writes.
    ///
    /// # Errors
    ///
    /// Those of [`Device::write_many`] and [`Device::flush`]. After an error any of the writes may
    /// be missing after a crash.
    fn write_many_and_flush(&self, writes: &[Write<'_>]) -> Result<(), Unfinished> {
        self.write_many(writes).map_err(Unfinished::Write)?;
        self.flush().map_err(Unfinished::Flush)
    }

    /// Writes `buf` and makes it durable. Earlier writes may become durable or not.
    ///
    /// # Errors
    ///
    /// Those of [`Device::write_at`] and [`Device::flush`].
    fn write_durably(&self, offset: u64, buf: &[u8], class: Class) -> Result<(), Error> {
        self.write_classed_at(offset, &[IoSlice::new(buf)], class)?;
        self.flush()
    }

    /// Makes everything written so far durable.
    ///
    /// # Errors
    ///
    /// [`Error::Io`]; the header of this module describes the state after a failed flush.
    fn flush(&self) -> Result<(), Error>;

    /// Waits until everything that was flushed has been copied to a place that survives the loss of
    /// this machine. A device without such a place does nothing.
    ///
    /// # Errors
    ///
    /// Those of [`Device::flush`].
    fn upload(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Opens the newest state of a device that another machine writes, as a separate device. The
    /// device `self` keeps its state. `None` if there is nothing newer.
    ///
    /// # Errors
    ///
    /// Those of opening.
    fn newer(&self) -> Result<Option<Arc<dyn Device>>, Error> {
        Ok(None)
    }

    /// Tells the device that the content of a range is not needed any more. The content of the
    /// range is undefined afterwards. A device that cannot discard returns `Ok`.
    ///
    /// # Errors
    ///
    /// Those of [`Device::write_at`].
    fn discard(&self, offset: u64, len: u64) -> Result<(), Error>;

    /// Makes a range read as zeroes, without sending the bytes. The operation counts as a write
    /// like any other (D3).
    ///
    /// # Errors
    ///
    /// Those of [`Device::write_at`].
    fn write_zeroes(&self, offset: u64, len: u64, _space: Space) -> Result<(), Error> {
        check(self, Operation::Write, offset, len)?;
        write_each_zero(offset, len, |at, buf| self.write_at(at, buf))
    }

    /// Returns the kind of the bytes from `offset` on, without reading them. The extent ends at the
    /// first change of kind, and at `len` at the latest. A device that cannot tell returns
    /// [`Content::Data`], which is always correct.
    ///
    /// # Errors
    ///
    /// Those of [`Device::read_at`].
    fn extent_at(&self, offset: u64, len: u64) -> Result<Extent, Error> {
        check(self, Operation::Read, offset, len)?;
        Ok(Extent { len, content: Content::Data })
    }
}

/// One of several reads.
#[derive(Debug)]
pub struct Read<'a> {
    /// The offset of the first byte.
    pub offset: u64,
    /// The buffer to fill.
    pub buf: &'a mut [u8],
}

/// One of several writes.
#[derive(Debug)]
pub struct Write<'a> {
    /// The offset of the first byte.
    pub offset: u64,
    /// The bytes to write, one buffer after the other.
    pub bufs: Vec<IoSlice<'a>>,
    /// The class of the bytes.
    pub class: Class,
}

/// The failure of one of several writes.
#[derive(Debug)]
pub struct FailedWrite {
    /// The index of the write that failed.
    pub index: usize,
    /// The error of that write.
    pub error: Error,
}

/// Why several writes are not durable.
#[derive(Debug)]
pub enum Unfinished {
    /// One of the writes failed.
    Write(FailedWrite),
    /// The flush after the writes failed.
    Flush(Error),
}

/// The class of bytes, as the writer knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Content of files.
    Data,
    /// Structures that say where content is. Such writes are small and scattered, and callers wait
    /// for them.
    Metadata,
}

/// The fate of the space of a zeroed range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// The space stays allocated, so that later writes to the range cannot run out of space.
    Keep,
    /// The space may be freed.
    Free,
}

/// The kind of bytes, known without reading them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Any bytes.
    Data,
    /// Bytes that read as zeroes and take no space.
    Hole,
}

/// A run of bytes of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Its length; zero only if zero bytes were asked for.
    pub len: u64,
    /// The kind of the bytes.
    pub content: Content,
}

/// Writes buffers of zeroes, one after the other, for devices that have no faster method. The
/// caller has checked the range.
pub(crate) fn write_each_zero(
    offset: u64,
    len: u64,
    write: impl Fn(u64, &[u8]) -> Result<(), Error>,
) -> Result<(), Error> {
    const PIECE: u64 = 1 << 20;
    let zeroes = AlignedBuf::zeroed(PIECE.min(len) as usize);
    let end = offset + len;
    for at in (offset..end).step_by(PIECE as usize) {
        write(at, &zeroes[..PIECE.min(end - at) as usize])?;
    }
    Ok(())
}

/// Adds up the lengths of `bufs`.
pub(crate) fn total_len(bufs: &[IoSlice<'_>]) -> u64 {
    bufs.iter().map(|buf| buf.len() as u64).sum()
}

/// Checks that a request lies within the device and is allowed on it (D2).
pub(crate) fn check<D: Device + ?Sized>(
    device: &D,
    operation: Operation,
    offset: u64,
    len: u64,
) -> Result<(), Error> {
    if operation != Operation::Read && !device.writable() {
        return Err(Error::ReadOnly { device: device.name(), operation });
    }
    if offset.checked_add(len).is_none_or(|end| end > device.len()) {
        let device_len = device.len();
        return Err(Error::PastEnd { device: device.name(), operation, offset, len, device_len });
    }
    Ok(())
}
