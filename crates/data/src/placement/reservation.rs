//! The reservations that a buffered write needs before its bytes are put into memory. They are for
//! data space, and for the metadata that will make the bytes visible.
//!
//! # Invariants
//!
//! - **V1** The reservation covers the write whatever writeback does with it:
//!     - Every dirty piece becomes an extent of its own and splits every item that it overlaps.
//!     - Items that appear under the write before it finishes count, too. Older data of the range,
//!       which waits or is being written, makes such items and may split an item.
//!     - A part that may be written in place is finished by itself, and so is the range between two
//!       such parts.
//!     - If a write extends a piece, or a hole removes the middle of a piece, more is reserved for
//!       this piece.
//!     - If the free ranges are smaller than a piece, more metadata is reserved when the ranges are
//!       known, if enough metadata is free.
//!     - If too little metadata is free, the global reserve covers the rest for such a piece. The
//!       global reserve also covers the metadata for extents past the file's length. A crash can
//!       leave such extents.
//! - **V2** Sectors that will be written in place need no data space, and have a token as proof.
//!   The writer takes the writeback claim, looks for such sectors, and keeps the claim until the
//!   data is put. So until then no writeback allocates a place for these sectors.

use std::ops::Range;

use buttress_base::RangeSet;
use buttress_format::InodeFlags;
use buttress_txn::{Cost, DataReservation, InPlaceToken, MetaReservation, ReserveClass};

use super::covered::Covered;
use crate::claim::Claim;
use crate::dirty::Dirty;
use crate::error::{Error, Result};
use crate::file::{File, Meta};
use crate::params::{EXTENT_COST, HOLE_COST, SPLIT_COST};
use crate::placement::Placement;
use crate::step::STEP_ITEMS;

/// The cost of an extent item that the new data covers: the deletion of the item and of its
/// reference.
const COVERED_COST: Cost = Cost { items: 1, commit_items: 3, bytes: 64 };

/// Up to this many items, a reservation counts one path of the tree for each item. A larger
/// reservation counts the leaves that can hold the inode's items (`dirty::P6`).
const MANY_ITEMS: u64 = 64;

/// How much is done to find metadata before a write is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReclaimEffort {
    /// Nothing: the caller asks again with more effort.
    Little,
    /// The caller waits in the queue of tickets. The flusher writes back dirty data, which frees
    /// most of the worst-case reservations for this data. The flusher also makes commits and
    /// chunks.
    Full,
    /// The caller draws on the global reserve. A truncation uses this for the writes that it needs.
    Last,
}

/// The reservations that a write has so far.
#[derive(Debug, Default)]
pub(crate) struct Reservation<'f> {
    data: Option<DataReservation>,
    metadata: Option<MetaReservation>,
    /// Costs that `metadata` was made for.
    cost: Cost,
    /// Inline bytes that the file records with the reservation: see [`Dirty`].
    inline: u32,
    splits: u32,
    /// The items that the write will cover, once they are counted, and the number of bytes counted.
    /// Writeback may have replaced some of the items since.
    covered: Option<(Covered, u64)>,
    /// Sectors that will be written in place (V2), once the writer has looked for them.
    in_place: Option<InPlaceSectors<'f>>,
}

/// Sectors that will be written in place.
#[derive(Debug)]
struct InPlaceSectors<'f> {
    sectors: RangeSet,
    token: InPlaceToken,
    claim: Claim<'f>,
}

/// The part that a reservation lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shortfall {
    Data(u64),
    Metadata(Cost),
    /// The items under this many bytes of the write must be counted first.
    Covered(u64),
}

/// Bounds on the need of a write beyond the cost of its range.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PieceBounds {
    /// Additional pieces: the partial sectors at both ends are put as pieces of their own.
    pub(crate) extra: u32,
    /// Extents that one piece may become.
    pub(crate) each: u32,
    /// Bytes that may become inline content.
    pub(crate) inline: u32,
}

impl Placement {
    /// Returns the part that `reservation` lacks for putting `range`, which consists of whole
    /// sectors.
    pub(crate) fn shortfall(
        &self,
        reservation: &mut Reservation<'_>,
        dirty: &Dirty,
        range: &Range<u64>,
        disk_end: u64,
        size: PieceBounds,
    ) -> Option<Shortfall> {
        let (mut need, mut missing, mut pieces, mut gaps) = (0, 0, 0, 0);
        dirty.for_each_gap(range.clone(), |gap, fresh| {
            missing += gap.end - gap.start;
            need += self.with_slack(reservation.bytes_to_allocate(&gap), fresh > 0);
            pieces += fresh as u32;
            gaps += 1;
        });
        let have = reservation.data.as_ref().map_or(0, DataReservation::bytes);
        if need > have {
            return Some(Shortfall::Data(need - have));
        }
        let counted = reservation.covered.filter(|(_, counted)| missing <= *counted);
        if missing > 0 && range.start < disk_end && counted.is_none() {
            return Some(Shortfall::Covered(missing));
        }
        let counted = counted.filter(|_| missing > 0);
        let (covered, parts) =
            counted.map_or((0, 0), |(covered, _)| (covered.items, covered.parts));
        if missing > 0 {
            pieces += size.extra;
        }
        // One handle replaces at most `STEP_ITEMS` items, and each further handle adds an extent.
        let extents = pieces * size.each + covered / STEP_ITEMS as u32;
        let sums = (missing / self.params.sector) as u32 * self.params.csum_type.size() as u32;
        let holes = if self.params.options.no_holes { Cost::default() } else { HOLE_COST };
        // Data that extends a piece over a hole may make that piece split an extent.
        let joined = dirty.unsplit(size.each).min(gaps * size.each);
        reservation.splits = if covered > 0 { extents + joined } else { 0 };
        reservation.inline = size.inline;
        let grown = size.inline.saturating_sub(dirty.inline);
        let cost = EXTENT_COST
            .and(holes)
            .times(extents + parts)
            .and(SPLIT_COST.times(reservation.splits))
            .and(COVERED_COST.times(covered))
            .and(Cost::of(0, sums + grown))
            .and(self.params.stripe_cost(missing, extents));
        let more = cost.beyond(reservation.cost);
        (more != Cost::default()).then_some(Shortfall::Metadata(more))
    }

