//! Plans a move of tree nodes for a balance: the requested nodes and all nodes above them, in every
//! tree.
//!
//! # Invariants
//!
//! - **O1** A node moves with all its users: each node above it, in every tree, moves, too. So a
//!   move changes the address that a back reference names, but not the number of back references.
//!   If a user cannot move, there is no plan.
//! - **O2** A node that trees share is visited once. A plan costs the nodes on the paths to the
//!   moved nodes, and one root for each tree.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use buttress_format::{Body, FileExtent, Key, Kind, Logical, RootItem, TreeId};
use buttress_tree::{Cursor, Expect, Node, NodePtr, NodeSource, Roots, Store};

use crate::delayed_ref::User;
use crate::{Error, Result, extent_tree};

/// The trees of files and their committed roots.
pub(crate) fn file_roots(store: &Store, roots: &Roots) -> Result<Vec<(TreeId, NodePtr)>> {
    let root_tree = roots.find(TreeId::ROOT).ok_or(buttress_tree::Error::NoTree(TreeId::ROOT))?;
    let mut found = BTreeMap::new();
    let first = Key::new(0, Kind::ROOT_ITEM, 0);
    let mut cursor = Cursor::seek(store, TreeId::ROOT, root_tree, &first)?;
    while let Some((key, item)) = cursor.key().zip(cursor.item()) {
        let tree = TreeId(key.objectid);
        if key.kind == Kind::ROOT_ITEM && tree.is_fs_tree() {
            let malformed = |source| Error::Item { tree: TreeId::ROOT, key, source };
            let item = RootItem::parse(item).map_err(malformed)?;
            let (logical, generation, level) = (item.bytenr, item.generation, item.level);
            // A later root item of a tree replaces an earlier one.
            found.insert(tree, roots.find(tree).unwrap_or(NodePtr { logical, generation, level }));
        }
        cursor.advance()?;
    }
    Ok(found.into_iter().collect())
}

/// A key and a level. The plan visits the nodes on the path to the key, down to the level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Want {
    key: Key,
    level: u8,
    /// Whether the item of the key points to moved data.
    is_data: bool,
}

/// A node that moves, and its users. With `full`, references to its children or data name the
/// node's address.
pub(crate) struct Mover {
    pub(crate) node: Arc<Node>,
    pub(crate) users: Vec<(User, i64)>,
    pub(crate) full: bool,
}

/// The input of a plan.
#[derive(Default)]
pub(crate) struct Wanted {
    /// Nodes, each with its first key.
    pub(crate) nodes: Vec<(NodePtr, Key)>,
    /// Maps the address of each moved data extent to its index in the list of moved extents.
    pub(crate) moved: HashMap<Logical, usize>,
    /// File extent items that point to moved data, as the balance found them. An item added later
    /// is not changed.
    pub(crate) items: HashSet<(TreeId, Key)>,
}

/// The nodes that a plan moves.
pub(crate) struct Plan {
    /// Children before the nodes above them.
    pub(crate) movers: Vec<Mover>,
    /// For each moved extent, the number of items in moved leaves that point to it.
    pub(crate) found: Vec<u64>,
}

struct Walk<'s> {
    store: &'s Store,
    targets: HashSet<Logical>,
    moved: &'s HashMap<Logical, usize>,
    items: &'s HashSet<(TreeId, Key)>,
    found: Vec<u64>,
    /// Nodes that were looked at, and whether they move.
    seen: HashMap<Logical, bool>,
    order: Vec<Arc<Node>>,
}

/// The extent that an item of a leaf points to, if the item points to an extent.
pub(crate) fn data_at(node: &Node, slot: usize) -> Result<Option<(FileExtent, Logical)>> {
    let key = node.key(slot);
    if key.kind != Kind::EXTENT_DATA {
        return Ok(None);
    }
    let malformed = |source| Error::Item { tree: node.owner(), key, source };
    let item = FileExtent::parse(node.item(slot)).map_err(malformed)?;
    let at = match &item.body {
        Body::Regular(region) | Body::Prealloc(region) if region.disk.0 != 0 => region.disk,
        _ => return Ok(None),
    };
    Ok(Some((item, at)))
}

