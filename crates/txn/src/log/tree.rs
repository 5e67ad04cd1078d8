//! One subvolume's log tree: its leaves in memory, changed where they are, and what of them is on disk.
//!
//! # Invariants
//!
//! - **L1** A node that was written is never written again before a log without it is durable: a leaf that
//!   changed, and everything above the leaves, gets a new address with each log. The superblock on disk names
//!   the nodes of the log before.
//! - **L2** Every item lies in the leaf whose bound is the last at or before its key; the first leaf's bound is
//!   the least key. No leaf is empty, but for one that is all there is.

use std::collections::BTreeMap;

use buttress_format::{Generation, Key, Logical, TreeId};
use buttress_tree::{Geometry, LeafEdit, Mismatch, Node, NodePtr, NodeStamp, Payload, PtrBuilder};

use crate::{Error, Result};

#[derive(Debug)]
struct Leaf {
    items: LeafEdit,
    /// Nothing while it has changes that are not on disk.
    at: Option<Logical>,
}

#[derive(Debug, Default)]
pub(crate) struct LogTree {
    /// By bound (L2).
    leaves: BTreeMap<Key, Leaf>,
    /// Addresses of what is above the leaves, and of leaves that changed or went since they were written.
    replaced: Vec<Logical>,
    root: Option<NodePtr>,
    changed: bool,
    /// Bounds of the leaves that the last build gave addresses.
    fresh: Vec<Key>,
}

/// What building a log takes and leaves.
pub(crate) struct Build<'b> {
    pub(crate) geometry: Geometry,
    pub(crate) generation: Generation,
    /// Gives an address for a node.
    pub(crate) allocate: &'b mut dyn FnMut() -> Result<Logical>,
    /// New nodes that are no leaves of logs, sealed.
    pub(crate) nodes: Vec<Node>,
    /// Nodes of the log before that this one does without.
    pub(crate) dropped: Vec<Logical>,
}

fn damaged(logical: Logical) -> impl Fn(Mismatch) -> Error {
    move |why| {
        let owner = TreeId::TREE_LOG;
        buttress_tree::Error::Damaged { logical, owner, why }.into()
    }
}

impl Build<'_> {
    pub(crate) fn stamp(&mut self) -> Result<NodeStamp> {
        let logical = (self.allocate)()?;
        Ok(NodeStamp { logical, generation: self.generation, owner: TreeId::TREE_LOG })
    }

    /// Takes a node that goes to disk with this log.
    pub(crate) fn add(&mut self, node: Node) -> Result<NodePtr> {
        let ptr = node.ptr();
        self.nodes.push(node.into_sealed(&self.geometry).map_err(damaged(ptr.logical))?);
        Ok(ptr)
    }
}

impl LogTree {
    fn leaf(&self, key: &Key) -> Option<&LeafEdit> {
        self.leaves.range(..=*key).next_back().map(|(_, leaf)| &leaf.items)
    }

    pub(crate) fn get(&self, key: &Key) -> Option<&[u8]> {
        let leaf = self.leaf(key)?;
        leaf.search(key).ok().map(|slot| leaf.item(slot))
    }

    /// Items in `low..=high`.
    pub(crate) fn range(&self, low: Key, high: Key) -> Vec<(Key, Payload)> {
        let mut found = Vec::new();
        let Some((from, _)) = self.leaves.range(..=low).next_back() else { return found };
        for (bound, leaf) in self.leaves.range(from..) {
            if *bound > high {
                break;
            }
            let (Ok(first) | Err(first)) = leaf.items.search(&low);
            for slot in first..leaf.items.len() {
                let key = leaf.items.key(slot);
                if key > high {
                    return found;
                }
                found.push((key, leaf.items.item(slot).into()));
            }
        }
        found
    }

    /// The last item in `low..=high`.
    pub(crate) fn last_in(&self, low: Key, high: Key) -> Option<(Key, Payload)> {
        for (_, leaf) in self.leaves.range(..=high).rev() {
            let slot = match leaf.items.search(&high) {
                Ok(slot) => slot,
                Err(0) => continue,
                Err(slot) => slot - 1,
            };
            let key = leaf.items.key(slot);
            return (key >= low).then(|| (key, leaf.items.item(slot).into()));
        }
        None
    }

