//! The space that files and folders take on the devices: shared, exclusive, compressed.
//!
//! # Place
//!
//! This crate only reads: it uses the format and the trees, and no code that changes a volume.
//! [`Trees`] are the trees of one commit. One pass over the extent tree finds extents and nodes
//! with several users ([`Sharing`]), or the places of all extents ([`map`]). A [`walk`] calls a
//! visitor for the files below a place; [`folders`], [`shares`] and [`packing`] are visitors.
//! [`NodeFigures`] and [`smallest_device`] compute figures from the data that their callers read.
//!
//! # Invariants
//!
//! - **SV1** Everything that is read belongs to one commit. While the view exists, it keeps the
//!   nodes of this commit unchanged.
//! - **SV2** A walk enters each folder once. So it ends, even on a damaged volume with cycles.

#![forbid(unsafe_code)]

mod find;
mod folders;
mod holders;
mod map;
mod nodes;
mod packing;
mod parts;
mod progress;
mod shares;
mod sharing;
mod shrink;
mod trees;
mod walk;

pub use find::{Change, find_new, names, written_since};
pub use folders::{FolderRow, folders};
pub use holders::{Holder, holders};
pub use map::{Map, MapCell, MapDevice, MapGroup, map};
pub use nodes::NodeFigures;
pub use packing::{Kinds, Packing, Sums, packing};
pub use parts::{FileParts, Form, Part, parts};
pub use progress::{Progress, Watch};
pub use shares::{ShareRow, shares};
pub use sharing::Sharing;
pub use shrink::smallest_device;
pub use trees::Trees;
pub use walk::{File, Piece, Start, Visitor, walk};
