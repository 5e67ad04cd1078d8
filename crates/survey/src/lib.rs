//! What files and folders take on the devices: shared, exclusive, compressed.
//!
//! # Place
//!
//! Beside `dump`: it shares the format and the trees, and nothing of what decides and writes. A
//! [`Trees`] is what one commit left. One pass over the extent tree says what has several users
//! ([`Sharing`]), or where everything lies ([`map`]). A [`walk`] shows the files below a place to a
//! visitor; [`folders`], [`shares`] and [`packing`] are visitors.
//!
//! # Invariants
//!
//! - **SV1** All that it reads is of one commit. The view that it was given keeps that commit's
//!   nodes as long as it lives.
//! - **SV2** A walk passes each folder once, so it ends, whatever a damaged volume says.

#![forbid(unsafe_code)]

mod find;
mod folders;
mod map;
mod packing;
mod shares;
mod sharing;
mod trees;
mod walk;

pub use find::{Change, find_new, names};
pub use folders::{FolderRow, folders};
pub use map::{Map, MapCell, MapDevice, MapGroup, map};
pub use packing::{Kinds, Packing, Sums, packing};
pub use shares::{ShareRow, shares};
pub use sharing::Sharing;
pub use trees::Trees;
pub use walk::{File, Piece, Start, Visitor, walk};
