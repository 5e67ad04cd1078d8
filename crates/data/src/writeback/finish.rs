//! Finishes ordered extents: data on the device becomes extents that readers see.
//!
//! # Invariants
//!
//! - **L1** Data is on the device before the handle that names it begins. The exception is the data
//!   of `prepared`.
//! - **L2** Data in writeback leaves memory in the step that makes its extent visible to readers.
//! - **L3** The length on disk grows to the first byte that is not on disk, never past it.
//! - **L4** One handle replaces a bounded number of items. A new extent that replaces more items
//!   becomes visible in parts, each with a reference of its own.
//!
//! # Failure
//!
//! Extents that no item names yet are given back. Finished extents stay.

use std::ops::Range;

use buttress_format::{Body, Compression, Extent, FileExtent, Generation, Region};
use buttress_txn::{Cost, MetaReservation};

use crate::dirty::{Dirty, Run};
use crate::drop_extents::Edits;
use crate::error::Result;
use crate::file::{File, Meta};
use crate::job::{Packed, Placed, Target};
use crate::step::STEP_ITEMS;
use crate::writeback::Writeback;

impl Writeback {
    pub(crate) fn finish_inline(
        &self,
        file: &File,
        run: &Run,
        size: u64,
        packed: Option<Packed>,
        reserved: &mut Option<MetaReservation>,
    ) -> Result<()> {
        let (compression, content) = match packed {
            Some(packed) => (packed.kind, packed.bytes),
            None => (Compression::None, run.slices(0..size).concat()),
        };
        let _extents = file.change_extents();
        let view = self.engine.view();
        let mut edits = Edits::default();
        for mapping in self.params.mappings(&view, file, 0..self.params.sector, STEP_ITEMS)? {
            edits.cut(&mapping, &(0..self.params.sector));
        }
        edits.insert(
            0,
            FileExtent {
                generation: Generation(0),
                ram_bytes: size,
                compression,
                body: Body::Inline(content),
            },
        );
        drop(view);
        let reservation = self.placement.reserve(edits.cost(), reserved)?;
        let handle = self.engine.begin(reservation);
        let bytes = edits.apply(&handle, file);
        file.update_finished(&handle, |meta| {
            bytes.count(meta);
            let mut dirty = file.dirty.lock();
            self.counters.count_clean(dirty.end_writeback(run));
            grow(meta, &dirty, &(0..self.params.sector), size, self.params.sector);
        });
        Ok(())
    }

    /// Makes placed and written extents part of the file, in order. `last` runs inside the last
    /// handle, with the item and the dirty map locked.
    pub(crate) fn finish(
        &self,
        file: &File,
        placed: &[Placed],
        reserved: &mut Option<MetaReservation>,
        last: impl FnOnce(&mut Meta, &mut Dirty),
    ) -> Result<()> {
        let mut last = Some(last);
        for (index, part) in placed.iter().enumerate() {
            let is_last = index + 1 == placed.len();
            let mut done = part.range.start;
            while done < part.range.end {
                let rest = done..part.range.end;
                let step = self.finish_step(file, part, rest, reserved, |meta, dirty, end| {
                    if is_last
                        && end == part.range.end
                        && let Some(last) = last.take()
                    {
                        last(meta, dirty);
                    }
                });
                done = match step {
                    Ok(end) => end,
                    Err(error) => {
                        let unnamed = if done == part.range.start { index } else { index + 1 };
                        self.placement.unallocate(&placed[unnamed..]);
                        return Err(error);
                    }
                };
            }
        }
        Ok(())
    }

