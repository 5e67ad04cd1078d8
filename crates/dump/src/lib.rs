//! What is on a volume as text: items and superblocks, names and times.
//!
//! # Place
//!
//! Above the format and the nodes, beside the checker. The program prints by it. The form of items
//! and superblocks is that of btrfs-progs' `dump-tree` and `dump-super`.
//!
//! # Invariants
//!
//! - **P1** Any bytes print: what does not parse is said to be so, and the text goes on.
//! - **P2** A name from a volume cannot move the cursor of a terminal ([`show`]).

#![forbid(unsafe_code)]

pub mod items;
mod names;
mod quota;
pub mod superblock;
pub mod when;

pub use names::show;
