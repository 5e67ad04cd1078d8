//! Immutable b-trees, the overlay above them, and the merge of the overlay into the trees.
//!
//! Any thread walks a committed tree without a lock, because its nodes are shared buffers that
//! never change. The changes of a transaction lie in an [`Overlay`] until [`merge`] rebuilds each
//! dirty leaf once. The layers above read through a [`View`]: running overlay, frozen overlay,
//! committed tree.
//!
//! # Invariants
//!
//! - **T1** A committed tree never changes.
//! - **T6** Space that a committed tree freed is not used again while a view can reach it. The
//!   engine enforces this, and views rely on it.
//!
//! # Costs
//!
//! Each public function says what it costs. A node has a fixed size, so one node costs O(1), and n
//! counts the entries of what grows: a tree, an overlay, a transaction. Nodes that are not in
//! memory are read from the volume.

pub mod boot;
mod builder;
mod cache;
#[cfg(test)]
mod costs;
mod cursor;
mod edit;
mod error;
mod fresh;
mod gaps;
mod geometry;
mod merge;
mod node;
mod overlay;
mod roots;
mod steps;
mod store;
mod view;

pub use builder::{LeafBuilder, PtrBuilder};
pub use cursor::Cursor;
pub use edit::LeafEdit;
pub use error::{Error, Mismatch, Result};
pub use fresh::Fresh;
pub use geometry::{Geometry, NodeStamp};
pub use merge::{Change, Merge, NodeAlloc};
pub use node::{Expect, Node, NodePtr};
pub use overlay::{Before, Changed, Overlay, Payload};
pub use roots::Roots;
pub use steps::Steps;
pub use store::{NodeSource, Store};
pub use view::{Item, RangeIter, View};
