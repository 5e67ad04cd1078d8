//! Checks the free-space tree: it must record exactly the space of each block group that no extent
//! uses.
//!
//! # Invariants
//!
//! - **F1** Extents and the free runs of each group are read in order and compared at once. So the
//!   check needs memory for one bitmap only.

use std::collections::VecDeque;

use buttress_format::{Extent, FreeSpaceInfo, Key, Kind, Logical, TreeId};
use buttress_tree::Cursor;

use crate::context::{Context, Tree};
use crate::facts::Group;
use crate::source::Source;
use buttress_issue::Issue;

/// Compares the recorded free space with the space that extents leave.
pub(crate) struct FreeSpace<'f, 'c> {
    context: &'f Context<'c>,
    groups: &'f [Group],
    cursor: Option<Cursor<'f, Source<'c>>>,
    /// The current group. `at` is the address up to which the group is used or compared.
    group: usize,
    at: Logical,
    open: Option<Open>,
}

/// A group with a record.
struct Open {
    info: FreeSpaceInfo,
    runs: VecDeque<Extent>,
    /// The number of runs read so far, to compare with the extent count of `FreeSpaceInfo`.
    count: u64,
    /// Whether the first difference was reported.
    is_off: bool,
}

impl<'f, 'c> FreeSpace<'f, 'c> {
    pub(crate) fn new(context: &'f Context<'c>, groups: &'f [Group], tree: &Tree) -> Self {
        let cursor = Cursor::seek(&context.source, tree.id, tree.root, &Key::MIN).ok();
        let mut new = Self { context, groups, cursor, group: 0, at: Logical(0), open: None };
        new.open_group();
        new
    }

    /// Compares the free space in front of the next extent.
    pub(crate) fn used(&mut self, extent: Extent) {
        while let Some(group) = self.groups.get(self.group)
            && group.extent.end() <= extent.start
        {
            self.close_group();
        }
        let Some(group) = self.groups.get(self.group) else { return };
        if extent.start < group.extent.start {
            return;
        }
        if extent.start > self.at {
            self.free(Extent::new(self.at, extent.start.distance(self.at)));
        }
        self.at = self.at.max(extent.end());
    }

    /// Compares the free space after the last extent.
    pub(crate) fn finish(&mut self) {
        while self.group < self.groups.len() {
            self.close_group();
        }
        self.skip_unowned(None);
    }

    /// Passes the records in front of the next group, or all that are left. No group owns them.
    ///
    /// Before 6.16.1, mkfs.btrfs leaves the records of the empty groups that it began with. In
    /// front of a group they do no harm. A commit that adds a group there deletes them.
    fn skip_unowned(&mut self, next: Option<Logical>) {
        let last = self.group.checked_sub(1).and_then(|last| self.groups.get(last));
        let from = last.map_or(0, |last| last.extent.end().0);
        let is_in_front = |key: &Key| next.is_none_or(|next| key.objectid < next.0);
        while let Some(key) = self.key().filter(is_in_front) {
            let info = self.cursor.as_ref().and_then(Cursor::item).map(FreeSpaceInfo::parse);
            let is_left = key.objectid >= from
                && next.is_some_and(|next| key.offset <= next.0 - key.objectid)
                && matches!(info, Some(Ok(info)) if info.extent_count == 1 && !info.uses_bitmaps());
            self.advance();
            if is_left && self.key() == Some(Key { kind: Kind::FREE_SPACE_EXTENT, ..key }) {
                self.advance();
            } else {
                self.context.add(Issue::FreeSpaceUnexpected { key });
            }
        }
    }

    fn key(&self) -> Option<Key> {
        self.cursor.as_ref()?.key()
    }

    fn advance(&mut self) {
        // The reader has already reported the unreadable part. Nothing is known about the items
        // after it.
        if self.cursor.as_mut().is_some_and(|cursor| cursor.advance().is_err()) {
            self.cursor = None;
        }
    }

    /// Reads the head of the next group's record.
    fn open_group(&mut self) {
        let Some(group) = self.groups.get(self.group) else { return };
        let start = group.extent.start;
        self.at = start;
        self.skip_unowned(Some(start));
        if self.cursor.is_none() {
            return;
        }
        let key = Key::new(start.0, Kind::FREE_SPACE_INFO, group.extent.len);
        let item = self.cursor.as_ref().filter(|cursor| cursor.key() == Some(key));
        match item.and_then(Cursor::item).map(FreeSpaceInfo::parse) {
            Some(Ok(info)) => {
                self.open = Some(Open { info, runs: VecDeque::new(), count: 0, is_off: false });
                self.advance();
            }
            Some(Err(error)) => {
                let (tree, logical, why) = (TreeId::FREE_SPACE, Logical(0), error.to_string());
                self.context.add(Issue::ItemMalformed { tree, logical, key, why });
                self.advance();
            }
            None => self.context.add(Issue::FreeSpaceInfoMissing { group: start }),
        }
    }

