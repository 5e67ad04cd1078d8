//! The description of a snapshot. An operation writes the description, and the commit makes the
//! snapshot.
//!
//! # Invariants
//!
//! - **Z1** A snapshot equals its source at the end of the transaction, without the snapshot's own
//!   name. The cut is the step of the commit that copies the source's root node. Items that must
//!   not be in the snapshot are put after the cut.
//! - **Z2** No reader sees any part of a snapshot before the commit is published. After a crash the
//!   volume has the whole snapshot or nothing of it.

use buttress_format::{Key, Timespec, TreeId};

/// A snapshot to be made by the commit of a transaction.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The subvolume to be copied.
    pub source: TreeId,
    /// The number of the copy, from `Commits::next_subvolume`.
    pub target: TreeId,
    /// The uuid of the copy.
    pub uuid: [u8; 16],
    /// Whether the copy cannot be changed.
    pub read_only: bool,
    /// The time at which the copy was made.
    pub time: Timespec,
    /// Items set or deleted after the cut: the name of the copy, and its references. No other
    /// operation changes these items until the commit is published.
    pub late: Vec<(TreeId, Key, Option<Vec<u8>>)>,
}
