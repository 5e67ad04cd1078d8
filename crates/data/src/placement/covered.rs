//! Counts the items that the extents of a write will replace, and the parts in which the write may
//! be finished.
//!
//! # Invariants
//!
//! - **Q1** The counts remain upper bounds until the write is finished.

use std::ops::Range;

use buttress_format::{Compression, InodeFlags};

use crate::error::Result;
use crate::extent_map::{Mapping, continues};
use crate::file::File;
use crate::placement::Placement;

/// Upper bounds for a write, until it is finished (Q1).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Covered {
    /// Extent items that the write may replace.
    pub(crate) items: u32,
    /// Parts after the first, if existing extents may be written in place. Each part is finished in
    /// a step of its own.
    pub(crate) parts: u32,
}

/// Counts the boundaries between parts.
struct Seams {
    at: u64,
    /// Whether the part that ends at `at` may be written in place.
    in_place: Option<bool>,
    /// The boundaries at the start of the write. They count only if the write extends a dirty
    /// piece.
    first: u32,
    count: u32,
}

impl Seams {
    fn meet(&mut self, start: u64, at: u64, in_place: bool) {
        if self.in_place == Some(true) || (self.in_place == Some(false) && in_place) {
            *(if at == start { &mut self.first } else { &mut self.count }) += 1;
        }
        self.in_place = Some(in_place);
    }
}

impl Placement {
    /// Counts the items and parts under `range`, which has whole sectors. The function holds
    /// `extents`, so no ordered extent is finished meanwhile.
    pub(crate) fn count_covered(&self, file: &File, range: &Range<u64>) -> Result<Covered> {
        let flags = file.with_item(|item| item.flags);
        let nocow = flags & InodeFlags::NODATACOW != 0;
        let may_be_in_place = nocow || flags & InodeFlags::PREALLOC != 0;
        let from = range.start.saturating_sub(if may_be_in_place { self.params.sector } else { 0 });
        let mut seams = Seams { at: from, in_place: None, first: 0, count: 0 };
        let mut items = 0;
        let mut left: Option<Mapping> = None;
        let _extents = file.extents.read();
        let view = self.engine.view();
        self.params.for_each_mapping(&view, file, from..range.end, |mapping| {
            items += u32::from(mapping.end > range.start);
            if !may_be_in_place {
                return Ok(true);
            }
            let begin = mapping.offset.max(from);
            if seams.at < begin {
                seams.meet(range.start, seams.at, false);
            }
            let in_place = mapping.is_prealloc()
                || (nocow
                    && mapping.extent.compression == Compression::None
                    && mapping.region().is_some_and(|region| region.disk.0 != 0));
            seams.meet(range.start, begin, in_place);
            seams.at = mapping.end;
            // Converting a preallocated extent replaces its neighbour's item as well.
            let joins = |left: &Mapping| {
                (left.is_prealloc() || mapping.is_prealloc()) && continues(left, &mapping)
            };
            items += u32::from(left.as_ref().is_some_and(joins));
            left = Some(mapping);
            Ok(true)
        })?;
        if may_be_in_place && seams.at < range.end {
            seams.meet(range.start, seams.at, false);
        }
        let dirty = file.dirty.lock();
        let goes_on = range.start > 0 && dirty.is_dirty_at(range.start - self.params.sector);
        let mut parts = seams.count + if goes_on { seams.first } else { 0 };
        if may_be_in_place {
            parts += 2 * dirty.writing_in(range) as u32;
        }
        // Each dirty piece becomes an item, and may split another item into two.
        items += 2 * dirty.pieces_in(range) as u32;
        Ok(Covered { items, parts })
    }
}
