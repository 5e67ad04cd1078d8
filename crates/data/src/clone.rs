//! Sharing: a file shows a range of another file, or of itself, without a copy of its bytes.
//!
//! # Invariants
//!
//! - **S1** Shared data is on disk: the source's dirty data is written back first. The source's
//!   extents do not change while steps are computed, since its `extents` lock is held shared.
//! - **S2** Each step takes references and drops the replaced references in one handle. A crash in
//!   between leaves a target with a part of the range, but never an extent without its reference.
//! - **S3** Items of the target keep the generation of the items that they were copied from. The
//!   data is as old as that generation.
//! - **S4** No file has both extents with checksums and extents without checksums.

use std::ops::Range;

use buttress_format::{InodeFlags, InodeItem};
use buttress_txn::ReserveClass;

use crate::drop_extents::{Edits, window};
use crate::error::{Error, Result};
use crate::extent_map::Mapping;
use crate::extent_map::overlap;
use crate::file::File;
use crate::files::Files;
use crate::step::STEP_ITEMS;
use crate::write::SIZE_MAX;
use crate::writeback::grow;

/// The number of bytes of two ranges that are compared at a time.
const COMPARE_BYTES: usize = 1 << 20;

/// A range of one file, and its place in another file.
#[derive(Clone, Copy, Debug)]
pub struct CloneRange<'f> {
    /// The file that has the bytes.
    pub source: &'f File,
    /// The offset in the source; a whole number of sectors.
    pub offset: u64,
    /// The file that will show the bytes, too; may be the source.
    pub target: &'f File,
    /// The offset in the target; a whole number of sectors.
    pub target_offset: u64,
    /// The number of bytes; a whole number of sectors, or up to the end of the source.
    pub len: u64,
}

impl CloneRange<'_> {
    fn is_within_one(&self) -> bool {
        std::ptr::eq(self.source, self.target)
    }
}

impl Files {
    /// Makes `target` show a range of `source`; `stamp` sets the target's times.
    ///
    /// The caller keeps other threads from changing length or content of both files meanwhile.
    ///
    /// # Errors
    ///
    /// [`Error::Unshareable`] for ranges that cannot be shared, [`Error::TooBig`], no space, or an
    /// error of the trees. In these cases a part of the range may be shared.
    pub fn clone_range(
        &self,
        range: &CloneRange<'_>,
        stamp: impl FnOnce(&mut InodeItem),
    ) -> Result<()> {
        self.check_clone(range)?;
        let CloneRange { source, offset, target, target_offset, len } = *range;
        if len == 0 {
            return Ok(());
        }
        let old_size = target.size();
        if target_offset > old_size {
            self.truncate(target, target_offset, |_| ())?;
        }
        if target_offset > 0 && self.has_inline(target)? {
            self.dirty_sector(target, 0, old_size)?;
            self.writeback.write_back(target, 0..self.params.sector)?;
        }
        // Data that waits to be written in place has no space reserved. It must be written back
        // before its extent is shared.
        let in_place = InodeFlags::NODATACOW | InodeFlags::PREALLOC;
        let waiting = match source.with_item(|item| item.flags & in_place) {
            0 => offset..self.params.ceil(offset + len),
            _ => 0..u64::MAX,
        };
        self.writeback.write_back(source, waiting)?;
        let copied = self.copy_inline(range)?;
        // Unwritten data has visible extents and is not yet on the device (`dirty::P3`). If the
        // write of this data fails, the extents are taken back. As long as this can happen, these
        // extents must not be shared. While this thread has the source's claim, the source has no
        // unwritten data. Two threads cannot wait for each other's claims here, because the caller
        // has locked both inodes.
        let _of_source = (!range.is_within_one()).then(|| source.claim());
        let _claim = target.claim();
        let mut stamp = Some(stamp);
        let mut at = offset + copied;
        let end = self.params.ceil(offset + len);
        loop {
            let step = at..end;
            at = self.clone_step(range, step, |item, to| {
                if to == end
                    && let Some(stamp) = stamp.take()
                {
                    stamp(item);
                }
            })?;
            if at >= end {
                return Ok(());
            }
        }
    }

    /// Makes `target` share a range of `source` if the ranges of both files hold the same bytes.
    /// Returns whether the bytes are the same.
    ///
    /// The caller keeps other threads from changing length or content of both files meanwhile.
    ///
    /// # Errors
    ///
    /// As [`Files::clone_range`]; also when the range reaches past the target's end.
    pub fn dedupe_range(&self, range: &CloneRange<'_>) -> Result<bool> {
        self.check_clone(range)?;
        let CloneRange { source, offset, target, target_offset, len } = *range;
        let (end, size) = (target_offset + len, target.size());
        if end > size || (end & (self.params.sector - 1) != 0 && end != size) {
            return Err(Error::Unshareable("it reaches past the end of what it is compared with"));
        }
        let part = usize::try_from(len).unwrap_or(usize::MAX).min(COMPARE_BYTES);
        let (mut left, mut right) = (vec![0; part], vec![0; part]);
        let mut at = 0;
        while at < len {
            let part = usize::try_from(len - at).unwrap_or(usize::MAX).min(part);
            let (left, right) = (&mut left[..part], &mut right[..part]);
            let read = self.reader.read(source, offset + at, left)?;
            let also = self.reader.read(target, target_offset + at, right)?;
            if read != part || also != part || left != right {
                return Ok(false);
            }
            at += part as u64;
        }
        self.clone_range(range, |_| ())?;
        Ok(true)
    }

