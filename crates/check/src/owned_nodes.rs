//! For a rebuild: whether the references of a node to its children name its tree or its address.
//!
//! # Invariants
//!
//! - **O1** A node's references to its children name its tree only if the tree that it was written
//!   for still reaches the node. The references of a node that a balance wrote always name its
//!   address, as in Linux.

use std::collections::BTreeSet;

use buttress_base::SectorSet;
use buttress_format::TreeId;
use buttress_format::header::FLAG_RELOC;
use buttress_tree::Node;

/// The nodes that are still reached by the tree that they were written for.
#[derive(Default)]
pub(crate) struct OwnedNodes {
    pub(crate) met: SectorSet,
    /// Trees that were never shared: no other tree reaches their nodes.
    pub(crate) unshared: BTreeSet<TreeId>,
}

impl OwnedNodes {
    /// Whether the references of a node to its children name its tree (O1).
    pub(crate) fn has(&self, node: &Node) -> bool {
        node.header().flags & FLAG_RELOC == 0
            && (self.unshared.contains(&node.owner()) || self.met.contains(node.logical().0))
    }
}
