//! An old device and the device that replaces it, as one device.
//!
//! It keeps invariants of `replace`: superblocks of the new device have the number 0, and a device
//! that missed a write counts no more.

use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use buttress_base::{RangeSet, Ranked};
use buttress_block::{Class, Device, Error as BlockError, Operation};
use buttress_format::{Superblock, limits};

use crate::target_item::as_target;

/// An old device and its replacement, as one device.
#[derive(Debug)]
pub struct Pair {
    pub(crate) old: Arc<dyn Device>,
    pub(crate) new: Arc<dyn Device>,
    /// The identifier of the new device until it takes over that of the old device.
    pub(crate) uuid: [u8; 16],
    /// Whether reads go to the new device (`replace::R3`).
    pub(crate) turned: AtomicBool,
    /// Whether the new device missed a write (`replace::R4`).
    pub(crate) failed: AtomicBool,
    /// Ranges of the new device that could not be copied.
    pub(crate) unread: Ranked<RangeSet>,
    /// The end of what was copied (`target::TA1`).
    pub(crate) cursor: AtomicU64,
    /// Whether the new device has the superblock of a target of this replacement (`replace::R6`).
    pub(crate) is_marked: AtomicBool,
}

impl Pair {
    /// Whether the new device missed a write.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::SeqCst)
    }

    /// The place of the device up to which everything was copied.
    #[must_use]
    pub fn cursor(&self) -> u64 {
        self.cursor.load(Ordering::SeqCst)
    }

    /// Notes that the target was found with its superblock (`replace::R6`).
    pub(crate) fn set_marked(&self) {
        self.is_marked.store(true, Ordering::SeqCst);
    }

    /// Notes that everything before `end` was copied. What the old device could not read was not
    /// copied, so the cursor stays before it.
    pub fn set_cursor(&self, end: u64) {
        let first = self.unread.lock().iter().map(|range| range.start).min();
        self.cursor.store(first.map_or(end, |first| first.min(end)), Ordering::SeqCst);
    }

    fn is_turned(&self) -> bool {
        self.turned.load(Ordering::SeqCst)
    }

    /// Runs `act` on both devices; returns the result of the old device.
    fn both(&self, act: impl Fn(&dyn Device) -> Result<(), BlockError>) -> Result<(), BlockError> {
        if !self.has_failed()
            && let Err(error) = act(&*self.new)
        {
            tracing::error!(device = self.new.name(), %error, "the new device fails");
            self.failed.store(true, Ordering::SeqCst);
        }
        act(&*self.old)
    }

    /// Writes a superblock of the old device to the new device, as that of a target, and makes it
    /// durable (`replace::R1`, `replace::R5`). The copy goes on meanwhile, so what lies before the
    /// cursor is flushed first (`target::TA1`).
    fn write_target(&self, offset: u64, bufs: &[IoSlice<'_>], class: Class) {
        let bytes: Vec<u8> = bufs.iter().flat_map(|buf| buf.iter().copied()).collect();
        let Ok(superblock) = Superblock::parse(&bytes, offset) else { return };
        let bytes = as_target(&superblock, self.uuid, Some(self.cursor())).to_bytes(offset);
        let bufs = [IoSlice::new(&bytes)];
        let flushed = self.new.flush();
        let written = flushed.and_then(|()| self.new.write_classed_at(offset, &bufs, class));
        if let Err(error) = written.and_then(|()| self.new.flush()) {
            tracing::error!(device = self.new.name(), %error, "the new device fails");
            self.failed.store(true, Ordering::SeqCst);
        }
        // The other copies are those of the commit before, without the record of the replacement.
        if offset == limits::SUPER_OFFSETS[0] {
            self.is_marked.store(true, Ordering::SeqCst);
        }
    }

    /// Writes a superblock to both devices, one after the other (`replace::R6`).
    fn write_superblocks(
        &self,
        offset: u64,
        bufs: &[IoSlice<'_>],
        class: Class,
    ) -> Result<(), BlockError> {
        if self.has_failed() {
            return self.old.write_classed_at(offset, bufs, class);
        }
        if !self.is_marked.load(Ordering::SeqCst) {
            self.write_target(offset, bufs, class);
            return self.old.write_classed_at(offset, bufs, class);
        }
        self.old.write_classed_at(offset, bufs, class)?;
        self.old.flush()?;
        self.write_target(offset, bufs, class);
        Ok(())
    }

    fn is_superblock(offset: u64, len: u64) -> bool {
        let at = |place: &u64| offset < place + limits::SUPER_SIZE as u64 && offset + len > *place;
        limits::SUPER_OFFSETS.iter().any(at)
    }
}

impl Device for Pair {
    fn name(&self) -> String {
        if self.is_turned() { self.new.name() } else { self.old.name() }
    }

    fn len(&self) -> u64 {
        self.old.len()
    }

    fn writable(&self) -> bool {
        self.old.writable()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), BlockError> {
        let len = buf.len() as u64;
        if !self.is_turned() || self.has_failed() || Self::is_superblock(offset, len) {
            return self.old.read_at(offset, buf);
        }
        let lacks = self.unread.lock().overlaps(&(offset..offset + len));
        if lacks {
            let source = std::io::Error::other("the device that is replaced cannot be read here");
            return Err(BlockError::Io {
                device: self.new.name(),
                operation: Operation::Read,
                offset,
                len,
                source,
            });
        }
        self.new.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), BlockError> {
        self.write_classed_at(offset, &[IoSlice::new(buf)], Class::Metadata)
    }

    fn write_classed_at(
        &self,
        offset: u64,
        bufs: &[IoSlice<'_>],
        class: Class,
    ) -> Result<(), BlockError> {
        let len: u64 = bufs.iter().map(|buf| buf.len() as u64).sum();
        if Self::is_superblock(offset, len) {
            return self.write_superblocks(offset, bufs, class);
        }
        self.both(|device| device.write_classed_at(offset, bufs, class))?;
        let mut unread = self.unread.lock();
        if !unread.is_empty() {
            unread.remove(offset..offset + len);
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), BlockError> {
        self.both(|device| device.flush())
    }

    fn upload(&self) -> Result<(), BlockError> {
        self.both(|device| device.upload())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), BlockError> {
        self.both(|device| device.discard(offset, len))
    }
}
