//! Small items.

use crate::{
    Error, Result, TreeId,
    bytes::{Reader, Writer},
};

/// Subvolumes with one uuid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UuidItem(pub Vec<TreeId>);

impl UuidItem {
    /// Reads an item.
    ///
    /// # Errors
    ///
    /// When the item's length is not a multiple of eight.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        if !bytes.len().is_multiple_of(8) {
            let expected = bytes.len() / 8 * 8;
            return Err(Error::Length { what: "uuid item", expected, found: bytes.len() });
        }
        let mut r = Reader::new("uuid item", bytes);
        let mut trees = Vec::new();
        while r.left() > 0 {
            trees.push(TreeId(r.u64()?));
        }
        Ok(Self(trees))
    }

    /// The item's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut w = Writer::default();
        for tree in &self.0 {
            w.u64(tree.0);
        }
        w.0
    }
}

/// Error counts of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct DevStats {
    /// Failed writes, failed reads, failed flushes, checksum errors, wrong generations.
    pub counts: [u64; 5],
}

impl DevStats {
    /// Reads an item. Items of old kernels have fewer counts.
    ///
    /// # Errors
    ///
    /// When a count is cut short.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let mut r = Reader::new("device statistics", bytes);
        let mut counts = [0; 5];
        for count in &mut counts {
            if r.left() == 0 {
                break;
            }
            *count = r.u64()?;
        }
        Ok(Self { counts })
    }

    /// The item's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut w = Writer::default();
        for count in self.counts {
            w.u64(count);
        }
        w.0
    }
}
