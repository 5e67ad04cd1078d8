//! The two forms of the free space of a block group in the free-space tree.
//!
//! # Place
//!
//! This module has pure functions that convert between sorted free extents and the items of one
//! group. `txn` applies a transaction's changes to the extents and writes the items that differ.
//!
//! # On disk
//!
//! ```text
//! key                                    payload
//! (group start, FREE_SPACE_INFO,   group len)  extent count, flags: which form
//! (start,       FREE_SPACE_EXTENT,       len)  empty
//! (start,       FREE_SPACE_BITMAP,      span)  one bit a sector, lowest first, set if free
//! ```
//!
//! Bitmaps cover the group without gaps from its start, [`BITMAP_BITS`] sectors each. The last
//! bitmap covers the rest, in as many bytes as the rest needs. In both forms the extent count is
//! the number of contiguous runs.
//!
//! Ranges under superblocks are free in this tree.
//!
//! # Invariants
//!
//! - **B1** [`parse`] reads the items of [`write()`] back as the same extents.
//! - **B2** Between the two thresholds a group keeps its form. So a count that goes up and down
//!   does not convert the group each time.

use buttress_format::{Extent, FreeSpaceInfo, Key, Kind, Logical, header};

/// Sectors that one full bitmap covers.
pub const BITMAP_BITS: u64 = FreeSpaceInfo::BITMAP_BITS;

/// Bytes of a full bitmap.
const BITMAP_BYTES: u64 = BITMAP_BITS / 8;

/// Bytes of an item in a leaf besides its payload.
const ITEM_BYTES: u64 = header::ITEM_LEN as u64;

/// How far the count must fall below the upper threshold before extents are used again.
const HYSTERESIS: u64 = 100;

/// The form of the free space of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// One item for each free extent.
    Extents,
    /// One bit for each sector.
    Bitmaps,
}

impl Form {
    /// The form that a group's info item names.
    #[must_use]
    pub fn of(info: &FreeSpaceInfo) -> Self {
        if info.uses_bitmaps() { Self::Bitmaps } else { Self::Extents }
    }

    /// The info item of a group in this form.
    #[must_use]
    pub fn info(self, extent_count: u32) -> FreeSpaceInfo {
        let flags = match self {
            Self::Extents => 0,
            Self::Bitmaps => FreeSpaceInfo::USING_BITMAPS,
        };
        FreeSpaceInfo { extent_count, flags }
    }
}

/// One item of the free-space tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormItem {
    /// The key of the item.
    pub key: Key,
    /// The payload; empty for an extent.
    pub payload: Vec<u8>,
}

/// Reasons why items are not valid as the free space of a group.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FormError {
    /// The item belongs to the other form, or to no form at all.
    #[error("item {key} does not belong to a group with free space kept as {form:?}")]
    Kind {
        /// The item's key.
        key: Key,
        /// The form of the group.
        form: Form,
    },
    /// The range is not inside the group, or empty.
    #[error("item {key} does not lie inside the block group {group}")]
    Outside {
        /// The item's key.
        key: Key,
        /// First byte of the group.
        group: Logical,
    },
    /// The range is not made of whole sectors.
    #[error("item {key} is not made of whole sectors")]
    Unaligned {
        /// The item's key.
        key: Key,
    },
    /// The range overlaps the range of an earlier item, or comes before it.
    #[error("item {key} overlaps an earlier one")]
    Disorder {
        /// The item's key.
        key: Key,
    },
    /// A bitmap is missing, or does not cover its range of the group.
    #[error("bitmap {key} should be the one at {start} that covers {span} bytes")]
    Bitmap {
        /// The key of the item that was found.
        key: Key,
        /// The start of the next bitmap.
        start: Logical,
        /// The bytes that the next bitmap covers.
        span: u64,
    },
    /// The bitmaps end before the end of the group.
    #[error("bitmaps of block group {group} end at {end}")]
    BitmapsEnd {
        /// First byte of the group.
        group: Logical,
        /// The end of the last bitmap.
        end: Logical,
    },
    /// The payload has the wrong size.
    #[error("item {key} has {found} bytes, {expected} expected")]
    Payload {
        /// The item's key.
        key: Key,
        /// The size that the payload should have, in bytes.
        expected: u64,
        /// The size that the payload has, in bytes.
        found: usize,
    },
    /// The count in the info item differs from the number of extents.
    #[error("block group {group} has {found} free extents, its info item says {expected}")]
    Count {
        /// First byte of the group.
        group: Logical,
        /// The count in the info item.
        expected: u32,
        /// The number of extents that were found.
        found: usize,
    },
}

/// Returns how many bitmaps a group of `group_len` bytes has in bitmap form.
#[must_use]
pub fn bitmap_count(group_len: u64, sectorsize: u32) -> u64 {
    group_len.div_ceil(span_max(sectorsize))
}

