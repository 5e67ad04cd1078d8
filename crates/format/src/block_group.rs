//! Block group items: the space of a chunk that is in use.

use crate::{
    BlockGroupFlags, Result,
    bytes::{Reader, Writer},
};

/// A block group's item. Its key has the address and the length of the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockGroupItem {
    /// Bytes in use.
    pub used: u64,
    /// Object id of its chunk item: always 256.
    pub chunk_objectid: u64,
    /// Kind and profile.
    pub flags: BlockGroupFlags,
}

impl BlockGroupItem {
    /// Reads an item.
    ///
    /// # Errors
    ///
    /// If the item is not 24 bytes long.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let mut r = Reader::new("block group item", bytes);
        let item =
            Self { used: r.u64()?, chunk_objectid: r.u64()?, flags: BlockGroupFlags(r.u64()?) };
        r.end()?;
        Ok(item)
    }

    /// The item's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(24);
        w.u64(self.used).u64(self.chunk_objectid).u64(self.flags.0);
        w.0
    }
}
