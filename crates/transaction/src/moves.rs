//! The moves that a balance requests from a commit: tree nodes, and data that is copied already.
//!
//! # Invariants
//!
//! - **V1** Every item that points to moved data is put into the overlay, and every reference is
//!   counted, as for a change by any operation. [`MovedExtent`] repeats these changes. With a
//!   `MovedExtent`, the commit changes a shared leaf only once, for all trees that share the leaf.
//!   A commit that ignores the `MovedExtent` is correct, too.

use std::sync::Arc;

use buttress_format::{Extent, Key, TreeId};
use buttress_tree::NodePtr;

/// Moves that a transaction makes.
#[derive(Debug, Default)]
pub struct Moves {
    /// Committed nodes of subvolumes that must move, each with its first key.
    pub nodes: Vec<(NodePtr, Key)>,
    /// Number of nodes that the commit will make for these moves, including the nodes above the
    /// moved nodes.
    pub cost: u64,
    /// Extents that the transaction replaces by copies elsewhere.
    pub moved: Vec<MovedExtent>,
}

/// An extent with users that now use a copy of it.
#[derive(Debug)]
pub struct MovedExtent {
    /// The extent.
    pub old: Extent,
    /// The copy of the extent, of the same length.
    pub new: Extent,
    /// The trees that were searched for users, ascending.
    pub trees: Arc<[TreeId]>,
    /// The items that were put: tree, key, bytes.
    pub items: Vec<(TreeId, Key, Arc<[u8]>)>,
}
