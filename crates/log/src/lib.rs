//! Logs of fsync: the changes that were made durable since the last commit.
//!
//! [`SyncLog`] makes inodes durable. It writes a log on top of the last commit. If a log cannot
//! describe the changes, it makes the engine commit.
//!
//! # On disk
//!
//! ```text
//! superblock.log_root                  the log root tree, with the generation of the transaction
//!                                      after the superblock's
//!   (TREE_LOG, ROOT_ITEM, subvolume)   one log tree for each subvolume
//!     items of inodes                  as in the subvolume
//!     EXTENT_CSUM                      checksums of the new data of these inodes
//!     (dir, DIR_LOG_INDEX, first)      `last`, the end of the range. Entries of the directory in
//!                                      `first..=last` that the log lacks were deleted.
//! ```
//!
//! # Invariants
//!
//! - **J1** A log is valid with one superblock: the one that names it. The superblock of the next
//!   commit names no log.
//! - **J3** After a crash, replay of the log gives each synced inode the state of its last sync.
//!   `collect` has the rules for inodes and names, and `extents` the rules for their data.

mod collect;
mod copies;
mod draft;
mod extents;
mod logged_write;
mod logs;
mod no_log;
mod queue;
mod single_copy;
mod sync;
mod sync_log;
mod tree;
mod waiting;
mod writer;

pub use logged_write::LoggedWrite;
pub use queue::Logged;
pub use single_copy::LogCopies;
pub use sync_log::{LogOptions, SyncLog, SyncStats};
pub use waiting::DataPart;
