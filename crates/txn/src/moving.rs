//! Asking the next commit to move nodes of trees.
//!
//! # Invariants
//!
//! - **M1** Space for a move is reserved before the move is requested: one node for each node that
//!   the commit will make.

use buttress_format::{Key, TreeId};
use buttress_tree::{Expect, NodePtr, NodeSource};

use crate::move_plan::{Plan, Wanted, file_roots};
use crate::{Cost, Engine, ReserveClass, Result, View};

/// Whether the path to a key in a tree passes through a node.
fn passes(view: &View, tree: TreeId, key: &Key, ptr: NodePtr) -> Result<bool> {
    let Some(mut at) = view.committed_root(tree)? else { return Ok(false) };
    while at.level > ptr.level {
        let node = view.store().node(tree, &Expect::root(at))?;
        at = node.child(node.child_slot(key));
    }
    Ok(at.logical == ptr.logical)
}

impl Engine {
    /// Makes the next commit rebuild committed nodes at other addresses. Trees that share a node
    /// still share it afterwards. Nodes that no tree has any more are skipped.
    ///
    /// # Errors
    ///
    /// When there is no space for the new nodes, or a node cannot be read.
    pub fn move_nodes(&self, ptrs: &[NodePtr]) -> Result<()> {
        let view = self.view();
        let (mut wanted, mut places) = (Wanted::default(), Vec::new());
        for ptr in ptrs {
            let node = view.store().node(TreeId::ROOT, &Expect::root(*ptr))?;
            let key = if node.is_empty() { Key::MIN } else { node.key(0) };
            let owner = node.owner();
            if owner.is_fs_tree() {
                wanted.nodes.push((*ptr, key));
            } else if passes(&view, owner, &key, *ptr)? {
                places.push((owner, key));
            }
        }
        let mut cost = 0;
        if !wanted.nodes.is_empty() {
            match Plan::make(view.store(), view.roots(), &wanted)? {
                Some(plan) => cost = plan.movers.len() as u64,
                // There is no plan: each tree gets its own copy of each node.
                None => {
                    let trees = file_roots(view.store(), view.roots())?;
                    for (ptr, key) in wanted.nodes.drain(..) {
                        for (tree, _) in &trees {
                            if passes(&view, *tree, &key, ptr)? {
                                places.push((*tree, key));
                            }
                        }
                    }
                }
            }
        }
        drop(view);
        let items = u32::try_from(cost + places.len() as u64).unwrap_or(u32::MAX);
        if items > 0 {
            let handle = self.begin(self.reserve(Cost::of(items, 0), ReserveClass::Normal)?);
            handle.rebuild_at(places);
            if cost > 0 {
                handle.move_nodes(&wanted.nodes, cost);
            }
        }
        Ok(())
    }
}
