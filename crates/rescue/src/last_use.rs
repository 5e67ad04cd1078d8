//! Computes until when nodes were in use. A pointer to a node proves its use.
//!
//! # Invariants
//!
//! - **AL1** A node counts as in use in a transaction if a node of that transaction points to it,
//!   directly or through other nodes. It does not count as in use in any other transaction.
//! - **AL2** A node counts as in use in its own tree only if the pointers begin in that tree: in
//!   its root item, or in nodes with the same owner. So what a snapshot keeps does not count. A
//!   node without a pointer does not count either, since perhaps no commit had it.

use std::collections::HashMap;

use buttress_format::{Generation, Kind, Logical, RootItem, TreeId};
use buttress_tree::{Expect, Node, NodePtr};

use crate::salvage::Salvage;
use crate::scan::{self, FoundNode};

/// The last transaction in which each node was surely in use.
#[derive(Debug, Default)]
pub(crate) struct LastUse {
    until: HashMap<(Logical, Generation), Until>,
}

/// The last transactions in which a node was surely in use.
#[derive(Clone, Copy, Debug)]
struct Until {
    any: Generation,
    /// In the tree that owns the node, if a pointer proves it.
    own: Option<Generation>,
}

impl LastUse {
    /// Follows all pointers between nodes that a scan found.
    pub(crate) fn new(salvage: &Salvage) -> Self {
        let mut last_use = Self::default();
        let mut nodes: Vec<FoundNode> = salvage.scan().each().copied().collect();
        // Sort the root tree first, then by level from the top, so that parents come before
        // children.
        nodes.sort_by_key(|node| (node.owner != TreeId::ROOT, std::cmp::Reverse(node.level)));
        for found in &nodes {
            let is_roots = found.owner == TreeId::ROOT;
            let has_data = found.owner.is_fs_tree() || found.owner == TreeId::CSUM;
            if !(is_roots || has_data && found.level > 0) {
                continue;
            }
            let expect = Expect::root(found.ptr());
            let Some(node) = scan::read_copy(&salvage.devices, &salvage.geometry, found, &expect)
            else {
                continue;
            };
            let until = last_use.of(&found.ptr());
            last_use.follow(salvage, found, &node, until);
        }
        last_use
    }

    fn follow(&mut self, salvage: &Salvage, found: &FoundNode, node: &Node, until: Until) {
        let (owner, own) = (found.owner, until.own.unwrap_or(found.generation));
        for slot in 0..node.len() {
            if node.level() > 0 {
                self.extend(salvage, &node.child(slot), owner, (until.any, own));
            } else if owner == TreeId::ROOT
                && node.key(slot).kind == Kind::ROOT_ITEM
                && let Ok(item) = RootItem::parse(node.item(slot))
            {
                let (logical, generation) = (item.bytenr, item.generation);
                let ptr = NodePtr { logical, generation, level: item.level };
                let tree = TreeId(node.key(slot).objectid);
                self.extend(salvage, &ptr, tree, (until.any, until.any));
            }
        }
    }

    /// Extends the use of a node to which a node or a root item of a tree points: in any tree, and
    /// in that one.
    fn extend(
        &mut self,
        salvage: &Salvage,
        ptr: &NodePtr,
        tree: TreeId,
        (any, own): (Generation, Generation),
    ) {
        let is_own = salvage.scan().copies(ptr).first().is_some_and(|node| node.owner == tree);
        let mut known = self.of(ptr);
        known.any = known.any.max(any);
        if is_own {
            known.own = known.own.max(Some(own));
        }
        self.until.insert((ptr.logical, ptr.generation), known);
    }

    fn of(&self, ptr: &NodePtr) -> Until {
        let known = self.until.get(&(ptr.logical, ptr.generation));
        known.copied().unwrap_or(Until { any: ptr.generation, own: None })
    }

    /// The last transaction in which a node was surely in use.
    pub(crate) fn until(&self, ptr: &NodePtr) -> Generation {
        self.of(ptr).any
    }

    /// The last transaction in which a node was surely in use in the tree that owns it (AL2).
    pub(crate) fn until_in_own_tree(&self, ptr: &NodePtr) -> Option<Generation> {
        self.of(ptr).own
    }
}
