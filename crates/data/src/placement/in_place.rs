//! Writing in place: into preallocated extents, and over extents of files without copy-on-write and
//! without checksums.
//!
//! # Invariants
//!
//! - **N1** A write goes in place only if this file's reference is the only reference to the
//!   extent. Committed, frozen and running references count together. The extent must also be
//!   younger than the subvolume's last snapshot. In an older extent, one reference may stand for a
//!   leaf that several snapshots share.
//! - **N2** The written part of a preallocated extent becomes regular in the step that makes the
//!   data visible. Adjacent pieces of one extent are one item.
//! - **N3** A thread that writes in place holds the right to do so. It takes the right before it
//!   checks the extent (N1), and keeps the right until the data is visible. So no block group is
//!   emptied during the write. Linux takes the right last, after the checks of snapshots,
//!   references and checksums. Here the right is taken first, so it also protects the checked
//!   extents from being moved before the write is visible. If the check refuses a part, the right
//!   for this part is given back. Until then, the right at most delays a thread that drains this
//!   block group.

use std::ops::Range;

use buttress_format::{Body, Compression, Extent, FileExtent, InodeFlags, Logical, Region};
use buttress_txn::{NocowWriter, Stamp, View};

use crate::drop_extents::{Edits, reference_key, window};
use crate::error::Result;
use crate::extent_map::{Mapping, continues, disk_extent, overlap};
use crate::file::File;
use crate::in_place_hints::InPlaceHint;
use crate::job::{Placed, Target};
use crate::placement::Placement;

/// A part of a write, with an extent that may be writable in place.
struct Candidate {
    mapping: Mapping,
    region: Region,
    part: Range<u64>,
    stamp: Stamp,
    right: NocowWriter,
}

impl Placement {
    /// The parts of `range` that may be written in place, with their addresses.
    ///
    /// The caller holds the file's writeback claim, so that these parts do not change.
    pub(crate) fn find_in_place(
        &self,
        file: &File,
        range: Range<u64>,
        flags: u64,
    ) -> Result<Vec<Placed>> {
        let overwrite = InodeFlags::NODATACOW | InodeFlags::NODATASUM;
        let may_overwrite = flags & overwrite == overwrite;
        if may_overwrite && let Some(part) = self.recall(file, &range) {
            return Ok(vec![part]);
        }
        let candidates = self.candidates(file, &range, may_overwrite)?;
        if candidates.is_empty() {
            return Ok(Vec::new());
        }
        // The extents do not move from here on (N3).
        let view = self.engine.view();
        let last_snapshot = buttress_txn::last_snapshot(&view, file.tree())?;
        let mut parts = Vec::with_capacity(candidates.len());
        let mut asked: Option<(Logical, bool)> = None;
        for Candidate { mapping, region, part, stamp, right } in candidates {
            if mapping.extent.generation <= last_snapshot {
                continue;
            }
            let there = self.mapping_at(&view, file, mapping.offset)?;
            if there.is_none_or(|there| there.extent != mapping.extent) {
                continue;
            }
            let exclusive = match asked {
                Some((disk, answer)) if disk == region.disk => answer,
                _ => {
                    let user = file.data_ref(reference_key(mapping.offset, &region));
                    self.engine.extent_is_exclusive(&view, disk_extent(&region), user)?
                }
            };
            asked = Some((region.disk, exclusive));
            let whole = Logical(region.disk.0 + region.offset);
            let disk = Logical(whole.0 + (part.start - mapping.offset));
            let has_sums = |start, range: &Range<u64>| {
                let bytes = Extent { start, len: range.end - range.start };
                self.engine.read_csums(&view, bytes).map(|sums| !sums.is_empty())
            };
            if !exclusive {
                continue;
            }
            let prealloc = mapping.is_prealloc();
            let range = mapping.offset..mapping.end;
            // A remembered part is not checked again. Files from other implementations may have
            // checksums under another part of the extent, so the search for checksums covers the
            // whole extent.
            let is_bare = !prealloc
                && self.params.options.nocow_check.remembers()
                && !has_sums(whole, &range)?;
            if is_bare {
                let hint = InPlaceHint { range, disk: whole, of: region.disk, stamp };
                file.in_place_hints.lock().insert(file.layout(), hint);
            } else if has_sums(disk, &part)? {
                continue;
            }
            let target = Target::InPlace { disk, prealloc };
            let right = Some(right);
            parts.push(Placed {
                range: part,
                target,
                sums: Vec::new(),
                packed: None,
                _right: right,
            });
        }
        Ok(parts)
    }

