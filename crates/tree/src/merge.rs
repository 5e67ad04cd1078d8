//! Merges sorted changes into an immutable tree: each dirty leaf is rebuilt once.
//!
//! The merge walks the old tree in key order together with the changes. Unchanged subtrees are kept
//! as pointers. The items of dirty leaves, with the changes applied, go into one builder for each
//! level. The builders split the entries into new nodes.
//!
//! # Invariants
//!
//! - **M1** The cost is proportional to the dirty paths, not to the size of the tree.
//! - **M2** When a node of this transaction ([`Fresh`]) is rebuilt, its replacement gets the same
//!   address. So the rounds in which a commit settles its own nodes come to an end.
//! - **M3** Every consumed node is returned exactly once. Old nodes go to [`NodeAlloc::retire`],
//!   and so do fresh nodes that a snapshot may use. The address of any other fresh node is used
//!   again or goes to [`NodeAlloc::cancel`].
//! - **M4** A child's key in its parent is always the child's first key.
//! - **M5** If a rebuilt node is less than a quarter full, the walk also rebuilds its right
//!   neighbour and joins the two nodes. A node without a right neighbour stays small. So deletions
//!   do not leave many nearly empty leaves.
//! - **M6** The items between two unchanged subtrees are split into as few leaves as possible. The
//!   bounds on the nodes that a commit makes rely on this (`reserve::ledger`).
//!
//! # Failure
//!
//! After an error the old tree is unchanged, and the fresh set is unusable. The calling commit must
//! abort.

use std::{collections::VecDeque, sync::Arc};

use buttress_format::{
    Generation, Key, Logical, TreeId,
    header::{ITEM_LEN, PTR_LEN},
    limits::MAX_LEVEL,
};

use crate::{
    Error, Result,
    builder::{LeafBuilder, PtrBuilder},
    fresh::Fresh,
    geometry::NodeStamp,
    node::{Expect, Node, NodePtr},
    overlay::Payload,
    store::{NodeSource, Store},
};

/// A change to one item: its new payload, or nothing to delete it.
pub type Change = Option<Payload>;

/// Allocates and releases addresses of nodes, with the changes of reference counts.
pub trait NodeAlloc {
    /// An address for a new node. The cost is that of the allocator.
    ///
    /// # Errors
    ///
    /// When there is no space. A commit must reserve enough before.
    fn allocate(&mut self, tree: TreeId, level: u8) -> Result<Logical>;

    /// Releases a node that this tree no longer uses, because its items and children move to new
    /// nodes. The merge calls this method from the root down, for a node before its children.
    /// Returns whether this was the last use of the node. The cost is that of the references.
    ///
    /// # Errors
    ///
    /// When the references of the node cannot be read.
    fn retire(&mut self, tree: TreeId, node: &Node) -> Result<bool>;

    /// Releases an address that was allocated in this transaction and is not needed. The cost is
    /// that of the allocator.
    ///
    /// # Errors
    ///
    /// When `allocate` did not return the address in this transaction.
    fn cancel(&mut self, tree: TreeId, logical: Logical, level: u8) -> Result<()>;
}

/// The sources of nodes for a merge: first the fresh nodes, then the committed nodes.
pub struct Merge<'a> {
    /// The committed nodes.
    pub store: &'a Store,
    /// The nodes of this transaction.
    pub fresh: &'a mut Fresh,
    /// The transaction.
    pub generation: Generation,
}

impl NodeSource for Merge<'_> {
    fn node(&self, owner: TreeId, expect: &Expect) -> Result<Arc<Node>> {
        match self.fresh.get(expect.ptr.logical) {
            Some(node) if node.ptr() == expect.ptr && node.has_keys_of(expect) => {
                Ok(Arc::clone(node))
            }
            // On a damaged volume, a tree may use space that is recorded as free. This commit may
            // have allocated that space for a new node.
            Some(_) => Err(Error::Above(format!(
                "node {} of {owner} lies where the extent tree knows of none",
                expect.ptr.logical
            ))),
            None => self.store.node(owner, expect),
        }
    }

    fn count_keys(&self, count: u64) {
        self.store.count_keys(count);
    }
}

