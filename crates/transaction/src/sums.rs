//! Checksums of data in a transaction that are not yet in the checksum tree.
//!
//! # Invariants
//!
//! - **K1** Runs of one transaction never overlap, because removing an extent removes its sums,
//!   too.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use buttress_base::{CachePadded, sync::RwLock};
use buttress_format::{Extent, Logical, header::ITEM_LEN};
use smallvec::SmallVec;

use crate::unread::{Change, Unread};

#[derive(Clone, Debug)]
struct Run {
    len: u64,
    sums: std::sync::Arc<[u8]>,
}

/// A change of the bytes that a run of checksums adds to the checksum tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SumsChange {
    /// The start of the run.
    pub start: Logical,
    /// The most bytes that the run added before the change.
    pub before: u64,
    /// Most bytes that the run adds now.
    pub bytes_max: u64,
}

impl Change for SumsChange {
    fn start(&self) -> Logical {
        self.start
    }

    fn join(&mut self, later: Self) {
        self.bytes_max = later.bytes_max;
    }

    fn is_nothing(&self) -> bool {
        (self.before, self.bytes_max) == (0, 0)
    }
}

#[derive(Debug, Default)]
struct Runs {
    map: BTreeMap<Logical, Run>,
    /// Bytes of the checksums of all runs.
    bytes: u64,
    /// Number of checksum items for all runs. Adjacent runs form one item.
    items: u64,
    /// The changes since the last call of [`PendingSums::take_changes`]. `None` before the first
    /// call.
    unread: Option<Unread<SumsChange>>,
}

impl Runs {
    /// Whether a run continues the checksum item of the run before it, and whether the next run
    /// continues the item of this run.
    fn touching(&self, extent: Extent) -> (bool, bool) {
        let before = self.map.range(..extent.start).next_back();
        let touches = before.is_some_and(|(start, run)| start.end(run.len) == extent.start);
        (touches, self.map.contains_key(&extent.end()))
    }

    /// Adds a run, and returns the run that it replaces.
    fn insert(&mut self, start: Logical, run: Run) -> Option<Run> {
        let extent = Extent { start, len: run.len };
        let old = self.remove(start);
        let (goes_on, has_next) = self.touching(extent);
        // The run and its adjacent neighbours form one item.
        self.items = self.items + 1 - u64::from(goes_on) - u64::from(has_next);
        self.bytes += run.sums.len() as u64;
        self.note(start, 0, run.bytes_max(goes_on));
        if has_next {
            self.note_next(extent.end(), false);
        }
        self.map.insert(start, run);
        old
    }

    fn remove(&mut self, start: Logical) -> Option<Run> {
        let run = self.map.remove(&start)?;
        let extent = Extent { start, len: run.len };
        let (goes_on, has_next) = self.touching(extent);
        self.items = self.items + u64::from(goes_on) + u64::from(has_next) - 1;
        self.bytes -= run.sums.len() as u64;
        self.note(start, run.bytes_max(goes_on), 0);
        if has_next {
            self.note_next(extent.end(), true);
        }
        Some(run)
    }

    fn note(&mut self, start: Logical, before: u64, bytes_max: u64) {
        if let Some(unread) = &mut self.unread {
            unread.push(SumsChange { start, before, bytes_max });
        }
    }

    /// Notes that a run now begins an item, or, without `begins`, now continues the item of the run
    /// before.
    fn note_next(&mut self, start: Logical, begins: bool) {
        if let Some(run) = self.map.get(&start) {
            let (before, bytes_max) = (run.bytes_max(begins), run.bytes_max(!begins));
            self.note(start, before, bytes_max);
        }
    }

    /// The most bytes of all items. A full item is continued in a new one, which adds a header.
    fn planned(&self) -> u64 {
        self.bytes + self.bytes / 64 + ITEM_LEN as u64 * self.items
    }

    /// All runs as changes.
    fn all(&self) -> Vec<SumsChange> {
        let mut end = None;
        let change = |(start, run): (&Logical, &Run)| {
            let goes_on = end == Some(*start);
            end = Some(start.end(run.len));
            SumsChange { start: *start, before: 0, bytes_max: run.bytes_max(goes_on) }
        };
        self.map.iter().map(change).collect()
    }
}

