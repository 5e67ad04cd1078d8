//! Prints a volume's items and superblocks, names and times as text.
//!
//! # Place
//!
//! This crate is above the format and the nodes, beside the checker. The program prints with this
//! crate. Items and superblocks look like the output of btrfs-progs' `dump-tree` and `dump-super`.
//!
//! # Invariants
//!
//! - **P1** Any bytes can be printed: the dump reports bytes that do not parse, and continues.
//! - **P2** A name from a volume cannot move the cursor of a terminal ([`show`]).

#![forbid(unsafe_code)]

mod form;
pub mod items;
mod names;
mod quota;
pub mod superblock;
pub mod when;

pub use names::show;
