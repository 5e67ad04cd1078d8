//! Nodes that several trees use, and how their references change when one of the trees changes.
//!
//! # Invariants
//!
//! - **B1** A node holds one reference to each child, or to each data extent of a leaf. If the node
//!   has the flag FULL_BACKREF, the reference names the node's address. Otherwise it names the tree
//!   that the node was written for.
//! - **B2** A node without the flag is used by the tree it was written for. When this tree stops
//!   using a node that other trees still use, the commit sets the flag. The node's references then
//!   name its address.
//! - **B3** A reference count is the committed count plus the changes that this commit has made so
//!   far.
//!
//! # Place
//!
//! The merge reports the nodes that a tree stops using, from the root down. The entries of such a
//! node move to new nodes, which belong to that tree alone. This module sums the resulting changes
//! of references. When the commit settles, these changes become items of the extent tree.

use std::collections::{BTreeMap, HashMap};

use buttress_format::{Body, Extent, FileExtent, Ino, Kind, Logical, TreeId};
use buttress_tree::{Node, NodePtr, Store};

use crate::{
    DataRef, Error, Result,
    delayed_ref::{Deltas, ExtentChange, User},
    extent_tree::{self, BlockChange},
};

/// The name that a node's references carry (B1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RefName {
    Tree(TreeId),
    Node(Logical),
}

/// Whether a node is still used after a tree stopped using it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeUse {
    /// No tree uses the node any more.
    Unused,
    /// Other trees still use the node.
    Shared,
}

/// Number of references to a node, and whether it has FULL_BACKREF.
#[derive(Clone, Copy, Debug)]
pub(super) struct State {
    pub(super) refs: u64,
    pub(super) full: bool,
}

pub(super) struct Sharing {
    /// Root of the committed extent tree. The tree does not change before the rounds begin.
    extent_root: NodePtr,
    pub(super) blocks: BTreeMap<Logical, BlockChange>,
    pub(super) data: BTreeMap<Logical, ExtentChange>,
    known: HashMap<Logical, State>,
}

impl Sharing {
    pub(super) fn new(extent_root: NodePtr) -> Self {
        Self { extent_root, blocks: BTreeMap::new(), data: BTreeMap::new(), known: HashMap::new() }
    }

    /// A node's users as this commit has left them so far (B3). With `born`, the node has no item
    /// yet.
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

    /// The name that the references of this node carry.
    pub(super) fn ref_name(node: &Node, state: State) -> RefName {
        if state.full { RefName::Node(node.logical()) } else { RefName::Tree(node.owner()) }
    }

    /// Notes that a tree stops using a node. The node's entries from slot `from` on move to new
    /// nodes of the tree. An earlier drop of the tree has already removed the entries before
    /// `from`.
    pub(super) fn stop_using(
        &mut self,
        tree: TreeId,
        node: &Node,
        from: usize,
        state: State,
    ) -> Result<NodeUse> {
        let at = node.logical();
        if state.refs == 0 {
            return Err(Error::Extents { at, what: "a tree node in use has no references" });
        }
        self.refer(at, node.level(), RefName::Tree(tree), -1);
        let (old, new) = (Self::ref_name(node, state), RefName::Tree(tree));
        if state.refs == 1 {
            if old != new {
                self.add_refs(node, from, new, 1)?;
                self.add_refs(node, from, old, -1)?;
            }
            return Ok(NodeUse::Unused);
        }
        if old == new {
            self.make_full(node)?;
        } else {
            self.add_refs(node, from, new, 1)?;
        }
        Ok(NodeUse::Shared)
    }

    /// Sets FULL_BACKREF on a node, and adds one reference by the node's address to each of its
    /// entries. The references that name the tree stay; the caller may drop them.
    pub(super) fn make_full(&mut self, node: &Node) -> Result<()> {
        let change = self.blocks.entry(node.logical()).or_default();
        change.level = node.level();
        change.make_full = true;
        self.add_refs(node, 0, RefName::Node(node.logical()), 1)?;
        Ok(())
    }

    /// Adds `delta` to the number of references to a node under one name.
    pub(super) fn refer(&mut self, at: Logical, level: u8, name: RefName, delta: i64) {
        let change = self.blocks.entry(at).or_default();
        change.level = level;
        let user = match name {
            RefName::Tree(tree) => User::Tree(tree),
            RefName::Node(parent) => User::Node(parent),
        };
        change.deltas.add(user, delta);
    }

    /// Moves all users of a node to its copy at `new`. `Addresses` lists the copy as a new node of
    /// the same owner. `renamed` returns the new name of each user.
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
        // The item of the copy is made with the reference of its owner, so that reference must not
        // be added again.
        change.deltas.add(User::Tree(node.owner()), -1);
        self.known.insert(new, State { refs: 1, full });
    }

    /// Adds `delta` to the references of everything that a node points to, from slot `from` on.
    pub(super) fn add_refs(
        &mut self,
        node: &Node,
        from: usize,
        name: RefName,
        delta: i64,
    ) -> Result<()> {
        self.add_refs_where(node, from, name, delta, &|_| true)
    }

    /// As [`add_refs`](Self::add_refs), but only for children and extents at addresses that
    /// `wanted` accepts.
    pub(super) fn add_refs_where(
        &mut self,
        node: &Node,
        from: usize,
        name: RefName,
        delta: i64,
        wanted: &dyn Fn(Logical) -> bool,
    ) -> Result<()> {
        for slot in from..node.len() {
            if node.level() > 0 {
                let child = node.child(slot);
                if !wanted(child.logical) {
                    continue;
                }
                self.refer(child.logical, child.level, name, delta);
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
            let user = match name {
                RefName::Tree(root) => User::File(DataRef {
                    root,
                    ino: Ino(key.objectid),
                    offset: key.offset.wrapping_sub(region.offset),
                }),
                RefName::Node(leaf) => User::Leaf(leaf),
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
