//! Allocating data out of a reservation, and giving back what was not used.

use buttress_format::{Extent, Generation, Logical};
use buttress_space::{AllocRequest, DataReservation, Outcome, SpaceKind};

use crate::rows::{RoomForRows, SharedRows};
use crate::{Engine, Result};

/// Groups that one allocation waits for until their free space is read, before it takes less from
/// those that are known.
const LOADED_IN_VAIN_MAX: u32 = 4;

impl Engine {
    /// Allocates data space out of a reservation: at most `want` contiguous bytes, at least
    /// `min`. What has one `stream` is kept together; files have one each.
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

    /// As [`allocate_data`](Self::allocate_data), for one of several extents that one call
    /// writes: where there is parity they share rows.
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
            self.want_loaded([group]);
        }
        for loaded in 1.. {
            match self.space.allocate_in_rows(reservation, request, rows.get()) {
                Outcome::Got(extent) => {
                    self.unreferenced.insert(extent.start);
                    self.grow_for_whole(want, extent.len, groups);
                    return Ok(extent);
                }
                Outcome::NeedsLoading(group) => self.have_loaded(&group),
                // What was reserved lay in a group that turned out to be damaged.
                Outcome::Full { .. }
                    if self.counters.has_left() && self.add_chunk(SpaceKind::Data)? => {}
                Outcome::Full { .. } if self.make_room_for_rows(&mut room)? => {}
                Outcome::Full { .. } => return Err(self.no_space(SpaceKind::Data, want)),
            }
            // On a fragmented volume no group may have it, and there may be very many.
            request.hurry = loaded >= LOADED_IN_VAIN_MAX;
        }
        unreachable!("the loop is left by an answer")
    }

    /// Gives back an extent that never got a reference: its write failed.
    pub fn free_unused_data(&self, extent: Extent) {
        let unreferenced = self.unreferenced.remove(extent.start);
        assert!(unreferenced, "an extent with references is dropped, not given back: {extent}");
        self.space.free(extent);
    }
}
