//! Restores files from damaged volumes, and files that were deleted.
//!
//! # Place
//!
//! This crate is beside the engine, not above it. It shares the format, the devices, the map of
//! chunks, the nodes and the decompression with the engine. It uses no code that allocates space or
//! commits.
//!
//! # How
//!
//! [`Salvage`] joins the devices with the help of any good copy of a superblock, or of a scan. A
//! [`State`] is one moment of the volume: its trees, found from the newest root, from an older root
//! or from the nodes themselves. A log of fsync is replayed over it in memory. [`restore`] walks
//! over the subvolumes of a state and writes their files to a folder. [`undelete`] looks for files
//! in old nodes that no current tree uses.
//!
//! # Invariants
//!
//! - **RE1** Nothing but [`apply`] writes to the devices.
//! - **RE2** No byte is written that fails its checksum. A byte that should have a checksum and has
//!   none is written only if an option allows it.
//! - **RE3** No error of the volume ends the work, and no pointer is followed twice in one tree.

#![forbid(unsafe_code)]

mod chunk_recover;
mod chunks;
mod content;
mod deleted;
mod error;
mod extents;
mod files;
mod glob;
mod identity;
mod inode_items;
mod last_use;
mod log;
mod mend;
mod names;
mod nodes;
mod old_logs;
mod pattern;
mod pieces;
mod progress;
mod replay;
mod report;
mod restore;
mod salvage;
mod scan;
mod state;
mod striped;
mod sums;
mod target;
mod tree;
mod undelete;
mod versions;

pub use error::{Error, Result};
pub use glob::Glob;
pub use mend::{Fix, Mend, apply, plan};
pub use pattern::Pattern;
pub use progress::{NoProgress, Progress, Step};
pub use report::{Condition, Entry, Kind, Lost, Summary};
pub use restore::{RestoreOptions, restore};
pub use salvage::{Salvage, SalvageOptions};
pub use state::{Origin, RootInfo, State};
pub use undelete::{Since, UndeleteOptions, undelete};