impl Merge<'_> {
    /// Applies `changes` (ascending, no key twice) to the tree at `root`; returns the new root.
    ///
    /// Reads each node on the path to a changed key once. Also reads a right neighbour where a
    /// rebuilt node is too small (M5). Builds only the nodes that the remaining items need. For c
    /// changes in a tree of n items, at most O(c log n) nodes are built. If the changes are
    /// adjacent, O(c + log n) nodes are built. Each node costs one step for each of its entries.
    ///
    /// # Errors
    ///
    /// When a node cannot be read, or no address can be allocated.
    ///
    /// # Panics
    ///
    /// When the changes are out of order: the caller's bug.
    pub fn apply(
        &mut self,
        alloc: &mut dyn NodeAlloc,
        tree: TreeId,
        root: Option<NodePtr>,
        changes: &[(Key, Change)],
    ) -> Result<NodePtr> {
        assert!(changes.windows(2).all(|w| w[0].0 < w[1].0), "changes must ascend");
        let item_max = self.store.geometry().item_max();
        for (key, change) in changes {
            if let Some(payload) = change
                && payload.len() > item_max
            {
                return Err(Error::TooLarge { key: *key, len: payload.len() });
            }
        }
        if let Some(root) = root
            && changes.is_empty()
        {
            return Ok(root);
        }
        let mut walk = Walk {
            merge: self,
            alloc,
            tree,
            levels: (0..MAX_LEVEL).map(|_| Level::default()).collect(),
            spare: (0..MAX_LEVEL).map(|_| Vec::new()).collect(),
        };
        match root {
            Some(root) => walk.subtree(&Expect::root(root), changes)?,
            None => walk.insert_all(changes)?,
        }
        walk.finish()
    }
}

/// An item of a leaf on its way to a new leaf.
enum Piece {
    Kept { node: Arc<Node>, slot: usize },
    New { key: Key, payload: Payload },
}

impl Piece {
    fn key(&self) -> Key {
        match self {
            Self::Kept { node, slot } => node.key(*slot),
            Self::New { key, .. } => *key,
        }
    }

    fn payload(&self) -> &[u8] {
        match self {
            Self::Kept { node, slot } => node.item(*slot),
            Self::New { payload, .. } => payload,
        }
    }

    fn weight(&self) -> usize {
        ITEM_LEN + self.payload().len()
    }
}

/// Entries that are not yet in a node of their level.
#[derive(Default)]
struct Level {
    pieces: VecDeque<Piece>,
    children: VecDeque<(Key, NodePtr)>,
    weight: usize,
    /// Nodes of this level that have an entry in the level above, unchanged or new.
    emitted: usize,
}

struct Walk<'w, 'm> {
    merge: &'w mut Merge<'m>,
    alloc: &'w mut dyn NodeAlloc,
    tree: TreeId,
    levels: Vec<Level>,
    /// Addresses of consumed fresh nodes, by level, to be used again (M2).
    spare: Vec<Vec<Logical>>,
}

impl Walk<'_, '_> {
    fn room(&self) -> usize {
        self.merge.store.geometry().leaf_room()
    }

    fn consume(&mut self, node: &Node) -> Result<()> {
        let (at, level) = (node.logical(), usize::from(node.level()));
        if self.merge.fresh.take_changeable(at) {
            self.spare[level].push(at);
            return Ok(());
        }
        if self.alloc.retire(self.tree, node)? {
            self.merge.fresh.forget(at);
        }
        Ok(())
    }

