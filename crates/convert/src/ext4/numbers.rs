//! Numbers of the format, and the error for impossible numbers.
//!
//! What must always be true: a number is read only where its structure has bytes for it.

use crate::error::{Error, Result};

/// An error about content that contradicts itself.
pub(super) fn damaged(what: impl Into<String>) -> Error {
    Error::NotClean(what.into())
}

/// A little-endian number at a place in a structure.
pub(super) fn le16(bytes: &[u8], at: usize) -> Result<u16> {
    let found = bytes.get(at..at + 2).ok_or_else(|| damaged("a structure is cut short"))?;
    Ok(u16::from_le_bytes([found[0], found[1]]))
}

/// A little-endian number of four bytes at a place in a structure.
pub(super) fn le32(bytes: &[u8], at: usize) -> Result<u32> {
    let (low, high) = (le16(bytes, at)?, le16(bytes, at + 2)?);
    Ok(u32::from(low) | u32::from(high) << 16)
}

/// A number in two separate parts; the high part has 16 bits.
pub(super) fn split(low: u32, high: u16) -> u64 {
    u64::from(low) | u64::from(high) << 32
}
