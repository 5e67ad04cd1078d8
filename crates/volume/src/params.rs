//! What is the same for the whole life of an open volume.

use buttress_format::{CsumType, Superblock};

/// What a superblock says for the whole life of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Params {
    /// Names the filesystem.
    pub fsid: [u8; 16],
    /// What its tree nodes are signed with: another identifier, after a change of the first.
    pub tree_fsid: [u8; 16],
    /// How everything is summed.
    pub csum_type: CsumType,
    /// Bytes of a tree node.
    pub nodesize: u32,
    /// Bytes of the smallest piece of data.
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
    /// Not at all.
    ReadOnly,
    /// Rows with parity are read and emptied; new extents go to mirrored chunks.
    Mirror,
    /// Data goes to whole rows that are empty, each written once, with its parity. A volume whose
    /// nodes have parity is read-only.
    #[default]
    Rows,
}