    /// Rebuilds the subtree under a pointer with its share of the changes.
    fn subtree(&mut self, at: &Expect, changes: &[(Key, Change)]) -> Result<()> {
        let node = self.merge.node(self.tree, at)?;
        self.consume(&node)?;
        if node.level() == 0 {
            return self.leaf(&node, changes);
        }
        let mut rest = changes;
        for slot in 0..node.len() {
            let split = if slot + 1 < node.len() {
                let next = node.key(slot + 1);
                rest.partition_point(|(key, _)| *key < next)
            } else {
                rest.len()
            };
            let (mine, others) = rest.split_at(split);
            rest = others;
            let child = node.expect_child_below(slot, at.below);
            if mine.is_empty() && !self.hungry(child.ptr.level) {
                self.pass(&child, node.key(slot))?;
            } else {
                self.subtree(&child, mine)?;
            }
        }
        Ok(())
    }

    /// Whether the pending entries at or below `level` are too few for a node of their own (M5).
    fn hungry(&self, level: u8) -> bool {
        let quarter = self.room() / 4;
        self.levels[..=usize::from(level)].iter().any(|l| l.weight > 0 && l.weight < quarter)
    }

    /// Adds an unchanged subtree to its new parent.
    fn pass(&mut self, child: &Expect, key: Key) -> Result<()> {
        for level in 0..=child.ptr.level {
            self.flush(level)?;
        }
        self.emit(key, child.ptr)
    }

    fn leaf(&mut self, node: &Arc<Node>, changes: &[(Key, Change)]) -> Result<()> {
        self.merge.count_keys((node.len() + changes.len()) as u64);
        let mut slot = 0;
        let mut changes = changes.iter().peekable();
        while slot < node.len() || changes.peek().is_some() {
            let old = (slot < node.len()).then(|| node.key(slot));
            match (old, changes.peek()) {
                (Some(old), Some((key, _))) if old < *key => {
                    self.push_piece(Piece::Kept { node: Arc::clone(node), slot })?;
                    slot += 1;
                }
                (Some(_), None) => {
                    self.push_piece(Piece::Kept { node: Arc::clone(node), slot })?;
                    slot += 1;
                }
                (old, Some((key, change))) => {
                    if old == Some(*key) {
                        slot += 1;
                    }
                    if let Some(payload) = change {
                        let payload = Arc::clone(payload);
                        self.push_piece(Piece::New { key: *key, payload })?;
                    }
                    changes.next();
                }
                (None, None) => break,
            }
        }
        Ok(())
    }

    fn insert_all(&mut self, changes: &[(Key, Change)]) -> Result<()> {
        for (key, change) in changes {
            if let Some(payload) = change {
                let payload = Arc::clone(payload);
                self.push_piece(Piece::New { key: *key, payload })?;
            }
        }
        Ok(())
    }

    fn push_piece(&mut self, piece: Piece) -> Result<()> {
        let room = self.room();
        self.levels[0].weight += piece.weight();
        self.levels[0].pieces.push_back(piece);
        // Items for at least one whole leaf stay pending, so that `flush` can split the rest
        // evenly.
        while self.levels[0].weight > 2 * room {
            self.cut_leaf(room, room)?;
        }
        Ok(())
    }

    /// Builds one leaf from the front of the pending items. The leaf has at least `least` bytes, or
    /// fewer if one more item would exceed `most`.
    fn cut_leaf(&mut self, least: usize, most: usize) -> Result<()> {
        let geometry = *self.merge.store.geometry();
        let mut builder = LeafBuilder::new(&geometry);
        let mut weight = 0;
        let mut first = None;
        let waiting = &mut self.levels[0];
        while let Some(piece) = waiting.pieces.front() {
            if weight > 0 && (weight >= least || weight + piece.weight() > most) {
                break;
            }
            weight += piece.weight();
            let key = piece.key();
            builder.push(&key, piece.payload());
            first.get_or_insert(key);
            waiting.pieces.pop_front();
        }
        waiting.weight -= weight;
        let Some(first) = first else { return Ok(()) };
        let stamp = self.stamp(0)?;
        let node = builder.finish(&geometry, &stamp);
        self.adopt(first, node)
    }