    /// The metadata that inline dirty data needs at a new length, beyond its reservation. The
    /// caller keeps writers out.
    pub(crate) fn missing_inline(&self, file: &File, size: u64) -> Option<Cost> {
        let meta = file.meta();
        let dirty = file.dirty.lock();
        let bytes = self.params.inline_bytes(&meta, size).saturating_sub(dirty.inline);
        (bytes > 0 && dirty.is_dirty_at(0)).then(|| Cost::of(0, bytes))
    }

    /// Gives this reservation to a file after its length has changed, if the first sector still
    /// waits. A job that took that sector before works with the old length.
    pub(crate) fn keep_inline(
        &self,
        meta: &Meta,
        dirty: &mut Dirty,
        reserved: &mut Option<MetaReservation>,
    ) {
        if dirty.is_dirty_at(0)
            && let Some(reserved) = reserved.take()
        {
            join(&mut dirty.metadata, reserved);
            dirty.inline = dirty.inline.max(self.params.inline_bytes(meta, meta.item.size));
        }
    }

    /// The reservation for removing the middle of a dirty piece, since both ends become pieces. The
    /// caller keeps other threads from taking or putting pieces. If the metadata is not free at
    /// once, the thread that finishes the extents asks for it.
    pub(crate) fn reserve_ends(
        &self,
        file: &File,
        range: &Range<u64>,
    ) -> Result<Option<MetaReservation>> {
        if !file.dirty.lock().is_within_one(range) {
            return Ok(None);
        }
        Ok(self.engine.reserve_at_once(self.params.cost_of_parts(1), ReserveClass::Normal)?)
    }

    /// The space for data that starts or extends a piece. With parity, a new piece includes the
    /// rest of a row, since rows are written as a whole.
    fn with_slack(&self, bytes: u64, fresh: bool) -> u64 {
        bytes + if fresh && bytes > 0 { self.engine.storage().row_slack() } else { 0 }
    }

