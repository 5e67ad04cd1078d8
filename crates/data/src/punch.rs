//! Punching holes: frees the space of a range while the file keeps its length.
//!
//! # Invariants
//!
//! - **O1** Each step is one handle: a crash in between leaves a range that is punched in part.

use buttress_format::InodeItem;
use buttress_txn::ReserveClass;

use crate::drop_extents::Edits;
use crate::error::Result;
use crate::file::File;
use crate::files::Files;
use crate::step::StepItems;
use crate::writeback::advance_disk_size;

impl Files {
    /// Makes a range read as zeros and frees the whole sectors in it; `stamp` sets the times.
    ///
    /// The caller keeps other threads from changing the file's length or content meanwhile.
    ///
    /// # Errors
    ///
    /// An error of the trees, of a reservation, or of reading a partial sector.
    pub fn punch_hole(
        &self,
        file: &File,
        offset: u64,
        len: u64,
        stamp: impl FnOnce(&mut InodeItem),
    ) -> Result<()> {
        let size = file.size();
        let end = offset.saturating_add(len);
        let (low, high) = (self.params.ceil(offset), self.params.floor(end));
        let live = end.min(size);
        if offset < live {
            if low > high || low == high && low == self.params.ceil(end) {
                // The range lies within one sector.
                self.zero_ends(file, offset, live)?;
            } else {
                if offset < low {
                    self.zero_part(file, offset..low.min(live))?;
                }
                if high < live {
                    self.zero_part(file, high..live)?;
                }
            }
        }
        if low >= high {
            file.touch(stamp);
            return self.put_item(file);
        }
        let _claim = file.claim();
        let (mut stamp, mut step) = (Some(stamp), StepItems::new());
        let mut at = low;
        while at < high {
            let _extents = file.change_extents();
            let view = self.engine.view();
            let there = self.params.mappings(&view, file, at..high, step.0)?;
            let to = match there.last() {
                Some(last) if there.len() == step.0 => last.end.min(high),
                _ => high,
            };
            let mut edits = Edits::default();
            for mapping in &there {
                edits.cut(mapping, &(at..to));
            }
            if !self.params.options.no_holes {
                let covered = self.params.ceil(size).min(to);
                if at < covered {
                    edits.insert_hole(&(at..covered));
                }
                self.params.fill_growth(&view, file, &(at..to), &mut edits)?;
            }
            drop(view);
            let ends = self.placement.reserve_ends(file, &(at..to))?;
            let reserved = step.reserve(&self.engine, edits.cost())?;
            let Some(reservation) = reserved else { continue };
            let handle = self.engine.begin(reservation);
            let bytes = edits.apply(&handle, file);
            file.update_meta(&handle, |meta| {
                bytes.count(meta);
                let mut dirty = file.dirty.lock();
                self.forget(&mut dirty, at..to, ends);
                // The dirty data that delayed the update of the length on disk may be gone.
                advance_disk_size(meta, &dirty);
                if to == high
                    && let Some(stamp) = stamp.take()
                {
                    stamp(&mut meta.item);
                }
            });
            at = to;
        }
        Ok(())
    }

    /// Zeros a range of at most two partial sectors.
    fn zero_ends(&self, file: &File, offset: u64, end: u64) -> Result<()> {
        let middle = self.params.ceil(offset + 1).min(end);
        self.zero_part(file, offset..middle)?;
        if middle < end { self.zero_part(file, middle..end) } else { Ok(()) }
    }

    /// Writes the inode item from memory into the tree.
    pub(crate) fn put_item(&self, file: &File) -> Result<()> {
        let reservation = self.engine.reserve(Edits::default().cost(), ReserveClass::Free)?;
        let handle = self.engine.begin(reservation);
        file.update_meta(&handle, |_| ());
        Ok(())
    }
}
