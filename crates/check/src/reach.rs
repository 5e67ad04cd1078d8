//! Checks whether a tree reaches a node.
//!
//! # Invariants
//!
//! - **O1** This module reports nothing. The walk has already reported nodes that cannot be read.

use std::sync::Arc;

use buttress_tree::{Expect, Node, NodePtr};

use crate::context::Tree;
use crate::source::Source;

/// True if a search for the node's first key, from the root of the tree, passes the node.
pub(crate) fn reaches(source: &Source<'_>, tree: &Tree, node: NodePtr) -> bool {
    let read = |expect: &Expect| -> Option<Arc<Node>> { source.read_quietly(expect, false).ok() };
    let Some(wanted) = read(&Expect::root(node)).filter(|wanted| !wanted.is_empty()) else {
        return false;
    };
    let key = wanted.key(0);
    let mut above = read(&Expect::root(tree.root));
    while let Some(inner) = above.filter(|inner| inner.level() > node.level) {
        let slot = inner.child_slot(&key);
        if inner.child(slot) == node {
            return true;
        }
        above = read(&inner.expect_child(slot));
    }
    tree.root == node
}