/// Returns the count of extents above which bitmaps take less space than extent items.
#[must_use]
pub fn upper_threshold(group_len: u64, sectorsize: u32) -> u64 {
    bitmap_count(group_len, sectorsize) * (ITEM_BYTES + BITMAP_BYTES) / ITEM_BYTES
}

/// Returns the count of extents below which a group in bitmap form goes back to extents.
#[must_use]
pub fn lower_threshold(group_len: u64, sectorsize: u32) -> u64 {
    upper_threshold(group_len, sectorsize).saturating_sub(HYSTERESIS)
}

/// Returns the form that a group with `extent_count` free extents has next (B2).
#[must_use]
pub fn next_form(current: Form, extent_count: u32, group_len: u64, sectorsize: u32) -> Form {
    let count = u64::from(extent_count);
    match current {
        Form::Extents if count > upper_threshold(group_len, sectorsize) => Form::Bitmaps,
        Form::Bitmaps if count < lower_threshold(group_len, sectorsize) => Form::Extents,
        unchanged => unchanged,
    }
}

/// Bytes that a full bitmap covers.
fn span_max(sectorsize: u32) -> u64 {
    u64::from(sectorsize) * BITMAP_BITS
}

/// Makes the items for the free space, in the order of their keys.
///
/// # Panics
///
/// If the group does not consist of whole sectors. Also if the extents are not sorted whole sectors
/// of the group with gaps between them. Both are bugs of the caller.
#[must_use]
pub fn write(group: Extent, sectorsize: u32, form: Form, free: &[Extent]) -> Vec<FormItem> {
    assert_sound(group, sectorsize, free);
    match form {
        Form::Extents => free.iter().map(extent_item).collect(),
        Form::Bitmaps => write_bitmaps(group, sectorsize, free),
    }
}

fn assert_sound(group: Extent, sectorsize: u32, free: &[Extent]) {
    let whole = |bytes: u64| bytes.is_multiple_of(u64::from(sectorsize));
    assert!(whole(group.start.0) && whole(group.len) && group.len > 0, "B1: group {group:?}");
    let mut last_end = None;
    for extent in free {
        assert!(whole(extent.start.0) && whole(extent.len) && extent.len > 0, "B1: {extent:?}");
        assert!(extent.start >= group.start && extent.end() <= group.end(), "B1: {extent:?}");
        assert!(last_end.is_none_or(|last| extent.start > last), "B1: {extent:?} out of order");
        last_end = Some(extent.end());
    }
}

fn extent_item(extent: &Extent) -> FormItem {
    let key = Key::new(extent.start.0, Kind::FREE_SPACE_EXTENT, extent.len);
    FormItem { key, payload: Vec::new() }
}

fn write_bitmaps(group: Extent, sectorsize: u32, free: &[Extent]) -> Vec<FormItem> {
    let sector = u64::from(sectorsize);
    let mut items: Vec<_> = bitmap_spans(group, sectorsize)
        .map(|Extent { start, len }| FormItem {
            key: Key::new(start.0, Kind::FREE_SPACE_BITMAP, len),
            payload: vec![0; bitmap_bytes(len, sector) as usize],
        })
        .collect();
    for extent in free {
        let mut bit = extent.start.distance(group.start) / sector;
        let end = bit + extent.len / sector;
        while bit < end {
            let index = bit / BITMAP_BITS;
            let base = index * BITMAP_BITS;
            let stop = end.min(base + BITMAP_BITS);
            set_bits(
                &mut items[index as usize].payload,
                (bit - base) as usize,
                (stop - base) as usize,
            );
            bit = stop;
        }
    }
    items
}

/// The range of each bitmap of a group.
fn bitmap_spans(group: Extent, sectorsize: u32) -> impl Iterator<Item = Extent> {
    let full = span_max(sectorsize);
    (0..bitmap_count(group.len, sectorsize)).map(move |index| {
        let offset = index * full;
        Extent { start: Logical(group.start.0 + offset), len: full.min(group.len - offset) }
    })
}

fn bitmap_bytes(span: u64, sector: u64) -> u64 {
    (span / sector).div_ceil(8)
}

fn set_bits(bitmap: &mut [u8], start: usize, end: usize) {
    let mut bit = start;
    while bit < end {
        let stop = end.min((bit / 8 + 1) * 8);
        let mask = (0xff_u8 << (bit % 8)) & (0xff_u8 >> ((8 - stop % 8) % 8));
        bitmap[bit / 8] |= mask;
        bit = stop;
    }
}

