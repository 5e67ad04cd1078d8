//! Computes until when nodes were in use. A pointer to a node proves its use.
//!
//! # Invariants
//!
//! - **AL1** A node counts as in use in a transaction if a node of that transaction points to it,
//!   directly or through other nodes. It does not count as in use in any other transaction.

use std::collections::HashMap;

use buttress_format::{Generation, Kind, Logical, RootItem, TreeId};
use buttress_tree::{Expect, Node, NodePtr};

use crate::salvage::Salvage;
use crate::scan::{self, Found};

/// The last transaction in which each node was surely in use.
#[derive(Debug, Default)]
pub(crate) struct LastUse {
    until: HashMap<(Logical, Generation), Generation>,
}

impl LastUse {
    /// Follows all pointers between nodes that a scan found.
    pub(crate) fn new(salvage: &Salvage) -> Self {
        let mut last_use = Self::default();
        let mut nodes: Vec<Found> = salvage.scan().each().copied().collect();
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
            let until = last_use.until(&found.ptr());
            last_use.follow(&node, is_roots, until);
        }
        last_use
    }

    fn follow(&mut self, node: &Node, is_roots: bool, until: Generation) {
        for slot in 0..node.len() {
            if node.level() > 0 {
                self.extend(&node.child(slot), until);
            } else if is_roots
                && node.key(slot).kind == Kind::ROOT_ITEM
                && let Ok(item) = RootItem::parse(node.item(slot))
            {
                let (logical, generation) = (item.bytenr, item.generation);
                self.extend(&NodePtr { logical, generation, level: item.level }, until);
            }
        }
    }

    fn extend(&mut self, ptr: &NodePtr, until: Generation) {
        let known = self.until.entry((ptr.logical, ptr.generation)).or_insert(ptr.generation);
        *known = (*known).max(until);
    }

    /// The last transaction in which a node was surely in use.
    pub(crate) fn until(&self, ptr: &NodePtr) -> Generation {
        let known = self.until.get(&(ptr.logical, ptr.generation));
        known.copied().unwrap_or(ptr.generation)
    }
}