    /// Builds one inner node from the first `target` pending children, or from all if there are
    /// fewer.
    fn cut_inner(&mut self, level: u8, target: usize) -> Result<()> {
        let geometry = *self.merge.store.geometry();
        let mut builder = PtrBuilder::new(&geometry);
        let waiting = &mut self.levels[usize::from(level)];
        let count = target.min(waiting.children.len());
        let Some((first, _)) = waiting.children.front().copied() else { return Ok(()) };
        for (key, child) in waiting.children.drain(..count) {
            builder.push(&key, &child);
        }
        waiting.weight -= count * PTR_LEN;
        let stamp = self.stamp(level)?;
        let node = builder.finish(&geometry, &stamp, level);
        self.adopt(first, node)
    }

    fn stamp(&mut self, level: u8) -> Result<NodeStamp> {
        let logical = match self.spare[usize::from(level)].pop() {
            Some(logical) => logical,
            None => self.alloc.allocate(self.tree, level)?,
        };
        Ok(NodeStamp { logical, generation: self.merge.generation, owner: self.tree })
    }

    fn adopt(&mut self, first: Key, node: Node) -> Result<()> {
        let ptr = node.ptr();
        self.merge.fresh.insert(Arc::new(node));
        self.emit(first, ptr)
    }

    /// Adds a finished node as an entry of the level above.
    fn emit(&mut self, key: Key, ptr: NodePtr) -> Result<()> {
        self.levels[usize::from(ptr.level)].emitted += 1;
        let above = ptr.level + 1;
        if above >= MAX_LEVEL {
            return Err(Error::Above(format!("{} would grow past level {MAX_LEVEL}", self.tree)));
        }
        let max = self.merge.store.geometry().ptrs_max();
        let level = &mut self.levels[usize::from(above)];
        level.children.push_back((key, ptr));
        level.weight += PTR_LEN;
        while self.levels[usize::from(above)].children.len() > 2 * max {
            self.cut_inner(above, max)?;
        }
        Ok(())
    }

    /// Splits all pending entries of a level into nodes. The last two nodes get about equal sizes.
    fn flush(&mut self, level: u8) -> Result<()> {
        let room = self.room();
        if level == 0 {
            while self.levels[0].weight > 0 {
                let weight = self.levels[0].weight;
                // If this leaf gets half of the bytes, the rest fits into the next leaf. If this
                // leaf gets less, the next item is so large that fewer leaves are impossible (M6).
                let least = if weight > room { weight.div_ceil(2) } else { room };
                self.cut_leaf(least, room)?;
            }
            return Ok(());
        }
        let max = self.merge.store.geometry().ptrs_max();
        loop {
            let count = self.levels[usize::from(level)].children.len();
            if count == 0 {
                return Ok(());
            }
            self.cut_inner(level, if count > max { count.div_ceil(2).min(max) } else { max })?;
        }
    }

    /// Finishes every level from the bottom. The last single node is the root.
    fn finish(mut self) -> Result<NodePtr> {
        self.flush(0)?;
        let mut root = None;
        for level in 1..MAX_LEVEL {
            let waiting = &self.levels[usize::from(level)];
            // A single node of the level below, with no pending entries above, is the root.
            let above_is_idle =
                self.levels[usize::from(level) + 1..].iter().all(|l| l.children.is_empty());
            if waiting.emitted == 0 && waiting.children.len() <= 1 && above_is_idle {
                root = waiting.children.front().map(|(_, ptr)| *ptr);
                break;
            }
            self.flush(level)?;
        }
        let root = match root {
            Some(root) => root,
            None => self.empty_root()?,
        };
        for level in 0..MAX_LEVEL {
            for logical in std::mem::take(&mut self.spare[usize::from(level)]) {
                self.alloc.cancel(self.tree, logical, level)?;
            }
        }
        Ok(root)
    }

    fn empty_root(&mut self) -> Result<NodePtr> {
        let geometry = *self.merge.store.geometry();
        let stamp = self.stamp(0)?;
        let node = LeafBuilder::new(&geometry).finish(&geometry, &stamp);
        let ptr = node.ptr();
        self.merge.fresh.insert(Arc::new(node));
        Ok(ptr)
    }
}
