//! Extents that share rows of a group with parity.
//!
//! A row is written once, as a whole. Extents of one batch of writes can share rows. Later extents
//! cannot: the rest of a row is not allocated until all of the row is free again. A batch is one
//! call that writes data, one commit, or one log of fsync.
//!
//! # Invariants
//!
//! - **W1** The bytes that a batch may still take of its rows are reserved. So no other allocation
//!   gets these bytes, even if all extents of the row are given back.
//! - **W2** When nodes are written, nothing else is in use in their rows.

use buttress_format::{Extent, Logical};

use crate::{AllocOutcome, AllocRequest, DataReservation, Space};

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
    ) -> AllocOutcome {
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
            AllocOutcome::Got(extent) => {
                self.close_rows(rows);
                rows.left = self.rest_of_row(*extent);
            }
            AllocOutcome::Full { .. } => {
                if let Some(left) = rows.left.filter(|left| left.len >= request.min) {
                    return self.take_left(reservation, left, left.len, rows);
                }
            }
            AllocOutcome::NeedsLoading(_) => {}
        }
        outcome
    }

    /// As [`Space::allocate`]. With parity, the extent gets all bytes of its rows. So it may be
    /// longer than wanted.
    ///
    /// # Panics
    ///
    /// As [`Space::allocate`].
    pub fn allocate_whole_rows(&self, request: AllocRequest) -> AllocOutcome {
        match self.allocate(request) {
            AllocOutcome::Got(extent) => {
                let rest = self.rest_of_row(extent).map_or(0, |rest| rest.len);
                AllocOutcome::Got(Extent::new(extent.start, extent.len + rest))
            }
            other => other,
        }
    }

    /// Allocates a node: behind the last one in the rows, or in other rows.
    ///
    /// # Panics
    ///
    /// As [`Space::allocate`], when no node is left in the rows.
    pub fn allocate_node(&self, request: AllocRequest, rows: &mut Rows) -> AllocOutcome {
        if rows.left.is_none() {
            match self.allocate_whole_rows(request) {
                AllocOutcome::Got(extent) => rows.left = Some(extent),
                other => return other,
            }
        }
        let left = rows.left.take().expect("it was just allocated");
        let node = Extent::new(left.start, request.want);
        rows.left = (left.len > node.len).then(|| Extent::new(node.end(), left.len - node.len));
        AllocOutcome::Got(node)
    }

    /// Checks that nothing but these nodes is in use in the rows that they lie in (W2).
    ///
    /// # Panics
    ///
    /// When something else is in use there.
    #[cfg(debug_assertions)]
    pub fn expect_own_rows(&self, nodes: &[(Logical, &[u8])]) {
        let directory = self.directory();
        let mut rows = std::collections::BTreeMap::new();
        for (start, bytes) in nodes {
            let Some(group) = directory.find(*start) else { continue };
            let Some(row) = group.row() else { continue };
            let at = group.start().end(start.distance(group.start()) / row * row);
            rows.entry(at).or_insert((group, row, 0)).2 += bytes.len() as u64;
        }
        for (at, (group, row, own)) in rows {
            let taken = row
                - group.lock().free.as_ref().map_or(0, |free| {
                    let (mut from, end, mut bytes) = (at.0, at.0 + row, 0);
                    while let Some((start, stop)) =
                        free.next(from).filter(|(start, _)| *start < end)
                    {
                        bytes += stop.min(end) - start;
                        from = stop;
                    }
                    bytes
                });
            assert!(taken == own, "W2: {taken} bytes of the row at {at}, {own} are new");
        }
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
    ) -> AllocOutcome {
        let taken = Extent::new(left.start, len);
        rows.left = (left.len > len).then(|| Extent::new(left.start.end(len), left.len - len));
        // The account already counts these bytes as allocated, so the reservation for them is given
        // back.
        let rest = reservation.bytes().saturating_sub(len);
        reservation.shrink_to(rest);
        AllocOutcome::Got(taken)
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
