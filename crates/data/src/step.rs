//! The number of items that one handle replaces.
//!
//! # Invariants
//!
//! - **H1** One handle replaces at most [`STEP_ITEMS`] items, so that its reservation stays
//!   bounded.

use std::sync::Arc;

use buttress_txn::{Cost, Engine, MetaReservation, ReserveClass};

use crate::error::Result;

/// The maximum number of items that one handle replaces (H1).
pub(crate) const STEP_ITEMS: usize = 256;

/// The number of items that one step removes. It is large while enough metadata is free, and small
/// when the flusher has to make room.
#[derive(Debug)]
pub(crate) struct StepItems(pub(crate) usize);

impl StepItems {
    const FEW: usize = 16;

    pub(crate) fn new() -> Self {
        Self(STEP_ITEMS)
    }

    /// The reservation of a step. `None` if the caller must try the step again with fewer items.
    pub(crate) fn reserve(
        &mut self,
        engine: &Arc<Engine>,
        cost: Cost,
    ) -> Result<Option<MetaReservation>> {
        if self.0 == STEP_ITEMS {
            let reservation = engine.reserve_at_once(cost, ReserveClass::Free)?;
            if reservation.is_none() {
                self.0 = Self::FEW;
            }
            return Ok(reservation);
        }
        match engine.reserve(cost, ReserveClass::Free) {
            Err(buttress_txn::Error::NoSpace(_)) if self.0 > 1 => {
                self.0 = 1;
                Ok(None)
            }
            outcome => Ok(Some(outcome?)),
        }
    }
}
