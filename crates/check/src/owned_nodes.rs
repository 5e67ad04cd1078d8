//! For a rebuild: which nodes refer to their children by their tree, and which by their address.
//!
//! # Invariants
//!
//! - **O1** A node refers by its tree only if the tree that it was written for still reaches it.
//!   A node that a balance wrote always refers by its address, as in Linux.

use std::collections::BTreeSet;

use buttress_format::TreeId;
use buttress_format::header::FLAG_RELOC;
use buttress_tree::Node;

use crate::bits::AddressSet;

/// The nodes that their own trees reach.
#[derive(Default)]
pub(crate) struct OwnedNodes {
    pub(crate) met: AddressSet,
    /// Trees that were never shared: all of their nodes are reached by them alone.
    pub(crate) unshared: BTreeSet<TreeId>,
}

impl OwnedNodes {
    /// Whether a node refers to its children by its tree (O1).
    pub(crate) fn has(&self, node: &Node) -> bool {
        node.header().flags & FLAG_RELOC == 0
            && (self.unshared.contains(&node.owner()) || self.met.contains(node.logical()))
    }
}
