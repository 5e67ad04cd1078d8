//! Volumes made from command lines: the verb `mkfs` of `buttress`, and the program `mkfs.btrfs` of
//! btrfs-progs.
//!
//! # Place
//!
//! This crate is above `transfer`, which copies trees of files into volumes. It is below the
//! program, which knows by which name it was called.
//!
//! # Invariants
//!
//! - **M1** All arguments are checked before a device is opened for writing. So if a command line
//!   is wrong or refused, no device is changed, and no file is made or grown.

#![forbid(unsafe_code)]

mod args;
mod brings;
mod fill;
mod plan;
pub mod progs;
mod recipe;
mod source;
mod values;
pub mod verb;

use buttress_control::{cached, closing, execute, exit, interrupted, log, memory, names, size, ui};
use buttress_transfer as transfer;

pub use values::csum;
