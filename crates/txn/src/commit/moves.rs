//! Nodes that a balance moves in a commit, and leaves that point to moved data. Each new node is
//! made once, for all trees that use it.
//!
//! # Invariants
//!
//! - **V1** References only change the address of their user. A user that is a tree stays the same.
//!   A user that is the address of a moved node becomes the new address (`move_plan::O1`).
//! - **V2** A leaf changes here only for moved data. For this, every item and reference must be as
//!   the balance left it, and the balance must have read every tree. The overlay's items and
//!   references for that data are then not applied. Otherwise they are applied like the items and
//!   references of any other operation, and each tree gets leaves of its own. Until the commit is
//!   published, operations of the next transaction see the move only by the items that the balance
//!   put.
//! - **V3** Moved nodes may be shared although they are new. So a tree that may share moved nodes
//!   counts as snapshotted in this transaction, as with a balance of Linux.
//! - **V4** A new node that several trees may use never changes in place. Such nodes are all nodes
//!   with several users, and all nodes below them. A node below may belong to several trees
//!   although it has one user, because a snapshot adds no users to it.
//!
//! # Place
//!
//! The moves come before all other changes of the file trees in this commit.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use buttress_format::{Body, Extent, Ino, Key, Logical, TreeId};
use buttress_tree::{NodeAlloc, NodePtr, NodeStamp};

use super::settle::Settle;
use super::sharing::RefName;
use crate::delayed_ref::{Deltas, ExtentChange, User};
use crate::move_plan::{Mover, Plan, Wanted, data_at, file_roots};
use crate::{DataRef, MovedExtent, Result, extent_tree};

/// The results of the moves, for the rest of the commit.
#[derive(Default)]
pub(super) struct Moved {
    /// Items of the overlay that are already in leaves.
    pub(super) items: HashSet<(TreeId, Key)>,
    /// Starts of extents with references that are settled already.
    pub(super) data: HashSet<Logical>,
    /// Trees with nodes that may be shared although they are new (V3).
    pub(super) trees: HashSet<TreeId>,
}

/// Returns a user with the new address of its node.
fn renamed(user: User, map: &HashMap<Logical, NodePtr>) -> User {
    let new = |at: Logical| map.get(&at).map_or(at, |ptr| ptr.logical);
    match user {
        User::Node(parent) => User::Node(new(parent)),
        User::Leaf(leaf) => User::Leaf(new(leaf)),
        other => other,
    }
}

