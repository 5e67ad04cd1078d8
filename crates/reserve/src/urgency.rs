//! How much of the reserved space an operation may use.

use buttress_transaction::Cost;

/// Whether an operation helps a full volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// An operation that fills the volume.
    Normal,
    /// An operation that frees space in the end, such as unlink and truncate. It may use all space
    /// that is kept for copies of nodes, and seven eighths of the global reserve. If trees share
    /// nodes, it may use three quarters, because it takes space before it frees any.
    Frees,
    /// An operation that deletes a subvolume, or drops a part of it. It may use the space for
    /// copies and all of the global reserve. On a full volume with snapshots such operations free
    /// space.
    Drops,
    /// Data that lies on the devices already and needs more than its reservation: it may use most
    /// of the global reserve.
    Finishes,
}

impl Urgency {
    /// Whether the operation empties the volume in the end.
    #[must_use]
    pub fn frees(self) -> bool {
        matches!(self, Self::Frees | Self::Drops)
    }
}

/// What a waiter in the line waits for.
///
/// Plain data: a request, which nothing changes.
#[derive(Clone, Copy, Debug)]
pub struct Demand {
    /// The cost of the operation.
    pub cost: Cost,
    /// How much of what is kept back it may use.
    pub urgency: Urgency,
}
