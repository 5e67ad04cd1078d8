//! The first item of a block group in the free-space tree.

use crate::{
    Result,
    bytes::{Reader, Writer},
};

/// The form in which a block group's free space is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeSpaceInfo {
    /// Contiguous free runs.
    pub extent_count: u32,
    /// Flags, from the constants of this type.
    pub flags: u32,
}

impl FreeSpaceInfo {
    /// The free space is recorded in bitmaps, not in one item for each run.
    pub const USING_BITMAPS: u32 = 1;
    /// Bits of one full bitmap.
    pub const BITMAP_BITS: u64 = 2048;

    /// Reads an item.
    ///
    /// # Errors
    ///
    /// If the item is not 8 bytes long.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let mut r = Reader::new("free space info", bytes);
        let item = Self { extent_count: r.u32()?, flags: r.u32()? };
        r.end()?;
        Ok(item)
    }

    /// The item's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(8);
        w.u32(self.extent_count).u32(self.flags);
        w.0
    }

    /// Whether the free space is recorded in bitmaps.
    #[must_use]
    pub fn uses_bitmaps(&self) -> bool {
        self.flags & Self::USING_BITMAPS != 0
    }
}
