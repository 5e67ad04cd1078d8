//! The subvolumes that reach a node or a data extent in the last commit.
//!
//! # Invariants
//!
//! - **R1** The answer comes from committed trees only, which do not change. So it does not depend
//!   on the steps of the present commit.
//! - **R2** If a tree's node is younger than the tree's last snapshot, only this tree reaches the
//!   node, unless a balance moved it. For such a node no item is read.
//! - **R3** Any other node is reached by the trees that reach the parents which its references
//!   name. A reference that names a tree stands for the parent on this tree's path.
//! - **R4** A commit looks at no more than [`LOOKS_MAX`] nodes and items. A commit that would need
//!   more looks does not count.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use buttress_base::sets::{Number as Set, Sets};
use buttress_format::{Extent, Generation, Key, Kind, Logical, TreeId, header::FLAG_RELOC};
use buttress_tree::{Cursor, Expect, Node, NodePtr, NodeSource, Store};

use crate::delayed_ref::User;
use crate::{DataRef, Error, Result, View, extent_tree, move_plan::data_at};

/// The most nodes and items that a commit looks at to count quotas. Each takes some microseconds if
/// it is cached.
pub(super) const LOOKS_MAX: u64 = 1 << 18;

/// For each subvolume that reaches a data extent, the number of its references.
pub(super) type Counts = BTreeMap<TreeId, i64>;

/// A committed tree.
#[derive(Clone, Copy)]
struct Known {
    root: NodePtr,
    last_snapshot: Generation,
}

/// The trees that reach a node, and the form of the node's references.
#[derive(Clone, Copy)]
struct Seen {
    set: Set,
    /// Whether the references of the node's entries name the node's address.
    full: bool,
}

pub(super) struct Reachers<'e> {
    store: &'e Store,
    view: Arc<View>,
    extent_root: NodePtr,
    pub(super) sets: Sets<TreeId>,
    trees: HashMap<TreeId, Known>,
    nodes: HashMap<Logical, Seen>,
    looks: u64,
}

fn odd<T>(at: Logical, what: &'static str) -> Result<T> {
    Err(Error::Extents { at, what })
}

impl<'e> Reachers<'e> {
    pub(super) fn new(store: &'e Store, view: Arc<View>, extent_root: NodePtr) -> Self {
        Self {
            store,
            view,
            extent_root,
            sets: Sets::default(),
            trees: HashMap::new(),
            nodes: HashMap::new(),
            looks: 0,
        }
    }

    /// The looks so far (R4).
    pub(super) fn looks(&self) -> u64 {
        self.looks
    }

    /// Counts a look at a node or an item (R4).
    pub(super) fn look(&mut self, at: Logical) -> Result<()> {
        self.looks += 1;
        if self.looks > LOOKS_MAX {
            return odd(at, "counting quotas would look at too many nodes");
        }
        Ok(())
    }

    fn tree(&mut self, tree: TreeId) -> Result<Known> {
        if let Some(known) = self.trees.get(&tree) {
            return Ok(*known);
        }
        if !tree.is_fs_tree() {
            return Err(Error::Malformed(format!("{tree} shares nodes with a subvolume")));
        }
        let none = || Error::Malformed(format!("there is no {tree}"));
        let item = self.view.committed_root_item(tree)?.ok_or_else(none)?;
        let root = self.view.committed_root(tree)?.ok_or_else(none)?;
        let known = Known { root, last_snapshot: item.last_snapshot };
        self.trees.insert(tree, known);
        Ok(known)
    }

    /// Whether only `tree` reaches a committed node on its path (R2).
    pub(super) fn is_alone(&mut self, tree: TreeId, node: &Node) -> Result<bool> {
        let header = node.header();
        let may = header.owner == tree && header.flags & FLAG_RELOC == 0;
        Ok(may && header.generation > self.tree(tree)?.last_snapshot)
    }

    /// The trees that reach a committed node (R3). `key` is any key in the node.
    pub(super) fn node(&mut self, at: Logical, level: u8, key: &Key) -> Result<Set> {
        Ok(self.seen(at, level, key)?.set)
    }

    fn seen(&mut self, at: Logical, level: u8, key: &Key) -> Result<Seen> {
        if let Some(seen) = self.nodes.get(&at) {
            return Ok(*seen);
        }
        self.look(at)?;
        let (root, nodesize) = (self.extent_root, self.store.geometry().nodesize);
        let (users, full) = extent_tree::block_users(self.store, root, at, level, nodesize)?;
        let mut found: Option<Set> = None;
        for (user, _) in users {
            let set = match user {
                User::Tree(tree) => self.through(tree, at, level, key)?,
                // The recursion ends: each parent has a higher level, and no node above the highest
                // level has an item.
                User::Node(parent) if level < u8::MAX => self.node(parent, level + 1, key)?,
                _ => return odd(at, "a tree node has a user of another kind"),
            };
            found = Some(found.map_or(set, |found| self.sets.join(found, set)));
        }
        let Some(set) = found else { return odd(at, "a tree node in use has no references") };
        let seen = Seen { set, full };
        self.nodes.insert(at, seen);
        Ok(seen)
    }

