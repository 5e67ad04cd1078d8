//! Checks the checksum tree. Each sector of data needs a checksum if its file has checksums. Space
//! without data must have no checksum.
//!
//! # Invariants
//!
//! - **U1** Extents arrive in address order. Ranges for which files demand checksums arrive in
//!   address order as well. Each extent and each range is compared when it arrives.
//! - **U2** A file without checksums may use bytes that have checksums if another file demands
//!   them. For example, a file without checksums has an extent as preallocated, and a file with
//!   checksums has written into the shared extent.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use buttress_format::{Extent, Ino, Key, Kind, Logical, TreeId, ids, limits::MAX_EXTENT};
use buttress_tree::Cursor;

use crate::context::{Context, Tree};
use crate::source::Source;
use buttress_issue::Issue;

/// Iterates over the ranges that checksum items cover, in order.
pub(crate) struct Ranges<'r, 'c> {
    context: &'r Context<'c>,
    cursor: Option<Cursor<'r, Source<'c>>>,
    /// Whether faults of the items are reported. Two passes read the items, and only one of them
    /// reports.
    reports: bool,
    reached: Logical,
    /// The number of checksum bytes read so far.
    bytes: Arc<AtomicU64>,
}

impl<'r, 'c> Ranges<'r, 'c> {
    pub(crate) fn new(context: &'r Context<'c>, tree: &Tree, reports: bool) -> Self {
        let cursor = Cursor::seek(&context.source, tree.id, tree.root, &Key::MIN).ok();
        Self { context, cursor, reports, reached: Logical(0), bytes: Arc::default() }
    }

    /// Whether the tree could be read so far.
    fn is_whole(&self) -> bool {
        self.cursor.is_some()
    }

    fn next(&mut self) -> Option<Extent> {
        self.next_item(|_| ()).map(|(range, ())| range)
    }

    /// Returns the next range and its checksums.
    pub(crate) fn next_with_sums(&mut self) -> Option<(Extent, Vec<u8>)> {
        self.next_item(<[u8]>::to_vec)
    }

    fn next_item<T>(&mut self, take: impl Fn(&[u8]) -> T) -> Option<(Extent, T)> {
        let csum_size = self.context.superblock.csum_type.size();
        loop {
            let cursor = self.cursor.as_mut()?;
            let (key, bytes) = (cursor.key()?, cursor.item()?);
            let count = bytes.len() / csum_size;
            let is_right = key.objectid == ids::EXTENT_CSUM
                && key.kind == Kind::EXTENT_CSUM
                && count > 0
                && bytes.len().is_multiple_of(csum_size)
                && self.context.is_aligned(key.offset);
            let range = Extent::new(Logical(key.offset), count as u64 * self.context.sectorsize());
            let taken = take(bytes);
            self.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            // The reader has already reported the unreadable part.
            if cursor.advance().is_err() {
                self.cursor = None;
            }
            if !is_right {
                if self.reports {
                    let (tree, logical) = (TreeId::CSUM, Logical(0));
                    let why = "it is no list of checksums".to_owned();
                    self.context.add(Issue::ItemMalformed { tree, logical, key, why });
                }
                continue;
            }
            if range.start < self.reached && self.reports {
                self.context.add(Issue::CsumOverlap { at: range.start });
            }
            self.reached = self.reached.max(range.end());
            return Some((range, taken));
        }
    }
}

/// A use of data by a file without checksums.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Unwanted {
    range: Extent,
    tree: TreeId,
    ino: Ino,
    offset: u64,
}

/// Compares checksums with data.
pub(crate) struct Csums<'s, 'c> {
    context: &'s Context<'c>,
    /// Checksum items for the comparison with files. `window` has the items that later file ranges
    /// can overlap.
    items_for_files: Ranges<'s, 'c>,
    window: VecDeque<Extent>,
    /// Ranges for which files demand checksums. Ranges before the window are dropped.
    file_ranges: VecDeque<Extent>,
    /// Ranges that are not decided yet (U2), in the order of their starts.
    unwanted: VecDeque<Unwanted>,
    /// Checksum items for the comparison with extents. `uncovered_item` is the part of the last
    /// item that no extent has covered yet.
    items_for_extents: Ranges<'s, 'c>,
    uncovered_item: Option<Extent>,
}

impl<'s, 'c> Csums<'s, 'c> {
    pub(crate) fn new(context: &'s Context<'c>, tree: &Tree) -> Self {
        let items_for_files = Ranges::new(context, tree, false);
        let mut items_for_extents = Ranges::new(context, tree, true);
        let uncovered_item = items_for_extents.next();
        let (window, file_ranges, unwanted) = Default::default();
        Self {
            context,
            items_for_files,
            window,
            file_ranges,
            unwanted,
            items_for_extents,
            uncovered_item,
        }
    }

