//! Nodes that several trees use: which references change when one of the trees changes.
//!
//! # Invariants
//!
//! - **B1** What a node points to (its children, the data extents of a leaf) carries one reference
//!   for it: by the node's address if the node has the flag FULL_BACKREF, else by the tree that the
//!   node says it was written for.
//! - **B2** A node without the flag is used by the tree it was written for. So a tree that goes on
//!   without a node which others still use sets the flag, and moves the references over.
//! - **B3** A reference count is the committed one and what this commit did to it so far, together.
//!
//! # Place
//!
//! The merge says which nodes a tree leaves, from the root down; each passes its entries to new
//! nodes, which are the tree's own. What follows for the counts is summed here, and becomes items
//! of the extent tree when the commit settles.

use std::collections::{BTreeMap, HashMap};

use buttress_format::{Body, Extent, FileExtent, Ino, Kind, Logical, TreeId};
use buttress_tree::{Node, NodePtr, Store};

use crate::{
    DataRef, Error, Result,
    delayed_ref::{Deltas, ExtentChange, User},
    extent_tree::{self, BlockChange},
};

/// How what a node points to is referenced (B1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Via {
    Tree(TreeId),
    Node(Logical),
}

/// The result when a tree leaves a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// No tree uses the node any more.
    Gone,
    /// Others do.
    Shared,
}

/// Users of a node, and how it refers.
#[derive(Clone, Copy, Debug)]
pub(super) struct State {
    pub(super) refs: u64,
    pub(super) full: bool,
}

pub(super) struct Sharing {
    /// Root of the committed extent tree, which stays what it is until the commit settles.
    extent_root: NodePtr,
    pub(super) blocks: BTreeMap<Logical, BlockChange>,
    pub(super) data: BTreeMap<Logical, ExtentChange>,
    known: HashMap<Logical, State>,
}

impl Sharing {
    pub(super) fn new(extent_root: NodePtr) -> Self {
        Self { extent_root, blocks: BTreeMap::new(), data: BTreeMap::new(), known: HashMap::new() }
    }

    /// A node's users as this commit has left them so far (B3). `born` if it has no item yet.
    pub(super) fn state(
        &mut self,
        store: &Store,
        at: Logical,
        level: u8,
        born: bool,
    ) -> Result<State> {
        let before = match self.known.get(&at) {
            Some(known) => *known,
            None if born => State { refs: 1, full: false },
            None => {
                let nodesize = store.geometry().nodesize;
                let root = self.extent_root;
                let (refs, full) = extent_tree::block_state(store, root, at, level, nodesize)?;
                State { refs, full }
            }
        };
        self.known.insert(at, before);
        let Some(change) = self.blocks.get(&at) else { return Ok(before) };
        let refs = before
            .refs
            .checked_add_signed(change.deltas.sum())
            .ok_or(Error::Extents { at, what: "a tree node has fewer references than users" })?;
        Ok(State { refs, full: before.full || change.make_full })
    }

    /// How a node's entries are referenced.
    pub(super) fn via(node: &Node, state: State) -> Via {
        if state.full { Via::Node(node.logical()) } else { Via::Tree(node.owner()) }
    }

    /// A tree stops using a node. Its entries, from slot `from` on, pass to new nodes of the tree.
    /// Those before are gone already: a drop of the tree had come so far.
    pub(super) fn leave(
        &mut self,
        tree: TreeId,
        node: &Node,
        from: usize,
        state: State,
    ) -> Result<Left> {
        let at = node.logical();
        if state.refs == 0 {
            return Err(Error::Extents { at, what: "a tree node in use has no references" });
        }
        self.refer(at, node.level(), Via::Tree(tree), -1);
        let (old, new) = (Self::via(node, state), Via::Tree(tree));
        if state.refs == 1 {
            if old != new {
                self.contribute(node, from, new, 1)?;
                self.contribute(node, from, old, -1)?;
            }
            return Ok(Left::Gone);
        }
        if old == new {
            self.make_full(node)?;
        } else {
            self.contribute(node, from, new, 1)?;
        }
        Ok(Left::Shared)
    }

