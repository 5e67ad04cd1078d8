//! Writing where the data already has its place: into preallocated extents, and over extents of files
//! that neither copy on write nor carry checksums.
//!
//! # Invariants
//!
//! - **N1** In place only where this file's reference is the only one, by committed, frozen and running
//!   references together (T10), and younger than the subvolume's last snapshot: before, a leaf that
//!   snapshots share counts as one reference.
//! - **N2** A preallocated part that was written becomes regular in the step that makes it visible; pieces
//!   that show one extent back to back are one item.

use std::ops::Range;

use buttress_format::{Body, Compression, FileExtent, InodeFlags, Logical};
use buttress_txn::View;

use crate::drop_extents::{Edits, reference_key, window};
use crate::error::Result;
use crate::extent_map::{Mapping, disk_extent};
use crate::file::File;
use crate::files::Files;
use crate::land::overlap;
use crate::writeback::{Placed, Target};

impl Files {
    /// The parts of `range` that may be written in place, with their addresses.
    ///
    /// The caller holds the file's writeback claim, so that they stay what they are.
    pub(crate) fn in_place(
        &self,
        file: &File,
        range: Range<u64>,
        flags: u64,
    ) -> Result<Vec<Placed>> {
        let view = self.engine.view();
        let overwrite = InodeFlags::NODATACOW | InodeFlags::NODATASUM;
        let may_overwrite = flags & overwrite == overwrite;
        let mut spots: Vec<Placed> = Vec::new();
        let mut asked: Option<(Logical, bool)> = None;
        let last_snapshot = self.engine.last_snapshot(&view, file.tree())?;
        self.for_each_mapping(&view, file, range.clone(), |mapping| {
            let Some(region) = mapping.region().filter(|region| region.disk.0 != 0) else {
                return Ok(true);
            };
            let prealloc = mapping.is_prealloc();
            if mapping.extent.compression != Compression::None || !(prealloc || may_overwrite) {
                return Ok(true);
            }
            if mapping.extent.generation <= last_snapshot {
                return Ok(true);
            }
            let exclusive = match asked {
                Some((disk, answer)) if disk == region.disk => answer,
                _ => {
                    let who = file.data_ref(reference_key(mapping.offset, region));
                    self.engine.extent_is_exclusive(&view, disk_extent(region), who)?
                }
            };
            asked = Some((region.disk, exclusive));
            if exclusive {
                let part = overlap(&mapping, &range);
                let disk = Logical(region.disk.0 + region.offset + (part.start - mapping.offset));
                let target = Target::InPlace { disk, prealloc };
                spots.push(Placed { range: part, target, sums: Vec::new(), packed: None });
            }
            Ok(true)
        })?;
        Ok(spots)
    }

    /// Turns what of `range` is preallocated into regular extents (N2).
    pub(crate) fn convert(
        &self,
        view: &View,
        file: &File,
        there: &[Mapping],
        range: &Range<u64>,
        edits: &mut Edits,
    ) -> Result<()> {
        for mapping in there.iter().filter(|mapping| mapping.is_prealloc()) {
            let part = overlap(mapping, range);
            let mut old = vec![mapping.clone()];
            let mut written = part.clone();
            if part.start == mapping.offset
                && let Some(left) = self.last_mapping(view, file, mapping.offset)?
                && continues(&left, mapping)
            {
                written.start = left.offset;
                old.push(left);
            }
            if part.end == mapping.end
                && let Some(right) = self.mapping_at(view, file, mapping.end)?
                && continues(mapping, &right)
                && !right.is_prealloc()
            {
                written.end = right.end;
                old.push(right);
            }
            edits.reshape(&old, reshaped(mapping, &part, &written));
        }
        Ok(())
    }

    fn mapping_at(&self, view: &View, file: &File, offset: u64) -> Result<Option<Mapping>> {
        let mut found = self.mappings(view, file, offset..offset + 1, 1)?;
        Ok(found.pop().filter(|mapping| mapping.offset == offset))
    }
}

/// Whether a regular item and its right neighbour show one extent back to back.
fn continues(left: &Mapping, right: &Mapping) -> bool {
    let (Some(a), Some(b)) = (left.region(), right.region()) else { return false };
    let plain = |mapping: &Mapping| mapping.extent.compression == Compression::None;
    let regular = |mapping: &Mapping| matches!(mapping.extent.body, Body::Regular(_));
    (regular(left) || regular(right))
        && plain(left)
        && plain(right)
        && a.disk == b.disk
        && a.disk.0 != 0
        && left.end == right.offset
        && a.offset + a.len == b.offset
}

/// The items of a preallocated extent of which `part` was written; `written` is `part` with the regular
/// neighbours that it joins.
fn reshaped(mapping: &Mapping, part: &Range<u64>, written: &Range<u64>) -> Vec<(u64, FileExtent)> {
    let mut new = Vec::with_capacity(3);
    if mapping.offset < part.start {
        new.push((mapping.offset, window(&mapping.extent, 0, part.start - mapping.offset)));
    }
    if let Body::Prealloc(region) = &mapping.extent.body {
        let mut region = *region;
        // The window may start before the mapping's own, in the left neighbour.
        region.offset = (region.offset + written.start) - mapping.offset;
        region.len = written.end - written.start;
        let extent = FileExtent { body: Body::Regular(region), ..mapping.extent.clone() };
        new.push((written.start, extent));
    }
    if part.end < mapping.end {
        let skip = part.end - mapping.offset;
        new.push((part.end, window(&mapping.extent, skip, mapping.end - part.end)));
    }
    new
}
