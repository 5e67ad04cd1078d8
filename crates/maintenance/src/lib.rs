//! Work on a whole volume, concurrent with the use of its files.
//!
//! - [`balance`](Maintenance::balance), [`vacate`](Maintenance::vacate) and
//!   [`reclaim_groups`](Maintenance::reclaim_groups) move the content of block groups.
//! - [`scrub`](Maintenance::scrub) reads every copy, and repairs bad copies.
//! - [`trim`](Maintenance::trim) discards free space on the devices.
//! - [`Maintenance`] also changes the set of devices, and drops dead subvolumes.
//!
//! # Place
//!
//! This crate is above the engine: it calls public methods of [`Engine`](buttress_txn::Engine), and
//! the engine knows nothing of this crate. This crate is below the crate that serves files, which
//! passes [`Users`] to each call that moves data.

mod balance;
mod balance_item;
mod bound;
mod dead;
mod device_change;
mod device_copy;
mod device_replace;
mod found;
mod inode_cache;
mod maintenance;
mod reclaim;
mod relocate;
mod scrub;
mod scrub_progress;
mod scrub_rows;
mod trim;
mod turn;
mod uuid_tree;

pub use balance::{BalanceOptions, BalanceProgress, Filter};
pub use bound::LoopSteps;
pub use device_replace::Replacing;
pub use maintenance::Maintenance;
pub use relocate::{Alone, Users};
pub use scrub_progress::{DeviceCounts, ScrubOptions, ScrubProgress};
pub use trim::{TrimOptions, TrimProgress};
