//! Preallocation: space for a range before anything is written to it.
//!
//! # Invariants
//!
//! - **A1** Existing data is kept. Only holes get preallocated extents, which read as zeros.
//! - **A2** An inode that ever had a preallocated extent carries a flag. The flag makes writeback
//!   look for such extents.

use std::ops::Range;

use buttress_format::{
    Body, Compression, Extent, FileExtent, Generation, InodeFlags, InodeItem, Region,
};
use buttress_txn::{Cost, QuotaCharge, ReserveClass, View};

use crate::drop_extents::Edits;
use crate::error::{Error, Result};
use crate::file::{End, File, Meta};
use crate::files::Files;
use crate::job::{Goal, Supply};
use crate::write::SIZE_MAX;
use crate::writeback::advance_disk_size;

/// Largest extent that is preallocated in one piece.
const PREALLOC_BYTES_MAX: u64 = 128 << 20;

/// The longest extent that grows by steps. Space is freed only with a whole extent. So a file that
/// is cut within a long extent would keep all space of the extent.
const GROWN_BYTES_MAX: u64 = 1 << 20;

/// When a file is preallocated step by step, one allocation makes room for this many steps. A file
/// that is longer than these steps gets room for its present length instead.
const AHEAD_STEPS: u64 = 16;

/// The largest space that is kept after a file for its next steps. A step of this size or more gets
/// no such space.
const AHEAD_BYTES_MAX: u64 = 1 << 20;

/// The cost of a step: the inode item, and an extent.
const STEP_COST: Cost = Cost::of(1, 160).and(Edits::COST_OF_ONE);

/// The number of gaps that are listed at once.
const GAPS_MAX: usize = 64;

impl Files {
    /// Preallocates a range; the file grows to hold it unless `keep_size`. `stamp` sets the times.
    ///
    /// The caller keeps other threads from changing the file's length or content meanwhile.
    ///
    /// # Errors
    ///
    /// No space, in which case a part of the range may be allocated; [`Error::TooBig`].
    pub fn allocate_range(
        &self,
        file: &File,
        offset: u64,
        len: u64,
        keep_size: bool,
        stamp: impl FnOnce(&mut InodeItem),
    ) -> Result<()> {
        let end = offset.checked_add(len).filter(|end| *end <= SIZE_MAX).ok_or(Error::TooBig)?;
        let old_size = file.size();
        let grown = if keep_size { old_size } else { old_size.max(end) };
        let range = self.params.floor(offset)..self.params.ceil(end);
        // From here on no data of this file becomes inline.
        file.touch(|item| item.flags |= InodeFlags::PREALLOC);
        if grown > old_size {
            self.secure_tail(file, old_size)?;
        }
        if old_size > 0 && old_size <= self.params.sector && self.has_inline(file)? {
            self.dirty_sector(file, 0, old_size)?;
            self.writeback.write_back(file, 0..self.params.sector)?;
        }
        if file.is_dirty() {
            self.writeback.write_back(file, range.clone())?;
        }
        let mut changes = InodeChanges { offset, end: range.end, grown, stamp: Some(stamp) };
        {
            let _claim = file.claim();
            self.fill_gaps(file, range, &mut changes)?;
        }
        // The end of the range already had an extent, so no step has set the length and the times.
        match changes.stamp {
            Some(stamp) => self.lengthen(file, grown, stamp),
            None => Ok(()),
        }
    }

    pub(crate) fn has_inline(&self, file: &File) -> Result<bool> {
        let _extents = file.extents.read();
        if file.known_end() == Some(0) {
            return Ok(false);
        }
        let view = self.engine.view();
        Ok(self
            .params
            .mappings(&view, file, 0..self.params.sector, 1)?
            .iter()
            .any(|m| m.is_inline()))
    }

    fn fill_gaps<S: FnOnce(&mut InodeItem)>(
        &self,
        file: &File,
        range: Range<u64>,
        changes: &mut InodeChanges<S>,
    ) -> Result<()> {
        if self.end(file)? <= range.start {
            return self.fill_gap(file, range, changes);
        }
        let mut at = range.start;
        while at < range.end {
            let (gaps, looked) = self.gaps(&self.engine.view(), file, at..range.end)?;
            for gap in gaps {
                self.fill_gap(file, gap, changes)?;
            }
            at = looked;
        }
        Ok(())
    }

    /// Returns the end of the file's last extent. The caller keeps other threads from adding
    /// extents.
    fn end(&self, file: &File) -> Result<u64> {
        if let Some(end) = file.known_end() {
            return Ok(end);
        }
        let _extents = file.extents.read();
        let last = self.params.last_mapping(&self.engine.view(), file, u64::MAX)?;
        let end = last.map_or(0, |mapping| mapping.end);
        file.note_end(End { at: end, last: None });
        Ok(end)
    }

