//! A position in one immutable tree.
//!
//! # Invariants
//!
//! - **C1** The path holds the nodes from the root down. Trees never change, so nothing invalidates
//!   a cursor.
//! - **C2** The level of the root limits the depth, and is below the limit of the format. Each
//!   child must have a level one lower, so a loop on disk ends in an error.

use std::sync::Arc;

use buttress_format::{Key, TreeId};

use crate::{
    Result,
    node::{Expect, Node, NodePtr},
    store::NodeSource,
};

/// A cursor over a tree, at an item or past an end. Holds one node of each level.
///
/// A tree of n items has O(log n) levels. A search reads one node of each level, and does a binary
/// search in each of these nodes.
pub struct Cursor<'s, S: NodeSource + ?Sized> {
    source: &'s S,
    tree: TreeId,
    root: NodePtr,
    /// The nodes from the root to the leaf, each with a slot. The slot in the leaf may be past the
    /// end of the leaf.
    path: Vec<(Arc<Node>, usize)>,
}

impl<'s, S: NodeSource + ?Sized> Cursor<'s, S> {
    /// Makes a cursor at the first item at or after a key. The search reads one node of each level.
    /// If the key lies after the last item of its leaf, the search also reads the path to the next
    /// leaf. Costs O(log n) in the items of the tree.
    ///
    /// # Errors
    ///
    /// When a node on the way is damaged.
    pub fn seek(source: &'s S, tree: TreeId, root: NodePtr, key: &Key) -> Result<Self> {
        let mut cursor = Self { source, tree, root, path: Vec::with_capacity(4) };
        cursor.descend(key)?;
        cursor.settle_forward()?;
        Ok(cursor)
    }

    /// Moves to the first item at or after a key. If that item is in the same leaf, the cursor
    /// reads no other node. So a search for many ascending keys reads each leaf once. If the item
    /// is in another leaf, the cost is that of [`seek`](Self::seek).
    ///
    /// # Errors
    ///
    /// When a node on the way is damaged.
    pub fn seek_on(&mut self, key: &Key) -> Result<()> {
        if self.step_in_leaf(key, |behind| behind) {
            return Ok(());
        }
        self.descend(key)?;
        self.settle_forward()
    }

    /// Moves within the leaf where the cursor is, if the key lies between the first and last key of
    /// that leaf. If the leaf has no item with this key, `absent` gets the slot of the next greater
    /// key and returns the slot to move to.
    fn step_in_leaf(&mut self, key: &Key, absent: impl FnOnce(usize) -> usize) -> bool {
        if let Some((leaf, slot)) = self.path.last_mut()
            && leaf.level() == 0
            && !leaf.is_empty()
            && (leaf.key(0)..=leaf.key(leaf.len() - 1)).contains(key)
        {
            *slot = leaf.search(key).unwrap_or_else(absent);
            self.source.count_keys(1);
            return true;
        }
        false
    }

    /// A cursor at the last item at or before a key. The cost is that of [`seek`](Self::seek).
    ///
    /// # Errors
    ///
    /// When a node on the way is damaged.
    pub fn seek_before(source: &'s S, tree: TreeId, root: NodePtr, key: &Key) -> Result<Self> {
        let mut cursor = Self { source, tree, root, path: Vec::with_capacity(4) };
        cursor.descend_before(key)?;
        Ok(cursor)
    }

    /// Moves to the last item at or before a key. If that item is in the same leaf, the cursor
    /// reads no other node. Otherwise the cost is that of [`seek`](Self::seek).
    ///
    /// # Errors
    ///
    /// When a node on the way is damaged.
    pub fn seek_back_on(&mut self, key: &Key) -> Result<()> {
        if self.step_in_leaf(key, |behind| behind - 1) {
            return Ok(());
        }
        self.descend_before(key)
    }

    fn descend_before(&mut self, key: &Key) -> Result<()> {
        self.descend(key)?;
        let on_key = self.current().is_some_and(|(node, slot)| node.key(slot) == *key);
        if on_key { Ok(()) } else { self.retreat() }
    }

    /// Returns the leaf and slot with exactly this key. The search reads one node of each level.
    /// Costs O(log n) in the items of the tree.
    ///
    /// # Errors
    ///
    /// When a node on the way is damaged.
    pub fn find(
        source: &S,
        tree: TreeId,
        root: NodePtr,
        key: &Key,
    ) -> Result<Option<(Arc<Node>, usize)>> {
        let mut node = source.node(tree, &Expect::root(root))?;
        let mut below = None;
        while node.level() > 0 {
            let expect = node.expect_child_below(node.child_slot(key), below);
            node = source.node(tree, &expect)?;
            below = expect.below;
        }
        source.count_keys(1);
        Ok(node.search(key).ok().map(|slot| (node, slot)))
    }

    fn descend(&mut self, key: &Key) -> Result<()> {
        self.path.clear();
        let mut node = self.source.node(self.tree, &Expect::root(self.root))?;
        let mut below = None;
        while node.level() > 0 {
            let slot = node.child_slot(key);
            let expect = node.expect_child_below(slot, below);
            let child = self.source.node(self.tree, &expect)?;
            self.path.push((node, slot));
            node = child;
            below = expect.below;
        }
        let slot = node.search(key).unwrap_or_else(|slot| slot);
        self.path.push((node, slot));
        self.source.count_keys(1);
        Ok(())
    }

