//! The rules by which reservations are counted: the default, and Linux's rule as a baseline.

use buttress_transaction::Cost;

/// Levels that Linux's rule counts for each item, whatever the height of the tree.
#[cfg(feature = "baselines")]
const LEVELS: u64 = 8;

/// How much metadata a reservation takes until it is put or given back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReservePolicy {
    /// All reservations together take the nodes that they can dirty in the existing trees.
    #[default]
    Counted,
    /// Linux's rule: each item takes at least eight nodes, whatever else is reserved. Dirty data
    /// keeps its reservations for long, so the reservations fill metadata long before the data
    /// fills memory.
    #[cfg(feature = "baselines")]
    Levels,
}

impl ReservePolicy {
    /// Whether each reservation takes its own bytes, as in Linux.
    pub(crate) fn is_levels(self) -> bool {
        self != Self::Counted
    }

    /// The bytes that reservations take beside the transaction's own need: 0 under `Counted`, where
    /// all reservations are bounded together. Items in trees that only commits change do not count,
    /// because Linux reserves delayed references separately.
    pub(crate) fn alone(self, costs: Cost, nodesize: u64) -> u64 {
        let _ = (costs, nodesize);
        match self {
            Self::Counted => 0,
            #[cfg(feature = "baselines")]
            Self::Levels => costs.items.saturating_mul(LEVELS * nodesize),
        }
    }
}
