//! One subvolume's log tree: its items in memory, its nodes on disk.
//!
//! # Invariants
//!
//! - **L1** A node that was written is never written again: a leaf that changed, and everything above the
//!   leaves, gets a new address with each log. The superblock on disk names the nodes of the log before.
//! - **L2** Every item lies in the leaf whose bound is the last at or before its key.

use std::collections::BTreeMap;
use std::sync::Arc;

use buttress_format::{Generation, Key, Logical, TreeId, header::ITEM_LEN};
use buttress_tree::{Geometry, LeafBuilder, Node, NodePtr, NodeStamp, Payload, PtrBuilder};

use crate::Result;

/// A leaf, by its bound.
#[derive(Clone, Copy, Debug)]
struct Leaf {
    /// Nothing while it has changes that are not on disk.
    at: Option<Logical>,
    /// Its first key, as of when it was built.
    first: Key,
}

#[derive(Debug, Default)]
pub(crate) struct LogTree {
    items: BTreeMap<Key, Payload>,
    leaves: BTreeMap<Key, Leaf>,
    inner: Vec<Logical>,
    root: Option<NodePtr>,
    bytes: usize,
}

/// What building a log takes and leaves.
pub(crate) struct Build<'b> {
    pub(crate) geometry: Geometry,
    pub(crate) generation: Generation,
    /// Gives an address for a node.
    pub(crate) allocate: &'b mut dyn FnMut() -> Result<Logical>,
    /// New nodes, not sealed yet.
    pub(crate) nodes: Vec<Arc<Node>>,
    /// Nodes of the log before that this one does without.
    pub(crate) dropped: Vec<Logical>,
}

impl Build<'_> {
    pub(crate) fn stamp(&mut self) -> Result<NodeStamp> {
        let logical = (self.allocate)()?;
        Ok(NodeStamp { logical, generation: self.generation, owner: TreeId::TREE_LOG })
    }

    pub(crate) fn add(&mut self, node: Node) -> NodePtr {
        let ptr = node.ptr();
        self.nodes.push(Arc::new(node));
        ptr
    }
}

impl LogTree {
    pub(crate) fn get(&self, key: &Key) -> Option<&Payload> {
        self.items.get(key)
    }

    /// Items in `low..=high`.
    pub(crate) fn range(
        &self,
        low: Key,
        high: Key,
    ) -> impl DoubleEndedIterator<Item = (&Key, &Payload)> {
        self.items.range(low..=high)
    }

    /// Bytes that the items take in leaves.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Sets or deletes an item.
    pub(crate) fn set(&mut self, key: Key, payload: Option<Payload>) {
        let weight = |payload: &Payload| ITEM_LEN + payload.len();
        if self.items.get(&key) == payload.as_ref() {
            return;
        }
        self.bytes += payload.as_ref().map_or(0, weight);
        let old = match payload {
            Some(payload) => self.items.insert(key, payload),
            None => self.items.remove(&key),
        };
        self.bytes -= old.as_ref().map_or(0, weight);
        if self.leaves.is_empty() {
            self.leaves.insert(Key::MIN, Leaf { at: None, first: key });
        }
        let leaf = self.leaves.range(..=key).next_back().map(|(bound, leaf)| (*bound, *leaf));
        let (bound, leaf) = leaf.unwrap_or((Key::MIN, Leaf { at: None, first: key }));
        if let Some(at) = leaf.at {
            self.inner.push(at);
            self.leaves.insert(bound, Leaf { at: None, ..leaf });
        }
    }

    /// The root as it is on disk, or will be.
    pub(crate) fn root(&self) -> Option<NodePtr> {
        self.root
    }

    /// Builds what changed (L1); says whether anything did.
    pub(crate) fn build(&mut self, build: &mut Build<'_>) -> Result<bool> {
        if self.leaves.values().all(|leaf| leaf.at.is_some()) && self.root.is_some() {
            return Ok(false);
        }
        let bounds: Vec<Key> =
            self.leaves.iter().filter(|(_, leaf)| leaf.at.is_none()).map(|(b, _)| *b).collect();
        for bound in bounds {
            self.build_leaf(bound, build)?;
        }
        build.dropped.append(&mut self.inner);
        let mut level: Vec<(Key, NodePtr)> = self
            .leaves
            .values()
            .filter_map(|leaf| Some((leaf, leaf.at?)))
            .map(|(leaf, logical)| {
                (leaf.first, NodePtr { logical, generation: build.generation, level: 0 })
            })
            .collect();
        let max = build.geometry.ptrs_max();
        while level.len() > 1 {
            let mut above = Vec::with_capacity(level.len().div_ceil(max));
            for children in level.chunks(max) {
                let mut builder = PtrBuilder::new(&build.geometry);
                for (key, child) in children {
                    builder.push(key, child);
                }
                let stamp = build.stamp()?;
                self.inner.push(stamp.logical);
                let node = builder.finish(&build.geometry, &stamp, children[0].1.level + 1);
                above.push((children[0].0, build.add(node)));
            }
            level = above;
        }
        self.root = level.first().map(|(_, root)| *root);
        Ok(true)
    }

    /// Builds one leaf, or several where one does not hold its items any more (L2).
    fn build_leaf(&mut self, bound: Key, build: &mut Build<'_>) -> Result<()> {
        let next = self.leaves.range(bound..).nth(1).map(|(next, _)| *next);
        let items = || {
            let to = next.map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded);
            self.items.range((std::ops::Bound::Included(bound), to))
        };
        let weight = |payload: &Payload| ITEM_LEN + payload.len();
        let total: usize = items().map(|(_, payload)| weight(payload)).sum();
        let room = build.geometry.leaf_room();
        let target = total / total.div_ceil(room).max(1) + ITEM_LEN;
        let mut built: Vec<(Key, Leaf)> = Vec::new();
        let mut builder = LeafBuilder::new(&build.geometry);
        let mut first: Option<Key> = None;
        let mut held = 0;
        for (key, payload) in items() {
            if held > 0 && (held + weight(payload) > room || held >= target) {
                let stamp = build.stamp()?;
                let full = std::mem::replace(&mut builder, LeafBuilder::new(&build.geometry));
                build.add(full.finish(&build.geometry, &stamp));
                let start = first.take().unwrap_or(*key);
                built.push((start, Leaf { at: Some(stamp.logical), first: start }));
                held = 0;
            }
            first.get_or_insert(*key);
            builder.push(key, payload);
            held += weight(payload);
        }
        // An empty leaf stays only where it is all there is.
        if held > 0 || built.is_empty() && self.leaves.len() == 1 {
            let stamp = build.stamp()?;
            build.add(builder.finish(&build.geometry, &stamp));
            let start = first.unwrap_or(bound);
            built.push((start, Leaf { at: Some(stamp.logical), first: start }));
        }
        self.leaves.remove(&bound);
        for (index, (start, leaf)) in built.into_iter().enumerate() {
            self.leaves.insert(if index == 0 { bound } else { start }, leaf);
        }
        if !self.leaves.contains_key(&Key::MIN)
            && let Some((_, leaf)) = self.leaves.pop_first()
        {
            self.leaves.insert(Key::MIN, leaf);
        }
        Ok(())
    }
}