    /// Returns the parts of `range` without data or space, and the offset up to which they are
    /// listed.
    fn gaps(&self, view: &View, file: &File, range: Range<u64>) -> Result<(Vec<Range<u64>>, u64)> {
        let mut gaps: Vec<Range<u64>> = Vec::new();
        let mut at = range.start;
        let mut add = |low: u64, high: u64| {
            match gaps.last_mut() {
                Some(last) if last.end == low => last.end = high,
                _ if low < high => gaps.push(low..high),
                _ => {}
            }
            gaps.len()
        };
        let mut full = false;
        self.params.for_each_mapping(view, file, range.clone(), |mapping| {
            add(at, mapping.offset.max(at));
            let (low, high) = (mapping.offset.max(range.start), mapping.end.min(range.end));
            let count = if mapping.is_hole() { add(low, high) } else { add(high, high) };
            at = high;
            full = count >= GAPS_MAX;
            Ok(!full)
        })?;
        if full {
            return Ok((gaps, at));
        }
        add(at, range.end);
        Ok((gaps, range.end))
    }

    fn fill_gap<S: FnOnce(&mut InodeItem)>(
        &self,
        file: &File,
        gap: Range<u64>,
        changes: &mut InodeChanges<S>,
    ) -> Result<()> {
        let mut at = gap.start;
        let mut charge = self.engine.charge_quota(file.tree(), gap.end - gap.start)?;
        let mut goal = file.goal();
        while at < gap.end {
            let want = (gap.end - at).min(PREALLOC_BYTES_MAX);
            if let Some(extent) =
                self.append_from_window(file, &(at..at + want), &mut charge, changes)?
            {
                goal.at = Some(extent.end());
                at += want;
                continue;
            }
            let extent = match self.allocate_ahead(file, at, want, goal, &mut charge) {
                Some(extent) => extent,
                None => {
                    let reserved =
                        self.engine.reserve_data(want + self.engine.storage().row_slack())?;
                    let reserved = reserved.charged(charge.split(want));
                    let rows = &mut self.engine.storage().begin_rows();
                    let mut supply = Supply { reserved, goal, rows };
                    let extent =
                        self.placement.allocate_one(&mut supply, want, self.params.sector)?;
                    charge.merge(supply.reserved.take_charge(u64::MAX));
                    extent
                }
            };
            goal.at = Some(extent.end());
            let part = at..at + extent.len;
            let put = self.put_prealloc(file, &part, extent, changes);
            if put.is_err() {
                self.engine.allocation().free_unused_data(self.engine.storage(), extent);
            }
            put?;
            at = part.end;
        }
        file.set_goal(goal);
        Ok(())
    }

    /// Allocates space for the next step of a file that grows by steps, with room for further
    /// steps.
    fn allocate_ahead(
        &self,
        file: &File,
        at: u64,
        want: u64,
        goal: Goal,
        charge: &mut QuotaCharge,
    ) -> Option<Extent> {
        if want >= AHEAD_BYTES_MAX || !self.continues_prealloc(file, &(at..at + want)) {
            return None;
        }
        let ahead = at.max((AHEAD_STEPS - 1) * want).min(AHEAD_BYTES_MAX);
        let window =
            file.window.get_or_init(|| buttress_txn::Window::new(self.engine.storage().space()));
        let ahead = self.params.floor(ahead);
        self.engine.allocate_ahead(window, want, ahead, goal.at, goal.stream, charge)
    }

    /// Returns whether `part` directly follows the file's last extent, that extent is preallocated
    /// as a whole, and `part` needs no hole items.
    fn continues_prealloc(&self, file: &File, part: &Range<u64>) -> bool {
        let covers = |growth: Range<u64>| part.start <= growth.start && growth.end <= part.end;
        file.ends_preallocated_at(part.start)
            && (self.params.options.no_holes || covers(self.params.growth(file, part)))
    }