impl Run {
    /// The most bytes that the run adds to the checksum tree. A full item is continued in a new
    /// one.
    fn bytes_max(&self, goes_on: bool) -> u64 {
        let bytes = self.sums.len() as u64;
        bytes + bytes.div_ceil(64) + if goes_on { 0 } else { ITEM_LEN as u64 }
    }
}

/// The checksums that one transaction adds.
#[derive(Debug, Default)]
pub struct PendingSums {
    /// Unranked: readers share it, and no other lock is taken under it.
    runs: CachePadded<RwLock<Runs>>,
    /// [`Runs::planned`], for reservations, which read this number at every operation.
    planned: CachePadded<AtomicU64>,
    bytes: AtomicU64,
}

impl PendingSums {
    /// Adds the sums of an extent, one per sector, in order.
    pub fn insert(&self, extent: Extent, sums: Vec<u8>) {
        self.bytes.fetch_add(sums.len() as u64 + 64, Ordering::Relaxed);
        let run = Run { len: extent.len, sums: sums.into() };
        let mut runs = self.runs.write();
        let old = runs.insert(extent.start, run);
        self.planned.store(runs.planned(), Ordering::Relaxed);
        drop(runs);
        // The memory is freed after the lock is released.
        drop(old);
    }

    /// Removes the sums of a removed extent.
    pub fn remove(&self, extent: Extent) {
        let mut gone = SmallVec::<[_; 1]>::new();
        let mut runs = self.runs.write();
        while let Some((&start, _)) = runs.map.range(extent.start..extent.end()).next() {
            gone.extend(runs.remove(start));
        }
        self.planned.store(runs.planned(), Ordering::Relaxed);
        drop(runs);
        // The memory is freed after the lock is released.
        drop(gone);
    }

    /// The runs that changed since the last call, ascending, each with the bytes that it adds to
    /// the checksum tree. With `anew`, and at the first call, all runs are returned. From the first
    /// call on, changes are noted. O(n log n) in the returned runs.
    #[must_use]
    pub fn take_changes(&self, anew: bool) -> Vec<SumsChange> {
        let mut runs = self.runs.write();
        match runs.unread.replace(Unread::default()) {
            Some(unread) if !anew => {
                drop(runs);
                unread.into_sorted()
            }
            _ => runs.all(),
        }
    }

    /// The most bytes that the checksum items of all runs take. Takes no lock.
    pub fn planned(&self) -> u64 {
        self.planned.load(Ordering::Relaxed)
    }

    /// Bytes of all inserted sums. Removed sums still count, since they caused work.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Every run, ascending.
    pub fn sorted(&self) -> Vec<(Extent, std::sync::Arc<[u8]>)> {
        self.runs
            .read()
            .map
            .iter()
            .map(|(start, run)| (Extent { start: *start, len: run.len }, run.sums.clone()))
            .collect()
    }

    /// Whether there is no run.
    pub fn is_empty(&self) -> bool {
        self.runs.read().map.is_empty()
    }

    /// All runs that touch a range, uncut and in ascending order.
    pub fn touching(&self, range: Extent) -> Vec<(Extent, std::sync::Arc<[u8]>)> {
        let runs = &self.runs.read().map;
        let before = runs.range(..=range.start).next_back();
        let from = before.map_or(range.start, |(start, _)| *start);
        runs.range(from..range.end())
            .map(|(start, run)| (Extent { start: *start, len: run.len }, run.sums.clone()))
            .filter(|(run, _)| run.overlaps(&range))
            .collect()
    }

    /// Calls `show` with each run that overlaps a range, uncut and in ascending order.
    pub fn for_each(&self, range: Extent, mut show: impl FnMut(Extent, &[u8])) {
        let runs = &self.runs.read().map;
        let before = runs.range(..=range.start).next_back();
        let from = before.map_or(range.start, |(start, _)| *start);
        for (start, run) in runs.range(from..range.end()) {
            show(Extent { start: *start, len: run.len }, &run.sums);
        }
    }
}
