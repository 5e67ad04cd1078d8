//! Restores files from damaged volumes, and files that were deleted.
//!
//! # Place
//!
//! Beside the engine, not on it: it shares the format, the devices, the map of chunks and the
//! nodes, and nothing of what decides and writes.
//!
//! # How
//!
//! [`Salvage`] joins the devices by any copy of a superblock, or by what a scan of them finds. A
//! [`State`] is one moment of the volume: its trees, by the newest root, an older one, or by the
//! nodes themselves. [`restore`] walks over its subvolumes and writes their files to a folder.
//! [`undelete`] looks for files in nodes that no newer tree has.
//!
//! # Invariants
//!
//! - **RE1** Nothing but [`apply`] writes to the devices.
//! - **RE2** No byte of a file with checksums is written that failed its checksum, or has none,
//!   unless that was asked for.
//! - **RE3** No error of the volume ends the work, and no pointer is followed twice in one tree.

#![forbid(unsafe_code)]

mod alive;
mod chunks;
mod content;
mod error;
mod extents;
mod files;
mod ghosts;
mod glob;
mod identity;
mod mend;
mod nodes;
mod parts;
mod progress;
mod report;
mod restore;
mod salvage;
mod scan;
mod state;
mod sums;
mod target;
mod tree;
mod undelete;

pub use error::{Error, Result};
pub use glob::Glob;
pub use mend::{Fix, Mend, apply, plan};
pub use progress::{NoProgress, Progress, Step};
pub use report::{Condition, Entry, Kind, Lost, Summary};
pub use restore::{RestoreOptions, restore};
pub use salvage::{Salvage, SalvageOptions};
pub use state::{Origin, RootInfo, State};
pub use undelete::{Since, UndeleteOptions, undelete};
