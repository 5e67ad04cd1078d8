//! The roots of all committed trees.

use std::collections::BTreeMap;

use buttress_format::{Generation, TreeId};

use crate::node::NodePtr;

/// The roots of one committed transaction: a consistent state of the whole volume.
///
/// [`Roots`] has the trees that the engine needs, and the trees that changed since the mount. Other
/// trees are found through the root tree, so unused subvolumes cost nothing.
#[derive(Clone, Debug)]
pub struct Roots {
    /// The transaction of these roots.
    pub generation: Generation,
    trees: BTreeMap<TreeId, NodePtr>,
}

impl Roots {
    /// No trees yet. Costs O(1).
    #[must_use]
    pub fn new(generation: Generation) -> Self {
        Self { generation, trees: BTreeMap::new() }
    }

    /// The root of a tree, if it is held here. Costs O(log n) in the trees held here.
    #[must_use]
    pub fn find(&self, tree: TreeId) -> Option<NodePtr> {
        self.trees.get(&tree).copied()
    }

    /// Sets a tree's root. Costs O(log n).
    pub fn set(&mut self, tree: TreeId, ptr: NodePtr) {
        self.trees.insert(tree, ptr);
    }

    /// Forgets a tree. Costs O(log n).
    pub fn remove(&mut self, tree: TreeId) {
        self.trees.remove(&tree);
    }

    /// Every tree held here. Costs O(n).
    pub fn iter(&self) -> impl Iterator<Item = (TreeId, NodePtr)> + '_ {
        self.trees.iter().map(|(id, ptr)| (*id, *ptr))
    }
}
