//! A repair that waits until all chunks are known.
//!
//! Nodes of the chunk tree are read when only the superblock's chunks are in the map. A chunk of
//! the superblock may overlap another chunk on the same device. A copy that looks bad is then
//! content of the other chunk, and a repair would destroy that content. When all chunks are known,
//! a volume with overlapping chunks becomes read-only (`volume::V3`), and nothing is repaired in
//! it.

use buttress_format::Logical;

/// The most repairs that wait. Further bad copies are repaired at their next read.
pub(crate) const DEFERRED_MAX: usize = 256;

/// A repair that was not made.
#[derive(Debug)]
pub(crate) struct DeferredRepair {
    pub(crate) at: Logical,
    pub(crate) bytes: Vec<u8>,
    pub(crate) good: u32,
    pub(crate) bad: Vec<u32>,
}
