//! What is reserved and not put yet: the sum over all live tokens (P3).

use buttress_transaction::{Cost, Costs};

use crate::urgency::Urgency;

/// Operations that have reserved space and have not ended.
#[derive(Debug, Default)]
pub(crate) struct Outstanding {
    pub(crate) costs: Costs,
    /// Of these, those of operations that free space.
    pub(crate) freeing: Costs,
    /// The same, counted by the tokens (P3).
    #[cfg(debug_assertions)]
    pub(crate) roll: buttress_space::TokenAudit<6>,
}

impl Outstanding {
    pub(crate) fn sum(&self) -> Costs {
        self.costs
    }

    /// Compares with the tokens (P3).
    #[cfg(debug_assertions)]
    pub(crate) fn audit(&self) {
        let found = figures(self.costs, self.freeing);
        assert_eq!(
            self.roll.sum(),
            found,
            "P3: what tokens hold, those of requests that free space apart, and all"
        );
    }
}

/// What a reservation adds to the sum, and to that of operations that free space.
pub(crate) fn shares(cost: Cost, urgency: Urgency) -> (Costs, Costs) {
    let all = Costs::from(cost);
    (all, if urgency.frees() { all } else { Costs::default() })
}

/// Both, as tokens are counted.
#[cfg(debug_assertions)]
pub(crate) fn figures(all: Costs, freeing: Costs) -> [u64; 6] {
    let ([a, b, c], [d, e, f]) = (all.figures(), freeing.figures());
    [a, b, c, d, e, f]
}