    /// Returns the next recorded run of the open group. Runs of neighbouring bitmaps that touch are
    /// joined.
    fn next_run(&mut self) -> Option<Extent> {
        let group = self.groups.get(self.group)?.extent;
        loop {
            let open = self.open.as_mut()?;
            // A run that ends with a bitmap may continue in the next item.
            if open.runs.len() > 1 {
                return open.runs.pop_front();
            }
            let key = self
                .key()
                .filter(|key| key.objectid < group.end().0 && key.kind != Kind::FREE_SPACE_INFO);
            let Some(key) = key else { return self.open.as_mut()?.runs.pop_front() };
            let bytes = self.cursor.as_ref().and_then(Cursor::item).unwrap_or_default().to_vec();
            self.read_runs(key, &bytes);
            self.advance();
        }
    }

    fn read_runs(&mut self, key: Key, bytes: &[u8]) {
        let sector = self.context.sectorsize();
        let Some(open) = &mut self.open else { return };
        let start = Logical(key.objectid);
        let wants_bitmaps = open.info.uses_bitmaps();
        let sectors = key.offset / sector;
        let why = match key.kind {
            Kind::FREE_SPACE_EXTENT if wants_bitmaps => Some("an extent where bitmaps are used"),
            Kind::FREE_SPACE_BITMAP if !wants_bitmaps => Some("a bitmap where extents are used"),
            Kind::FREE_SPACE_EXTENT if !bytes.is_empty() => Some("an extent with a payload"),
            Kind::FREE_SPACE_BITMAP if bytes.len() as u64 != sectors.div_ceil(8) => {
                Some("a bitmap of another length than its key says")
            }
            Kind::FREE_SPACE_EXTENT | Kind::FREE_SPACE_BITMAP => None,
            _ => Some("an item of another kind"),
        };
        if let Some(why) = why {
            let (tree, logical, why) = (TreeId::FREE_SPACE, Logical(0), why.to_owned());
            self.context.add(Issue::ItemMalformed { tree, logical, key, why });
            return;
        }
        if key.kind == Kind::FREE_SPACE_EXTENT {
            open.count += 1;
            open.runs.push_back(Extent::new(start, key.offset));
            return;
        }
        let is_free = |index: u64| bytes[(index / 8) as usize] & (1 << (index % 8)) != 0;
        let mut index = 0;
        while index < sectors {
            if !is_free(index) {
                index += 1;
                continue;
            }
            let first = index;
            while index < sectors && is_free(index) {
                index += 1;
            }
            let run = Extent::new(start.end(first * sector), (index - first) * sector);
            match open.runs.back_mut() {
                Some(last) if last.end() == run.start => last.len += run.len,
                _ => {
                    open.count += 1;
                    open.runs.push_back(run);
                }
            }
        }
    }

    /// Compares space that no extent uses with the next recorded run. The two must be equal.
    fn free(&mut self, expected: Extent) {
        let Some(group) = self.groups.get(self.group).map(|group| group.extent.start) else {
            return;
        };
        if self.open.as_ref().is_none_or(|open| open.is_off) {
            return;
        }
        let found = self.next_run();
        if found == Some(expected) {
            return;
        }
        let (at, what) = match found {
            None => (expected.start, "is free and not recorded"),
            Some(found) if found.start < expected.start => {
                (found.start, "is recorded as free and used")
            }
            Some(found) if found.start > expected.start => {
                (expected.start, "is free and not recorded")
            }
            Some(found) if found.len > expected.len => {
                (expected.end(), "is recorded as free and used")
            }
            Some(found) => (found.end(), "is free and not recorded"),
        };
        self.context.add(Issue::FreeSpaceMismatch { group, at, what });
        if let Some(open) = &mut self.open {
            open.is_off = true;
        }
    }

    /// Compares the space from the last extent to the end of the group, and moves on to the next
    /// group.
    fn close_group(&mut self) {
        let Some(group) = self.groups.get(self.group).map(|group| group.extent) else { return };
        if self.at < group.end() {
            self.free(Extent::new(self.at, group.end().distance(self.at)));
        }
        let was_off = self.open.as_ref().is_none_or(|open| open.is_off);
        let mut is_more = None;
        while let Some(run) = self.next_run() {
            is_more = is_more.or(Some(run.start));
        }
        if let (Some(at), false) = (is_more, was_off) {
            let what = "is recorded as free and used";
            self.context.add(Issue::FreeSpaceMismatch { group: group.start, at, what });
        }
        if let Some(open) = self.open.take() {
            let (found, expected) = (u64::from(open.info.extent_count), open.count);
            if found != expected {
                let group = group.start;
                self.context.add(Issue::FreeSpaceCount { group, found, expected });
            }
        } else {
            // Without a head, the records of the group are skipped unchecked.
            while self.key().is_some_and(|key| key.objectid < group.end().0) {
                self.advance();
            }
        }
        self.group += 1;
        self.open_group();
    }
}