/// Reads the free extents of a group from its items. These are all items with a key from the start
/// of the group up to its end. The info item, which has the form and the count, is not among these
/// items. Adjacent extents are merged.
///
/// # Errors
///
/// When the items cannot be the free space of this group.
pub fn parse<'a>(
    group: Extent,
    sectorsize: u32,
    info: &FreeSpaceInfo,
    items: impl IntoIterator<Item = (Key, &'a [u8])>,
) -> Result<Vec<Extent>, FormError> {
    let (free, found) = match Form::of(info) {
        Form::Extents => parse_extents(group, sectorsize, items)?,
        Form::Bitmaps => parse_bitmaps(group, sectorsize, items)?,
    };
    if u32::try_from(found) != Ok(info.extent_count) {
        let expected = info.extent_count;
        return Err(FormError::Count { group: group.start, expected, found });
    }
    Ok(free)
}

fn parse_extents<'a>(
    group: Extent,
    sectorsize: u32,
    items: impl IntoIterator<Item = (Key, &'a [u8])>,
) -> Result<(Vec<Extent>, usize), FormError> {
    let whole = |bytes: u64| bytes.is_multiple_of(u64::from(sectorsize));
    let mut runs = Runs::default();
    let mut count = 0;
    for (key, payload) in items {
        if key.kind != Kind::FREE_SPACE_EXTENT {
            return Err(FormError::Kind { key, form: Form::Extents });
        }
        if !payload.is_empty() {
            return Err(FormError::Payload { key, expected: 0, found: payload.len() });
        }
        let (start, len) = (Logical(key.objectid), key.offset);
        let end = start.checked_add(len).filter(|&end| end <= group.end());
        let Some(end) = end.filter(|_| start >= group.start && len > 0) else {
            return Err(FormError::Outside { key, group: group.start });
        };
        if !whole(start.0) || !whole(len) {
            return Err(FormError::Unaligned { key });
        }
        if start.0 < runs.end {
            return Err(FormError::Disorder { key });
        }
        runs.push(start.0, end.0);
        count += 1;
    }
    Ok((runs.extents, count))
}

fn parse_bitmaps<'a>(
    group: Extent,
    sectorsize: u32,
    items: impl IntoIterator<Item = (Key, &'a [u8])>,
) -> Result<(Vec<Extent>, usize), FormError> {
    let sector = u64::from(sectorsize);
    let mut runs = Runs::default();
    let mut spans = bitmap_spans(group, sectorsize);
    for (key, payload) in items {
        if key.kind != Kind::FREE_SPACE_BITMAP {
            return Err(FormError::Kind { key, form: Form::Bitmaps });
        }
        let Some(Extent { start, len: span }) = spans.next() else {
            return Err(FormError::Outside { key, group: group.start });
        };
        if (key.objectid, key.offset) != (start.0, span) {
            return Err(FormError::Bitmap { key, start, span });
        }
        let expected = bitmap_bytes(span, sector);
        if payload.len() as u64 != expected {
            return Err(FormError::Payload { key, expected, found: payload.len() });
        }
        // Bits in the last byte that are past the end of the group have no meaning.
        let bits = (span / sector) as usize;
        for_each_run(payload, bits, |from, to| {
            runs.push(start.0 + from as u64 * sector, start.0 + to as u64 * sector);
        });
    }
    if let Some(missing) = spans.next() {
        return Err(FormError::BitmapsEnd { group: group.start, end: missing.start });
    }
    let count = runs.extents.len();
    Ok((runs.extents, count))
}

/// Calls `act` with each run of set bits among the first `bits`.
fn for_each_run(bitmap: &[u8], bits: usize, mut act: impl FnMut(usize, usize)) {
    let is_set = |bit: usize| bitmap[bit / 8] & (1 << (bit % 8)) != 0;
    let mut run_start = None;
    let mut bit = 0;
    while bit < bits {
        // A byte in which all bits equal the previous bit contains no start or end of a run.
        let uniform = if run_start.is_some() { 0xff } else { 0x00 };
        if bit % 8 == 0 && bitmap[bit / 8] == uniform {
            bit += 8;
            continue;
        }
        match (run_start, is_set(bit)) {
            (None, true) => run_start = Some(bit),
            (Some(start), false) => {
                act(start, bit);
                run_start = None;
            }
            _ => {}
        }
        bit += 1;
    }
    if let Some(start) = run_start {
        act(start, bits);
    }
}

/// Collects extents while they are read, and merges adjacent ones.
#[derive(Default)]
struct Runs {
    extents: Vec<Extent>,
    end: u64,
}

impl Runs {
    fn push(&mut self, start: u64, end: u64) {
        match self.extents.last_mut() {
            Some(last) if self.end == start => last.len += end - start,
            _ => self.extents.push(Extent { start: Logical(start), len: end - start }),
        }
        self.end = end;
    }
}

#[cfg(test)]
mod tests;
