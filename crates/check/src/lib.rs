//! An independent checker: it reads a volume with its own code and reports faults.
//!
//! # Place
//!
//! The checker does not build on the engine. Checker and engine share the code for the format, the
//! devices, the map of chunks and the nodes. They share no code that decides or writes, so the
//! checker does not repeat the engine's mistakes. The program and the engine's tests use the
//! checker.
//!
//! # How
//!
//! One walk over every tree, on all processors, makes small records: one for each extent in the
//! extent tree, and one for each use of an extent. The records are sorted by address, on disk if
//! memory is too small. One pass compares the records, and also compares free space and checksums.
//!
//! Files are checked during the walk, by sums that can be joined in any order. So a part of a tree
//! that several snapshots share is checked once.
//!
//! # Invariants
//!
//! - **J1** Only [`repair`] writes.
//! - **J2** With any bytes on the devices, the check does not panic or loop forever. Its memory is
//!   at most [`Options::memory_bytes`] plus a small multiple of the count of chunks and subvolumes.

#![forbid(unsafe_code)]

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
mod joined_walk;
mod kinds;
mod leaf;
mod log;
mod log_items;
mod log_space;
mod log_sums;
mod memo;
mod mend;
mod names;
mod options;
mod owned_nodes;
mod parity;
mod quota;
mod quota_full;
mod reach;
mod rebuild;
mod record;
mod repair;
mod report;
mod roots;
mod run;
mod sharing;
mod source;
mod stripes;
mod superblock;
mod users;
mod verity;
mod walk;

pub use buttress_issue::{Issue, Name, Severity};
pub use error::{Error, Result};
pub use options::{NoProgress, Options, Progress, Step};
pub use repair::{RepairOptions, Repairs, repair, repair_with};
pub use report::{Report, Totals};
pub use run::{check_devices, check_held, check_image, check_images};
pub use sharing::UsedExtent;
pub use users::{GroupCounts, QuotaCounts, extents_of, quota_counts};
