//! Checks the stripe tree. Written data in groups with stripe items needs an item for each byte.
//! Each item says where the chunk puts the data, and belongs to an extent.
//!
//! # Invariants
//!
//! - **SI1** Extents arrive in address order. Ranges that files use arrive in address order as
//!   well. Each extent and each range is compared when it arrives.
//! - **SI2** An item counts as covering its range even if its places are wrong. So one fault is one
//!   issue.

use std::collections::VecDeque;

use buttress_format::{Extent, Ino, Key, Logical, StripeItem, TreeId, limits::MAX_EXTENT};
use buttress_tree::Cursor;

use crate::context::{Context, Tree};
use crate::csums::{add, first_outside};
use crate::source::Source;
use buttress_issue::Issue;

/// Iterates over the ranges of stripe items, in order.
struct Ranges<'r, 'c> {
    context: &'r Context<'c>,
    cursor: Option<Cursor<'r, Source<'c>>>,
    /// Whether faults of the items are reported. Two passes read the items, and only one of them
    /// reports.
    reports: bool,
    reached: Logical,
}

impl<'r, 'c> Ranges<'r, 'c> {
    fn new(context: &'r Context<'c>, tree: &Tree, reports: bool) -> Self {
        let cursor = Cursor::seek(&context.source, tree.id, tree.root, &Key::MIN).ok();
        Self { context, cursor, reports, reached: Logical(0) }
    }

    /// Whether the tree could be read so far.
    fn is_whole(&self) -> bool {
        self.cursor.is_some()
    }

    fn next(&mut self) -> Option<Extent> {
        loop {
            let cursor = self.cursor.as_mut()?;
            let (key, parsed) = (cursor.key()?, StripeItem::parse(cursor.item()?));
            // The reader has already reported the unreadable part.
            if cursor.advance().is_err() {
                self.cursor = None;
            }
            let range = StripeItem::range(&key).filter(|range| self.is_aligned(*range));
            if self.reports {
                self.report(key, range, parsed);
            }
            if let Some(range) = range {
                self.reached = self.reached.max(range.end());
                return Some(range);
            }
        }
    }

    fn is_aligned(&self, range: Extent) -> bool {
        self.context.is_aligned(range.start.0) && self.context.is_aligned(range.len)
    }

    fn report(&self, key: Key, range: Option<Extent>, parsed: buttress_format::Result<StripeItem>) {
        let malformed = |why| {
            let (tree, logical) = (TreeId::RAID_STRIPE, Logical(0));
            self.context.add(Issue::ItemMalformed { tree, logical, key, why });
        };
        let Some(at) = range else {
            return malformed("its key is no range of sectors".to_owned());
        };
        match parsed {
            Err(error) => malformed(error.to_string()),
            Ok(item) => {
                if let Some(why) = self.fault(at, item) {
                    self.context.add(Issue::StripeInvalid { at, why });
                }
            }
        }
        if at.start < self.reached {
            self.context.add(Issue::StripeOverlap { at: at.start });
        }
    }

    /// Compares the places of an item with the places that its chunk gives the same bytes. Space is
    /// allocated by address, so at other places another address would overwrite the data.
    fn fault(&self, range: Extent, item: StripeItem) -> Option<&'static str> {
        let Some((piece, expected)) = self.context.volume.stripe_item_at(range.start, range.len)
        else {
            return Some("no chunk with such items is there");
        };
        if piece.len < range.len {
            return Some("it reaches past the end of its stripe");
        }
        let sorted = |StripeItem(mut strides)| {
            strides.sort_unstable();
            strides
        };
        let (found, expected) = (sorted(item), sorted(expected));
        if found.len() != expected.len() {
            return Some("it has another number of copies than its chunk");
        }
        (found != expected).then_some("a copy is not where its chunk puts it")
    }
}

/// Compares stripe items with data.
pub(crate) struct Stripes<'s, 'c> {
    context: &'s Context<'c>,
    /// Items for the comparison with files. `window` has the items that later file ranges can
    /// overlap.
    items_for_files: Ranges<'s, 'c>,
    window: VecDeque<Extent>,
    /// Items for the comparison with extents. `uncovered_item` is the last item, unless an extent
    /// covers it.
    items_for_extents: Ranges<'s, 'c>,
    uncovered_item: Option<Extent>,
}

impl<'s, 'c> Stripes<'s, 'c> {
    pub(crate) fn new(context: &'s Context<'c>, tree: &Tree) -> Self {
        let mut items_for_extents = Ranges::new(context, tree, true);
        let uncovered_item = items_for_extents.next();
        let items_for_files = Ranges::new(context, tree, false);
        let window = VecDeque::new();
        Self { context, items_for_files, window, items_for_extents, uncovered_item }
    }

    /// Compares the next extent of data.
    pub(crate) fn data(&mut self, extent: Extent) {
        while let Some(range) = self.uncovered_item {
            if range.start >= extent.end() {
                return;
            }
            if range.start < extent.start {
                let end = range.end().min(extent.start);
                let at = Extent::new(range.start, end.distance(range.start));
                self.context.add(Issue::StripeUnused { at });
            }
            if range.end() > extent.end() {
                self.context.add(Issue::StripeCrosses { at: range });
            }
            self.uncovered_item = self.items_for_extents.next();
        }
    }

    /// Compares the next range of written data that a file uses.
    pub(crate) fn want(&mut self, range: Extent, tree: TreeId, ino: Ino, offset: u64) {
        while self.window.front().is_some_and(|covered| covered.end() <= range.start) {
            self.window.pop_front();
        }
        // A range longer than any extent is damage, which other steps report. It is skipped,
        // because the window would grow to its length.
        let has_items = || self.context.volume.stripe_item_at(range.start, 1).is_some();
        if range.len > 2 * MAX_EXTENT || !has_items() {
            return;
        }
        while self.window.back().is_none_or(|covered| covered.end() < range.end()) {
            let Some(next) = self.items_for_files.next() else { break };
            if next.end() > range.start {
                add(&mut self.window, next);
            }
        }
        let at = first_outside(&self.window, range);
        if at < range.end() && self.items_for_files.is_whole() {
            self.context.add(Issue::StripeMissing { tree, ino, offset, at });
        }
    }

    /// Reports the items after the last extent.
    pub(crate) fn finish(&mut self) {
        while let Some(at) = self.uncovered_item {
            self.context.add(Issue::StripeUnused { at });
            self.uncovered_item = self.items_for_extents.next();
        }
    }
}
