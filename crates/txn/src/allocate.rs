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
        self.allocate_in_rows(reservation, want, min, goal, stream, &mut self.begin_rows())
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
        let groups = self.space.count_of(SpaceKind::Data);
        let sector = u64::from(self.store.geometry().sectorsize);
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
        if let Some(group) = goal.and_then(|goal| self.space.unloaded_at(goal, want)) {
            self.request_loading([group]);
        }
        for loaded in 1.. {
            match self.space.allocate_in_rows(&mut reservation.space, request, rows.get()) {
                AllocOutcome::Got(extent) => {
                    let charge = reservation.take_charge(extent.len);
                    self.unreferenced.insert(extent.start, charge);
                    self.grow_for_whole(want, extent.len, groups);
                    return Ok(extent);
                }
                AllocOutcome::NeedsLoading(group) => self.wait_until_loaded(&group),
                // The reserved space lay in a group that turned out to be damaged.
                AllocOutcome::Full { .. }
                    if self.counters.has_unreadable() && self.add_chunk(SpaceKind::Data)? => {}
                AllocOutcome::Full { .. } if self.make_room_for_rows(&mut room)? => {}
                AllocOutcome::Full { .. } => return Err(self.no_space(SpaceKind::Data, want)),
            }
            // A fragmented volume may have very many groups, none with enough contiguous space.
            // After a few loaded groups the search accepts fewer bytes from a loaded group.
            request.hurry = loaded >= LOADED_IN_VAIN_MAX;
        }
        unreachable!("the loop is left by an answer")
    }

    /// Gives back an extent that never got a reference: its write failed.
    pub fn free_unused_data(&self, extent: Extent) {
        let unreferenced = self.unreferenced.remove(extent.start);
        assert!(
            unreferenced.is_some(),
            "an extent with references is dropped, not given back: {extent}"
        );
        self.space.free(extent);
    }
}
