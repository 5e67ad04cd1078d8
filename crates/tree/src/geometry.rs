//! The properties that all nodes of a volume share, and the properties of a single new node.
//!
//! # What must hold
//!
//! - Every header that a builder writes is made by [`NodeStamp::header`], from one geometry.

use buttress_format::{
    CsumType, Generation, Header, Logical, Superblock, TreeId,
    header::{BACKREF_REV_MIXED, FLAG_WRITTEN, HEADER_LEN, ITEM_LEN, PTR_LEN},
};
use buttress_volume::SeedIds;

/// The properties that all nodes of a volume share.
#[derive(Clone, Copy, Debug)]
pub struct Geometry {
    /// Bytes of a node.
    pub nodesize: u32,
    /// Bytes of a sector.
    pub sectorsize: u32,
    /// Checksum of nodes and data.
    pub csum: CsumType,
    /// The id that nodes carry: the metadata uuid if the volume has one, otherwise the id of the
    /// volume.
    pub fsid: [u8; 16],
    /// The ids that nodes of seeds carry.
    pub seeds: SeedIds,
    /// The id of the chunk tree that node headers carry.
    pub chunk_tree_uuid: [u8; 16],
}

#[cfg(test)]
impl Geometry {
    /// Nodes of 4 KiB, for tests.
    pub(crate) const OF_TESTS: Self = Self {
        nodesize: 4096,
        sectorsize: 4096,
        csum: CsumType::Crc32c,
        fsid: [1; 16],
        seeds: SeedIds::NONE,
        chunk_tree_uuid: [2; 16],
    };
}

impl Geometry {
    /// The geometry that a superblock names. The superblock does not name the chunk tree's id,
    /// which only writers of nodes need. Costs O(1).
    #[must_use]
    pub fn of(superblock: &Superblock) -> Self {
        Self {
            nodesize: superblock.nodesize,
            sectorsize: superblock.sectorsize,
            csum: superblock.csum_type,
            fsid: superblock.tree_fsid(),
            seeds: SeedIds::default(),
            chunk_tree_uuid: [0; 16],
        }
    }

    /// Whether a node with this id belongs to the volume or to a seed of it. Costs O(1).
    #[must_use]
    pub fn is_own(&self, fsid: [u8; 16]) -> bool {
        fsid == self.fsid || self.seeds.has(fsid)
    }

    /// Bytes of a leaf that items and payloads may use. Costs O(1).
    #[must_use]
    pub fn leaf_room(&self) -> usize {
        self.nodesize as usize - HEADER_LEN
    }

    /// Largest payload that one item can have. Costs O(1).
    #[must_use]
    pub fn item_max(&self) -> usize {
        self.leaf_room() - ITEM_LEN
    }

    /// Number of children of a full inner node. Costs O(1).
    #[must_use]
    pub fn ptrs_max(&self) -> usize {
        self.leaf_room() / PTR_LEN
    }
}

/// The properties of a single new node.
#[derive(Clone, Copy, Debug)]
pub struct NodeStamp {
    /// The address at which the node will lie.
    pub logical: Logical,
    /// The transaction that writes the node.
    pub generation: Generation,
    /// The tree that the node is written for.
    pub owner: TreeId,
}

impl NodeStamp {
    pub(crate) fn header(&self, geometry: &Geometry, nritems: u32, level: u8) -> Header {
        Header {
            csum: [0; 32],
            fsid: geometry.fsid,
            bytenr: self.logical,
            flags: FLAG_WRITTEN,
            backref_rev: BACKREF_REV_MIXED,
            chunk_tree_uuid: geometry.chunk_tree_uuid,
            generation: self.generation,
            owner: self.owner,
            nritems,
            level,
        }
    }
}
