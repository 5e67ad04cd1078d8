//! Finds the nodes that are still reached by the tree that they were written for.
//!
//! # Invariants
//!
//! - **O2** Each node is met once as a node of its own tree. Below a node of another tree there is
//!   no node of the searched tree, so the search does not descend below such a node.
//! - **O3** In a tree that is being dropped, the search visits the same nodes as the walk.

use std::collections::{BTreeMap, HashMap};

use buttress_format::{Generation, Logical, TreeId};
use buttress_tree::Expect;

use crate::context::{Context, Tree};
use crate::owned_nodes::OwnedNodes;

/// The number of nodes of other trees of which the owner is remembered.
const REMEMBERED: usize = 1 << 16;
/// Nodes of one parent that are read together.
const NODES_AT_ONCE: usize = 32;

/// Searches all trees. `last_snapshots` has the transaction in which each tree was last shared.
pub(crate) fn find(
    context: &Context<'_>,
    trees: &[Tree],
    last_snapshots: &BTreeMap<TreeId, Generation>,
) -> OwnedNodes {
    let is_unshared = |tree: &&Tree| {
        !tree.may_share() || last_snapshots.get(&tree.id).is_some_and(|last| last.0 == 0)
    };
    let unshared = trees.iter().filter(is_unshared).map(|tree| tree.id).collect();
    let owned = OwnedNodes { unshared, ..OwnedNodes::default() };
    let mut search = Search { context, owned: &owned, foreign: HashMap::new() };
    for tree in trees.iter().filter(|tree| !owned.unshared.contains(&tree.id)) {
        if tree.id != TreeId::TREE_RELOC {
            search.below(tree, &[(Expect::root(tree.root), tree.drop.is_some())]);
        }
    }
    owned
}

struct Search<'s, 'c> {
    context: &'s Context<'c>,
    owned: &'s OwnedNodes,
    /// The owners of some nodes that belong to other trees.
    foreign: HashMap<Logical, TreeId>,
}

impl Search<'_, '_> {
    /// Searches below nodes. The flag of a node says whether the node lies on the path to the first
    /// item that an interrupted drop has left. Nodes before that path do not belong to the tree any
    /// more (O3).
    fn below(&mut self, tree: &Tree, expects: &[(Expect, bool)]) {
        for expects in expects.chunks(NODES_AT_ONCE) {
            let is_new = |(expect, _): &&(Expect, bool)| {
                let at = expect.ptr.logical;
                let foreign = self.foreign.get(&at).is_some_and(|owner| *owner != tree.id);
                !foreign && !self.owned.met.contains(at.0)
            };
            let (wanted, paths): (Vec<Expect>, Vec<bool>) =
                expects.iter().filter(is_new).copied().unzip();
            let nodes = self.context.source.read_many(tree.id, &wanted);
            for (node, on_path) in nodes.into_iter().zip(paths) {
                let Some(node) = node else { continue };
                if node.owner() != tree.id {
                    if self.foreign.len() >= REMEMBERED {
                        self.foreign.clear();
                    }
                    self.foreign.insert(node.logical(), node.owner());
                    continue;
                }
                if !self.owned.met.insert(node.logical().0) || node.level() == 0 {
                    continue;
                }
                let drop = tree.drop.filter(|(_, level)| on_path && node.level() >= *level);
                let first = drop.map_or(0, |(key, _)| node.child_slot(&key));
                let child = |slot| (node.expect_child(slot), drop.is_some() && slot == first);
                let children: Vec<_> = (first..node.len()).map(child).collect();
                self.below(tree, &children);
            }
        }
    }
}
