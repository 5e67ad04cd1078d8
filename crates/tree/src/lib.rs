//! Immutable b-trees, the overlay above them, and the merge of one into the other.
//!
//! A committed tree never changes (T1): its nodes are shared buffers that anybody walks without a
//! lock. What a transaction changes lies in an [`Overlay`] until [`merge`] rebuilds each dirty leaf
//! once. [`View`] is how everything above reads: running overlay, frozen overlay, committed tree.

pub mod boot;
mod builder;
mod cache;
mod cursor;
mod edit;
mod error;
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
pub use geometry::{Geometry, NodeStamp};
pub use merge::{Change, Fresh, Merge, NodeAlloc};
pub use node::{Expect, Node, NodePtr};
pub use overlay::{Changed, Overlay, Payload};
pub use roots::Roots;
pub use steps::Steps;
pub use store::{NodeSource, Store};
pub use view::{Item, RangeIter, View};
