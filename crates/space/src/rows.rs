//! Extents that share rows of a group with parity.
//!
//! A row is written once, as a whole. Extents of one batch of writes can share rows. Later extents
//! cannot: the rest of a row is not allocated until all of the row is free again.
//!
//! # Invariants
//!
//! - **W1** The bytes that a batch may still take of its rows are reserved. So no other allocation
//!   gets these bytes, even if all extents of the row are given back.

use buttress_format::{Extent, Logical};

use crate::{AllocRequest, DataReservation, Outcome, Space};

/// The bytes that are left in the rows of one batch of writes. The owner gives these bytes back
/// with [`Space::close_rows`] when the batch is complete.
#[derive(Debug, Default)]
#[must_use = "the rest of a row is lost until the next mount"]
pub struct Rows {
    left: Option<Extent>,
}

impl Space {
    /// As [`Space::allocate_data`], for one of several extents of one batch of writes. With parity,
    /// the extent begins where the previous extent of the batch ended, if the bytes behind that
    /// extent are free.
    ///
    /// # Panics
    ///
    /// As [`Space::allocate_data`].
    pub fn allocate_in_rows(
        &self,
        reservation: &mut DataReservation,
        request: AllocRequest,
        rows: &mut Rows,
    ) -> Outcome {
        let held = reservation.bytes() & !(self.unit(request.kind) - 1);
        let request = AllocRequest { want: request.want.min(held), ..request };
        if rows.left.is_some_and(|left| left.len < request.want) {
            self.lengthen(rows, request.want);
        }
        if let Some(left) = rows.left
            && left.len >= request.want
        {
            return self.take_left(reservation, left, request.want, rows);
        }
        let outcome = self.allocate_data(reservation, request);
        match &outcome {
            Outcome::Got(extent) => {
                self.close_rows(rows);
                rows.left = self.rest_of_row(*extent);
            }
            Outcome::Full { .. } => {
                if let Some(left) = rows.left.filter(|left| left.len >= request.min) {
                    return self.take_left(reservation, left, left.len, rows);
                }
            }
            Outcome::NeedsLoading(_) => {}
        }
        outcome
    }

    /// Gives back the bytes that are left in the rows.
    pub fn close_rows(&self, rows: &mut Rows) {
        if let Some(left) = rows.left.take() {
            self.free(left);
        }
    }

    /// Takes the front of the bytes that are left. These bytes are already reserved for the batch.
    fn take_left(
        &self,
        reservation: &mut DataReservation,
        left: Extent,
        len: u64,
        rows: &mut Rows,
    ) -> Outcome {
        let taken = Extent::new(left.start, len);
        rows.left = (left.len > len).then(|| Extent::new(left.start.end(len), left.len - len));
        // The account already counts these bytes as allocated, so the reservation for them is given
        // back.
        let rest = reservation.bytes().saturating_sub(len);
        reservation.shrink_to(rest);
        Outcome::Got(taken)
    }

    /// Reserves the rest of the last row that a fresh extent lies in.
    fn rest_of_row(&self, extent: Extent) -> Option<Extent> {
        let directory = self.directory();
        let group = directory.find(extent.start)?;
        let end = Logical(group.row_behind(extent.end().0).min(group.range().end().0));
        let rest = Extent::new(extent.end(), end.distance(extent.end()));
        let reserved = rest.len > 0
            && group.change(self.shared_account(group.kind()), |state| {
                group.reserve_exact(state, rest)
            });
        reserved.then_some(rest)
    }

    /// Adds the rows behind to the bytes that are left, if those rows are free.
    fn lengthen(&self, rows: &mut Rows, want: u64) {
        let Some(left) = rows.left else { return };
        let directory = self.directory();
        let Some(group) = directory.find(left.start) else { return };
        let end = group.row_behind(left.start.end(want).0.min(group.range().end().0));
        if left.end() >= group.range().end() || end > group.range().end().0 {
            return;
        }
        let more = Extent::new(left.end(), end - left.end().0);
        if more.len > 0
            && group.change(self.shared_account(group.kind()), |state| {
                state.gives_out() && group.reserve_exact(state, more)
            })
        {
            rows.left = Some(Extent::new(left.start, left.len + more.len));
        }
    }
}
