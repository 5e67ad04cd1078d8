//! Metadata for finishing ordered extents.
//!
//! # Invariants
//!
//! - **N1** Finishing an ordered extent never fails for lack of a reservation while the global
//!   reserve has space. Writeback has no caller that could try again later.

use buttress_txn::{Cost, MetaReservation, ReserveClass};

use crate::error::Result;
use crate::placement::Placement;

impl Placement {
    /// Takes the metadata for an ordered extent from its reservation. If the reservation is too
    /// small, the rest comes from the global reserve (N1).
    pub(crate) fn reserve(
        &self,
        cost: Cost,
        reserved: &mut Option<MetaReservation>,
    ) -> Result<MetaReservation> {
        let Some((kept, shortfall)) = reserved.as_mut().map(|reserved| reserved.split_cost(cost))
        else {
            return self.reserve_more(cost);
        };
        if shortfall == Cost::default() {
            if let Some(cause) = self.engine.commits().aborted() {
                return Err(buttress_txn::Error::Aborted(cause).into());
            }
            return Ok(kept);
        }
        self.counters.note_shortfall();
        let mut all = match self.engine.reserve(shortfall, ReserveClass::Finish) {
            Err(buttress_txn::Error::NoSpace(_)) => {
                self.engine.reserve(shortfall, ReserveClass::Free)?
            }
            other => other?,
        };
        all.merge(kept);
        Ok(all)
    }

    pub(crate) fn reserve_more(&self, cost: Cost) -> Result<MetaReservation> {
        match self.engine.reserve(cost, ReserveClass::Normal) {
            Err(buttress_txn::Error::NoSpace(_)) => {
                Ok(self.engine.reserve(cost, ReserveClass::Free)?)
            }
            other => Ok(other?),
        }
    }
}
