//! Allocates data space from a reservation, and frees the unused part.

use buttress_format::{Extent, Generation, Logical};
use buttress_space::{AllocOutcome, AllocRequest, SpaceKind};

use crate::rows::{RoomForRows, SharedRows};
use crate::{DataReservation, Engine, Result};

/// How many groups one allocation loads before it accepts less space from loaded groups.
const LOADED_IN_VAIN_MAX: u32 = 4;

impl Engine {
    /// Allocates data space from a reservation: at most `want` contiguous bytes, at least `min`.
    /// Extents with the same `stream` are kept together; each file has its own stream.
    ///
    /// # Errors
    ///
    /// [`Error::NoSpace`] when free space is too fragmented for `min`.
    pub fn allocate_data(
        &self,
        reservation: &mut DataReservation,
        want: u64,
        min: u64,
        goal: Option<Logical>,
        stream: u64,
    ) -> Result<Extent> {
        self.allocate_in_rows(
            reservation,
            want,
            min,
            goal,
            stream,
            &mut self.storage().begin_rows(),
        )
    }

    /// As [`allocate_data`](Self::allocate_data), for one of several extents that one call writes.
    /// With parity, these extents share rows.
    ///
    /// # Errors
    ///
    /// As [`allocate_data`](Self::allocate_data).
    pub fn allocate_in_rows(
        &self,
        reservation: &mut DataReservation,
        want: u64,
        min: u64,
        goal: Option<Logical>,
        stream: u64,
        rows: &mut SharedRows<'_>,
    ) -> Result<Extent> {
        let mut room = RoomForRows::default();
        let groups = self.storage().space().count_of(SpaceKind::Data);
        let sector = u64::from(self.storage().store().geometry().sectorsize);
        let mut request = AllocRequest {
            kind: SpaceKind::Data,
            want,
            min,
            align: sector,
            goal,
            limit: Generation(u64::MAX),
            stream,
            hurry: false,
        };
        if let Some(group) = goal.and_then(|goal| self.storage().space().unloaded_at(goal, want)) {
            self.storage().request_loading([group]);
        }
        for loaded in 1.. {
            match self.storage().space().allocate_in_rows(
                &mut reservation.space,
                request,
                rows.get(),
            ) {
                AllocOutcome::Got(extent) => {
                    let charge = reservation.take_charge(extent.len);
                    self.allocation().unreferenced().insert(extent.start, charge);
                    self.storage().grow_for_whole(
                        self.commits(),
                        self.reservations(),
                        want,
                        extent.len,
                        groups,
                    );
                    return Ok(extent);
                }
                AllocOutcome::NeedsLoading(group) => {
                    self.storage().wait_until_loaded(self.commits(), &group);
                }
                // The reserved space lay in a group that turned out to be damaged.
                AllocOutcome::Full { .. }
                    if self.storage().loading().counts().1 > 0
                        && self.add_chunk(SpaceKind::Data)? => {}
                AllocOutcome::Full { .. } if self.make_room_for_rows(&mut room)? => {}
                AllocOutcome::Full { .. } => {
                    return Err(self.counters().no_space(
                        self.reservations(),
                        SpaceKind::Data,
                        want,
                    ));
                }
            }
            // A fragmented volume may have very many groups, none with enough contiguous space.
            // After a few loaded groups the search accepts fewer bytes from a loaded group.
            request.hurry = loaded >= LOADED_IN_VAIN_MAX;
        }
        unreachable!("the loop is left by an answer")
    }
}
