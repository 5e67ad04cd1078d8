//! What command lines of btrfs-progs mean on volumes of this project.
//!
//! # Place
//!
//! Scripts and backup programs call `btrfs`, and read what it prints. This crate is above
//! `control`, which opens volumes and asks the servers of mounts. It is below the program, which
//! parses the whole command line. Here are the groups of commands that `buttress` does not have in
//! the same form, and the lines, tables and units of btrfs-progs.
//!
//! # What must hold
//!
//! - A line that scripts read has the same columns and the same padding as that of btrfs-progs.
//! - Names of files and labels reach every line escaped, so that no name changes what a script
//!   reads.

#![forbid(unsafe_code)]

mod columns;
pub mod control_device;
pub mod gather;
pub mod json;
pub mod linux;
pub mod mount_check;
pub mod places;
pub mod resize;
pub mod scrub;
pub mod start;
pub mod subvolume;
pub mod swap;
pub mod table;
pub mod units;
pub mod usage;
pub mod users;

use buttress_control::{
    background, client, execute, exit, image, inspect, live, location, order, scrubs, ui,
};
use buttress_dump::when;
