//! Reads and writes the bytes of regular files, and makes them durable.

use std::sync::Arc;

use buttress_base::interrupt;
use buttress_data::ReclaimEffort;
use buttress_format::{Extent, InodeFlags, InodeItem, Timespec};
use buttress_items::{Error, FileKind, NameError, Result};

use crate::aside::aside;
use crate::inode::{FallocateMode, Inode};
use crate::options::Atime;
use buttress_make::clock::{now, now_after};

/// In relative mode, an access time older than this many seconds is updated: a day.
const AGE_MAX: i64 = 86_400;

/// A function that sets the inode's times for a change of content.
pub(super) type Stamp = fn(&mut InodeItem);

pub(super) fn changed(item: &mut InodeItem) {
    let stamp = now_after(item.ctime);
    item.mtime = stamp;
    item.ctime = stamp;
}

/// Whether a read at `stamp` changes the time of access, by Linux's rule.
fn is_stale(item: &InodeItem, stamp: Timespec, how: Atime) -> bool {
    if item.flags & InodeFlags::NOATIME != 0 || item.atime == stamp {
        return false;
    }
    let is_older = |time: Timespec| (item.atime.sec, item.atime.nsec) <= (time.sec, time.nsec);
    match how {
        Atime::No => false,
        Atime::Strict => true,
        Atime::Relative => {
            let is_old = stamp.sec.saturating_sub(item.atime.sec) >= AGE_MAX;
            is_older(item.mtime) || is_older(item.ctime) || is_old
        }
    }
}

