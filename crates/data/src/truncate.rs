//! Changing a file's length.
//!
//! # Invariants
//!
//! - **T1** A cut works from the end in bounded steps, each with its own handle. Each step also
//!   lowers the length on disk. So after a crash the file may be longer than requested, but it is
//!   consistent.
//! - **T2** Growing never shows bytes that lay past the old length.

use buttress_format::{Body, Compression, FileExtent, InodeItem};
use buttress_txn::{ReserveClass, View};

use crate::drop_extents::Edits;
use crate::error::{Error, Result};
use crate::extent_map::Mapping;
use crate::file::{End, File};
use crate::files::Files;
use crate::step::StepItems;
use crate::write::SIZE_MAX;
use crate::writeback::advance_disk_size;

impl Files {
    /// Sets the length; `stamp` sets the times in the last step.
    ///
    /// Setting the length that a file already has is a cut, as in Linux: it removes space that was
    /// preallocated past the end. So the call reserves metadata as an operation that frees space
    /// does, and waits for the file's writeback.
    ///
    /// The caller keeps other threads from changing the file's length or content meanwhile.
    ///
    /// # Errors
    ///
    /// [`Error::TooBig`], or an error of the trees, of a reservation, or from reading a partial
    /// sector.
    pub fn truncate(
        &self,
        file: &File,
        size: u64,
        stamp: impl FnOnce(&mut InodeItem),
    ) -> Result<()> {
        if size > SIZE_MAX {
            return Err(Error::TooBig);
        }
        let old_size = file.size();
        if size <= old_size {
            return self.shorten(file, size, stamp);
        }
        self.secure_tail(file, old_size)?;
        self.lengthen(file, size, stamp)
    }

    /// Raises the length over a hole. The caller has ensured T2.
    pub(crate) fn lengthen(
        &self,
        file: &File,
        size: u64,
        stamp: impl FnOnce(&mut InodeItem),
    ) -> Result<()> {
        let mut edits = Edits::default();
        // If holes have no items, the extents do not change. Prepared data of this file relies on
        // unchanged extents.
        let held = (!self.params.options.no_holes).then(|| file.append_extents());
        if held.is_some() {
            let end = self.params.ceil(size);
            self.params.fill_growth(&self.engine.view(), file, &(end..end), &mut edits)?;
        }
        let same = edits.len() == 0;
        let inline = self.placement.missing_inline(file, size);
        let cost = edits.cost().and(inline.unwrap_or_default());
        let mut reservation = self.engine.reserve(cost, ReserveClass::Normal)?;
        let mut inline = inline.map(|inline| reservation.split_cost(inline).0);
        let handle = self.engine.begin(reservation);
        let bytes = edits.apply(&handle, file);
        file.update_meta(&handle, |meta| {
            bytes.count(meta);
            meta.item.size = meta.item.size.max(size);
            let mut dirty = file.dirty.lock();
            self.placement.keep_inline(meta, &mut dirty, &mut inline);
            advance_disk_size(meta, &dirty);
            stamp(&mut meta.item);
        });
        if let Some((_, Some(end))) = &held
            && same
        {
            file.note_end(*end);
        }
        Ok(())
    }

    /// Removes extents past the length that an unfinished cut has left.
    ///
    /// # Errors
    ///
    /// As [`Files::truncate`].
    pub fn cut_leftovers(&self, file: &File) -> Result<()> {
        self.shorten(file, file.size(), |_| ())
    }

