//! The parameters that never change while a volume is open.

use buttress_format::{CsumType, Superblock};

/// The fields of a superblock that never change while a volume is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Params {
    /// Names the filesystem.
    pub fsid: [u8; 16],
    /// The identifier in tree nodes. It differs from `fsid` after a change of `fsid`.
    pub tree_fsid: [u8; 16],
    /// The checksum algorithm.
    pub csum_type: CsumType,
    /// Bytes in a tree node.
    pub nodesize: u32,
    /// Bytes in a sector, the smallest piece of data.
    pub sectorsize: u32,
}

impl Params {
    pub(crate) fn of(superblock: &Superblock) -> Self {
        Self {
            fsid: superblock.fsid,
            tree_fsid: superblock.tree_fsid(),
            csum_type: superblock.csum_type,
            nodesize: superblock.nodesize,
            sectorsize: superblock.sectorsize,
        }
    }
}

/// How a volume with RAID5 or RAID6 is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Parity {
    /// Not written at all.
    ReadOnly,
    /// Rows with parity are read, and their extents may be freed. New extents go to mirrored
    /// chunks.
    Mirror,
    /// Data and nodes are written to whole empty rows. Each row is written once, with its parity. A
    /// volume with parity in mixed block groups is read-only.
    #[default]
    Rows,
}
