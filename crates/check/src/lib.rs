//! An independent checker of a volume: reads it by itself and says what is wrong.
//!
//! # Place
//!
//! Beside the engine, not on it. It shares the format, the devices, the map of chunks and the nodes
//! with the engine. It shares nothing of what decides and writes, so that it does not share its
//! mistakes. Above it is the program; the engine's tests use it, too.
//!
//! # How
//!
//! One walk over every tree, on all processors, leaves small records: each extent as it is
//! recorded, each use as it is met. They are sorted by address, outside of memory where they do not
//! fit. One pass checks them together with free space and checksums. Files are checked during the
//! walk, from sums that join in any order, so that what snapshots share is looked at once.
//!
//! # Invariants
//!
//! - **J1** Nothing is written, but by [`repair`].
//! - **J2** Whatever the bytes are: no panic, no loop without an end, no memory beyond
//!   [`Options::memory_bytes`] and a small multiple of the count of chunks and subvolumes.

#![forbid(unsafe_code)]

mod bits;
mod chunks;
mod context;
mod csums;
mod data;
mod error;
mod extent_leaf;
mod extents;
mod facts;
mod free_space;
mod inode;
mod issue;
mod leaf;
mod log;
mod memo;
mod names;
mod options;
mod quota;
mod reach;
mod record;
mod repair;
mod report;
mod roots;
mod run;
mod sorter;
mod source;
mod superblock;
mod walk;

pub use error::{Error, Result};
pub use issue::{Issue, Name, Severity};
pub use options::{NoProgress, Options, Progress, Step};
pub use repair::{Repairs, repair};
pub use report::{Report, Totals};
pub use run::{check_devices, check_held, check_image, check_images};
