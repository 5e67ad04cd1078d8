//! Changes of content that leave the times alone.
//!
//! # Place
//!
//! For a front end with a client that stamps files itself, and sends the stamps as attributes. A
//! kernel with a write-back cache does so. Its writes come long after the program's, and before or
//! after the stamps. Stamped here, they would carry the time of the flush.

use crate::error::Result;
use crate::inode::{FallocateMode, Inode};

/// An inode, for changes of its content that leave its times as they are; see
/// [`Inode::keeping_times`].
#[derive(Clone, Copy, Debug)]
pub struct KeepingTimes<'a> {
    inode: &'a Inode,
}

impl Inode {
    /// The same inode, to a caller that sets its times itself.
    #[must_use]
    pub fn keeping_times(&self) -> KeepingTimes<'_> {
        KeepingTimes { inode: self }
    }
}

impl KeepingTimes<'_> {
    /// As [`Inode::write_at`], but flags of the inode are ignored: a cache may write after the
    /// inode was made immutable, and at any offset. The front end looks at the flags when it opens
    /// a file.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn write_at(self, offset: u64, data: &[u8]) -> Result<usize> {
        self.inode.write_admitted(offset, data, |_| {})
    }

    /// As [`Inode::write_direct`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn write_direct(self, offset: u64, data: &[u8]) -> Result<usize> {
        self.inode.write_direct_stamped(offset, data, |_| {})
    }

    /// As [`Inode::fallocate`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn fallocate(self, offset: u64, len: u64, mode: FallocateMode) -> Result<()> {
        self.inode.fallocate_stamped(offset, len, mode, |_| {})
    }

    /// Fills a range of this inode from another, as [`Inode::copy_range`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn copy_from(
        self,
        offset: u64,
        source: &Inode,
        source_offset: u64,
        len: u64,
    ) -> Result<u64> {
        source.copy_range_stamped(source_offset, (self.inode, offset), len, |_| {})
    }
}
