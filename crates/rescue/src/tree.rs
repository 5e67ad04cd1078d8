//! A tree with holes: its leaves in order, and the ranges of keys that cannot be read.
//!
//! # Invariants
//!
//! - **TR1** A walk visits each address once, and goes down at every step. So it ends.
//! - **TR2** A node from a scan is put into a tree only if the extent tree says that the node is in
//!   use. So an older version of a node never gets into the tree.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Bound;
use std::sync::Arc;

use buttress_format::{Generation, Ino, Key, Logical, TreeId};
use buttress_tree::{Expect, Node, NodePtr};

use crate::extents::Extents;
use crate::salvage::Salvage;

/// The address of a leaf, and its range of keys.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leaf {
    pub(crate) ptr: NodePtr,
    /// The first key of the leaf, or the smallest possible key if the leaf is the root.
    pub(crate) first: Key,
    is_root: bool,
    /// The first key after the leaf.
    below: Option<Key>,
}

/// Keys that cannot be read.
#[derive(Clone, Debug)]
pub(crate) struct Gap {
    pub(crate) from: Key,
    pub(crate) to: Option<Key>,
    pub(crate) why: String,
    /// Whether items are surely lost. If not, the range may have been empty.
    pub(crate) is_sure: bool,
}

impl Gap {
    /// Whether keys of `from..to` may be in the gap.
    pub(crate) fn touches(&self, from: &Key, to: Option<&Key>) -> bool {
        self.to.is_none_or(|end| end > *from) && to.is_none_or(|to| self.from < *to)
    }
}

/// Changes to a tree that are in memory only.
#[derive(Clone, Debug, Default)]
pub(crate) struct Overlay {
    /// Items by key. `None` removes an item.
    pub(crate) items: BTreeMap<Key, Option<Vec<u8>>>,
    /// Inodes with all their items here, except those of their content.
    pub(crate) whole: BTreeSet<Ino>,
}

/// A tree, without its inner nodes.
#[derive(Clone, Debug)]
pub(crate) struct Leaves {
    pub(crate) id: TreeId,
    leaves: Vec<Leaf>,
    pub(crate) gaps: Vec<Gap>,
    /// What a log of fsync changes.
    pub(crate) over: Arc<Overlay>,
}

/// The gaps that a read over a range found.
pub(crate) type Gaps = Vec<Gap>;

impl Leaves {
    /// Walks from the root down. Where an inner node is lost and `extents` are known, nodes from a
    /// scan take its place.
    pub(crate) fn walk(
        salvage: &Salvage,
        id: TreeId,
        root: NodePtr,
        extents: Option<&Extents>,
    ) -> Self {
        let mut walk = Walk {
            salvage,
            extents,
            seen: HashSet::new(),
            tree: Self { id, leaves: Vec::new(), gaps: Vec::new(), over: Arc::default() },
        };
        walk.descend(Expect::root(root), Key::MIN, None);
        let mut tree = walk.tree;
        tree.leaves.sort_unstable_by_key(|leaf| leaf.first);
        tree.gaps.sort_unstable_by_key(|gap| gap.from);
        tree
    }

    /// Whether no part of the tree can be read.
    pub(crate) fn is_empty(&self) -> bool {
        self.leaves.is_empty()
    }

    /// The leaves of the tree.
    pub(crate) fn leaves(&self) -> &[Leaf] {
        &self.leaves
    }

    /// Calls `visit` with all items with keys in `from..to`, in order, as the overlay changes them.
    /// Returns the gaps in that range.
    pub(crate) fn items(
        &self,
        salvage: &Salvage,
        from: &Key,
        to: Option<&Key>,
        visit: &mut dyn FnMut(Key, &[u8]),
    ) -> Gaps {
        if self.over.items.is_empty() || to.is_some_and(|to| to <= from) {
            return self.stored(salvage, from, to, visit);
        }
        let end = to.map_or(Bound::Unbounded, |to| Bound::Excluded(*to));
        let mut over = self.over.items.range((Bound::Included(*from), end)).peekable();
        let gaps = self.stored(salvage, from, to, &mut |key, bytes| {
            while let Some((before, put)) = over.next_if(|(next, _)| **next < key) {
                put.iter().for_each(|put| visit(*before, put));
            }
            match over.next_if(|(next, _)| **next == key) {
                Some((_, put)) => put.iter().for_each(|put| visit(key, put)),
                None => visit(key, bytes),
            }
        });
        for (key, put) in over {
            put.iter().for_each(|put| visit(*key, put));
        }
        gaps
    }

