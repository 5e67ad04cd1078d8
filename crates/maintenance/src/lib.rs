//! Work on a whole volume, concurrent with the use of its files.
//!
//! - [`balance`](Maintenance::balance), [`vacate`](Maintenance::vacate) and
//!   [`reclaim_groups`](Maintenance::reclaim_groups) move what is in block groups.
//! - [`scrub`](Maintenance::scrub) reads every copy, and repairs it.
//! - [`trim`](Maintenance::trim) discards free space on the devices.
//! - [`Maintenance`] also changes the set of devices, and drops dead subvolumes.
//!
//! # Place
//!
//! Above the engine: everything here goes through public methods of
//! [`Engine`](buttress_txn::Engine), and the engine knows nothing of it. Below the files: their
//! owner lends [`Users`] for the length of one call.

mod balance;
mod balance_item;
mod dead;
mod device_change;
mod found;
mod maintenance;
mod reclaim;
mod relocate;
mod scrub;
mod scrub_progress;
mod scrub_rows;
mod trim;
mod turn;

pub use balance::{BalanceOptions, BalanceProgress, Filter};
pub use maintenance::Maintenance;
pub use relocate::{Alone, Users};
pub use scrub_progress::{ScrubOptions, ScrubProgress};
pub use trim::{TrimOptions, TrimProgress};