    fn check_clone(&self, range: &CloneRange<'_>) -> Result<()> {
        let CloneRange { source, offset, target, target_offset, len } = *range;
        let unaligned = |n: u64| n & (self.params.sector - 1) != 0;
        let refuse = |why| Err(Error::Unshareable(why));
        let (end, size) = (offset.saturating_add(len), source.size());
        let target_end = target_offset.checked_add(len).filter(|end| *end <= SIZE_MAX);
        let target_end = target_end.ok_or(Error::TooBig)?;
        if unaligned(offset) || unaligned(target_offset) || (unaligned(end) && end != size) {
            return refuse("it is no whole number of sectors");
        }
        if end > size {
            return refuse("it reaches past the end of the file");
        }
        if unaligned(end) && target_end < target.size() {
            return refuse("the end of a file can only become the end of a file");
        }
        if range.is_within_one() && offset.abs_diff(target_offset) < len {
            return refuse("it overlaps itself");
        }
        let sums = |file: &File| file.with_item(|item| item.flags & InodeFlags::NODATASUM);
        if sums(source) != sums(target) {
            return refuse("one of the files has checksums and the other has none");
        }
        Ok(())
    }

    /// Copies inline content, which has no extent to share. Returns how many bytes of the range, in
    /// whole sectors, were copied.
    fn copy_inline(&self, range: &CloneRange<'_>) -> Result<u64> {
        if range.offset > 0 {
            return Ok(0);
        }
        let mut content = {
            let _extents = range.source.extents.read();
            let view = self.engine.view();
            let there = self.params.mappings(&view, range.source, 0..self.params.sector, 1)?;
            match there.first() {
                Some(mapping) if mapping.is_inline() => self.params.inline_content(mapping)?,
                _ => return Ok(0),
            }
        };
        content.resize(range.len.min(self.params.sector) as usize, 0);
        self.write(
            range.target,
            range.target_offset,
            &content,
            crate::ReclaimEffort::Full,
            |_| (),
        )?;
        Ok(self.params.sector)
    }

    /// Clones as much as one handle can. Returns the offset in the source that the step reached.
    /// `finish` runs inside the handle.
    fn clone_step(
        &self,
        range: &CloneRange<'_>,
        rest: Range<u64>,
        finish: impl FnOnce(&mut InodeItem, u64),
    ) -> Result<u64> {
        let CloneRange { source, offset, target, target_offset, len } = *range;
        let moved = |at: u64| at - offset + target_offset;
        let _source = (!range.is_within_one()).then(|| source.extents.read());
        let _extents = target.change_extents();
        let view = self.engine.view();
        let limited = |found: &[Mapping], end: u64| match found.last() {
            Some(last) if found.len() == STEP_ITEMS => last.end.min(end),
            _ => end,
        };
        let there = self.params.mappings(&view, source, rest.clone(), STEP_ITEMS)?;
        let to = limited(&there, rest.end);
        let gone = self.params.mappings(&view, target, moved(rest.start)..moved(to), STEP_ITEMS)?;
        let part = moved(rest.start)..limited(&gone, moved(to));
        let to = part.end - target_offset + offset;
        let mut edits = Edits::default();
        for mapping in &gone {
            edits.cut(mapping, &part);
        }
        let step = rest.start..to;
        let mut at = step.start;
        for mapping in there.iter().filter(|mapping| mapping.offset < to) {
            let shown = overlap(mapping, &step);
            if mapping.is_hole() || mapping.is_inline() || shown.is_empty() {
                continue;
            }
            if !self.params.options.no_holes && at < shown.start {
                edits.insert_hole(&(moved(at)..moved(shown.start)));
            }
            at = shown.end;
            let skip = shown.start - mapping.offset;
            let item = window(&mapping.extent, skip, shown.end - shown.start);
            edits.share(moved(shown.start), item);
        }
        if !self.params.options.no_holes {
            if at < to {
                edits.insert_hole(&(moved(at)..part.end));
            }
            self.params.fill_growth(&view, target, &part, &mut edits)?;
        }
        drop(view);
        let ends = self.placement.reserve_ends(target, &part)?;
        let reservation = self.engine.reserve(edits.cost(), ReserveClass::Normal)?;
        let handle = self.engine.begin(reservation);
        let bytes = edits.apply(&handle, target);
        target.update_meta(&handle, |meta| {
            bytes.count(meta);
            let mut dirty = target.dirty.lock();
            self.forget(&mut dirty, part.clone(), ends);
            let size = meta.item.size.max(part.end.min(target_offset + len));
            meta.item.size = size;
            grow(meta, &dirty, &part, size, self.params.sector);
            finish(&mut meta.item, to);
        });
        Ok(to)
    }
}