    /// The same for the items on the devices alone.
    fn stored(
        &self,
        salvage: &Salvage,
        from: &Key,
        to: Option<&Key>,
        visit: &mut dyn FnMut(Key, &[u8]),
    ) -> Gaps {
        let mut gaps: Gaps =
            self.gaps.iter().filter(|gap| gap.touches(from, to)).cloned().collect();
        let start = self.leaves.partition_point(|leaf| leaf.first <= *from).saturating_sub(1);
        for leaf in &self.leaves[start..] {
            if to.is_some_and(|to| leaf.first >= *to) {
                break;
            }
            if leaf.below.is_some_and(|below| below <= *from) {
                continue;
            }
            match self.read(salvage, leaf) {
                Ok(node) => {
                    let first = node.search(from).unwrap_or_else(|slot| slot);
                    for slot in first..node.len() {
                        let key = node.key(slot);
                        if to.is_some_and(|to| key >= *to) {
                            break;
                        }
                        visit(key, node.item(slot));
                    }
                }
                Err(why) => gaps.push(Gap { from: leaf.first, to: leaf.below, why, is_sure: true }),
            }
        }
        gaps
    }

    /// Calls `visit` with all items of the tree.
    pub(crate) fn all(&self, salvage: &Salvage, visit: &mut dyn FnMut(Key, &[u8])) -> Gaps {
        self.items(salvage, &Key::MIN, None, visit)
    }

    /// Reads a leaf.
    pub(crate) fn read(&self, salvage: &Salvage, leaf: &Leaf) -> Result<Arc<Node>, String> {
        let first_key = (!leaf.is_root).then_some(leaf.first);
        let expect = Expect { ptr: leaf.ptr, first_key, below: leaf.below };
        salvage.node(self.id, &expect)
    }

    /// Returns the index of the leaf that holds a key, or would hold it.
    pub(crate) fn leaf_of(&self, key: &Key) -> usize {
        self.leaves.partition_point(|leaf| leaf.first <= *key).saturating_sub(1)
    }
}

struct Walk<'s> {
    salvage: &'s Salvage,
    extents: Option<&'s Extents>,
    seen: HashSet<Logical>,
    tree: Leaves,
}

impl Walk<'_> {
    /// Adds all leaves below a node. `from` is the first key that the node may have.
    fn descend(&mut self, expect: Expect, from: Key, below: Option<Key>) {
        let mut stack = vec![(expect, from, below)];
        while let Some((expect, from, below)) = stack.pop() {
            let ptr = expect.ptr;
            if !self.seen.insert(ptr.logical) {
                let why = format!("the node at {} has two places in the tree", ptr.logical);
                self.tree.gaps.push(Gap { from, to: below, why, is_sure: true });
                continue;
            }
            if ptr.level == 0 {
                let is_root = expect.first_key.is_none();
                self.tree.leaves.push(Leaf { ptr, first: from, is_root, below });
                continue;
            }
            match self.salvage.node(self.tree.id, &expect) {
                Ok(node) => {
                    for slot in (0..node.len()).rev() {
                        let child = node.expect_child_below(slot, below);
                        stack.push((child, node.key(slot), child.below));
                    }
                }
                Err(why) => self.fill(&ptr, from, below, &why),
            }
        }
    }

    /// Finds the nodes that were below a lost inner node.
    fn fill(&mut self, lost: &NodePtr, from: Key, to: Option<Key>, why: &str) {
        let gap = |from, to| Gap { from, to, why: why.to_owned(), is_sure: false };
        let Some(extents) = self.extents else {
            self.tree.gaps.push(Gap { is_sure: true, ..gap(from, to) });
            return;
        };
        let mut taken: Vec<(Key, Key)> = Vec::new();
        for level in (0..lost.level).rev() {
            for found in self.candidates(level, lost.generation, &from, to.as_ref()) {
                let (ptr, first, last) = found;
                let is_free = taken.iter().all(|(low, high)| last < *low || first > *high);
                if !is_free || self.seen.contains(&ptr.logical) {
                    continue;
                }
                if extents.block(self.salvage, ptr.logical) != Some(ptr.generation) {
                    continue;
                }
                taken.push((first, last));
                let expect = Expect { ptr, first_key: Some(first), below: last.next() };
                self.descend(expect, first, last.next());
            }
        }
        taken.sort_unstable();
        // A range between two found nodes may have been empty, or it may belong to another lost
        // node.
        let mut at = from;
        for (first, last) in taken {
            if at < first {
                self.tree.gaps.push(gap(at, Some(first)));
            }
            at = last.next().unwrap_or(Key::MAX);
        }
        if to.is_none_or(|to| at < to) {
            self.tree.gaps.push(gap(at, to));
        }
    }

    /// Scanned nodes of one level that may belong to this tree. Nodes with this tree as owner come
    /// first; another file tree may own a node that snapshots share.
    fn candidates(
        &self,
        level: u8,
        until: Generation,
        from: &Key,
        to: Option<&Key>,
    ) -> Vec<(NodePtr, Key, Key)> {
        let id = self.tree.id;
        let may_be = |owner: TreeId| owner == id || owner.is_fs_tree() && id.is_fs_tree();
        let mut found: Vec<_> = self
            .salvage
            .scan()
            .each()
            .filter(|node| node.level == level && may_be(node.owner))
            .filter(|node| node.generation <= until && node.first >= *from)
            .filter(|node| to.is_none_or(|to| node.last < *to))
            .copied()
            .collect();
        found.sort_by_key(|node| (node.owner != id, std::cmp::Reverse(node.generation)));
        found.iter().map(|node| (node.ptr(), node.first, node.last)).collect()
    }
}
