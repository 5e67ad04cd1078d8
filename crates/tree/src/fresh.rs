//! Nodes made in the transaction being committed, not yet on disk.
//!
//! # Invariants
//!
//! - **FR1** A fresh node is either changeable or kept. A merge that changes a changeable node
//!   builds the replacement at the same address. A kept node may have several users, so it stays as
//!   it is. A kept node never becomes changeable.
//! - **FR2** Protecting a tree costs as much as its changeable nodes. So each fresh node is visited
//!   once, however many snapshots of its tree the transaction makes.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use buttress_format::{Logical, TreeId};

use crate::node::Node;

/// The nodes of a transaction.
#[derive(Debug, Default)]
pub struct Fresh {
    nodes: HashMap<Logical, Arc<Node>>,
    /// The changeable nodes of each owner. No set is empty.
    changeable: HashMap<TreeId, HashSet<Logical>>,
}

impl Fresh {
    /// Whether a node was made in this transaction. Costs O(1).
    #[must_use]
    pub fn contains(&self, logical: Logical) -> bool {
        self.nodes.contains_key(&logical)
    }

    /// Number of nodes. Costs O(1).
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether there are no nodes. Costs O(1).
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The node at an address. Costs O(1).
    #[must_use]
    pub fn get(&self, logical: Logical) -> Option<&Arc<Node>> {
        self.nodes.get(&logical)
    }

    /// All nodes, in no order. Costs O(n) for n nodes.
    pub fn nodes(&self) -> impl Iterator<Item = &Arc<Node>> {
        self.nodes.values()
    }

    /// Adds a changeable node. Costs O(1).
    pub fn insert(&mut self, node: Arc<Node>) {
        let (owner, logical) = (node.owner(), node.logical());
        self.forget(logical);
        self.changeable.entry(owner).or_default().insert(logical);
        self.nodes.insert(logical, node);
    }

    /// Protects all nodes of a tree except the root from changes, because a snapshot of the tree
    /// was made. A later change of the tree makes new nodes, as with committed nodes. Costs O(n) in
    /// the changeable nodes of the tree (FR2).
    pub fn protect_tree(&mut self, tree: TreeId, root: Logical) {
        let Some(mine) = self.changeable.remove(&tree) else { return };
        if mine.contains(&root) {
            self.changeable.insert(tree, HashSet::from([root]));
        }
    }

    /// Protects one node from changes, because several trees may use it. Costs O(1).
    pub fn protect_node(&mut self, logical: Logical) {
        self.protect(logical);
    }

    /// Removes a node that no tree uses. Costs O(1).
    pub fn forget(&mut self, logical: Logical) {
        self.protect(logical);
        self.nodes.remove(&logical);
    }

    /// Removes the node at an address if it is changeable. Returns whether it was. Costs O(1).
    pub(crate) fn take_changeable(&mut self, logical: Logical) -> bool {
        let is_changeable = self.protect(logical);
        if is_changeable {
            self.nodes.remove(&logical);
        }
        is_changeable
    }

    /// Makes a node a kept one. Returns whether it was changeable.
    fn protect(&mut self, logical: Logical) -> bool {
        let Some(owner) = self.nodes.get(&logical).map(|node| node.owner()) else { return false };
        let Some(mine) = self.changeable.get_mut(&owner) else { return false };
        let was_changeable = mine.remove(&logical);
        if mine.is_empty() {
            self.changeable.remove(&owner);
        }
        was_changeable
    }

    /// Returns all nodes, in the order of their addresses. Costs O(n log n) for n nodes.
    #[must_use]
    pub fn into_sorted(self) -> Vec<Arc<Node>> {
        let mut nodes: Vec<_> = self.nodes.into_values().collect();
        nodes.sort_unstable_by_key(|n| n.logical());
        nodes
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use buttress_base::Rng;
    use buttress_format::Generation;

    use super::*;
    use crate::{Geometry, LeafBuilder, NodeStamp};

    const GEOMETRY: Geometry = Geometry::OF_TESTS;

    fn node(owner: TreeId, logical: Logical) -> Arc<Node> {
        let stamp = NodeStamp { logical, generation: Generation(1), owner };
        Arc::new(LeafBuilder::new(&GEOMETRY).finish(&GEOMETRY, &stamp))
    }

    /// The set agrees with a map from addresses to the owner and whether the node is changeable.
    #[test]
    fn agrees_with_a_map() {
        let mut rng = Rng::new(1);
        for _ in 0..200 {
            let (mut fresh, mut model) = (Fresh::default(), BTreeMap::new());
            for _ in 0..200 {
                let at = Logical(rng.below(12) * 4096);
                let tree = TreeId(256 + rng.below(3));
                match rng.below(8) {
                    0..3 => {
                        fresh.insert(node(tree, at));
                        model.insert(at, (tree, true));
                    }
                    3 => {
                        fresh.protect_tree(tree, at);
                        let mine = model.iter_mut().filter(|(_, found)| found.0 == tree);
                        mine.filter(|(found, _)| **found != at).for_each(|(_, is)| is.1 = false);
                    }
                    4 => {
                        fresh.protect_node(at);
                        model.entry(at).and_modify(|is| is.1 = false);
                    }
                    5 => {
                        fresh.forget(at);
                        model.remove(&at);
                    }
                    _ => {
                        let is_changeable = model.get(&at).is_some_and(|is| is.1);
                        assert_eq!(fresh.take_changeable(at), is_changeable);
                        model.retain(|found, _| *found != at || !is_changeable);
                    }
                }
                assert!(fresh.changeable.values().all(|set| !set.is_empty()));
                assert_eq!(fresh.len(), model.len());
            }
            let nodes = fresh.into_sorted();
            let found = nodes.iter().map(|node| (node.logical(), node.owner()));
            assert!(found.eq(model.iter().map(|(at, is)| (*at, is.0))));
        }
    }

    /// Snapshots of one tree in one transaction visit each node of it once (FR2).
    #[test]
    fn a_protected_node_is_not_visited_again() {
        let mut fresh = Fresh::default();
        (0..100).for_each(|at| fresh.insert(node(TreeId::FS, Logical(at * 4096))));
        fresh.protect_tree(TreeId::FS, Logical(0));
        assert_eq!(fresh.changeable[&TreeId::FS], HashSet::from([Logical(0)]));
    }
}
