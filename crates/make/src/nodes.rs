//! Packs sorted items into the nodes of a new tree.
//!
//! # Place
//!
//! A tree is built in two steps. The first step makes its [`Shape`], which depends only on the
//! sizes of its items. The second step writes its bytes, once every node has an address.

use buttress_format::header::{BACKREF_REV_MIXED, FLAG_WRITTEN, HEADER_LEN, ITEM_LEN, PTR_LEN};
use buttress_format::{CsumType, Header, Key, Logical, TreeId};

use super::options::{FIRST, Identity};

/// One item of a leaf.
#[derive(PartialEq, Eq)]
pub(super) struct Item {
    pub key: Key,
    pub data: Vec<u8>,
}

/// The division of a tree's items into nodes: leaves first, then each level above, the root last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub nodes: Vec<NodeSpan>,
}

/// One node: the range of a leaf's items, or the range of an inner node's children in
/// [`Shape::nodes`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NodeSpan {
    pub level: u8,
    pub first: usize,
    pub end: usize,
}

impl Shape {
    /// Divides items of these sizes into nodes, each as full as possible.
    pub(super) fn of(items: &[Item], nodesize: u32) -> Self {
        let room = nodesize as usize - HEADER_LEN;
        let mut nodes = Vec::new();
        let (mut first, mut filled) = (0, 0);
        for (index, item) in items.iter().enumerate() {
            let takes = ITEM_LEN + item.data.len();
            assert!(takes <= room, "an item of a new volume fits in a node");
            if filled + takes > room {
                nodes.push(NodeSpan { level: 0, first, end: index });
                (first, filled) = (index, 0);
            }
            filled += takes;
        }
        nodes.push(NodeSpan { level: 0, first, end: items.len() });
        let mut below = 0..nodes.len();
        let mut level = 0;
        while below.len() > 1 {
            level += 1;
            let above = nodes.len();
            for first in below.clone().step_by(room / PTR_LEN) {
                let end = below.end.min(first + room / PTR_LEN);
                nodes.push(NodeSpan { level, first, end });
            }
            below = above..nodes.len();
        }
        Self { nodes }
    }

    /// Level of the root.
    pub(super) fn level(&self) -> u8 {
        self.nodes.last().map_or(0, |node| node.level)
    }

    /// The smallest key below each node.
    pub(super) fn first_keys(&self, items: &[Item]) -> Vec<Key> {
        let mut keys: Vec<Key> = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            let key = if node.level == 0 {
                items.get(node.first).map_or(Key::MIN, |item| item.key)
            } else {
                keys[node.first]
            };
            keys.push(key);
        }
        keys
    }
}

/// The header fields that all nodes of one tree share.
pub(super) struct Stamp<'a> {
    pub identity: &'a Identity,
    pub csum: CsumType,
    pub nodesize: u32,
    pub owner: TreeId,
}

/// Builds the nodes of a tree. Returns each node with its address.
pub(super) fn encode(
    stamp: &Stamp<'_>,
    items: &[Item],
    shape: &Shape,
    addresses: &[Logical],
) -> Vec<(Logical, Vec<u8>)> {
    assert!(addresses.len() == shape.nodes.len(), "make::K1: an address for every node");
    let keys = shape.first_keys(items);
    let nodes = shape.nodes.iter().zip(addresses).map(|(span, &bytenr)| {
        let mut node = vec![0_u8; stamp.nodesize as usize];
        if span.level == 0 {
            fill_leaf(&mut node, &items[span.first..span.end]);
        } else {
            let children = (span.first..span.end).map(|child| (keys[child], addresses[child]));
            fill_inner(&mut node, children);
        }
        seal(stamp, &mut node, bytenr, span);
        (bytenr, node)
    });
    nodes.collect()
}

/// Fills a leaf: item heads from the start, item data from the end.
fn fill_leaf(node: &mut [u8], items: &[Item]) {
    let mut data_end = node.len();
    for (slot, item) in items.iter().enumerate() {
        let data_start = data_end - item.data.len();
        node[data_start..data_end].copy_from_slice(&item.data);
        data_end = data_start;
        let head = &mut node[HEADER_LEN + slot * ITEM_LEN..][..ITEM_LEN];
        item.key.write_to(&mut head[..Key::LEN]);
        let offset = u32::try_from(data_start - HEADER_LEN).expect("a node is at most 64 KiB");
        let len = u32::try_from(item.data.len()).expect("a node is at most 64 KiB");
        head[Key::LEN..Key::LEN + 4].copy_from_slice(&offset.to_le_bytes());
        head[Key::LEN + 4..].copy_from_slice(&len.to_le_bytes());
    }
}

fn fill_inner(node: &mut [u8], children: impl Iterator<Item = (Key, Logical)>) {
    for (slot, (key, child)) in children.enumerate() {
        let ptr = &mut node[HEADER_LEN + slot * PTR_LEN..][..PTR_LEN];
        key.write_to(&mut ptr[..Key::LEN]);
        ptr[Key::LEN..Key::LEN + 8].copy_from_slice(&child.0.to_le_bytes());
        ptr[Key::LEN + 8..].copy_from_slice(&FIRST.0.to_le_bytes());
    }
}

/// Writes the header. The checksum comes last, because it covers all bytes after it.
fn seal(stamp: &Stamp<'_>, node: &mut [u8], bytenr: Logical, span: &NodeSpan) {
    let header = Header {
        csum: [0; 32],
        fsid: stamp.identity.fsid,
        bytenr,
        flags: FLAG_WRITTEN,
        backref_rev: BACKREF_REV_MIXED,
        chunk_tree_uuid: stamp.identity.chunk_tree_uuid,
        generation: FIRST,
        owner: stamp.owner,
        nritems: u32::try_from(span.end - span.first).expect("a node is at most 64 KiB"),
        level: span.level,
    };
    header.write_to(&mut node[..HEADER_LEN]);
    let csum = stamp.csum.digest(&node[32..]);
    node[..32].copy_from_slice(&csum);
}
