//! How much of the withheld metadata an operation may use.

use buttress_transaction::Cost;

/// The kind of an operation. It decides how much of the withheld metadata the operation may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReserveClass {
    /// An operation that fills the volume.
    Normal,
    /// An operation that frees space in the end, such as unlink or truncate (`reserve::P4`). If
    /// trees share nodes, the operation may use less of the global reserve, because it takes much
    /// space before it frees any.
    Free,
    /// An operation that deletes a subvolume, or drops a part of it (`reserve::P4`). A full volume
    /// with snapshots gets its space back by such operations.
    DropTree,
    /// An ordered extent that needs more than its reservation to finish; its data is on the devices
    /// already. It may use three quarters of the global reserve, or seven eighths if trees share
    /// nodes.
    Finish,
}

impl ReserveClass {
    /// Whether the operation frees space in the end.
    #[must_use]
    pub fn frees(self) -> bool {
        matches!(self, Self::Free | Self::DropTree)
    }
}

/// The demand of a ticket.
///
/// Plain data: it never changes.
#[derive(Clone, Copy, Debug)]
pub struct TicketDemand {
    /// The cost of the operation.
    pub cost: Cost,
    /// How much of the withheld metadata the operation may use.
    pub class: ReserveClass,
}

impl TicketDemand {
    /// The amounts that the granted demand adds to all reservations, and to those of operations
    /// that free space.
    pub(crate) fn shares(&self) -> (Cost, Cost) {
        (self.cost, if self.class.frees() { self.cost } else { Cost::default() })
    }
}