    /// The leaf and slot of the cursor, or `None` past an end. Reads no further node. Costs O(1).
    #[must_use]
    pub fn current(&self) -> Option<(&Arc<Node>, usize)> {
        let (node, slot) = self.path.last()?;
        (node.level() == 0 && *slot < node.len()).then_some((node, *slot))
    }

    /// The key that the cursor is at. Looks at no further node. Costs O(1).
    #[must_use]
    pub fn key(&self) -> Option<Key> {
        self.current().map(|(node, slot)| node.key(slot))
    }

    /// The payload that the cursor is at. Looks at no further node. Costs O(1).
    #[must_use]
    pub fn item(&self) -> Option<&[u8]> {
        self.current().map(|(node, slot)| node.item(slot))
    }

    /// Moves one item further. The cursor reads nodes only at the end of a leaf, so a walk over a
    /// whole tree reads each node once. Costs O(1) within a leaf.
    ///
    /// # Errors
    ///
    /// When the next leaf is damaged.
    pub fn advance(&mut self) -> Result<()> {
        if let Some((_, slot)) = self.path.last_mut() {
            *slot += 1;
        }
        self.source.count_keys(1);
        self.settle_forward()
    }

    /// The first key after the last node of the path, if there is one.
    fn below(&self) -> Option<Key> {
        let above = self.path.split_last()?.1;
        let next =
            |(node, slot): &(Arc<Node>, usize)| (slot + 1 < node.len()).then(|| node.key(slot + 1));
        above.iter().rev().find_map(next)
    }

    /// Moves past the ends of leaves to the next item, or past the end of the tree.
    fn settle_forward(&mut self) -> Result<()> {
        loop {
            match self.path.last() {
                None => return Ok(()),
                Some((node, slot)) if *slot < node.len() => {
                    if node.level() == 0 {
                        return Ok(());
                    }
                    let expect = node.expect_child_below(*slot, self.below());
                    let child = self.source.node(self.tree, &expect)?;
                    self.path.push((child, 0));
                }
                Some(_) => {
                    self.path.pop();
                    if let Some((_, slot)) = self.path.last_mut() {
                        *slot += 1;
                    }
                }
            }
        }
    }

    /// Moves one item back; before the first item the cursor has no position. The cost is that of
    /// [`advance`](Self::advance).
    ///
    /// # Errors
    ///
    /// When the leaf before is damaged.
    pub fn retreat(&mut self) -> Result<()> {
        self.source.count_keys(1);
        loop {
            let Some((node, slot)) = self.path.last_mut() else { return Ok(()) };
            if *slot == 0 {
                self.path.pop();
                continue;
            }
            *slot -= 1;
            if node.level() == 0 {
                return Ok(());
            }
            let (node, slot) = (Arc::clone(node), *slot);
            let expect = node.expect_child_below(slot, self.below());
            let child = self.source.node(self.tree, &expect)?;
            let len = child.len();
            self.path.push((child, len));
        }
    }
}

#[cfg(test)]
mod tests {
    use buttress_format::{CsumType, Generation, Kind, Logical};

    use super::*;
    use crate::{Error, Geometry, LeafBuilder, NodeStamp, PtrBuilder};

    /// Nodes of 4 KiB. Those that are missing cannot be read.
    struct Nodes(Vec<Option<Arc<Node>>>);

    impl NodeSource for Nodes {
        fn node(&self, _: TreeId, expect: &Expect) -> Result<Arc<Node>> {
            let found = &self.0[(expect.ptr.logical.0 / 4096) as usize];
            found.clone().ok_or_else(|| Error::Above("it is lost".to_owned()))
        }
    }

    /// A cursor that meets a leaf that cannot be read is at no item.
    #[test]
    fn is_nowhere_after_a_lost_leaf() {
        let geometry = Geometry {
            nodesize: 4096,
            sectorsize: 4096,
            csum: CsumType::Crc32c,
            fsid: [1; 16],
            seeds: Default::default(),
            chunk_tree_uuid: [2; 16],
        };
        let (owner, generation) = (TreeId::FS, Generation(7));
        let stamp = |at: u64| NodeStamp { logical: Logical(at * 4096), generation, owner };
        let key = |number: u64| Key::new(number, Kind::INODE_ITEM, 0);
        let mut top = PtrBuilder::new(&geometry);
        let mut nodes = Vec::new();
        for at in 0..3 {
            let mut leaf = LeafBuilder::new(&geometry);
            leaf.push(&key(at), b"item");
            nodes.push(Some(Arc::new(leaf.finish(&geometry, &stamp(at)))));
            top.push(&key(at), &NodePtr { logical: Logical(at * 4096), generation, level: 0 });
        }
        nodes.push(Some(Arc::new(top.finish(&geometry, &stamp(3), 1))));
        nodes[1] = None;
        let nodes = Nodes(nodes);
        let root = NodePtr { logical: Logical(3 * 4096), generation, level: 1 };

        let mut cursor = Cursor::seek(&nodes, owner, root, &key(0)).expect("the first leaf");
        assert_eq!(cursor.item(), Some(&b"item"[..]));
        assert!(cursor.advance().is_err());
        assert_eq!((cursor.key(), cursor.item()), (None, None));
        let mut cursor = Cursor::seek(&nodes, owner, root, &key(2)).expect("the last leaf");
        assert!(cursor.retreat().is_err());
        assert_eq!((cursor.key(), cursor.item()), (None, None));
    }
}
