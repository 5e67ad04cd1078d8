//! What a commit may touch.

use crate::counters::Counters;
use crate::reserve::Reservations;
use crate::{Commits, Engine, Storage};

/// The owners that a commit works with from the freeze to the writing of its nodes.
///
/// Plain data: references.
#[derive(Clone, Copy)]
pub(crate) struct Owners<'e> {
    pub(super) storage: &'e Storage,
    pub(super) commits: &'e Commits,
    pub(super) reservations: &'e Reservations,
    pub(super) counters: &'e Counters,
}

impl<'e> Owners<'e> {
    pub(crate) fn of(engine: &'e Engine) -> Self {
        Self {
            storage: engine.storage(),
            commits: engine.commits(),
            reservations: engine.reservations(),
            counters: engine.counters(),
        }
    }
}
