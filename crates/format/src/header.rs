//! The header at the front of every tree node.
//!
//! # On disk
//!
//! ```text
//! offset  size  field
//!      0    32  csum               of bytes 32.. to the end of the node
//!     32    16  fsid               metadata uuid of the filesystem
//!     48     8  bytenr             address recorded in this node
//!     56     8  flags              top byte: back-reference revision
//!     64    16  chunk_tree_uuid
//!     80     8  generation         transaction that wrote the node
//!     88     8  owner              tree that the node was written for
//!     96     4  nritems
//!    100     1  level              0 is a leaf
//! ```

use crate::{Generation, Logical, Result, TreeId, bytes::Reader};

/// Bytes of a header.
pub const HEADER_LEN: usize = 101;
/// Bytes of an item in a leaf's table: key, offset, size.
pub const ITEM_LEN: usize = 25;
/// Bytes of a child pointer: key, address, generation.
pub const PTR_LEN: usize = 33;
/// The node was written at least once.
pub const FLAG_WRITTEN: u64 = 1;
/// The node belongs to a tree of a balance.
pub const FLAG_RELOC: u64 = 2;
/// The revision of back references on all present volumes.
pub const BACKREF_REV_MIXED: u8 = 1;

/// A node's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Checksum, padded with zeros.
    pub csum: [u8; 32],
    /// Metadata uuid.
    pub fsid: [u8; 16],
    /// Address of the node, as recorded in it.
    pub bytenr: Logical,
    /// Flags, without the revision.
    pub flags: u64,
    /// Revision of back references.
    pub backref_rev: u8,
    /// Uuid of the chunk tree.
    pub chunk_tree_uuid: [u8; 16],
    /// Transaction that wrote the node.
    pub generation: Generation,
    /// Tree that the node was written for.
    pub owner: TreeId,
    /// Number of items in a leaf, or of children in an inner node.
    pub nritems: u32,
    /// Level of the node: 0 is a leaf.
    pub level: u8,
}

impl Header {
    /// Reads the header at the front of a node.
    ///
    /// # Errors
    ///
    /// When there are fewer than 101 bytes.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let mut r = Reader::new("node header", bytes);
        let (csum, fsid, bytenr, flags) = (r.array()?, r.array()?, r.u64()?, r.u64()?);
        Ok(Self {
            csum,
            fsid,
            bytenr: Logical(bytenr),
            flags: flags & (u64::MAX >> 8),
            backref_rev: (flags >> 56) as u8,
            chunk_tree_uuid: r.array()?,
            generation: Generation(r.u64()?),
            owner: TreeId(r.u64()?),
            nritems: r.u32()?,
            level: r.u8()?,
        })
    }

    /// Writes the header to the front of a node.
    ///
    /// # Panics
    ///
    /// If `into` is shorter than a header, which is a bug of the caller.
    pub fn write_to(&self, into: &mut [u8]) {
        into[..32].copy_from_slice(&self.csum);
        into[32..48].copy_from_slice(&self.fsid);
        into[48..56].copy_from_slice(&self.bytenr.0.to_le_bytes());
        let flags = self.flags & (u64::MAX >> 8) | u64::from(self.backref_rev) << 56;
        into[56..64].copy_from_slice(&flags.to_le_bytes());
        into[64..80].copy_from_slice(&self.chunk_tree_uuid);
        into[80..88].copy_from_slice(&self.generation.0.to_le_bytes());
        into[88..96].copy_from_slice(&self.owner.0.to_le_bytes());
        into[96..100].copy_from_slice(&self.nritems.to_le_bytes());
        into[100] = self.level;
    }
}