    /// Parts of `range` with a layout that allows writing in place, each with the right to do so.
    fn candidates(
        &self,
        file: &File,
        range: &Range<u64>,
        may_overwrite: bool,
    ) -> Result<Vec<Candidate>> {
        let mut candidates = Vec::new();
        let view = self.engine.view();
        self.params.for_each_mapping(&view, file, range.clone(), |mapping| {
            let Some(&region) = mapping.region().filter(|region| region.disk.0 != 0) else {
                return Ok(true);
            };
            let fits = mapping.is_prealloc() || may_overwrite;
            if mapping.extent.compression != Compression::None || !fits {
                return Ok(true);
            }
            let part = overlap(&mapping, range);
            let stamp = self.engine.allocation().stamp(region.disk);
            let start = Logical(region.disk.0 + region.offset + (part.start - mapping.offset));
            let bytes = Extent { start, len: part.end - part.start };
            if let Some(right) = self.engine.begin_nocow(bytes) {
                candidates.push(Candidate { mapping, region, part, stamp, right });
            }
            Ok(true)
        })?;
        Ok(candidates)
    }

    /// `range` as one part, if it was checked before and nothing has changed since.
    pub(crate) fn recall(&self, file: &File, range: &Range<u64>) -> Option<Placed> {
        if !self.params.options.nocow_check.remembers() {
            return None;
        }
        let hint = file.in_place_hints.lock().find(file.layout(), range)?;
        let disk = Logical(hint.disk.0 + (range.start - hint.range.start));
        let len = range.end - range.start;
        let right = self.engine.begin_nocow(Extent { start: disk, len })?;
        if self.engine.allocation().stamp(hint.of) != hint.stamp {
            file.in_place_hints.lock().forget(hint.range.start);
            return None;
        }
        debug_assert!(self.still_exclusive(file, &hint), "N1: {hint:?} was remembered wrongly");
        let target = Target::InPlace { disk, prealloc: false };
        let (range, right) = (range.clone(), Some(right));
        Some(Placed { range, target, sums: Vec::new(), packed: None, _right: right })
    }

    /// Repeats all checks of a remembered part, and returns whether it can still be written in
    /// place. Also returns true if a tree cannot be read.
    fn still_exclusive(&self, file: &File, hint: &InPlaceHint) -> bool {
        let view = self.engine.view();
        let look = || -> Result<bool> {
            let last_snapshot = buttress_txn::last_snapshot(&view, file.tree())?;
            let Some(mapping) = self.mapping_at(&view, file, hint.range.start)? else {
                return Ok(false);
            };
            let Some(region) = mapping.region() else { return Ok(false) };
            let user = file.data_ref(reference_key(mapping.offset, region));
            Ok(mapping.end == hint.range.end
                && region.disk == hint.of
                && region.disk.0 + region.offset == hint.disk.0
                && !mapping.is_prealloc()
                && mapping.extent.generation > last_snapshot
                && self.engine.extent_is_exclusive(&view, disk_extent(region), user)?
                && self
                    .engine
                    .read_csums(&view, Extent { start: hint.disk, len: region.len })?
                    .is_empty())
        };
        look().unwrap_or(true)
    }

    /// Turns the preallocated parts of `range` into regular extents (N2).
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
                && let Some(left) = self.params.last_mapping(view, file, mapping.offset)?
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
        let mut found = self.params.mappings(view, file, offset..offset + 1, 1)?;
        Ok(found.pop().filter(|mapping| mapping.offset == offset))
    }
}

/// The new items of a preallocated extent after a write to `part`. `written` is `part` joined with
/// its regular neighbours.
fn reshaped(mapping: &Mapping, part: &Range<u64>, written: &Range<u64>) -> Vec<(u64, FileExtent)> {
    let mut new = Vec::with_capacity(3);
    if mapping.offset < part.start {
        new.push((mapping.offset, window(&mapping.extent, 0, part.start - mapping.offset)));
    }
    if let Body::Prealloc(region) = &mapping.extent.body {
        let mut region = *region;
        // The written range may start before the mapping, in its left neighbour.
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
