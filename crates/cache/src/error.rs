//! Errors of a cache.

use std::sync::Arc;

use crate::units::{Epoch, Slot};

/// Why a cache cannot be opened, or cannot continue.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// One of the two devices failed.
    #[error("{0}")]
    Device(#[source] Arc<buttress_block::Error>),
    /// The cache device failed in a way that leaves its metadata in doubt. The cache is not written
    /// any more. Everything that a flush acknowledged before is safe.
    #[error("the cache is stopped, because its device failed; reopen it to recover")]
    Broken(#[source] Arc<buttress_block::Error>),
    /// The device does not begin with the magic number of a cache.
    #[error("{device} is not a dm-writecache cache (its first word is {found:#010x})")]
    NotACache {
        /// Name of the cache device.
        device: String,
        /// The word in place of the magic number.
        found: u32,
    },
    /// The device was never formatted.
    #[error("{device} is blank, not a cache; `buttress cache format` makes one")]
    Blank {
        /// Name of the cache device.
        device: String,
    },
    /// The device already holds data that formatting would destroy.
    #[error("{device} already holds {what}; formatting it needs --force")]
    NotBlank {
        /// Name of the cache device.
        device: String,
        /// The kind of the data.
        what: String,
    },
    /// A newer program made the cache.
    #[error("{device} has version {found} of the format; version 1 is known")]
    Version {
        /// Name of the cache device.
        device: String,
        /// The version it names.
        found: u32,
    },
    /// The block size is not a power of two that this program supports.
    #[error("a block size of {found} bytes is not possible (a power of two, 512 to 65536)")]
    BlockSize {
        /// The block size.
        found: u32,
    },
    /// The cache was formatted with another block size than requested.
    #[error("the cache has blocks of {found} bytes, not of {asked}")]
    OtherBlockSize {
        /// The block size of the superblock.
        found: u32,
        /// The requested block size.
        asked: u32,
    },
    /// The device ends before the cache does.
    #[error("{device} is {len} bytes long, but the cache on it needs {needed}: it has been cut")]
    Truncated {
        /// Name of the cache device.
        device: String,
        /// The device's length after `start_sector`.
        len: u64,
        /// The length that the superblock requires.
        needed: u128,
    },
    /// There is no room for a single block.
    #[error("{device} is too small for a cache ({len} bytes)")]
    TooSmall {
        /// Name of the cache device.
        device: String,
        /// The device's length after `start_sector`.
        len: u64,
    },
    /// The cache has more blocks than this program can number.
    #[error("the cache has {found} blocks; at most 4294967294 can be handled")]
    TooManyBlocks {
        /// Number of blocks.
        found: u64,
    },
    /// The superblock's epoch (`seq_count`) is too large. All ones mark a free slot, and later
    /// commits must not reach that value.
    #[error("the superblock has the impossible sequence count {found}")]
    Sequence {
        /// The sequence count.
        found: u64,
    },
    /// An entry names a sector in the middle of a block.
    #[error("slot {slot} is for sector {sector}, which is not the first of a block")]
    Misaligned {
        /// The slot.
        slot: Slot,
        /// The sector its entry names.
        sector: u64,
    },
    /// The cache has two committed versions of one block with the same epoch, so the newer one is
    /// unknown.
    #[error("slots {first} and {second} both hold sector {sector} as of sequence {epoch}")]
    EqualSequence {
        /// The slot read first.
        first: Slot,
        /// The slot read second.
        second: Slot,
        /// The sector of both.
        sector: u64,
        /// The epoch of both.
        epoch: Epoch,
    },
    /// An entry is past the end of the origin: the origin has become shorter, or is another device.
    #[error(
        "slot {slot} holds sector {sector}, past the end of {origin} ({len} bytes): the wrong origin, \
         or one that has been cut (--force-cache drops such blocks)"
    )]
    PastOrigin {
        /// The slot.
        slot: Slot,
        /// The sector its entry names.
        sector: u64,
        /// Name of the origin.
        origin: String,
        /// Length of the origin.
        len: u64,
    },
    /// The cache belongs to another origin.
    #[error(
        "the cache belongs to another origin than {origin} (identity {expected:016x}, found \
         {found:016x}); --force-cache uses it all the same"
    )]
    WrongOrigin {
        /// Name of the origin.
        origin: String,
        /// The identity that the cache remembers.
        expected: u64,
        /// The identity of this origin.
        found: u64,
    },
    /// An option is invalid.
    #[error("{option}: {why}")]
    Option {
        /// The option as given.
        option: String,
        /// The reason.
        why: String,
    },
}

impl Error {
    /// Returns whether the bytes of the cache are wrong, as opposed to a failed device or a wrong
    /// call.
    #[must_use]
    pub fn is_corrupt(&self) -> bool {
        matches!(
            self,
            Self::NotACache { .. }
                | Self::Truncated { .. }
                | Self::Sequence { .. }
                | Self::BlockSize { .. }
                | Self::Misaligned { .. }
                | Self::EqualSequence { .. }
        )
    }

    /// Returns whether the call would succeed with `force`.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::NotBlank { .. } | Self::WrongOrigin { .. } | Self::PastOrigin { .. })
    }
}

impl From<buttress_block::Error> for Error {
    fn from(error: buttress_block::Error) -> Self {
        Self::Device(Arc::new(error))
    }
}