    /// Number of leaves.
    pub(crate) fn leaves(&self) -> usize {
        self.leaves.len()
    }

    /// Number of leaves that the next build gives addresses.
    pub(crate) fn changed_leaves(&self) -> usize {
        self.leaves.values().filter(|leaf| leaf.at.is_none()).count()
    }

    /// Sets or deletes an item.
    pub(crate) fn set(&mut self, geometry: &Geometry, key: Key, payload: Option<&[u8]>) {
        if self.leaves.is_empty() {
            self.leaves.insert(Key::MIN, Leaf { items: LeafEdit::new(geometry), at: None });
            self.changed = true;
        }
        let (bound, leaf) = self.leaves.range_mut(..=key).next_back().expect("L2: the least bound");
        let slot = leaf.items.search(&key).ok();
        if slot.map(|slot| leaf.items.item(slot)) == payload {
            return;
        }
        let len = payload.map_or(0, <[u8]>::len);
        assert!(len <= geometry.item_max(), "an item of {len} bytes fits no leaf");
        let bound = *bound;
        self.changed = true;
        self.replaced.extend(leaf.at.take());
        match payload {
            Some(payload) => {
                if !leaf.items.set(&key, payload) {
                    self.split(geometry, bound, &key);
                    self.set(geometry, key, Some(payload));
                }
            }
            None => {
                leaf.items.remove(&key);
                if leaf.items.is_empty() && self.leaves.len() > 1 {
                    self.remove_leaf(bound);
                }
            }
        }
    }

    /// Makes room for a key in a leaf that has none.
    fn split(&mut self, geometry: &Geometry, bound: Key, key: &Key) {
        let leaf = self.leaves.get_mut(&bound).expect("L2: a bound that was found");
        let Err(slot) = leaf.items.search(key) else {
            // Its item became longer: taken out first, it is put like a new one.
            leaf.items.remove(key);
            if leaf.items.is_empty() {
                return;
            }
            return self.split(geometry, bound, key);
        };
        let fresh = if slot == leaf.items.len() {
            // Keys that ascend fill their leaves.
            (*key, LeafEdit::new(geometry))
        } else if leaf.items.len() > 1 {
            let half = leaf.items.split(geometry);
            (half.key(0), half)
        } else {
            let alone = std::mem::replace(&mut leaf.items, LeafEdit::new(geometry));
            (alone.key(0), alone)
        };
        self.leaves.insert(fresh.0, Leaf { items: fresh.1, at: None });
    }

    fn remove_leaf(&mut self, bound: Key) {
        self.leaves.remove(&bound);
        if bound == Key::MIN
            && let Some((_, leaf)) = self.leaves.pop_first()
        {
            self.leaves.insert(Key::MIN, leaf);
        }
    }

    /// The root as it is on disk, or will be.
    pub(crate) fn root(&self) -> Option<NodePtr> {
        self.root
    }

    /// The leaves that the last build made, to be written.
    pub(crate) fn fresh(&self) -> impl Iterator<Item = (Logical, &[u8])> {
        let leaves = self.fresh.iter().filter_map(|bound| self.leaves.get(bound));
        leaves.filter_map(|leaf| Some((leaf.at?, leaf.items.bytes())))
    }

