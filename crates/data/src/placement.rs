//! [`Placement`] chooses the space for data, and reserves it.
//!
//! It reserves data and metadata, finds extents that may be written in place, and allocates. It
//! writes nothing.

use std::sync::Arc;

use buttress_txn::Engine;

use crate::counters::Counters;
use crate::params::Params;

mod allocate;
mod covered;
mod in_place;
mod metadata;
mod packed;
mod reservation;

pub use reservation::ReclaimEffort;
pub(crate) use reservation::{PieceBounds, Reservation, Shortfall, join};

/// Finds addresses for the data of one volume's files.
#[derive(Debug)]
pub(crate) struct Placement {
    engine: Arc<Engine>,
    params: Arc<Params>,
    counters: Arc<Counters>,
}

impl Placement {
    pub(crate) fn new(engine: Arc<Engine>, params: Arc<Params>, counters: Arc<Counters>) -> Self {
        Self { engine, params, counters }
    }
}
