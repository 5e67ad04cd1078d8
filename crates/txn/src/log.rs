//! Logs of fsync: what was made durable since the last commit without one.
//!
//! # On disk
//!
//! ```text
//! superblock.log_root                       the log root tree, written as the transaction after the superblock's
//!   (TREE_LOG, ROOT_ITEM, subvolume)        one log tree a subvolume
//!     items of inodes, as in the subvolume; EXTENT_CSUM items of their new data;
//!     (dir, DIR_LOG_INDEX, first)           last: entries of the directory in this range that the log does not
//!                                           have were deleted
//! ```
//!
//! # Invariants
//!
//! - **J1** A log is valid with one superblock: the one that names it. The next commit's names none.
//! - **J2** Nothing that a log found at opening names is overwritten before the commit that makes its content
//!   part of the trees is durable: its nodes and data are claimed before anything is allocated.
//!
//! - **J3** The running transaction's log makes the inodes that were synced after a crash what they were then;
//!   `collect` says what of them must be in it, `extents` where their data lies.
//!
//! # Failure
//!
//! Replay puts everything into one transaction. A crash before its superblock is durable leaves the log as it
//! was, to be replayed again.

mod collect;
mod copies;
mod extents;
mod found;
mod late;
mod queue;
mod sync;
mod tracked;
mod tree;

pub use copies::LogCopies;
pub use found::SubvolumeLog;
pub(crate) use found::{has_log, read, without_log};
pub use late::Late;
pub(crate) use queue::Queue;
pub(crate) use sync::Writer;
pub(crate) use tracked::Tracked;

use buttress_format::Extent;

/// What the engine knows of logs.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// A log that was found and nobody has replayed yet.
    pub(crate) found: Option<Vec<SubvolumeLog>>,
    /// Space of its nodes, free once the next commit is durable.
    pub(crate) nodes: Vec<Extent>,
    /// The log of the running transaction.
    pub(crate) writer: Writer,
}