    /// One step of [`Writeback::finish`], in one handle. Returns the offset that the step reached.
    fn finish_step(
        &self,
        file: &File,
        part: &Placed,
        rest: Range<u64>,
        reserved: &mut Option<MetaReservation>,
        finish: impl FnOnce(&mut Meta, &mut Dirty, u64),
    ) -> Result<u64> {
        if part.target.is_overwrite() && self.params.options.no_holes {
            return self.finish_overwrite(file, rest.end, reserved, finish);
        }
        let _extents = file.change_extents();
        let view = self.engine.view();
        let there = self.params.mappings(&view, file, rest.clone(), STEP_ITEMS)?;
        let end = match there.last() {
            Some(last) if there.len() == STEP_ITEMS => last.end.min(rest.end),
            _ => rest.end,
        };
        let mut edits = Edits::default();
        let range = rest.start..end;
        match part.target {
            Target::Fresh(extent) => {
                for mapping in &there {
                    edits.cut(mapping, &range);
                }
                let kind = part.packed.as_ref().map_or(Compression::None, |packed| packed.kind);
                edits.insert(range.start, fresh_extent(extent, kind, &part.range, &range));
            }
            Target::InPlace { prealloc: true, .. } => {
                self.placement.convert(&view, file, &there, &range, &mut edits)?;
            }
            Target::InPlace { prealloc: false, .. } => {}
        }
        if !self.params.options.no_holes {
            self.params.fill_growth(&view, file, &range, &mut edits)?;
        }
        let mut cost = edits.cost();
        let first = rest.start == part.range.start;
        if first {
            cost = cost.and(cost_of_sums(part)).and(self.params.stripe_cost(part.disk().len, 1));
        }
        drop(view);
        let reservation = self.placement.reserve(cost, reserved)?;
        let handle = self.engine.begin(reservation);
        let bytes = edits.apply(&handle, file);
        if first {
            handle.note_written(part.disk());
            if !part.sums.is_empty() {
                handle.insert_csums(part.disk(), part.sums.clone());
            }
        }
        file.update_finished(&handle, |meta| {
            bytes.count(meta);
            finish(meta, &mut file.dirty.lock(), end);
        });
        Ok(end)
    }

    /// Finishes a write in place over regular extents. The extents of the file do not change.
    fn finish_overwrite(
        &self,
        file: &File,
        end: u64,
        reserved: &mut Option<MetaReservation>,
        finish: impl FnOnce(&mut Meta, &mut Dirty, u64),
    ) -> Result<u64> {
        let _extents = file.extents.write();
        let reservation = self.placement.reserve(Edits::default().cost(), reserved)?;
        let handle = self.engine.begin(reservation);
        file.update_finished(&handle, |meta| finish(meta, &mut file.dirty.lock(), end));
        Ok(end)
    }
}

/// The cost of an extent's checksums.
pub(crate) fn cost_of_sums(part: &Placed) -> Cost {
    let commit_items = if part.sums.is_empty() { 0 } else { 2 };
    Cost { items: 0, commit_items, bytes: part.sums.len() as u64 }
}

/// Returns the item for `range` of a file. The new extent holds the range `whole`, and `range` is a
/// part of it.
pub(crate) fn fresh_extent(
    extent: Extent,
    compression: Compression,
    whole: &Range<u64>,
    range: &Range<u64>,
) -> FileExtent {
    FileExtent {
        generation: Generation(0),
        ram_bytes: whole.end - whole.start,
        compression,
        body: Body::Regular(Region {
            disk: extent.start,
            disk_len: extent.len,
            offset: range.start - whole.start,
            len: range.end - range.start,
        }),
    }
}

/// Moves the length on disk to the end of the range that was just finished (L3). `size` is the
/// length when the data was taken, `sector` the bytes of a sector.
pub(crate) fn grow(meta: &mut Meta, dirty: &Dirty, finished: &Range<u64>, size: u64, sector: u64) {
    let mut disk_size = meta.disk_size;
    if finished.start <= disk_size.next_multiple_of(sector) {
        disk_size = disk_size.max(finished.end.min(size).min(meta.item.size));
    }
    meta.disk_size = disk_size;
    meta.ordered_end = meta.ordered_end.max(finished.end);
    advance_disk_size(meta, dirty);
}

/// Moves the length on disk to the first byte that is not on disk (L3). Callers run this after they
/// put, finished or forgot dirty data, or changed the length.
pub(crate) fn advance_disk_size(meta: &mut Meta, dirty: &Dirty) {
    let solid = dirty.first_ending_after(meta.disk_size).unwrap_or(u64::MAX).min(meta.item.size);
    meta.disk_size = meta.disk_size.max(solid);
    assert!(meta.disk_size <= meta.item.size, "L3");
}
