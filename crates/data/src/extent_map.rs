//! Finds the extents that make up a range of a file, as a view shows them.
//!
//! # Invariants
//!
//! - **E1** This module returns only valid mappings: aligned, not empty, inside the extent that
//!   they name. The arithmetic of every caller relies on valid mappings.

use std::ops::Range;

use buttress_format::{Body, Compression, Extent, FileExtent, Key, Logical, Region};
use buttress_txn::View;

use crate::compress::decompress;
use crate::error::{Error, Result};
use crate::file::File;
use crate::params::Params;

/// No valid extent ends past this address: no device is so large. The limit keeps arithmetic around
/// an extent from overflowing.
const DISK_END_MAX: Logical = Logical(i64::MAX as u64);

/// One extent item and the file offset it stands for.
#[derive(Clone, Debug)]
pub(crate) struct Mapping {
    pub(crate) offset: u64,
    pub(crate) extent: FileExtent,
    /// End in the file, rounded up to a sector for an inline extent.
    pub(crate) end: u64,
}

impl Mapping {
    pub(crate) fn region(&self) -> Option<&Region> {
        match &self.extent.body {
            Body::Regular(region) | Body::Prealloc(region) => Some(region),
            Body::Inline(_) => None,
        }
    }

    pub(crate) fn is_inline(&self) -> bool {
        matches!(self.extent.body, Body::Inline(_))
    }

    /// A hole with an item of its own.
    pub(crate) fn is_hole(&self) -> bool {
        self.region().is_some_and(|region| region.disk.0 == 0)
    }

    pub(crate) fn is_prealloc(&self) -> bool {
        matches!(self.extent.body, Body::Prealloc(_))
    }

    /// Bytes that count towards the inode's `nbytes`.
    pub(crate) fn nbytes(&self) -> u64 {
        match self.region() {
            None => self.extent.ram_bytes,
            Some(region) if region.disk.0 == 0 => 0,
            Some(region) => region.len,
        }
    }
}

/// The whole extent on disk that a region is a window of.
pub(crate) fn disk_extent(region: &Region) -> Extent {
    Extent { start: region.disk, len: region.disk_len }
}

impl Params {
    /// Every extent item that touches `range`, in order.
    pub(crate) fn mappings(
        &self,
        view: &View,
        file: &File,
        range: Range<u64>,
        limit: usize,
    ) -> Result<Vec<Mapping>> {
        let mut found = Vec::new();
        self.for_each_mapping(view, file, range, |mapping| {
            found.push(mapping);
            Ok(found.len() < limit)
        })?;
        Ok(found)
    }

    /// Visits every extent item that touches `range`, in order, until `visit` returns false.
    pub(crate) fn for_each_mapping(
        &self,
        view: &View,
        file: &File,
        range: Range<u64>,
        mut visit: impl FnMut(Mapping) -> Result<bool>,
    ) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let low = file.extent_key(0);
        let first = view.at_or_before(file.tree, &low, &file.extent_key(range.start))?;
        let mut next = range.start;
        if let Some((key, item)) = first {
            next = key.offset.saturating_add(1);
            let mapping = self.check(file, key, &item)?;
            if mapping.end > range.start {
                // An item that reaches the end of the range is the last item. Most reads have only
                // this item.
                let done = mapping.end >= range.end;
                next = mapping.end;
                if !visit(mapping)? || done {
                    return Ok(());
                }
            }
        }
        let mut end = next;
        for found in view.range(file.tree, file.extent_key(next), file.extent_key(range.end - 1)) {
            let (key, item) = found?;
            let mapping = self.check(file, key, &item)?;
            if mapping.offset < end {
                return Err(extent_error(file, mapping.offset, "overlaps the one before it"));
            }
            end = mapping.end;
            if !visit(mapping)? {
                break;
            }
        }
        Ok(())
    }

    /// The last extent item that starts before `end`.
    pub(crate) fn last_mapping(
        &self,
        view: &View,
        file: &File,
        end: u64,
    ) -> Result<Option<Mapping>> {
        let Some(last) = end.checked_sub(1) else { return Ok(None) };
        let found = view.at_or_before(file.tree, &file.extent_key(0), &file.extent_key(last))?;
        found.map(|(key, item)| self.check(file, key, &item)).transpose()
    }

    pub(crate) fn check(&self, file: &File, key: Key, item: &[u8]) -> Result<Mapping> {
        let offset = key.offset;
        let extent = FileExtent::parse(item).map_err(|source| Error::Item {
            tree: file.tree,
            ino: file.ino,
            offset,
            source,
        })?;
        let fail = |what| Err(extent_error(file, offset, what));
        let aligned = |n: u64| n & (self.sector - 1) == 0;
        let len = match &extent.body {
            Body::Inline(data) => {
                if offset != 0 {
                    return fail("is inline, but not at the start of the file");
                }
                if extent.ram_bytes > self.sector {
                    return fail("is inline and longer than a sector");
                }
                if extent.compression == Compression::None && data.len() as u64 != extent.ram_bytes
                {
                    return fail("is inline with two lengths");
                }
                self.sector
            }
            Body::Regular(region) | Body::Prealloc(region) => {
                if region.len == 0 || !aligned(region.len) || !aligned(offset) {
                    return fail("is empty or not aligned");
                }
                if region.disk.0 != 0 {
                    let window = region.offset.checked_add(region.len);
                    if window.is_none_or(|window| window > extent.ram_bytes)
                        || !aligned(region.offset)
                        || !aligned(region.disk.0)
                        || !aligned(region.disk_len)
                        || region
                            .disk
                            .checked_add(region.disk_len)
                            .is_none_or(|end| end > DISK_END_MAX)
                    {
                        return fail("shows more than there is");
                    }
                    if extent.compression == Compression::None
                        && window.is_none_or(|window| window > region.disk_len)
                    {
                        return fail("shows more than lies on disk");
                    }
                }
                region.len
            }
        };
        let Some(end) = offset.checked_add(len) else {
            return fail("ends beyond the largest file");
        };
        Ok(Mapping { offset, extent, end })
    }

    /// The content of an inline extent; empty for other extents.
    pub(crate) fn inline_content(&self, mapping: &Mapping) -> Result<Vec<u8>> {
        let Body::Inline(data) = &mapping.extent.body else { return Ok(Vec::new()) };
        decompress(
            mapping.extent.compression,
            Logical(0),
            data,
            mapping.extent.ram_bytes,
            self.sector as usize,
        )
    }
}

pub(crate) fn extent_error(file: &File, offset: u64, what: &'static str) -> Error {
    Error::Extent { tree: file.tree, ino: file.ino, offset, what }
}

/// The part of a mapping that lies in `range`.
pub(crate) fn overlap(mapping: &Mapping, range: &Range<u64>) -> Range<u64> {
    mapping.offset.max(range.start)..mapping.end.min(range.end)
}

/// Whether two neighbouring items show adjacent parts of one uncompressed extent, and at least one
/// of them is not preallocated.
pub(crate) fn continues(left: &Mapping, right: &Mapping) -> bool {
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