    /// Gives addresses to what changed (L1), and seals it.
    pub(crate) fn build(&mut self, build: &mut Build<'_>) -> Result<()> {
        self.fresh.clear();
        if !std::mem::take(&mut self.changed) {
            return Ok(());
        }
        build.dropped.append(&mut self.replaced);
        let generation = build.generation;
        let mut level: Vec<(Key, NodePtr)> = Vec::with_capacity(self.leaves.len());
        for (bound, leaf) in &mut self.leaves {
            let logical = match leaf.at {
                Some(at) => at,
                None => {
                    let stamp = build.stamp()?;
                    let sealed = leaf.items.seal(&build.geometry, &stamp);
                    sealed.map_err(damaged(stamp.logical))?;
                    self.fresh.push(*bound);
                    leaf.at = Some(stamp.logical);
                    stamp.logical
                }
            };
            let first = if leaf.items.is_empty() { *bound } else { leaf.items.key(0) };
            level.push((first, NodePtr { logical, generation, level: 0 }));
        }
        let max = build.geometry.ptrs_max();
        while level.len() > 1 {
            let mut above = Vec::with_capacity(level.len().div_ceil(max));
            for children in level.chunks(max) {
                let mut builder = PtrBuilder::new(&build.geometry);
                for (key, child) in children {
                    builder.push(key, child);
                }
                let stamp = build.stamp()?;
                self.replaced.push(stamp.logical);
                let node = builder.finish(&build.geometry, &stamp, children[0].1.level + 1);
                above.push((children[0].0, build.add(node)?));
            }
            level = above;
        }
        self.root = level.first().map(|(_, root)| *root);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use buttress_base::Rng;
    use buttress_format::{CsumType, Kind};

    use super::*;

    const GEOMETRY: Geometry = Geometry {
        nodesize: 4096,
        sectorsize: 4096,
        csum: CsumType::Crc32c,
        fsid: [1; 16],
        chunk_tree_uuid: [2; 16],
    };

    /// Answers as a map does, splits and goes as one tree, and writes no node twice while it is in use.
    #[test]
    fn is_a_map_whose_nodes_move() {
        for seed in 0..8 {
            let mut rng = Rng::new(seed);
            let mut model: BTreeMap<Key, Vec<u8>> = BTreeMap::new();
            let mut tree = LogTree::default();
            let mut disk: BTreeMap<Logical, ()> = BTreeMap::new();
            let mut next = 0;
            for round in 0..60 {
                for _ in 0..rng.below(60) {
                    let key = Key::new(rng.below(9), Kind::EXTENT_DATA, rng.below(200));
                    let long = if rng.below(30) == 0 { 3800 } else { 90 };
                    let payload = vec![rng.below(256) as u8; rng.below(long) as usize];
                    let gone = rng.below(if round % 20 < 10 { 4 } else { 2 }) == 0;
                    let payload = (!gone).then_some(payload);
                    tree.set(&GEOMETRY, key, payload.as_deref());
                    match payload {
                        Some(payload) => model.insert(key, payload),
                        None => model.remove(&key),
                    };
                    assert_eq!(tree.get(&key), model.get(&key).map(Vec::as_slice));
                }
                let low = Key::new(rng.below(9), Kind::EXTENT_DATA, rng.below(200));
                let high = Key::new(low.objectid + rng.below(2), Kind::EXTENT_DATA, rng.below(200));
                let high = high.max(low);
                let expected: Vec<(Key, Payload)> =
                    model.range(low..=high).map(|(k, v)| (*k, v.as_slice().into())).collect();
                assert_eq!(tree.range(low, high), expected, "seed {seed}");
                assert_eq!(tree.last_in(low, high), expected.last().cloned(), "seed {seed}");
                let mut allocate = || {
                    next += 4096;
                    Ok(Logical(next))
                };
                let mut build = Build {
                    geometry: GEOMETRY,
                    generation: Generation(5),
                    allocate: &mut allocate,
                    nodes: Vec::new(),
                    dropped: Vec::new(),
                };
                tree.build(&mut build).expect("a log");
                for at in &build.dropped {
                    assert!(disk.remove(at).is_some(), "seed {seed}: {at} was not there");
                }
                let inner = build.nodes.iter().map(Node::logical);
                for at in inner.chain(tree.fresh().map(|(at, _)| at)) {
                    assert!(disk.insert(at, ()).is_none(), "seed {seed}: {at} is in use");
                }
                let above: usize = disk.len() - tree.leaves();
                assert!(above <= 2, "seed {seed}: {above} nodes above the leaves");
            }
        }
    }
}
