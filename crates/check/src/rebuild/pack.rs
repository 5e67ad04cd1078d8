//! Builds a tree from items in key order: its size is known before the first item is read.
//!
//! # Invariants
//!
//! - **PK1** The bytes of all items are divided evenly among the leaves. So a leaf holds at most
//!   its share and one item more, and no leaf is empty.
//! - **PK2** Every node is checked when it gets its checksum, before it is written.

use std::io;

use buttress_format::{Generation, Key, Logical, TreeId};
use buttress_sorter::spool::{Item, Sizes};
use buttress_tree::{Geometry, LeafBuilder, Node, NodePtr, NodeStamp, PtrBuilder};
use buttress_volume::Volume;

use crate::error::{Error, Result};

/// Nodes that are written together.
const NODES_AT_ONCE: usize = 128;

/// The number of nodes on each level of a tree, leaves first, the root last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    levels: Vec<u64>,
}

impl Shape {
    /// The shape of a tree for items of these sizes. `None` if the items are too large to divide
    /// them evenly (PK1).
    pub(crate) fn of(sizes: &Sizes, geometry: &Geometry) -> Option<Self> {
        let room = (geometry.leaf_room() as u64).checked_sub(sizes.largest)?;
        if sizes.largest * 3 > room {
            return None;
        }
        let leaves =
            if sizes.bytes <= geometry.leaf_room() as u64 { 1 } else { sizes.bytes.div_ceil(room) };
        let mut levels = vec![leaves];
        while let Some(last) = levels.last().filter(|last| **last > 1) {
            levels.push(last.div_ceil(geometry.ptrs_max() as u64));
        }
        Some(Self { levels })
    }

    /// The number of all nodes.
    pub(crate) fn nodes(&self) -> u64 {
        self.levels.iter().sum()
    }

    /// The level of the root.
    pub(crate) fn root_level(&self) -> u8 {
        (self.levels.len() - 1) as u8
    }

    /// The level of each node, in the order of their places.
    pub(crate) fn node_levels(&self) -> impl Iterator<Item = u8> + '_ {
        let levels = self.levels.iter().enumerate();
        levels.flat_map(|(level, count)| std::iter::repeat_n(level as u8, *count as usize))
    }
}

/// A tree to be built.
pub(crate) struct Builder<'b> {
    pub(crate) geometry: &'b Geometry,
    pub(crate) generation: Generation,
    pub(crate) owner: TreeId,
    pub(crate) shape: &'b Shape,
    /// The places of its nodes: leaves first, the root last.
    pub(crate) places: &'b [Logical],
    /// Bytes of all items, their heads included.
    pub(crate) bytes: u64,
}

impl Builder<'_> {
    /// Builds all nodes, leaves first. Returns the first key of each node.
    pub(crate) fn build(
        &self,
        items: impl Iterator<Item = io::Result<Item>>,
        take: &mut dyn FnMut(Node) -> Result<()>,
    ) -> Result<Vec<Key>> {
        let mut places = self.places.iter().copied();
        let mut place = || places.next().ok_or_else(|| broken("a tree has more nodes than places"));
        let stamp = |logical| NodeStamp { logical, generation: self.generation, owner: self.owner };
        let mut firsts: Vec<Key> = Vec::new();
        let mut children: Vec<(Key, NodePtr)> = Vec::new();
        let leaves = self.shape.levels[0];
        let mut leaf = LeafBuilder::new(self.geometry);
        let (mut first, mut reached, mut index, mut free) = (None, 0_u64, 0_u64, self.room());
        let mut finish = |leaf: LeafBuilder, first: Option<Key>| -> Result<()> {
            let node = leaf.finish(self.geometry, &stamp(place()?));
            let first = first.unwrap_or(Key::MIN);
            children.push((first, node.ptr()));
            firsts.push(first);
            take(sealed(node, self.geometry)?)
        };
        for item in items {
            let (key, payload) = item?;
            let len = payload.len() as u64 + buttress_format::header::ITEM_LEN as u64;
            // A leaf ends at the item that reaches the leaf's share of all bytes (PK1).
            let is_full = u128::from(reached) * u128::from(leaves)
                >= u128::from(self.bytes) * u128::from(index + 1);
            if first.is_some() && is_full {
                let full = std::mem::replace(&mut leaf, LeafBuilder::new(self.geometry));
                finish(full, first.take())?;
                index += 1;
                free = self.room();
            }
            free = free.checked_sub(len).ok_or_else(|| broken("an item does not fit its leaf"))?;
            first.get_or_insert(key);
            leaf.push(&key, &payload);
            reached += len;
        }
        finish(leaf, first)?;
        if index + 1 != leaves {
            return Err(broken("a tree has fewer leaves than were planned"));
        }
        for (level, count) in self.shape.levels.iter().enumerate().skip(1) {
            let below = std::mem::take(&mut children);
            let mut from = 0;
            for index in 0..*count {
                let to = (below.len() as u64 * (index + 1) / count) as usize;
                let mut node = PtrBuilder::new(self.geometry);
                for (key, ptr) in &below[from..to] {
                    node.push(key, ptr);
                }
                let logical = place()?;
                let node = node.finish(self.geometry, &stamp(logical), level as u8);
                children.push((below[from].0, node.ptr()));
                firsts.push(below[from].0);
                take(sealed(node, self.geometry)?)?;
                from = to;
            }
        }
        Ok(firsts)
    }

    fn room(&self) -> u64 {
        self.geometry.leaf_room() as u64
    }
}

fn sealed(node: Node, geometry: &Geometry) -> Result<Node> {
    node.into_sealed(geometry).map_err(|why| Error::Rebuild(format!("a new node is wrong: {why}")))
}

fn broken(why: &str) -> Error {
    Error::Rebuild(why.to_owned())
}

/// Writes nodes in batches.
pub(crate) struct NodeWriter<'w> {
    volume: &'w Volume,
    waiting: Vec<Node>,
}

impl<'w> NodeWriter<'w> {
    pub(crate) fn new(volume: &'w Volume) -> Self {
        Self { volume, waiting: Vec::new() }
    }

    pub(crate) fn put(&mut self, node: Node) -> Result<()> {
        self.waiting.push(node);
        if self.waiting.len() < NODES_AT_ONCE { Ok(()) } else { self.flush() }
    }

    /// Writes the waiting nodes.
    pub(crate) fn flush(&mut self) -> Result<()> {
        let nodes = std::mem::take(&mut self.waiting);
        let writes: Vec<(Logical, &[u8])> =
            nodes.iter().map(|node| (node.logical(), node.bytes())).collect();
        Ok(self.volume.write_batch(&writes)?)
    }
}
