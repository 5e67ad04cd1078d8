//! Checksums of data in a transaction that are not yet in the checksum tree.
//!
//! # Invariants
//!
//! - **K1** Runs of one transaction never overlap, because removing an extent removes its sums,
//!   too.

use std::collections::BTreeMap;

use buttress_base::sync::RwLock;
use buttress_format::{Extent, Logical, header::ITEM_LEN};

#[derive(Clone, Debug)]
struct Run {
    len: u64,
    sums: std::sync::Arc<[u8]>,
    /// Whether the run is in `news`.
    is_news: bool,
    /// Bytes that [`PendingSums::changed`] returned for the run last.
    said: u64,
}

/// A change of what a run of checksums adds to the checksum tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SumsChange {
    /// Where the run begins.
    pub start: Logical,
    /// Most bytes that the run adds, as the previous call returned them.
    pub before: u64,
    /// Most bytes that the run adds now.
    pub adds: u64,
}

#[derive(Debug, Default)]
struct Runs {
    map: BTreeMap<Logical, Run>,
    /// Bytes of their sums.
    bytes: u64,
    /// Number of checksum items for all runs. Adjacent runs form one item.
    items: u64,
    /// Runs that were added or removed, or have a new neighbour, since the last call of
    /// [`PendingSums::changed`]. `None` before the first call. For a removed run, the second value
    /// is the number of bytes that the last call returned for it.
    news: Option<Vec<(Logical, Option<u64>)>>,
}

impl Runs {
    /// How many neighbours of a run are adjacent to it: 0 to 2.
    fn touching(&self, extent: Extent) -> u64 {
        let before = self.map.range(..extent.start).next_back();
        let touches = before.is_some_and(|(start, run)| start.end(run.len) == extent.start);
        u64::from(touches) + u64::from(self.map.contains_key(&extent.end()))
    }

    fn insert(&mut self, start: Logical, run: Run) {
        let extent = Extent { start, len: run.len };
        self.remove(start);
        // The run and its adjacent neighbours form one item.
        self.items = self.items + 1 - self.touching(extent);
        self.bytes += run.sums.len() as u64;
        self.map.insert(start, run);
        self.note(start);
        self.note(extent.end());
    }

    fn remove(&mut self, start: Logical) {
        let Some(run) = self.map.remove(&start) else { return };
        let extent = Extent { start, len: run.len };
        self.items = self.items + self.touching(extent) - 1;
        self.bytes -= run.sums.len() as u64;
        if let Some(news) = &mut self.news {
            news.push((start, Some(run.said)));
        }
        self.note(extent.end());
    }

    /// Notes that the run at `start` changed, or that the run before it did.
    fn note(&mut self, start: Logical) {
        if let Some(news) = &mut self.news
            && let Some(run) = self.map.get_mut(&start)
            && !run.is_news
        {
            run.is_news = true;
            news.push((start, None));
        }
    }

    /// Most bytes that a run adds to the checksum tree. A run adjacent to the run before it
    /// continues that run's item. A full item is split, and each further item adds a header.
    fn adds(&self, start: Logical, run: &Run) -> u64 {
        let before = self.map.range(..start).next_back();
        let goes_on = before.is_some_and(|(at, run)| at.end(run.len) == start);
        let bytes = run.sums.len() as u64;
        bytes + bytes.div_ceil(64) + if goes_on { 0 } else { ITEM_LEN as u64 }
    }

    /// Returns how the bytes of a run changed from `before`, and notes them as returned.
    fn say(&mut self, start: Logical, before: u64) -> Option<SumsChange> {
        let adds = self.adds(start, self.map.get(&start)?);
        let run = self.map.get_mut(&start)?;
        (run.is_news, run.said) = (false, adds);
        Some(SumsChange { start, before, adds })
    }
}

/// The checksums that one transaction adds.
#[derive(Debug, Default)]
pub struct PendingSums {
    /// Unranked: readers share it; nothing is taken inside.
    runs: RwLock<Runs>,
    bytes: std::sync::atomic::AtomicU64,
}

impl PendingSums {
    /// Adds the sums of an extent, one per sector, in order.
    pub fn insert(&self, extent: Extent, sums: Vec<u8>) {
        self.bytes.fetch_add(sums.len() as u64 + 64, std::sync::atomic::Ordering::Relaxed);
        let run = Run { len: extent.len, sums: sums.into(), is_news: false, said: 0 };
        self.runs.write().insert(extent.start, run);
    }

    /// Removes the sums of a removed extent.
    pub fn remove(&self, extent: Extent) {
        let mut runs = self.runs.write();
        let gone: Vec<_> =
            runs.map.range(extent.start..extent.end()).map(|(start, _)| *start).collect();
        for start in gone {
            runs.remove(start);
        }
    }

    /// The runs that changed since the last call, ascending, each with the bytes that it adds to
    /// the checksum tree. With `anew`, and at the first call, all runs. From the first call on,
    /// changes are noted.
    /// O(n log n) in what is returned and in the runs held.
    #[must_use]
    pub fn changed(&self, anew: bool) -> Vec<SumsChange> {
        let mut runs = self.runs.write();
        let news = runs.news.replace(Vec::new()).filter(|_| !anew);
        let Some(mut news) = news else {
            let all: Vec<_> = runs.map.keys().copied().collect();
            return all.into_iter().filter_map(|start| runs.say(start, 0)).collect();
        };
        news.sort_by_key(|(start, _)| *start);
        let mut all = Vec::with_capacity(news.len());
        for (start, went) in news {
            let said = |run: &Run| run.is_news.then_some(run.said);
            if let Some(before) = went {
                all.push(SumsChange { start, before, adds: 0 });
            } else if let Some(before) = runs.map.get(&start).and_then(said) {
                all.extend(runs.say(start, before));
            }
        }
        all
    }

    /// Most bytes of the checksum items for all runs. A full item is continued in a new one, which
    /// adds a header.
    pub fn planned(&self) -> u64 {
        let runs = self.runs.read();
        runs.bytes + runs.bytes / 64 + ITEM_LEN as u64 * runs.items
    }

    /// Bytes of all inserted sums. Removed sums still count, since they caused work.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(std::sync::atomic::Ordering::Relaxed)
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

    /// The runs that touch a range, whole, ascending.
    pub fn touching(&self, range: Extent) -> Vec<(Extent, std::sync::Arc<[u8]>)> {
        let runs = &self.runs.read().map;
        let before = runs.range(..=range.start).next_back();
        let from = before.map_or(range.start, |(start, _)| *start);
        runs.range(from..range.end())
            .map(|(start, run)| (Extent { start: *start, len: run.len }, run.sums.clone()))
            .filter(|(run, _)| run.overlaps(&range))
            .collect()
    }

    /// Calls `show` with each run that overlaps a range, whole, ascending.
    pub fn for_each(&self, range: Extent, mut show: impl FnMut(Extent, &[u8])) {
        let runs = &self.runs.read().map;
        let before = runs.range(..=range.start).next_back();
        let from = before.map_or(range.start, |(start, _)| *start);
        for (start, run) in runs.range(from..range.end()) {
            show(Extent { start: *start, len: run.len }, &run.sums);
        }
    }
}