    /// Reserves the part that a reservation lacks. The caller does not hold the file's short locks.
    pub(crate) fn acquire<'f>(
        &self,
        reservation: &mut Reservation<'f>,
        file: &'f File,
        range: &Range<u64>,
        shortfall: Shortfall,
        effort: ReclaimEffort,
    ) -> Result<()> {
        match shortfall {
            Shortfall::Data(bytes) => self.reserve_data(reservation, file, range, bytes, effort),
            Shortfall::Metadata(cost) => {
                // A thread with the claim must not wait for threads that need it.
                let claims = reservation.in_place.is_some();
                let more = match self.reserve_metadata(cost, effort, claims) {
                    // Dirty data may hold metadata that commits cannot free. So the writer drops
                    // the claim, waits in the queue, and then looks again for sectors to write in
                    // place.
                    Err(error)
                        if claims && effort == ReclaimEffort::Full && error.is_no_space() =>
                    {
                        reservation.in_place = None;
                        self.reserve_metadata(cost, effort, false)?
                    }
                    other => other?,
                };
                reservation.cost = reservation.cost.and(cost);
                join(&mut reservation.metadata, more);
                Ok(())
            }
            Shortfall::Covered(missing) => {
                reservation.covered = Some((self.count_covered(file, range)?, missing));
                Ok(())
            }
        }
    }

    fn reserve_metadata(
        &self,
        cost: Cost,
        effort: ReclaimEffort,
        claims: bool,
    ) -> Result<MetaReservation> {
        if let Some(more) = self.engine.reserve_at_once(cost, ReserveClass::Normal)? {
            return Ok(more);
        }
        match effort {
            ReclaimEffort::Little => Err(buttress_txn::Error::NoSpace("metadata").into()),
            ReclaimEffort::Full if claims => Ok(self.engine.reserve(cost, ReserveClass::Normal)?),
            ReclaimEffort::Full => Ok(self.engine.reserve_in_queue(cost, ReserveClass::Normal)?),
            ReclaimEffort::Last => self.reserve_more(cost),
        }
    }

    fn reserve_data<'f>(
        &self,
        reservation: &mut Reservation<'f>,
        file: &'f File,
        range: &Range<u64>,
        bytes: u64,
        effort: ReclaimEffort,
    ) -> Result<()> {
        let flags = file.with_item(|item| item.flags);
        let may_be_in_place = flags & (InodeFlags::PREALLOC | InodeFlags::NODATACOW) != 0;
        let looks = may_be_in_place && reservation.in_place.is_none();
        if !(looks && file.dirty.lock().prefers_in_place) {
            let charge = self.engine.charge_quota(file.tree(), bytes);
            let reserve = || match effort {
                ReclaimEffort::Little => self
                    .engine
                    .reserve_data_at_once(bytes)
                    .and_then(|more| more.ok_or(buttress_txn::Error::NoSpace("data"))),
                ReclaimEffort::Full if reservation.in_place.is_none() => {
                    self.engine.reserve_data_in_queue(bytes)
                }
                ReclaimEffort::Full | ReclaimEffort::Last => self.engine.reserve_data(bytes),
            };
            let more = charge.and_then(|charge| Ok(reserve()?.charged(charge)));
            match more.map_err(Error::from) {
                Ok(more) => {
                    match &mut reservation.data {
                        Some(data) => data.merge(more),
                        none => *none = Some(more),
                    }
                    return Ok(());
                }
                Err(error) if !(looks && (error.is_no_space() || error.is_quota())) => {
                    return Err(error);
                }
                Err(_) => {}
            }
        }
        let claim = file.claim();
        let parts = self.find_in_place(file, range.clone(), flags)?;
        let sectors: RangeSet = parts.into_iter().map(|part| part.range).collect();
        file.dirty.lock().prefers_in_place = !sectors.is_empty();
        let token = self.engine.storage().space().in_place_token(sectors.total());
        reservation.in_place = Some(InPlaceSectors { sectors, token, claim });
        Ok(())
    }

    /// Hands the reservations that the write needs to the file (`dirty::P2`, `dirty::P5`), and
    /// gives the rest of the data space back. The caller drops the returned claim after the short
    /// locks.
    pub(crate) fn keep_reservation<'f>(
        &self,
        file: &File,
        dirty: &mut Dirty,
        range: &Range<u64>,
        reservation: Reservation<'f>,
    ) -> Option<Claim<'f>> {
        let (mut need, mut slack) = (0, 0);
        let mut gaps = Vec::new();
        dirty.for_each_gap(range.clone(), |gap, fresh| {
            let bytes = reservation.bytes_to_allocate(&gap);
            need += bytes;
            slack += self.with_slack(bytes, fresh > 0) - bytes;
            gaps.push(gap);
        });
        let Reservation { data, metadata, in_place, inline, splits, .. } = reservation;
        dirty.inline = dirty.inline.max(inline);
        dirty.splits += splits;
        let claim = in_place.map(|InPlaceSectors { sectors, mut token, claim }| {
            for gap in gaps {
                for run in sectors.iter() {
                    let part = run.start.max(gap.start)..run.end.min(gap.end);
                    if !part.is_empty() {
                        let token = token.split(part.end - part.start);
                        dirty.mark_in_place(part, token);
                    }
                }
            }
            claim
        });
        if let Some(mut data) = data {
            assert!(
                need <= data.bytes(),
                "dirty::P2: {need} bytes on a reservation of {}",
                data.bytes()
            );
            // Another write may have put the start of this piece meanwhile, with space for the rest
            // of its row.
            data.shrink_to(data.bytes().min(need + slack));
            match &mut dirty.reserved {
                Some(reserved) => reserved.merge(data),
                none => *none = Some(data),
            }
        }
        if let Some(metadata) = metadata {
            join(&mut dirty.metadata, metadata);
            self.count_by_inode(file, dirty);
        }
        claim
    }

    /// Counts a large reservation by the inode, since all its items belong to this inode.
    fn count_by_inode(&self, file: &File, dirty: &mut Dirty) {
        let Some(metadata) = &mut dirty.metadata else { return };
        if metadata.items() > MANY_ITEMS {
            let new = || self.engine.reservations().inode_reserve(file.tree(), file.ino());
            metadata.bind(dirty.reserve.get_or_insert_with(new));
        }
    }
}

impl Reservation<'_> {
    /// Bytes of a range that will need new space.
    fn bytes_to_allocate(&self, range: &Range<u64>) -> u64 {
        let mut need = range.end - range.start;
        let Some(InPlaceSectors { sectors: in_place, .. }) = &self.in_place else { return need };
        let mut at = range.start;
        while let Some(run) = in_place.next_from(at).filter(|run| run.start < range.end) {
            let end = run.end.min(range.end);
            need -= end - run.start.max(at);
            at = end;
            if at == range.end {
                break;
            }
        }
        need
    }
}

/// Merges a metadata reservation into `all`, which may be empty.
pub(crate) fn join(all: &mut Option<MetaReservation>, more: MetaReservation) {
    match all {
        Some(all) => all.merge(more),
        none => *none = Some(more),
    }
}