    /// Returns the counter of the checksum bytes read so far.
    pub(crate) fn bytes_cell(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.items_for_extents.bytes)
    }

    /// Compares the next extent of data, of a tree or of a log.
    pub(crate) fn data(&mut self, extent: Extent) {
        while let Some(range) = self.uncovered_item {
            if range.start >= extent.end() {
                return;
            }
            if range.start < extent.start {
                let end = range.end().min(extent.start);
                let at = Extent::new(range.start, end.distance(range.start));
                self.context.add(Issue::CsumUnused { at });
            }
            self.uncovered_item = if range.end() > extent.end() {
                Some(Extent::new(extent.end(), range.end().distance(extent.end())))
            } else {
                self.items_for_extents.next()
            };
        }
    }

    /// Compares the next range of data that a file uses. `wanted` says whether the file demands
    /// checksums.
    pub(crate) fn want(
        &mut self,
        range: Extent,
        wanted: bool,
        tree: TreeId,
        ino: Ino,
        offset: u64,
    ) {
        self.settle_unwanted(range.start);
        // A range longer than any extent is damage, which other steps report. It is skipped,
        // because the window would grow to its length.
        if range.len > 2 * MAX_EXTENT {
            return;
        }
        while self.window.back().is_none_or(|covered| covered.end() < range.end()) {
            let Some(next) = self.items_for_files.next() else { break };
            if next.end() > range.start {
                add(&mut self.window, next);
            }
        }
        if !wanted {
            let is_again = self.unwanted.back().is_some_and(|last| last.range == range);
            if !is_again && overlapping(&self.window, range).next().is_some() {
                self.unwanted.push_back(Unwanted { range, tree, ino, offset });
            }
            return;
        }
        add(&mut self.file_ranges, range);
        let at = first_outside(&self.window, range);
        if at < range.end() && self.items_for_files.is_whole() {
            self.context.add(Issue::CsumMissing { tree, ino, offset, at });
        }
    }

    /// Decides about all unwanted ranges before `reached`. No later range begins before that
    /// address.
    fn settle_unwanted(&mut self, reached: Logical) {
        while let Some(&Unwanted { range, tree, ino, offset }) = self.unwanted.front() {
            if range.end() > reached {
                break;
            }
            self.unwanted.pop_front();
            let odd = overlapping(&self.window, range).find_map(|covered| {
                let at = first_outside(&self.file_ranges, covered);
                (at < covered.end()).then_some(at)
            });
            if let Some(at) = odd {
                self.context.add(Issue::CsumUnexpected { tree, ino, offset, at });
            }
        }
        let low = self.unwanted.front().map_or(reached, |first| first.range.start.min(reached));
        for ranges in [&mut self.window, &mut self.file_ranges] {
            while ranges.front().is_some_and(|covered| covered.end() <= low) {
                ranges.pop_front();
            }
        }
    }

    /// Reports the checksums after the last extent.
    pub(crate) fn finish(&mut self) {
        self.settle_unwanted(Logical(u64::MAX));
        while let Some(at) = self.uncovered_item {
            self.context.add(Issue::CsumUnused { at });
            self.uncovered_item = self.items_for_extents.next();
        }
    }
}

/// Adds a range that begins at or after the start of all earlier ranges.
pub(crate) fn add(ranges: &mut VecDeque<Extent>, next: Extent) {
    match ranges.back_mut() {
        Some(last) if last.end() >= next.start => {
            last.len = last.len.max(next.end().distance(last.start));
        }
        _ => ranges.push_back(next),
    }
}

/// Returns the parts of `range` that lie in `ranges`. `ranges` is in order, and its members do not
/// touch.
fn overlapping(ranges: &VecDeque<Extent>, range: Extent) -> impl Iterator<Item = Extent> {
    let from = ranges.partition_point(|covered| covered.end() <= range.start);
    let these = ranges.range(from..).take_while(move |covered| covered.start < range.end());
    these.map(move |covered| {
        let (start, end) = (covered.start.max(range.start), covered.end().min(range.end()));
        Extent::new(start, end.distance(start))
    })
}

/// Returns the first address of `range` outside of all `ranges`, or the end of `range`.
pub(crate) fn first_outside(ranges: &VecDeque<Extent>, range: Extent) -> Logical {
    // One range is enough: ranges that touch are joined when they are added.
    match overlapping(ranges, range).next() {
        Some(first) if first.start == range.start => first.end(),
        _ => range.start,
    }
}
