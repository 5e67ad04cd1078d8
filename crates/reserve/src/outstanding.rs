//! Reserved space that is not used yet: the sum over all live tokens.
//!
//! # Invariants
//!
//! - The sums and the audit of tokens change together, under one lock. So they agree whenever the
//!   lock is free (`reserve::P3`).

use buttress_transaction::Cost;

use crate::class::TicketDemand;

/// The figures of an empty token, as the audit counts them.
#[cfg(debug_assertions)]
pub(crate) const NOTHING: [u64; 6] = [0; 6];

/// The sum of all reservations that operations hold.
#[derive(Debug, Default)]
pub(crate) struct Outstanding {
    costs: Cost,
    /// The part of `costs` that belongs to operations which free space.
    freeing: Cost,
    /// The same sums, computed from the live tokens (`reserve::P3`).
    #[cfg(debug_assertions)]
    audit: buttress_space::TokenAudit<6>,
}

impl Outstanding {
    /// The sum of all reservations.
    pub(crate) fn sum(&self) -> Cost {
        self.costs
    }

    /// The part that belongs to operations which free space.
    pub(crate) fn freeing(&self) -> Cost {
        self.freeing
    }

    /// Adds a reservation that no token holds yet.
    pub(crate) fn grant(&mut self, demand: &TicketDemand) {
        let (held, freeing) = demand.shares();
        self.costs += held;
        self.freeing += freeing;
        #[cfg(debug_assertions)]
        self.audit.grant(figures(held, freeing));
    }

    /// Takes back a grant for which no token was made.
    pub(crate) fn revoke(&mut self, demand: &TicketDemand) {
        let (held, freeing) = demand.shares();
        self.costs -= held;
        self.freeing -= freeing;
        #[cfg(debug_assertions)]
        self.audit.revoke(figures(held, freeing));
    }

    /// Subtracts the reservation that a token gives back.
    pub(crate) fn give(&mut self, (held, freeing): (Cost, Cost)) {
        self.costs -= held;
        self.freeing -= freeing;
    }

    /// The audit of live tokens.
    #[cfg(debug_assertions)]
    pub(crate) fn token_audit(&mut self) -> &mut buttress_space::TokenAudit<6> {
        &mut self.audit
    }

    /// Compares the sums with the audit of tokens (`reserve::P3`).
    #[cfg(debug_assertions)]
    pub(crate) fn audit(&self) {
        let found = figures(self.costs, self.freeing);
        assert_eq!(
            self.audit.sum(),
            found,
            "reserve::P3: what tokens hold, those of requests that free space apart, and all"
        );
    }
}

/// Both sums, as the figures that the audit counts.
#[cfg(debug_assertions)]
pub(crate) fn figures(all: Cost, freeing: Cost) -> [u64; 6] {
    let ([a, b, c], [d, e, f]) = (all.figures(), freeing.figures());
    [a, b, c, d, e, f]
}
