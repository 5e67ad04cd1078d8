//! Writing large aligned ranges straight to the device, past the dirty map.
//!
//! # Invariants
//!
//! - **H1** Until the new extents are visible, readers see the old content. The step that makes
//!   them visible also drops the dirty sectors that they replace.

use std::ops::Range;

use buttress_format::{InodeFlags, InodeItem, Timespec};
use buttress_txn::Cost;

use crate::error::{Error, Result};
use crate::file::File;
use crate::files::Files;
use crate::job::{Choice, Placed, Supply};
use crate::write::SIZE_MAX;
use crate::writeback::grow;

/// The times of a file that is overwritten in place advance in steps of this length, like the
/// kernel's coarse clock. Otherwise every write would change an inode.
const TICK_NANOS: i64 = 4_000_000;

/// The result of an attempt to overwrite in place.
enum Overwrite<S> {
    Done,
    NotHere(S),
}

/// Whether two states of an inode differ only in times, and these times differ by less than a tick.
fn is_same_tick(old: &InodeItem, new: &InodeItem) -> bool {
    let close = |a: Timespec, b: Timespec| {
        let nanos = (b.sec - a.sec).saturating_mul(1_000_000_000);
        (0..TICK_NANOS).contains(&nanos.saturating_add(i64::from(b.nsec) - i64::from(a.nsec)))
    };
    let same = InodeItem { mtime: old.mtime, ctime: old.ctime, ..*new } == *old;
    same && close(old.mtime, new.mtime) && close(old.ctime, new.ctime)
}

impl Files {
    /// Whether [`Files::write_through`] takes a write.
    #[must_use]
    pub fn is_aligned(&self, offset: u64, len: usize) -> bool {
        len > 0
            && offset & (self.params.sector - 1) == 0
            && len as u64 & (self.params.sector - 1) == 0
    }

    /// Writes whole sectors to the device now; `stamp` sets the times.
    ///
    /// The caller keeps other threads from changing the file's length or content meanwhile.
    ///
    /// # Errors
    ///
    /// No space, [`Error::TooBig`], or an error of the device. The file is then unchanged, except
    /// that a part of the range may have been written.
    pub fn write_through(
        &self,
        file: &File,
        offset: u64,
        data: &[u8],
        stamp: impl FnOnce(&mut InodeItem),
    ) -> Result<()> {
        assert!(self.is_aligned(offset, data.len()), "H1: only whole sectors");
        let len = data.len() as u64;
        let end = offset.checked_add(len).filter(|end| *end <= SIZE_MAX).ok_or(Error::TooBig)?;
        let old_size = file.size();
        if self.params.floor(offset) > self.params.floor(old_size) {
            self.secure_tail(file, old_size)?;
        }
        let _claim = file.claim();
        let range = offset..end;
        let stamp = match self.overwrite(file, &range, data, stamp)? {
            Overwrite::Done => return Ok(()),
            Overwrite::NotHere(stamp) => stamp,
        };
        let ends = self.placement.reserve_ends(file, &range)?;
        let placed = self.write_placed(file, offset, data)?;
        self.writeback.finish(file, &placed, &mut None, |meta, dirty| {
            self.forget(dirty, range.clone(), ends);
            meta.item.size = meta.item.size.max(end);
            grow(meta, dirty, &range, end, self.params.sector);
            stamp(&mut meta.item);
        })
    }

    /// Writes over extents that only this file refers to, if nothing else of the file changes.
    fn overwrite<S: FnOnce(&mut InodeItem)>(
        &self,
        file: &File,
        range: &Range<u64>,
        data: &[u8],
        stamp: S,
    ) -> Result<Overwrite<S>> {
        let in_place = InodeFlags::NODATACOW | InodeFlags::NODATASUM;
        let (item, is_inside) = {
            let meta = file.meta();
            (meta.item, range.end <= meta.disk_size)
        };
        if item.flags & in_place != in_place || !is_inside || file.is_dirty() {
            return Ok(Overwrite::NotHere(stamp));
        }
        let Some(part) = self.placement.recall(file, range) else {
            return Ok(Overwrite::NotHere(stamp));
        };
        if let Some(cause) = self.engine.commits().aborted() {
            return Err(buttress_txn::Error::Aborted(cause).into());
        }
        let written = self.volume.write(part.disk().start, data);
        // Drop the cached pages even after a failure, since part of the range may have changed.
        self.pages.forget(part.disk());
        written?;
        let mut stamped = item;
        stamp(&mut stamped);
        if !is_same_tick(&item, &stamped) {
            let reservation = self.placement.reserve_more(Cost::of(1, 160))?;
            let handle = self.engine.begin(reservation);
            file.update(&handle, |item| {
                (item.mtime, item.ctime) = (stamped.mtime, stamped.ctime);
            });
        }
        Ok(Overwrite::Done)
    }

