//! The rules by which reservations are counted: ours, and the published one as a baseline.

use std::str::FromStr;

use buttress_transaction::Costs;

/// Levels that the published rule counts for each item, whatever the height of the tree.
#[cfg(feature = "baselines")]
const LEVELS: u64 = 8;

/// How much metadata a reservation takes until it is put or given back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReservePolicy {
    /// What all reservations together can dirty in the trees that there are.
    #[default]
    Counted,
    /// At least eight nodes for each item, whatever else is reserved: Linux's rule. Reservations
    /// that are held for long, as those of dirty data are, then fill metadata long before memory.
    #[cfg(feature = "baselines")]
    Levels,
}

impl ReservePolicy {
    /// Whether reservations take bytes by themselves.
    pub(crate) fn is_levels(self) -> bool {
        self != Self::Counted
    }

    /// Bytes that reservations take by themselves. An item that follows from others in trees that
    /// commits alone change is none of Linux's items: Linux reserves its delayed references apart.
    pub(crate) fn alone(self, costs: Costs, nodesize: u64) -> u64 {
        let _ = (costs, nodesize);
        match self {
            Self::Counted => 0,
            #[cfg(feature = "baselines")]
            Self::Levels => costs.items.saturating_mul(LEVELS * nodesize),
        }
    }
}

#[cfg(feature = "baselines")]
impl FromStr for ReservePolicy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "counted" => Ok(Self::Counted),
            "levels" => Ok(Self::Levels),
            _ => Err("is counted or levels".to_owned()),
        }
    }
}

/// Whether room is kept for copies of nodes that trees share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeleteRoom {
    /// A delete always succeeds; operations that fill the volume are refused earlier.
    #[default]
    Keep,
    /// As in Linux: only the global reserve is kept.
    Off,
}

impl FromStr for DeleteRoom {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "keep" => Ok(Self::Keep),
            "off" => Ok(Self::Off),
            _ => Err("is keep or off".to_owned()),
        }
    }
}
