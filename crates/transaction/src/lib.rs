//! The state of one transaction until its superblock is durable, and the view of operations.
//!
//! [`Transaction`](transaction::Transaction) has all changes that a commit makes durable together:
//! the overlay, changes of references, checksums, chunks. [`View`] has the committed trees and,
//! above them, the transactions that are not durable yet. Nothing here commits, allocates or waits.
//!
//! # Invariants
//!
//! Files of this crate refer to these invariants by number; the engine in `txn` ensures them.
//!
//! - **T5** An operation never changes a reference count in a tree: changes are summed until the
//!   commit.
//! - **T8** After a crash the volume has the last committed transaction and all changes that fsync
//!   logged.
//! - **T11** Changes of block groups, free space and references belong to the same transaction as
//!   the overlay changes that caused them.

pub mod commit_reason;
pub mod cost;
pub mod csum_tree;
pub mod csums;
pub mod delayed_ref;
pub mod error;
pub mod mostly_empty;
pub mod moves;
pub mod open_handles;
pub mod snapshot;
pub mod stamps;
pub mod stripe_tree;
pub mod sums;
#[cfg(test)]
mod test_tree;
pub mod tracked;
pub mod transaction;
mod unread;
pub mod view;
pub mod written;

pub use commit_reason::CommitReason;
pub use cost::Cost;
pub use csums::Csums;
pub use delayed_ref::DataRef;
pub use error::{Error, Result};
pub use moves::MovedExtent;
pub use snapshot::Snapshot;
pub use stamps::Stamp;
pub use tracked::{LoggedId, Tracked};
pub use transaction::{DeviceChange, QuotaChange, QuotaCounts, WantedQuota};
pub use view::View;