    /// Finds addresses for a range and writes it there.
    fn write_placed(&self, file: &File, offset: u64, data: &[u8]) -> Result<Vec<Placed>> {
        let end = offset + data.len() as u64;
        let flags = file.with_item(|item| item.flags);
        let looks = flags & (InodeFlags::PREALLOC | InodeFlags::NODATACOW) != 0;
        let parts = if looks {
            self.placement.find_in_place(file, offset..end, flags)?
        } else {
            Vec::new()
        };
        let in_place: u64 = parts.iter().map(|part| part.range.end - part.range.start).sum();
        let slack = (parts.len() as u64 + 1) * self.engine.storage().row_slack();
        let need = data.len() as u64 - in_place;
        let charge = self.engine.charge_quota(file.tree(), need)?;
        let reserved = self.engine.reserve_data(need + slack)?.charged(charge);
        let rows = &mut self.engine.storage().begin_rows();
        let mut supply = Supply { reserved, goal: file.goal(), rows };
        let mut placed = Vec::with_capacity(parts.len() + 1);
        let mut at = offset;
        let mut allocated = Ok(());
        for part in parts {
            allocated = self.placement.allocate(at..part.range.start, &mut supply, &mut placed);
            if allocated.is_err() {
                break;
            }
            at = part.range.end;
            placed.push(part);
        }
        let allocated =
            allocated.and_then(|()| self.placement.allocate(at..end, &mut supply, &mut placed));
        let done = allocated.and_then(|()| self.fill(offset, data, flags, &mut placed));
        done.inspect_err(|_| self.placement.unallocate(&placed))?;
        file.set_goal(supply.goal);
        Ok(placed)
    }

    /// Writes a range to new places, compressed if `choice` says so. The extents of the file do not
    /// change.
    pub(crate) fn write_fresh(
        &self,
        file: &File,
        offset: u64,
        data: &[u8],
        choice: Option<Choice>,
    ) -> Result<Vec<Placed>> {
        let range = offset..offset + data.len() as u64;
        let flags = file.with_item(|item| item.flags);
        let packed =
            choice.map_or_else(Vec::new, |choice| self.params.pack_slice(offset, data, choice));
        let need = data.len() as u64 + self.engine.storage().row_slack();
        let charge = self.engine.charge_quota(file.tree(), data.len() as u64)?;
        let reserved = self.engine.reserve_data(need)?.charged(charge);
        let rows = &mut self.engine.storage().begin_rows();
        let mut supply = Supply { reserved, goal: file.goal(), rows };
        let mut placed = Vec::with_capacity(packed.len() + 1);
        self.placement
            .place_parts(range, packed, &mut supply, &mut placed)
            .and_then(|()| self.fill(offset, data, flags, &mut placed))
            .inspect_err(|_| self.placement.unallocate(&placed))?;
        file.set_goal(supply.goal);
        Ok(placed)
    }

    /// Writes the data at `offset` of a file to its allocated places, and computes its checksums.
    fn fill(&self, offset: u64, data: &[u8], flags: u64, placed: &mut [Placed]) -> Result<()> {
        let slice = |range: &Range<u64>| {
            &data[(range.start - offset) as usize..(range.end - offset) as usize]
        };
        let batch: Vec<(_, &[u8])> = placed
            .iter()
            .map(|part| {
                let bytes = match &part.packed {
                    Some(packed) => packed.bytes.as_slice(),
                    None => slice(&part.range),
                };
                (part.disk().start, bytes)
            })
            .collect();
        let written = self.volume.write_batch(&batch);
        placed.iter().for_each(|part| self.pages.forget(part.disk()));
        written?;
        if flags & InodeFlags::NODATASUM == 0 {
            for part in placed.iter_mut().filter(|part| part.packed.is_none()) {
                part.sums = self.params.sums(&[slice(&part.range)]);
            }
        }
        Ok(())
    }
}