    fn shorten(&self, file: &File, size: u64, stamp: impl FnOnce(&mut InodeItem)) -> Result<()> {
        let _claim = file.claim();
        let keep = self.params.ceil(size);
        // Metadata was reserved for the data as a sector, not as an inline extent. If the metadata
        // of an inline extent is not free at once, the thread that finishes the extent reserves it.
        let mut inline = match self.placement.missing_inline(file, size) {
            Some(cost) => self.engine.reserve_at_once(cost, ReserveClass::Normal)?,
            None => None,
        };
        {
            let mut meta = file.meta();
            let mut dirty = file.dirty.lock();
            self.forget(&mut dirty, keep..u64::MAX, None);
            if size < keep && dirty.is_dirty_at(self.params.floor(size)) {
                dirty.patch(size, &vec![0; (keep - size) as usize]);
            }
            meta.item.size = size;
            self.placement.keep_inline(&meta, &mut dirty, &mut inline);
            meta.shrinks = true;
        }
        let cut = self.cut_in_steps(file, size, stamp);
        let mut meta = file.meta();
        meta.shrinks = false;
        if cut.is_err() {
            // T1: the length still covers the part that is not cut yet.
            meta.item.size = meta.item.size.max(meta.disk_size);
        }
        cut
    }

    /// Removes extents past the length, which is `size` already.
    fn cut_in_steps(
        &self,
        file: &File,
        size: u64,
        stamp: impl FnOnce(&mut InodeItem),
    ) -> Result<()> {
        let keep = self.params.ceil(size);
        let (mut stamp, mut step) = (Some(stamp), StepItems::new());
        loop {
            let _extents = file.change_extents();
            let view = self.engine.view();
            let mut edits = Edits::default();
            let reached = self.cut_from_end(&view, file, (size, step.0), &mut edits)?;
            let done = reached <= keep;
            if done && !self.params.options.no_holes {
                let disk_size = file.meta().disk_size;
                self.params.fill_holes(
                    &view,
                    file,
                    self.params.ceil(disk_size)..keep,
                    &(keep..keep),
                    &mut edits,
                )?;
            }
            drop(view);
            let reserved = step.reserve(&self.engine, edits.cost())?;
            let Some(reservation) = reserved else { continue };
            let handle = self.engine.begin(reservation);
            let bytes = edits.apply(&handle, file);
            file.update_meta(&handle, |meta| {
                bytes.count(meta);
                meta.disk_size = meta.disk_size.min(if done { size } else { reached });
                if done {
                    file.note_end(End { at: keep, last: None });
                    meta.ordered_end = meta.ordered_end.min(keep);
                    meta.shrinks = false;
                    // The data that kept the length on disk from growing may just have been
                    // forgotten.
                    advance_disk_size(meta, &file.dirty.lock());
                    if let Some(stamp) = stamp.take() {
                        stamp(&mut meta.item);
                    }
                }
            });
            if done {
                return Ok(());
            }
        }
    }

    /// Collects the removal of extents past `size`, from the end. Returns the offset after which no
    /// extent is left.
    fn cut_from_end(
        &self,
        view: &View,
        file: &File,
        (size, step): (u64, usize),
        edits: &mut Edits,
    ) -> Result<u64> {
        let keep = self.params.ceil(size);
        let mut end = u64::MAX;
        while edits.len() < step {
            let Some(mapping) = self.params.last_mapping(view, file, end)? else { return Ok(0) };
            if mapping.is_inline() {
                self.shorten_inline(&mapping, size, edits)?;
                return Ok(0);
            }
            if mapping.end <= keep {
                return Ok(keep);
            }
            edits.cut(&mapping, &(keep.max(mapping.offset)..u64::MAX));
            if mapping.offset <= keep {
                return Ok(keep);
            }
            end = mapping.offset;
        }
        Ok(end)
    }

    fn shorten_inline(&self, mapping: &Mapping, size: u64, edits: &mut Edits) -> Result<()> {
        if size >= mapping.extent.ram_bytes {
            return Ok(());
        }
        if size == 0 {
            edits.cut(mapping, &(0..self.params.sector));
            return Ok(());
        }
        let mut content = self.params.inline_content(mapping)?;
        content.truncate(size as usize);
        let extent = FileExtent {
            ram_bytes: size,
            compression: Compression::None,
            body: Body::Inline(content),
            ..mapping.extent.clone()
        };
        edits.replace_inline(mapping, extent);
        Ok(())
    }
}