    /// Preallocates the next step of a file from the space in [`File::window`]. Returns the extent.
    /// Returns `None` if the window lacks the space, or if the part is not the next step.
    fn append_from_window<S: FnOnce(&mut InodeItem)>(
        &self,
        file: &File,
        part: &Range<u64>,
        charge: &mut QuotaCharge,
        changes: &mut InodeChanges<S>,
    ) -> Result<Option<Extent>> {
        let len = part.end - part.start;
        let Some(window) = file.window.get().filter(|window| window.has(len)) else {
            return Ok(None);
        };
        if !self.continues_prealloc(file, part) {
            return Ok(None);
        }
        let (_extents, end) = file.append_extents();
        let Some(end) = end else { return Ok(None) };
        let reservation = self.engine.reserve(STEP_COST, ReserveClass::Normal)?;
        let handle = self.engine.begin(reservation);
        let user = |offset| file.data_ref(offset);
        let last = end.last.filter(|(_, last)| last.len + len <= GROWN_BYTES_MAX);
        let grows = last.map(|(offset, last)| (last, user(offset)));
        let taken = handle.take_ahead(window, len, grows, user(part.start), charge);
        let Some(extent) = taken else {
            // The window was closed meanwhile.
            file.note_end(end);
            return Ok(None);
        };
        let grown = last.filter(|(_, last)| last.start == extent.start);
        let offset = grown.map_or(part.start, |(offset, _)| offset);
        let bytes = Edits::replace(&handle, file, offset, prealloc_item(extent), len);
        file.update_meta(&handle, |meta| {
            bytes.count(meta);
            changes.note_preallocated(file, part, meta);
        });
        file.note_end(End { at: part.end, last: Some((offset, extent)) });
        Ok(Some(extent))
    }

    fn put_prealloc<S: FnOnce(&mut InodeItem)>(
        &self,
        file: &File,
        part: &Range<u64>,
        extent: Extent,
        changes: &mut InodeChanges<S>,
    ) -> Result<()> {
        let (_extents, end) = file.append_extents();
        let appends = end.is_some_and(|end| end.at <= part.start);
        let mut edits = Edits::default();
        if !appends || !self.params.options.no_holes {
            let view = self.engine.view();
            if !appends {
                for mapping in self.params.mappings(&view, file, part.clone(), usize::MAX)? {
                    edits.cut(&mapping, part);
                }
            }
            if !self.params.options.no_holes {
                self.params.fill_growth(&view, file, part, &mut edits)?;
            }
        }
        let alone = edits.len() == 0;
        let cost = edits.cost().and(Edits::COST_OF_ONE);
        let reservation = self.engine.reserve(cost, ReserveClass::Normal)?;
        let handle = self.engine.begin(reservation);
        let last = end.filter(|end| alone && end.at == part.start).and_then(|end| end.last);
        let grown = last.filter(|(offset, last)| {
            last.len + extent.len <= GROWN_BYTES_MAX
                && handle.extend_data(*last, extent, file.data_ref(*offset))
        });
        let (last, bytes) = match grown {
            Some((offset, last)) => {
                let whole = Extent::new(last.start, last.len + extent.len);
                (
                    (offset, whole),
                    Edits::replace(&handle, file, offset, prealloc_item(whole), extent.len),
                )
            }
            None => {
                edits.insert(part.start, prealloc_item(extent));
                ((part.start, extent), edits.apply(&handle, file))
            }
        };
        file.update_meta(&handle, |meta| {
            bytes.count(meta);
            changes.note_preallocated(file, part, meta);
        });
        if let Some(end) = end {
            file.note_end(match appends {
                true => End { at: part.end, last: Some(last) },
                false => {
                    End { at: end.at.max(part.end), last: end.last.filter(|_| part.end <= end.at) }
                }
            });
        }
        Ok(())
    }
}

/// The item of an extent that reads as zeros until it is written.
fn prealloc_item(extent: Extent) -> FileExtent {
    let Extent { start, len } = extent;
    FileExtent {
        generation: Generation(0),
        ram_bytes: len,
        compression: Compression::None,
        body: Body::Prealloc(Region { disk: start, disk_len: len, offset: 0, len }),
    }
}

/// The changes of the inode item while the gaps of a file are filled.
struct InodeChanges<S> {
    /// Start of the range that was asked for, and end of the sectors that it touches.
    offset: u64,
    end: u64,
    /// The file's final length.
    grown: u64,
    /// Sets the times, in the step that completes the range.
    stamp: Option<S>,
}

impl<S: FnOnce(&mut InodeItem)> InodeChanges<S> {
    /// Updates the inode item after a part was preallocated.
    fn note_preallocated(&mut self, file: &File, part: &Range<u64>, meta: &mut Meta) {
        if part.end >= self.end {
            if let Some(stamp) = self.stamp.take() {
                meta.item.size = meta.item.size.max(self.grown);
                advance_disk_size(meta, &file.dirty.lock());
                stamp(&mut meta.item);
            }
        } else if self.offset <= meta.item.size && meta.item.size == meta.disk_size {
            // If the range starts inside the file, the length may grow part by part.
            let size = meta.item.size.max(part.end.min(self.grown));
            meta.item.size = size;
            meta.disk_size = size;
        }
    }
}