    /// The trees that reach a node through the pointer that `tree` has to it.
    fn through(&mut self, tree: TreeId, at: Logical, level: u8, key: &Key) -> Result<Set> {
        let known = self.tree(tree)?;
        if known.root.logical == at {
            return Ok(self.sets.one(tree));
        }
        let mut expect = Expect::root(known.root);
        while expect.ptr.level > level {
            self.look(at)?;
            let node = self.store.node(tree, &expect)?;
            if node.is_empty() {
                break;
            }
            let slot = node.child_slot(key);
            if node.level() > level + 1 {
                expect = node.expect_child_below(slot, expect.below);
                continue;
            }
            if node.child(slot).logical != at {
                break;
            }
            return match self.is_alone(tree, &node)? {
                true => Ok(self.sets.one(tree)),
                false => self.node(node.logical(), node.level(), key),
            };
        }
        odd(at, "a reference names a tree that does not reach the node")
    }

    /// The users of a committed data extent.
    pub(super) fn users(&mut self, extent: Extent) -> Result<Vec<(User, i64)>> {
        self.look(extent.start)?;
        extent_tree::data_users(self.store, self.extent_root, extent)
    }

    /// The references that each subvolume has to a committed data extent with these users.
    pub(super) fn data(&mut self, extent: Extent, users: &[(User, i64)]) -> Result<Counts> {
        let mut counts = Counts::new();
        for (user, count) in users {
            match user {
                User::File(file) => self.of_file(extent, *file, *count, &mut counts)?,
                User::Leaf(leaf) => {
                    let set = self.leaf(*leaf)?;
                    self.add(set, *count, &mut counts);
                }
                User::Tree(_) | User::Node(_) => {
                    return odd(extent.start, "a data extent has a user of another kind");
                }
            }
        }
        Ok(counts)
    }

    fn add(&self, set: Set, count: i64, counts: &mut Counts) {
        for tree in self.sets.members(set).iter() {
            *counts.entry(*tree).or_default() += count;
        }
    }

    /// The trees that reach a leaf of which only the address is known.
    fn leaf(&mut self, at: Logical) -> Result<Set> {
        if let Some(seen) = self.nodes.get(&at) {
            return Ok(seen.set);
        }
        let (root, nodesize) = (self.extent_root, self.store.geometry().nodesize);
        let generation = extent_tree::block_generation(self.store, root, at, 0, nodesize)?;
        let ptr = NodePtr { logical: at, generation, level: 0 };
        let leaf = self.store.node(TreeId::FS, &Expect::root(ptr))?;
        if leaf.is_empty() {
            return odd(at, "a leaf without items refers to data");
        }
        self.node(at, 0, &leaf.key(0))
    }

    /// Adds the references of one file. The leaves with the file's items may be shared. Each tree
    /// that reaches a shared leaf has the references in this leaf.
    fn of_file(&mut self, of: Extent, file: DataRef, count: i64, to: &mut Counts) -> Result<()> {
        let root = self.tree(file.root)?.root;
        // `offset` is the file position of the extent's first byte. It wraps below zero if the file
        // uses only later bytes of the extent.
        let first = if i64::try_from(file.offset).is_ok() { file.offset } else { 0 };
        let key = Key::new(file.ino.0, Kind::EXTENT_DATA, first);
        let store = self.store;
        let mut cursor = Cursor::seek(store, file.root, root, &key)?;
        let mut left = count;
        while left > 0 {
            let Some((leaf, slot)) = cursor.current() else { break };
            let (leaf, key) = (Arc::clone(leaf), leaf.key(slot));
            if key.objectid != file.ino.0 || key.kind != Kind::EXTENT_DATA {
                break;
            }
            self.look(of.start)?;
            let mine = data_at(&leaf, slot)?.is_some_and(|(item, disk)| {
                let starts = item.region().map(|region| key.offset.wrapping_sub(region.offset));
                disk == of.start && starts == Some(file.offset)
            });
            cursor.advance()?;
            if !mine || leaf.owner() != file.root {
                continue;
            }
            let seen = if self.is_alone(file.root, &leaf)? {
                Seen { set: self.sets.one(file.root), full: false }
            } else {
                self.seen(leaf.logical(), 0, &leaf.key(0))?
            };
            // With `full`, the references in the leaf name the leaf, not the file.
            if !seen.full {
                self.add(seen.set, 1, to);
                left -= 1;
            }
        }
        if left > 0 {
            return odd(of.start, "a file has fewer references than its extent says");
        }
        Ok(())
    }
}

/// Every data extent that a leaf refers to, once for each reference.
pub(super) fn data_in(leaf: &Node) -> impl Iterator<Item = Result<Extent>> + '_ {
    (0..leaf.len()).filter_map(|slot| {
        let found = data_at(leaf, slot).transpose()?;
        Some(found.map(|(item, start)| {
            let len = item.region().map_or(0, |region| region.disk_len);
            Extent { start, len }
        }))
    })
}
