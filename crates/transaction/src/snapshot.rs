//! What a snapshot is to be, decided by an operation and made by the commit.
//!
//! # Invariants
//!
//! - **Z1** A snapshot is its source as the transaction leaves it, without the snapshot's own
//!   name: what must not be in it is put late, behind the cut.
//! - **Z2** None of it is seen before the commit is published, and after a crash there is all
//!   of it or nothing.

use buttress_format::{Key, Timespec, TreeId};

/// A snapshot to be made by the commit of a transaction.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The subvolume to be copied.
    pub source: TreeId,
    /// The number of the copy, from `Engine::next_subvolume`.
    pub target: TreeId,
    /// The uuid of the copy.
    pub uuid: [u8; 16],
    /// Whether the copy cannot be changed.
    pub read_only: bool,
    /// The time of its making.
    pub time: Timespec,
    /// Items set or deleted behind the cut: the copy's name, and all that goes with it. No other
    /// operation changes them until the commit is published.
    pub late: Vec<(TreeId, Key, Option<Vec<u8>>)>,
}
