//! Errors in a disk's description of its space.
//!
//! # What must hold
//!
//! - Only facts that come from a disk, and requests that cannot be granted, are errors here. A
//!   double free, or a reservation spent twice, is a bug in this program and ends in an assertion.

use buttress_format::{BlockGroupFlags, Extent, Logical};

/// A fault in a disk's description of its space, or a request that cannot be granted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The flags name no kind of space, or several kinds. Data and metadata together are right only
    /// on a volume with mixed groups.
    #[error("block group {start} is for {flags}, which is no single kind of space")]
    Kind {
        /// First byte of the group.
        start: Logical,
        /// The group's flags.
        flags: BlockGroupFlags,
    },
    /// The range is empty, ends past the address space, or is not made of whole sectors.
    #[error("block group {start} with {len} bytes is not a range of whole sectors")]
    Range {
        /// First byte of the group.
        start: Logical,
        /// The group's length.
        len: u64,
    },
    /// Two groups claim the same addresses.
    #[error("block group {start} overlaps the one at {other}")]
    Overlap {
        /// The group being added.
        start: Logical,
        /// The group that is in the directory already.
        other: Logical,
    },
    /// More bytes are in use than the group has.
    #[error("block group {start} says {used} bytes are used, {room} is all it can hold")]
    Used {
        /// First byte of the group.
        start: Logical,
        /// Bytes that are used, according to the group's item.
        used: u64,
        /// Bytes of the group that are not under a superblock.
        room: u64,
    },
    /// No group has this address.
    #[error("no block group at {at}")]
    NoGroup {
        /// The requested address.
        at: Logical,
    },
    /// An extent lies outside its group, or in two groups.
    #[error("extent {extent} does not lie inside one block group ({group})")]
    Outside {
        /// First byte of the group.
        group: Logical,
        /// The extent.
        extent: Extent,
    },
    /// A free extent does not consist of whole sectors.
    #[error("free extent {extent} is not made of whole sectors")]
    Unaligned {
        /// The extent.
        extent: Extent,
    },
    /// A free extent overlaps the extent before it in the list, or has a lower address.
    #[error("free extent {extent} overlaps an earlier one")]
    Disorder {
        /// The extent.
        extent: Extent,
    },
    /// The free-space tree and the block group's item disagree.
    #[error("block group {group} has {found} free bytes, its use leaves {expected}")]
    FreeBytes {
        /// First byte of the group.
        group: Logical,
        /// The group's length minus its used, pinned and superblock bytes.
        expected: u64,
        /// The free bytes in the free-space tree.
        found: u64,
    },
    /// An extent to be released is not in use: the extent tree holds it twice, or the group's
    /// count of used bytes is too low.
    #[error("extent {extent} is released but not in use")]
    NotUsed {
        /// The extent.
        extent: Extent,
    },
    /// An extent that a caller claims is not free, or lies in another kind of space.
    #[error("extent {extent} is claimed and cannot be had")]
    NotFree {
        /// The extent.
        extent: Extent,
    },
    /// The group is not empty.
    #[error("block group {start} is not empty: {used} used, {reserved} reserved, {pinned} pinned")]
    NotEmpty {
        /// First byte of the group.
        start: Logical,
        /// Bytes in use.
        used: u64,
        /// Bytes that are allocated and not recorded yet.
        reserved: u64,
        /// Bytes freed and not published yet.
        pinned: u64,
    },
    /// Without the group, the remaining space would not cover the reservations.
    #[error("block group {start} is needed: {missing} reserved bytes would have no room")]
    Reserved {
        /// First byte of the group.
        start: Logical,
        /// The missing bytes.
        missing: u64,
    },
}
