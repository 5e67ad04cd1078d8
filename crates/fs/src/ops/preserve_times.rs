//! Changes of content that do not change the inode's times.
//!
//! # Place
//!
//! This is for a front end with a client that stamps files itself, and sends the stamps as
//! attributes. A kernel with a write-back cache is such a client. This kernel writes long after the
//! program wrote. The stamps may arrive before or after the written data. If this crate stamped
//! these writes, files would get the time of the flush.

use buttress_items::Result;

use crate::inode::{FallocateMode, Inode};

/// An inode, for changes of its content that do not change its times; see
/// [`Inode::preserve_times`].
#[derive(Clone, Copy, Debug)]
pub struct PreserveTimes<'a> {
    inode: &'a Inode,
}

impl Inode {
    /// The same inode, for a caller that sets the inode's times itself.
    #[must_use]
    pub fn preserve_times(&self) -> PreserveTimes<'_> {
        PreserveTimes { inode: self }
    }
}

impl PreserveTimes<'_> {
    /// As [`Inode::write_at`], but flags of the inode are ignored: a cache may write after the
    /// inode was made immutable, and at any offset. The front end checks the flags when it opens a
    /// file.
    ///
    /// # Errors
    ///
    /// As [`Inode::write_at`].
    pub fn write_at(self, offset: u64, data: &[u8]) -> Result<usize> {
        self.inode.write_admitted(offset, data, |_| {})
    }

    /// As [`Inode::write_direct`].
    ///
    /// # Errors
    ///
    /// As [`Inode::write_direct`].
    pub fn write_direct(self, offset: u64, data: &[u8]) -> Result<usize> {
        self.inode.write_direct_stamped(offset, data, |_| {})
    }

    /// As [`Inode::fallocate`].
    ///
    /// # Errors
    ///
    /// As [`Inode::fallocate`].
    pub fn fallocate(self, offset: u64, len: u64, mode: FallocateMode) -> Result<()> {
        self.inode.fallocate_stamped(offset, len, mode, |_| {})
    }

    /// Fills a range of this inode from another inode, as [`Inode::copy_range`].
    ///
    /// # Errors
    ///
    /// As [`Inode::copy_range`].
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
