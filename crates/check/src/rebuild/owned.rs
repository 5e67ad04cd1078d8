//! Finds the nodes that are still reached by the tree that they were written for.
//!
//! # Invariants
//!
//! - **O2** Each node is met once as a node of its own tree. Below a node of another tree there is
//!   no node of this tree, so the search ends there.

use std::collections::{BTreeMap, HashMap};

use buttress_format::{Generation, Logical, TreeId};
use buttress_tree::Expect;

use crate::context::{Context, Tree};
use crate::owned_nodes::OwnedNodes;

/// How many owners of nodes of other trees are remembered.
const REMEMBERED: usize = 1 << 16;
/// Nodes of one parent that are read together.
const NODES_AT_ONCE: usize = 32;

/// Searches all trees. `last_snapshots` says for each tree when it was last shared.
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
            search.below(tree, &[Expect::root(tree.root)]);
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
    /// Nodes that cannot be read are reported by the walk that comes after.
    fn below(&mut self, tree: &Tree, expects: &[Expect]) {
        for expects in expects.chunks(NODES_AT_ONCE) {
            let is_new = |expect: &&Expect| {
                let at = expect.ptr.logical;
                let foreign = self.foreign.get(&at).is_some_and(|owner| *owner != tree.id);
                !foreign && !self.owned.met.contains(at)
            };
            let wanted: Vec<Expect> = expects.iter().filter(is_new).copied().collect();
            for node in self.context.source.read_many(tree.id, &wanted).into_iter().flatten() {
                if node.owner() != tree.id {
                    if self.foreign.len() >= REMEMBERED {
                        self.foreign.clear();
                    }
                    self.foreign.insert(node.logical(), node.owner());
                    continue;
                }
                if self.owned.met.insert(node.logical()) && node.level() > 0 {
                    let children: Vec<Expect> =
                        (0..node.len()).map(|slot| node.expect_child(slot)).collect();
                    self.below(tree, &children);
                }
            }
        }
    }
}