impl Walk<'_> {
    /// Returns whether the node at a pointer moves. Adds the moving nodes to `order`.
    fn visit(&mut self, tree: TreeId, at: &Expect, wants: &[Want]) -> Result<bool> {
        let ptr = at.ptr;
        if let Some(known) = self.seen.get(&ptr.logical) {
            return Ok(*known);
        }
        let mut moves = self.targets.contains(&ptr.logical);
        let mut node = None;
        if ptr.level > 0 && wants.iter().any(|want| want.level < ptr.level) {
            let here = self.store.node(tree, at)?;
            let mut rest = wants;
            while let Some(first) = rest.first() {
                let slot = here.child_slot(&first.key);
                let next = (slot + 1 < here.len()).then(|| here.key(slot + 1));
                let count = next
                    .map_or(rest.len(), |next| rest.partition_point(|want| want.key < next).max(1));
                let (mine, others) = rest.split_at(count);
                rest = others;
                let child = here.expect_child_below(slot, at.below);
                moves |= self.visit(tree, &child, mine)?;
            }
            node = Some(here);
        } else if ptr.level == 0 && wants.iter().any(|want| want.is_data) {
            let here = self.store.node(tree, at)?;
            for want in wants.iter().filter(|want| want.is_data) {
                let Ok(slot) = here.search(&want.key) else { continue };
                let Some((_, disk)) = data_at(&here, slot)? else { continue };
                // Trees that share the leaf have the same item, and the balance found the item in
                // each of these trees.
                if !self.items.contains(&(tree, want.key)) {
                    continue;
                }
                if let Some(index) = self.moved.get(&disk) {
                    self.found[*index] += 1;
                    moves = true;
                }
            }
            node = Some(here);
        }
        self.seen.insert(ptr.logical, moves);
        if moves {
            let node = node.map_or_else(|| self.store.node(tree, at), Ok)?;
            self.order.push(node);
        }
        Ok(moves)
    }
}

impl Plan {
    /// Makes a plan from the committed trees. Returns `None` if a node has a user that cannot move
    /// with it (O1): a tree that a balance of Linux left behind.
    pub(crate) fn make(store: &Store, roots: &Roots, wanted: &Wanted) -> Result<Option<Self>> {
        let nodesize = store.geometry().nodesize;
        let extent_root =
            roots.find(TreeId::EXTENT).ok_or(buttress_tree::Error::NoTree(TreeId::EXTENT))?;
        let nodes = wanted.nodes.iter();
        let mut wants: Vec<Want> = nodes
            .map(|(ptr, key)| Want { key: *key, level: ptr.level, is_data: false })
            .chain(wanted.items.iter().map(|(_, key)| Want { key: *key, level: 0, is_data: true }))
            .collect();
        wants.sort_unstable();
        wants.dedup();
        let mut walk = Walk {
            store,
            targets: wanted.nodes.iter().map(|(ptr, _)| ptr.logical).collect(),
            moved: &wanted.moved,
            items: &wanted.items,
            found: vec![0; wanted.moved.len()],
            seen: HashMap::new(),
            order: Vec::new(),
        };
        let trees = file_roots(store, roots)?;
        for (tree, root) in &trees {
            walk.visit(*tree, &Expect::root(*root), &wants)?;
        }
        let known: HashSet<TreeId> = trees.iter().map(|(tree, _)| *tree).collect();
        let mut movers = Vec::with_capacity(walk.order.len());
        for node in walk.order {
            let (at, level) = (node.logical(), node.level());
            let (users, full) = extent_tree::block_users(store, extent_root, at, level, nodesize)?;
            let follows = |user: &User| match user {
                User::Tree(tree) => known.contains(tree),
                User::Node(parent) => walk.seen.get(parent) == Some(&true),
                User::File(_) | User::Leaf(_) => false,
            };
            if !users.iter().all(|(user, _)| follows(user)) {
                return Ok(None);
            }
            movers.push(Mover { node, users, full });
        }
        Ok(Some(Self { movers, found: walk.found }))
    }
}
