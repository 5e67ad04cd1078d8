//! Builds the buffer of a new node.
//!
//! # Invariants
//!
//! - **B1** Keys are pushed in strictly ascending order, and every payload fits.

use buttress_base::AlignedBuf;
use buttress_format::{
    Key,
    header::{HEADER_LEN, ITEM_LEN, PTR_LEN},
};

use crate::{
    geometry::{Geometry, NodeStamp},
    node::{Node, NodePtr},
};

fn finish(
    mut buf: AlignedBuf,
    geometry: &Geometry,
    stamp: &NodeStamp,
    nritems: u32,
    level: u8,
) -> Node {
    let header = stamp.header(geometry, nritems, level);
    header.write_to(&mut buf);
    Node::from_built(buf, header)
}

/// Fills a leaf.
pub struct LeafBuilder {
    buf: AlignedBuf,
    count: usize,
    data_start: usize,
    last: Option<Key>,
}

impl LeafBuilder {
    /// An empty leaf. Costs O(1), and a node of zeros.
    #[must_use]
    pub fn new(geometry: &Geometry) -> Self {
        let len = geometry.nodesize as usize;
        Self { buf: AlignedBuf::zeroed(len), count: 0, data_start: len, last: None }
    }

    /// Adds an item after the others. Costs O(1), and a copy of the payload.
    ///
    /// # Panics
    ///
    /// When the key is not greater than the last key, or the payload does not fit (B1): a bug of
    /// the caller.
    pub fn push(&mut self, key: &Key, payload: &[u8]) {
        assert!(self.last.is_none_or(|last| last < *key), "B1: {key} after {:?}", self.last);
        let at = HEADER_LEN + self.count * ITEM_LEN;
        assert!(at + ITEM_LEN + payload.len() <= self.data_start, "B1: {key} does not fit");
        self.data_start -= payload.len();
        self.buf[self.data_start..self.data_start + payload.len()].copy_from_slice(payload);
        key.write_to(&mut self.buf[at..at + 17]);
        let offset = (self.data_start - HEADER_LEN) as u32;
        self.buf[at + 17..at + 21].copy_from_slice(&offset.to_le_bytes());
        self.buf[at + 21..at + 25].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        self.count += 1;
        self.last = Some(*key);
    }

    /// The leaf, without its checksum: [`Node::seal`] fills the checksum in. Costs O(1).
    #[must_use]
    pub fn finish(self, geometry: &Geometry, stamp: &NodeStamp) -> Node {
        finish(self.buf, geometry, stamp, self.count as u32, 0)
    }
}

/// Fills an inner node.
pub struct PtrBuilder {
    buf: AlignedBuf,
    count: usize,
    last: Option<Key>,
}

impl PtrBuilder {
    /// An empty inner node. Costs O(1), and a node of zeros.
    #[must_use]
    pub fn new(geometry: &Geometry) -> Self {
        Self { buf: AlignedBuf::zeroed(geometry.nodesize as usize), count: 0, last: None }
    }

    /// Adds a child after the others. Costs O(1).
    ///
    /// # Panics
    ///
    /// When the key is not greater than the last key, or the node is full (B1): a bug of the
    /// caller.
    pub fn push(&mut self, key: &Key, child: &NodePtr) {
        assert!(self.last.is_none_or(|last| last < *key), "B1: {key} after {:?}", self.last);
        let at = HEADER_LEN + self.count * PTR_LEN;
        key.write_to(&mut self.buf[at..at + 17]);
        self.buf[at + 17..at + 25].copy_from_slice(&child.logical.0.to_le_bytes());
        self.buf[at + 25..at + 33].copy_from_slice(&child.generation.0.to_le_bytes());
        self.count += 1;
        self.last = Some(*key);
    }

    /// The node, without its checksum. Costs O(1).
    ///
    /// # Panics
    ///
    /// When the node has no children: such a node must not exist.
    #[must_use]
    pub fn finish(self, geometry: &Geometry, stamp: &NodeStamp, level: u8) -> Node {
        assert!(self.count > 0 && level > 0, "an inner node has children");
        finish(self.buf, geometry, stamp, self.count as u32, level)
    }
}
