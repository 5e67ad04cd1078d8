//! Parts of the map in objects: references to pages, and the places of parts.

use serde::{Deserialize, Serialize};

use crate::envelope::{damaged, u32_at, u64_at};
use crate::error::Result;
use crate::units::ObjectNumber;

/// Pages that have their references in one leaf.
pub(crate) const LEAF_PAGES: u32 = 1024;
const ENTRY: usize = 24;

/// The place of a part of the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ref {
    pub(crate) object: ObjectNumber,
    pub(crate) offset: u32,
    pub(crate) len: u32,
    /// The crc32c of the part.
    pub(crate) crc: u32,
}

impl Ref {
    /// Checks a part that was read.
    pub(crate) fn check(&self, name: &str, bytes: &[u8]) -> Result<()> {
        if bytes.len() as u64 == u64::from(self.len) && crc_fast::crc32_iscsi(bytes) == self.crc {
            return Ok(());
        }
        Err(damaged(name, format!("the checksum of its part at {} is wrong", self.offset)))
    }

    /// The range of this part within its object.
    pub(crate) fn range(&self) -> std::ops::Range<u64> {
        u64::from(self.offset)..u64::from(self.offset) + u64::from(self.len)
    }
}

/// The references of neighbouring pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Refs(pub(crate) Vec<(u32, Ref)>);

impl Refs {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.0.len() * ENTRY);
        for (page, at) in &self.0 {
            bytes.extend_from_slice(&at.object.0.to_le_bytes());
            for value in [*page, at.offset, at.len, at.crc] {
                bytes.extend_from_slice(&value.to_le_bytes());
            }
        }
        bytes
    }

    pub(crate) fn decode(name: &str, leaf: u32, bytes: &[u8]) -> Result<Self> {
        if !bytes.len().is_multiple_of(ENTRY) {
            return Err(damaged(name, "a leaf of the map has half a reference".to_owned()));
        }
        let each = |raw: &[u8]| {
            let at = Ref {
                object: ObjectNumber(u64_at(raw, 0)),
                offset: u32_at(raw, 12),
                len: u32_at(raw, 16),
                crc: u32_at(raw, 20),
            };
            (u32_at(raw, 8), at)
        };
        let refs: Vec<_> = bytes.chunks_exact(ENTRY).map(each).collect();
        if refs.iter().any(|(page, _)| page / LEAF_PAGES != leaf) {
            return Err(damaged(name, "a leaf of the map names foreign pages".to_owned()));
        }
        Ok(Self(refs))
    }
}
