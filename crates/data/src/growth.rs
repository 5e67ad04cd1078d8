//! Puts hole items into the range by which the length on disk grows, on volumes where holes have
//! items.
//!
//! # Invariants
//!
//! - **W1** Below the length on disk each sector has an item. So an operation that raises that
//!   length puts the items of the new holes in the same handle.

use std::ops::Range;

use buttress_txn::View;

use crate::drop_extents::Edits;
use crate::error::Result;
use crate::file::File;
use crate::params::Params;

impl Params {
    /// Collects hole items for the range by which the length on disk may grow. Leaves out `taken`,
    /// which gets an extent. Called only if holes have items.
    pub(crate) fn fill_growth(
        &self,
        view: &View,
        file: &File,
        taken: &Range<u64>,
        edits: &mut Edits,
    ) -> Result<()> {
        let range = self.growth(file, taken);
        if taken.start <= range.start && range.end <= taken.end {
            return Ok(());
        }
        self.fill_holes(view, file, range, taken, edits)
    }

    /// The range by which the length on disk may grow if `taken` is written.
    pub(crate) fn growth(&self, file: &File, taken: &Range<u64>) -> Range<u64> {
        let meta = file.meta();
        self.ceil(meta.disk_size)..self.ceil(meta.item.size.max(taken.end))
    }

    /// Collects hole items for the parts of `range` that have no item and do not lie in `taken`.
    pub(crate) fn fill_holes(
        &self,
        view: &View,
        file: &File,
        range: Range<u64>,
        taken: &Range<u64>,
        edits: &mut Edits,
    ) -> Result<()> {
        let mut at = range.start;
        let mut hole = |low: u64, high: u64| {
            let parts = [low..high.min(taken.start.max(low)), low.max(taken.end.min(high))..high];
            if taken.is_empty() {
                if low < high {
                    edits.insert_hole(&(low..high));
                }
                return;
            }
            for part in parts.iter().filter(|part| !part.is_empty()) {
                edits.insert_hole(part);
            }
        };
        self.for_each_mapping(view, file, range.clone(), |mapping| {
            if at < mapping.offset {
                hole(at, mapping.offset);
            }
            at = mapping.end;
            Ok(true)
        })?;
        if at < range.end {
            hole(at, range.end);
        }
        Ok(())
    }
}