impl Inode {
    /// Reads at `offset`. Returns fewer bytes than `buf` holds only at the end of the file.
    ///
    /// # Errors
    ///
    /// `Io`, or `Corrupt` when no mirror has the right checksum.
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let len = self.peek_at(offset, buf)?;
        self.note_access();
        Ok(len)
    }

    /// As [`Inode::read_at`], but does not change the time of access.
    ///
    /// # Errors
    ///
    /// As [`Inode::read_at`].
    pub fn peek_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.cell.expect_regular()?;
        self.announce(offset, buf.len());
        let (len, ahead) =
            self.mount().files.reader().read_in_stream(&self.cell.file, offset, buf)?;
        if !ahead.is_empty() {
            let (files, cell) = (Arc::clone(&self.mount().files), Arc::clone(&self.cell));
            // The helper threads may refuse to read ahead. The next read then loads the data
            // itself.
            self.mount()
                .files
                .reader()
                .offer(move || files.reader().read_ahead(&cell.file, &ahead));
        }
        Ok(len)
    }

    /// Says to distant devices what a reader will ask for after this read. A thread that reads
    /// ahead says it, or none.
    fn announce(&self, offset: u64, len: usize) {
        let reader = self.mount().files.reader();
        if let Some(coming) = reader.coming(&self.cell.file, offset, len) {
            let (files, cell) = (Arc::clone(&self.mount().files), Arc::clone(&self.cell));
            reader.offer(move || files.reader().announce(&cell.file, &coming));
        }
    }

    /// As [`Inode::read_at`], without read-ahead or caching, for callers with their own cache. The
    /// device writes straight into `buf`, where checksums are verified. Offset and length may be
    /// unaligned. Whole sectors are not copied. Compressed extents are unpacked once for several
    /// reads.
    ///
    /// # Errors
    ///
    /// As [`Inode::read_at`].
    pub fn read_direct(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.cell.expect_regular()?;
        self.announce(offset, buf.len());
        let len = self.mount().files.reader().read_direct(&self.cell.file, offset, buf)?;
        self.note_access();
        Ok(len)
    }

    /// Reads the compressed bytes of one of the file's extents, for callers that store or send them
    /// unchanged.
    ///
    /// # Errors
    ///
    /// As [`Inode::read_at`].
    pub fn read_encoded(&self, extent: Extent) -> Result<Vec<u8>> {
        self.cell.expect_regular()?;
        Ok(self.mount().files.reader().read_stored(&self.cell.file, extent)?)
    }

    /// Notes that a program has read the content, the target or the names, if the mount options
    /// record times of access.
    ///
    /// Returns whether the time of access changed.
    pub fn note_access(&self) -> bool {
        let (cell, mount) = (&self.cell, self.mount());
        let options = &mount.options;
        let is_off =
            options.atime == Atime::No || options.nodiratime && cell.kind == FileKind::Directory;
        if is_off {
            return false;
        }
        let stamp = now();
        let is_stale = cell.file.with_item(|item| is_stale(item, stamp, options.atime));
        if !is_stale || cell.nlink() == 0 || cell.expect_writable(&mount.status).is_err() {
            return false;
        }
        cell.file.touch(|item| item.atime = stamp);
        mount.times.note_access(cell);
        if !options.background && mount.times.is_due() {
            mount.times.put_all();
        }
        true
    }

    /// Writes all of `data` at `offset`, into memory; [`Inode::sync`] makes it durable.
    ///
    /// # Errors
    ///
    /// `NoSpace`, which later writeback never reports; `FileTooBig`, `ReadOnly`.
    pub fn write_at(&self, offset: u64, data: &[u8]) -> Result<usize> {
        self.write_stamped(offset, data, changed)
    }

    pub(super) fn write_stamped(&self, offset: u64, data: &[u8], stamp: Stamp) -> Result<usize> {
        let files = &self.mount().files;
        let may = || self.cell.expect_mutable().and_then(|()| self.cell.expect_appending(offset));
        self.writing(may, data.len() as u64, |effort| {
            files.write(&self.cell.file, offset, data, effort, stamp)
        })?;
        Ok(data.len())
    }

    /// As [`Self::write_stamped`], for a caller that has checked the permission to write.
    pub(super) fn write_admitted(&self, offset: u64, data: &[u8], stamp: Stamp) -> Result<usize> {
        let files = &self.mount().files;
        let write = |effort| files.write(&self.cell.file, offset, data, effort, stamp);
        self.writing(|| Ok(()), data.len() as u64, write)?;
        Ok(data.len())
    }

    /// Writes all of `data` at `offset`. Whole sectors go straight to the device, the rest into
    /// memory as with [`Inode::write_at`]. The data is not durable before [`Inode::sync`].
    ///
    /// # Errors
    ///
    /// The errors of [`Inode::write_at`], and `Io`.
    pub fn write_direct(&self, offset: u64, data: &[u8]) -> Result<usize> {
        self.write_direct_stamped(offset, data, changed)
    }

    pub(super) fn write_direct_stamped(
        &self,
        offset: u64,
        data: &[u8],
        stamp: Stamp,
    ) -> Result<usize> {
        if !self.mount().files.is_aligned(offset, data.len()) {
            return self.write_stamped(offset, data, stamp);
        }
        // The bytes must not come after those of a later write (`aside::AS2`).
        interrupt::keeping_devices(|| self.write_through(offset, data, stamp))
    }

    fn write_through(&self, offset: u64, data: &[u8], stamp: Stamp) -> Result<usize> {
        let files = &self.mount().files;
        let may = || self.cell.expect_mutable().and_then(|()| self.cell.expect_appending(offset));
        self.writing(may, 0, |_| files.write_through(&self.cell.file, offset, data, stamp))?;
        Ok(data.len())
    }

    /// Runs a change of content under the lock. If space is short, frees space and runs the change
    /// once more. Then lists the inode as dirty. `buffered` is the number of bytes that stay in
    /// memory.
    fn writing(
        &self,
        may: impl Fn() -> Result<()>,
        buffered: u64,
        write: impl Fn(ReclaimEffort) -> Result<(), buttress_data::Error>,
    ) -> Result<()> {
        let cell = &self.cell;
        cell.expect_regular()?;
        cell.expect_writable(&self.mount().status)?;
        let mount = self.mount();
        // List the inode before a snapshot can be made, because a snapshot writes all listed inodes
        // first.
        let attempt = |effort| -> Result<Result<(), buttress_data::Error>> {
            let _writes = cell.home.writes.read();
            let done = {
                let _lock = cell.lock.write();
                may()?;
                cell.expect_changeable()?;
                write(effort)
            };
            if cell.file.is_dirty() {
                mount.writeback.enlist(cell);
            }
            Ok(done)
        };
        let mut done = attempt(ReclaimEffort::Little)?;
        if done.as_ref().is_err_and(buttress_data::Error::is_no_space) {
            // The second attempt of a buffered write waits in the queue, where the flusher frees
            // space for all waiters.
            if !(buffered > 0 && mount.engine.flushers().any()) {
                mount.space.free_all_possible()?;
            }
            done = attempt(ReclaimEffort::Full)?;
        }
        if done.as_ref().is_err_and(buttress_data::Error::is_quota) {
            mount.space.show_quota(cell.tree())?;
            done = attempt(ReclaimEffort::Full)?;
        }
        done?;
        mount.writeback.pace(cell, buffered);
        Ok(())
    }

    /// Writes dirty data to the device, without waiting for it to be durable.
    ///
    /// # Errors
    ///
    /// `Io`, `Aborted`.
    pub fn flush_data(&self) -> Result<()> {
        Ok(self.mount().files.writeback().write_back(&self.cell.file, 0..u64::MAX)?)
    }

    /// Makes content, attributes and names durable. For a directory, this includes its created and
    /// removed entries.
    ///
    /// # Errors
    ///
    /// `Io`, `Aborted`. Also reports, once, the first failure to write this inode's data in the
    /// background. `Interrupted` if the caller gave up its wait: the sync then goes on.
    pub fn sync(&self) -> Result<()> {
        // The same log may make other files durable, so the sync itself cannot be cancelled.
        let this = self.clone();
        let cell = Arc::clone(&self.cell);
        let unwanted = move |result| {
            if let Err(Error::Data(buttress_data::Error::Lost(cause))) = result {
                cell.file.keep_error(&cause);
            }
        };
        aside(&self.mount().engine, move || this.sync_whole(), unwanted)
    }

    fn sync_whole(&self) -> Result<()> {
        let (mount, cell) = (self.mount(), &self.cell);
        if cell.expect_writable(&mount.status).is_err() {
            return mount
                .engine
                .commits()
                .aborted()
                .map_or(Ok(()), |_| mount.status.expect_writable());
        }
        // Dirty data comes with the item. Times that were set are put in any case: another thread
        // may have put the item just before, with data that it is still writing.
        mount.times.put_of(cell, cell.file.is_dirty());
        // With `flushoncommit`, a commit that replaces a log writes back all files. Such a commit
        // would wait for the prepared data of this file, and this thread would wait for the commit.
        let prepared = if mount.options.notreelog || mount.options.flushoncommit {
            self.flush_data().map(|()| None)
        } else {
            mount.files.writeback().prepare_data(&cell.file).map_err(Error::from)
        };
        if let Some(error) = cell.file.take_error() {
            return Err(buttress_data::Error::Lost(error.into()).into());
        }
        let before_commit = || {
            if mount.options.flushoncommit {
                mount.writeback.write_all();
            }
        };
        match prepared? {
            Some(prepared) => Ok(prepared.sync(&mount.log, before_commit)?),
            None => Ok(mount.log.sync_inode(cell.tree(), cell.ino(), before_commit)?),
        }
    }

    /// Allocates, punches or zeroes a range.
    ///
    /// # Errors
    ///
    /// `NoSpace`, `Invalid` for anything but a regular file.
    pub fn fallocate(&self, offset: u64, len: u64, mode: FallocateMode) -> Result<()> {
        self.fallocate_stamped(offset, len, mode, changed)
    }

    pub(super) fn fallocate_stamped(
        &self,
        offset: u64,
        len: u64,
        mode: FallocateMode,
        stamp: Stamp,
    ) -> Result<()> {
        if len == 0 {
            return Err(Error::invalid("an empty range"));
        }
        let cell = &self.cell;
        let files = &self.mount().files;
        let may = || match mode {
            FallocateMode::Allocate { .. } => cell.expect_mutable(),
            FallocateMode::PunchHole | FallocateMode::ZeroRange { .. } => cell.expect_removable(),
        };
        self.writing(may, 0, |_| match mode {
            FallocateMode::Allocate { keep_size } => {
                files.allocate_range(&cell.file, offset, len, keep_size, stamp)
            }
            FallocateMode::PunchHole => files.punch_hole(&cell.file, offset, len, stamp),
            FallocateMode::ZeroRange { keep_size } => {
                files.punch_hole(&cell.file, offset, len, stamp)?;
                files.allocate_range(&cell.file, offset, len, keep_size, stamp)
            }
        })
    }

    /// The first offset at or after `offset` that holds data.
    ///
    /// # Errors
    ///
    /// `NoSuchRange` when there is none.
    pub fn seek_data(&self, offset: u64) -> Result<u64> {
        self.cell.expect_regular()?;
        let found = self.mount().files.reader().seek_data(&self.cell.file, offset)?;
        Ok(found.ok_or(NameError::NoSuchRange)?)
    }

    /// The first offset at or after `offset` in a hole. The end of the file counts as a hole.
    ///
    /// # Errors
    ///
    /// `NoSuchRange` at or past the end of the file.
    pub fn seek_hole(&self, offset: u64) -> Result<u64> {
        self.cell.expect_regular()?;
        let found = self.mount().files.reader().seek_hole(&self.cell.file, offset)?;
        Ok(found.ok_or(NameError::NoSuchRange)?)
    }
}