impl Settle<'_> {
    /// Makes the moves that the transaction requests.
    pub(super) fn moves(&mut self) -> Result<()> {
        let moves = self.transaction.moves.change(std::mem::take);
        if moves.nodes.is_empty() && moves.moved.is_empty() {
            return Ok(());
        }
        let roots = file_roots(self.owners.storage.store(), &self.roots)?;
        // The balance does not know snapshots that were made after it read the trees.
        let knows_all =
            |trees: &[TreeId]| roots.iter().all(|(tree, _)| trees.binary_search(tree).is_ok());
        // Extents that moved one after the other have the same list of trees.
        let same = |a: &MovedExtent, b: &MovedExtent| Arc::ptr_eq(&a.trees, &b.trees);
        let whole = moves.moved.chunk_by(same).filter(|moved| knows_all(&moved[0].trees)).flatten();
        let moved: Vec<&MovedExtent> = whole.filter(|moved| self.is_as_left(moved)).collect();
        if moves.nodes.is_empty() && moved.is_empty() {
            return Ok(());
        }
        let mut wanted = Wanted { nodes: moves.nodes, ..Wanted::default() };
        for (index, moved) in moved.iter().enumerate() {
            wanted.moved.insert(moved.old.start, index);
            wanted.items.extend(moved.items.iter().map(|(tree, key, _)| (*tree, *key)));
        }
        let Some(plan) = Plan::make(self.owners.storage.store(), &self.roots, &wanted)? else {
            // The next round of the balance finds these nodes again. In that round each tree builds
            // its own node.
            tracing::debug!("nodes of a balance cannot move as they are shared");
            return Ok(());
        };
        let map = self.addresses(&plan)?;
        let done = self.settle_moved(&moved, &plan, &map)?;
        self.copy(&plan.movers, &map, &done)?;
        self.move_roots(&plan.movers, &map)
    }

    /// Whether the balance's items and references are the only changes of an extent in this
    /// transaction (V2).
    fn is_as_left(&self, moved: &MovedExtent) -> bool {
        let overlay = &self.transaction.overlay;
        let mut users = Deltas::default();
        for (tree, key, bytes) in &moved.items {
            if overlay.find(*tree, key).flatten().as_ref() != Some(bytes) {
                return false;
            }
            let Some(user) = user_of(*tree, key, bytes) else { return false };
            users.add(User::File(user), 1);
        }
        let expected: Vec<_> = users.in_order().collect();
        let refs = &self.transaction.refs;
        let is_so = |extent: Extent, born: bool, sign: i64| {
            refs.look(extent.start, |change| {
                let mut found: Vec<_> =
                    change.deltas.iter().map(|(user, n)| (user, sign * n)).collect();
                found.sort_unstable_by_key(|(user, n)| (*n, *user));
                change.extent == extent && change.born == born && found == expected
            })
        };
        is_so(moved.old, false, -1) == Some(true) && is_so(moved.new, true, 1) == Some(true)
    }

    /// Allocates addresses for all moved nodes.
    fn addresses(&mut self, plan: &Plan) -> Result<HashMap<Logical, NodePtr>> {
        let generation = self.transaction.generation;
        let mut map = HashMap::with_capacity(plan.movers.len());
        for Mover { node, .. } in &plan.movers {
            let logical = self.addresses.allocate(node.owner(), node.level())?;
            self.addresses.moved(node);
            map.insert(node.logical(), NodePtr { logical, generation, level: node.level() });
        }
        Ok(map)
    }

    /// Moves the references of moved data, if the plan found all of them. Returns the start of the
    /// copy for each extent.
    fn settle_moved(
        &mut self,
        moved: &[&MovedExtent],
        plan: &Plan,
        map: &HashMap<Logical, NodePtr>,
    ) -> Result<HashMap<Logical, Logical>> {
        let root = self.must_root(TreeId::EXTENT)?;
        let mut done = HashMap::new();
        for (moved, found) in moved.iter().zip(&plan.found) {
            let users = extent_tree::data_users(&**self.owners.storage.store(), root, moved.old)?;
            let total: i64 = users.iter().map(|(_, count)| count).sum();
            let follows = |user: &User| match user {
                User::Leaf(leaf) => map.contains_key(leaf),
                _ => true,
            };
            let all = u64::try_from(total) == Ok(*found);
            if !all || !users.iter().all(|(user, _)| follows(user)) {
                continue;
            }
            let owner =
                self.transaction.refs.look(moved.new.start, |change| change.owner).flatten();
            let change = |extent, born, owner| ExtentChange {
                extent,
                born,
                owner,
                deltas: Deltas::default(),
            };
            let (mut old, mut new) =
                (change(moved.old, false, None), change(moved.new, true, owner));
            for (user, count) in users {
                old.deltas.add(user, -count);
                new.deltas.add(renamed(user, map), count);
            }
            self.addresses.sharing.data.insert(moved.old.start, old);
            self.addresses.sharing.data.insert(moved.new.start, new);
            self.moved.data.extend([moved.old.start, moved.new.start]);
            self.moved.items.extend(moved.items.iter().map(|(tree, key, _)| (*tree, *key)));
            done.insert(moved.old.start, moved.new.start);
            if let Some(trail) = &mut self.addresses.trail {
                trail.moved_data(moved.old.start, moved.new.start);
            }
        }
        Ok(done)
    }

    /// Makes the new nodes. Updates the references to these nodes, and the references from these
    /// nodes to children and data (V1).
    fn copy(
        &mut self,
        movers: &[Mover],
        map: &HashMap<Logical, NodePtr>,
        done: &HashMap<Logical, Logical>,
    ) -> Result<()> {
        let geometry = *self.owners.storage.store().geometry();
        let generation = self.transaction.generation;
        let shared = shared(movers);
        for Mover { node, users, full } in movers {
            let (old, owner) = (node.logical(), node.owner());
            let logical = map[&old].logical;
            let sharing = &mut self.addresses.sharing;
            sharing.pass_on(node, logical, users, *full, |user| renamed(user, map));
            if *full {
                let stays = |at: Logical| !map.contains_key(&at) && !done.contains_key(&at);
                sharing.add_refs_where(node, 0, RefName::Node(old), -1, &stays)?;
                sharing.add_refs_where(node, 0, RefName::Node(logical), 1, &stays)?;
            }
            let mut payloads = BTreeMap::new();
            if node.level() == 0 && !done.is_empty() {
                for slot in 0..node.len() {
                    let Some((mut item, disk)) = data_at(node, slot)? else { continue };
                    let Some(new) = done.get(&disk) else { continue };
                    if let Body::Regular(region) | Body::Prealloc(region) = &mut item.body {
                        region.disk = *new;
                    }
                    payloads.insert(slot, item.to_bytes());
                }
            }
            let child = |slot: usize| map.get(&node.child(slot).logical).copied();
            let payload = |slot: usize| payloads.get(&slot).map(|bytes: &Vec<u8>| &bytes[..]);
            let stamp = NodeStamp { logical, generation, owner };
            let copy = Arc::new(node.copied_with(&geometry, &stamp, child, payload));
            if let Some(trail) = &mut self.addresses.trail {
                trail.moved_node(old, Arc::clone(&copy));
            }
            self.fresh.insert(copy);
            // A node with one user is rebuilt in place when its tree changes.
            if shared.contains(&old) {
                self.fresh.protect_node(logical);
            }
        }
        Ok(())
    }

    /// Sets the roots of trees with moved root nodes.
    fn move_roots(&mut self, movers: &[Mover], map: &HashMap<Logical, NodePtr>) -> Result<()> {
        let generation = self.transaction.generation;
        let may_share = movers.iter().any(|mover| mover.full || mover.users.len() > 1);
        for (tree, root) in file_roots(self.owners.storage.store(), &self.roots)? {
            let Some(new) = map.get(&root.logical) else { continue };
            self.roots.set(tree, *new);
            if may_share {
                self.addresses.set_last_snapshot(tree, generation);
                self.moved.trees.insert(tree);
            }
        }
        Ok(())
    }
}

/// The nodes that several trees may use, by their old addresses (V4). The result includes children
/// that do not move.
fn shared(movers: &[Mover]) -> HashSet<Logical> {
    let mut shared = HashSet::new();
    // In `movers`, children come before the nodes above them.
    for Mover { node, users, full } in movers.iter().rev() {
        let has_more = *full || users.len() > 1 || users.iter().any(|(_, count)| *count != 1);
        if has_more {
            shared.insert(node.logical());
        }
        if node.level() > 0 && shared.contains(&node.logical()) {
            shared.extend((0..node.len()).map(|slot| node.child(slot).logical));
        }
    }
    shared
}

/// The reference of a file item, if the item points to data.
fn user_of(tree: TreeId, key: &Key, bytes: &[u8]) -> Option<DataRef> {
    let item = buttress_format::FileExtent::parse(bytes).ok()?;
    let region = item.region()?;
    let offset = key.offset.wrapping_sub(region.offset);
    Some(DataRef { root: tree, ino: Ino(key.objectid), offset })
}