    /// Sets a node's flag; its entries gain the references that it stands for from now on. Those
    /// by its tree stay: the caller says what becomes of them.
    pub(super) fn make_full(&mut self, node: &Node) -> Result<()> {
        let change = self.blocks.entry(node.logical()).or_default();
        change.level = node.level();
        change.make_full = true;
        self.contribute(node, 0, Via::Node(node.logical()), 1)?;
        Ok(())
    }

    /// Adds to the references of a node itself.
    pub(super) fn refer(&mut self, at: Logical, level: u8, via: Via, delta: i64) {
        let change = self.blocks.entry(at).or_default();
        change.level = level;
        let user = match via {
            Via::Tree(tree) => User::Tree(tree),
            Via::Node(parent) => User::Node(parent),
        };
        change.deltas.add(user, delta);
    }

    /// A node's users go over to its copy at `new`, which the ledger knows as born for the node's
    /// owner. `renamed` says what each is called from now on.
    pub(super) fn pass_on(
        &mut self,
        node: &Node,
        new: Logical,
        users: &[(User, i64)],
        full: bool,
        renamed: impl Fn(User) -> User,
    ) {
        let old = self.blocks.entry(node.logical()).or_default();
        old.level = node.level();
        users.iter().for_each(|(user, count)| old.deltas.add(*user, -count));
        let change = self.blocks.entry(new).or_default();
        change.level = node.level();
        change.make_full |= full;
        users.iter().for_each(|(user, count)| change.deltas.add(renamed(*user), *count));
        // The one that its item is made with.
        change.deltas.add(User::Tree(node.owner()), -1);
        self.known.insert(new, State { refs: 1, full });
    }

    /// Adds to the references of everything that a node points to, from slot `from` on.
    pub(super) fn contribute(
        &mut self,
        node: &Node,
        from: usize,
        via: Via,
        delta: i64,
    ) -> Result<()> {
        self.contribute_where(node, from, via, delta, &|_| true)
    }

    /// As [`contribute`](Self::contribute), for what lies where `wanted` says.
    pub(super) fn contribute_where(
        &mut self,
        node: &Node,
        from: usize,
        via: Via,
        delta: i64,
        wanted: &dyn Fn(Logical) -> bool,
    ) -> Result<()> {
        for slot in from..node.len() {
            if node.level() > 0 {
                let child = node.child(slot);
                if !wanted(child.logical) {
                    continue;
                }
                self.refer(child.logical, child.level, via, delta);
                continue;
            }
            let key = node.key(slot);
            if key.kind != Kind::EXTENT_DATA {
                continue;
            }
            let malformed = |source| Error::Item { tree: node.owner(), key, source };
            let item = FileExtent::parse(node.item(slot)).map_err(malformed)?;
            let (Body::Regular(region) | Body::Prealloc(region)) = &item.body else { continue };
            if region.disk.0 == 0 || !wanted(region.disk) {
                continue;
            }
            let extent = Extent { start: region.disk, len: region.disk_len };
            let user = match via {
                Via::Tree(root) => User::File(DataRef {
                    root,
                    ino: Ino(key.objectid),
                    offset: key.offset.wrapping_sub(region.offset),
                }),
                Via::Node(leaf) => User::Leaf(leaf),
            };
            self.refer_data(extent, user, delta)?;
        }
        Ok(())
    }

    fn refer_data(&mut self, extent: Extent, user: User, delta: i64) -> Result<()> {
        let fresh = ExtentChange { extent, born: false, owner: None, deltas: Deltas::default() };
        let change = self.data.entry(extent.start).or_insert(fresh);
        if change.extent.len != extent.len {
            let at = extent.start;
            return Err(Error::Extents { at, what: "two files disagree about its length" });
        }
        change.deltas.add(user, delta);
        Ok(())
    }
}
