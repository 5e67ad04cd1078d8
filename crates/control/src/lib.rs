//! Code that the verbs of the program share: places, opened volumes, and orders to running mounts.
//!
//! # Place
//!
//! This crate is above the engine and the mount, and below the command lines. A command line parses
//! its arguments and shows results. For the work, [`client`] takes an [`order`] and finds the
//! process that has the volume open ([`live`]). If there is no such process, [`client`] opens the
//! volume and carries out the order in this process ([`execute`]).
//!
//! # Invariants
//!
//! - **C1** An order is plain data. It means the same in this process and in another process.

pub mod background;
mod behind;
pub mod cached;
pub mod client;
pub mod closing;
pub mod execute;
pub mod exit;
pub mod figures;
pub mod fsverity;
pub mod image;
pub mod inspect;
pub mod interrupted;
pub mod live;
pub mod location;
pub mod log;
pub mod memory;
pub mod named;
pub mod names;
pub mod order;
pub mod reading;
pub mod release;
pub mod scan;
pub mod scrubs;
pub mod size;
pub mod sockets;
pub mod target;
pub mod ui;

use buttress_dump::when;
