//! The free space of one group: its extents by offset, and by their usable bytes.
//!
//! # Place
//!
//! The free extents are a part of a group's state, under the group's lock. A search takes time
//! logarithmic in the number of extents, apart from one walk of at most [`WALK_MAX`] steps.
//!
//! # Invariants
//!
//! - **F1** Free extents are not empty, do not overlap and do not touch.
//! - **F2** The size index has exactly the extents with at least one usable unit. Its key is the
//!   number of usable bytes: the bytes of the whole units inside the extent.
//! - **F3** `bytes` is the sum of the extents' lengths, `whole` the sum of their usable bytes.
//!
//! Allocations are whole units: a sector for data, a node for metadata, a row in groups with
//! parity. Metadata groups of old volumes can have free extents that do not begin at a multiple of
//! the node size. An index by plain length would include bytes that cannot be allocated because of
//! alignment. The rest of a row beside an extent is free, but cannot be used until all of the row
//! is free again.

use std::collections::{BTreeMap, BTreeSet};

use buttress_format::{Extent, Logical};

/// The most extents that a first-fit walk looks at. After that, the size index is used.
const WALK_MAX: usize = 64;

/// Free extents of a group under two indexes.
#[derive(Clone, Debug)]
pub(crate) struct FreeExtents {
    unit: u64,
    /// The address from which units are counted.
    origin: u64,
    /// Start to end.
    by_start: BTreeMap<u64, u64>,
    /// (usable bytes, start).
    by_size: BTreeSet<(u64, u64)>,
    bytes: u64,
    whole: u64,
}

impl FreeExtents {
    /// An empty set of free extents, for a group that allocates multiples of `unit`.
    pub(crate) fn new(unit: u64) -> Self {
        assert!(unit.is_power_of_two(), "a unit of {unit} bytes");
        Self::of_rows(unit, 0)
    }

    /// An empty set of free extents, for a group that begins at `origin` and is allocated in rows
    /// of `unit` bytes. Each allocation begins at the start of a row. The rest of its last row
    /// stays free, but cannot be used until the whole row is free again.
    pub(crate) fn of_rows(unit: u64, origin: u64) -> Self {
        let (by_start, by_size) = (BTreeMap::new(), BTreeSet::new());
        Self { unit, origin, by_start, by_size, bytes: 0, whole: 0 }
    }

    /// Free bytes, usable or not.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many extents there are.
    pub(crate) fn count(&self) -> usize {
        self.by_start.len()
    }

    /// Free bytes that cannot be allocated, because a part of their unit is in use.
    pub(crate) fn cut_off(&self) -> u64 {
        self.bytes - self.whole
    }

    /// The most bytes that one allocation can get.
    pub(crate) fn largest(&self) -> u64 {
        self.by_size.last().map_or(0, |&(usable, _)| usable)
    }

    /// The extents as (start, end), ascending.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.by_start.iter().map(|(&start, &end)| (start, end))
    }

    /// Whether any byte of `start..end` is free.
    pub(crate) fn overlaps(&self, start: u64, end: u64) -> bool {
        self.by_start.range(..end).next_back().is_some_and(|(_, &free_end)| free_end > start)
    }

    /// First usable address at or after `from` in `start..end`, and the usable bytes from there.
    fn usable(&self, from: u64, end: u64) -> (u64, u64) {
        let (unit, origin) = (self.unit, self.origin);
        if unit.is_power_of_two() && origin & (unit - 1) == 0 {
            let mask = unit - 1;
            let Some(first) = from.checked_add(mask).map(|x| x & !mask) else { return (from, 0) };
            return (first, (end & !mask).saturating_sub(first));
        }
        // Every free extent begins at or behind `origin`, the group's start.
        let last = origin + end.saturating_sub(origin) / unit * unit;
        let first = from.saturating_sub(origin).checked_next_multiple_of(unit);
        let Some(first) = first.and_then(|x| x.checked_add(origin)) else { return (from, 0) };
        (first, last.saturating_sub(first))
    }

    /// `bytes`, rounded up to whole units.
    fn in_units(&self, bytes: u64) -> u64 {
        bytes.checked_next_multiple_of(self.unit).unwrap_or(u64::MAX)
    }

    /// The free extent at or behind an address: the rest of the extent that the address lies in, or
    /// the next extent.
    pub(crate) fn next(&self, from: u64) -> Option<(u64, u64)> {
        let around = self.by_start.range(..=from).next_back().filter(|&(_, &end)| end > from);
        let around = around.map(|(_, &end)| (from, end));
        around.or_else(|| self.by_start.range(from..).next().map(|(&start, &end)| (start, end)))
    }

    /// Makes `start..end` free, merging it with its neighbours.
    ///
    /// # Panics
    ///
    /// When a byte of the range is free already: it was freed twice.
    pub(crate) fn insert(&mut self, start: u64, end: u64) {
        assert!(start < end, "F1: empty extent at {start}");
        let mut merged = (start, end);
        if let Some((&s, &e)) = self.by_start.range(..end).next_back() {
            assert!(e <= start, "F1: {start}..{end} is freed, {s}..{e} is free already");
            if e == start {
                self.forget(s, e);
                merged.0 = s;
            }
        }
        if let Some(&e) = self.by_start.get(&end) {
            self.forget(end, e);
            merged.1 = e;
        }
        self.remember(merged.0, merged.1);
    }

    /// Takes `start..end`, which must lie inside one free extent.
    ///
    /// # Panics
    ///
    /// When the range does not lie inside one free extent: a bug of the search.
    fn take(&mut self, start: u64, end: u64) {
        let found = self.by_start.range(..=start).next_back().map(|(&s, &e)| (s, e));
        let (s, e) = found.expect("F1: a search only returns addresses that are free");
        assert!(start < end && end <= e, "F1: {start}..{end} is not inside {s}..{e}");
        self.forget(s, e);
        if s < start {
            self.remember(s, start);
        }
        if end < e {
            self.remember(end, e);
        }
    }

    /// Takes exactly `start..end` if all of it is free. Returns whether all of it was free.
    pub(crate) fn take_exact(&mut self, start: u64, end: u64) -> bool {
        let around = self.by_start.range(..=start).next_back();
        let free = start < end && around.is_some_and(|(_, &free_end)| free_end >= end);
        if free {
            self.take(start, end);
        }
        free
    }

    /// Takes `want` contiguous bytes. A walk searches behind `goal`, and then from the group's
    /// start. If the walk finds no such extent in [`WALK_MAX`] steps, the smallest extent that is
    /// long enough is used. So extents that are allocated together lie close together.
    pub(crate) fn take_near(&mut self, goal: Option<u64>, want: u64) -> Option<Extent> {
        let units = self.in_units(want);
        if self.largest() < units {
            return None;
        }
        let goal = goal.unwrap_or(0);
        let first = self.by_start.range(..=goal).next_back().map_or(goal, |(&s, _)| s);
        let ahead = self.by_start.range(first..).map(|(&s, &e)| (s.max(goal), e));
        let behind = self.by_start.range(..first).map(|(&s, &e)| (s, e));
        let near = ahead
            .chain(behind)
            .take(WALK_MAX)
            .map(|(from, end)| self.usable(from, end))
            .find(|&(_, usable)| usable >= units)
            .map(|(at, _)| at);
        let at = near.or_else(|| self.best_fit(units))?;
        Some(self.cut(at, want))
    }

    /// Takes `want` contiguous bytes: right at `goal` if they are free there, or else from the
    /// smallest extent that has them. So large extents stay large.
    pub(crate) fn take_fitting(&mut self, goal: Option<u64>, want: u64) -> Option<Extent> {
        let at_goal = goal.filter(|&goal| self.begins_at(goal, want));
        let at = at_goal.or_else(|| self.best_fit(self.in_units(want)))?;
        Some(self.cut(at, want))
    }

    /// Takes `want` contiguous bytes right at `goal`, or nothing.
    pub(crate) fn take_at(&mut self, goal: u64, want: u64) -> Option<Extent> {
        self.begins_at(goal, want).then(|| self.cut(goal, want))
    }

    /// Whether `want` bytes from `at` on are free and usable.
    fn begins_at(&self, at: u64, want: u64) -> bool {
        let around = self.by_start.range(..=at).next_back();
        around.is_some_and(|(_, &end)| {
            let (first, usable) = self.usable(at, end);
            first == at && usable >= self.in_units(want)
        })
    }

    /// Takes the largest extent, or its first `want` bytes. Takes nothing if the extent has less
    /// than `min` bytes.
    pub(crate) fn take_largest(&mut self, want: u64, min: u64) -> Option<Extent> {
        let &(usable, start) = self.by_size.last()?;
        if usable < min {
            return None;
        }
        let (at, _) = self.usable(start, u64::MAX);
        Some(self.cut(at, usable.min(want)))
    }

    /// The first usable address of the smallest extent with at least `want` usable bytes.
    fn best_fit(&self, want: u64) -> Option<u64> {
        let &(_, start) = self.by_size.range((want, 0)..).next()?;
        Some(self.usable(start, u64::MAX).0)
    }

    fn cut(&mut self, at: u64, len: u64) -> Extent {
        assert!((at - self.origin).is_multiple_of(self.unit) && len > 0, "F2: {at}+{len}");
        self.take(at, at + len);
        Extent { start: Logical(at), len }
    }

    fn remember(&mut self, start: u64, end: u64) {
        self.bytes += end - start;
        self.by_start.insert(start, end);
        let (_, usable) = self.usable(start, end);
        self.whole += usable;
        if usable > 0 {
            self.by_size.insert((usable, start));
        }
    }

    fn forget(&mut self, start: u64, end: u64) {
        self.bytes -= end - start;
        let was = self.by_start.remove(&start);
        debug_assert_eq!(was, Some(end), "F1");
        let (_, usable) = self.usable(start, end);
        self.whole -= usable;
        if usable > 0 {
            let indexed = self.by_size.remove(&(usable, start));
            assert!(indexed, "F2: {start}..{end} is in one index only");
        }
    }

    /// Walks both indexes and compares them.
    pub(crate) fn verify(&self) -> Result<(), String> {
        let mut bytes = 0;
        let mut sizes = BTreeSet::new();
        let mut last_end = None;
        for (start, end) in self.iter() {
            if start >= end || last_end.is_some_and(|last| last >= start) {
                return Err(format!("F1: free extent {start}..{end} after one to {last_end:?}"));
            }
            last_end = Some(end);
            bytes += end - start;
            let (_, usable) = self.usable(start, end);
            if usable > 0 {
                sizes.insert((usable, start));
            }
        }
        if sizes != self.by_size {
            return Err(format!(
                "F2: {} extents by size, {} expected",
                self.by_size.len(),
                sizes.len()
            ));
        }
        let whole: u64 = sizes.iter().map(|(usable, _)| usable).sum();
        if (bytes, whole) != (self.bytes, self.whole) {
            let counted = (self.bytes, self.whole);
            return Err(format!(
                "F3: {bytes} bytes in extents, {whole} usable, {counted:?} counted"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: u64 = 16;

    fn free(extents: &[(u64, u64)]) -> FreeExtents {
        let mut free = FreeExtents::new(UNIT);
        for &(start, end) in extents {
            free.insert(start, end);
        }
        free
    }

    fn at(extent: Option<Extent>) -> Option<(u64, u64)> {
        extent.map(|extent| (extent.start.0, extent.len))
    }

    /// F1, F3: neighbours merge in any order, and an extent that was cut into parts is whole after
    /// all parts are freed.
    #[test]
    fn merges_neighbours() {
        let mut free = free(&[(0, 32), (64, 96), (32, 64)]);
        assert_eq!(free.iter().collect::<Vec<_>>(), [(0, 96)]);
        assert_eq!(at(free.take_near(Some(32), 32)), Some((32, 32)));
        assert_eq!((free.bytes(), free.largest()), (64, 32));
        free.insert(32, 64);
        assert_eq!((free.bytes(), free.largest()), (96, 96));
        free.verify().expect("sound");
    }

    /// F2: ends of extents that are no whole unit are free, but cannot be allocated.
    #[test]
    fn never_hands_out_part_of_a_unit() {
        let mut free = free(&[(4, 60), (100, 110)]);
        assert_eq!((free.bytes(), free.largest()), (66, 32));
        assert_eq!(at(free.take_near(None, 48)), None);
        assert_eq!(at(free.take_largest(64, 16)), Some((16, 32)));
        assert_eq!(at(free.take_largest(16, 16)), None);
        assert_eq!(free.iter().collect::<Vec<_>>(), [(4, 16), (48, 60), (100, 110)]);
        free.verify().expect("sound");
    }

    /// Rows need not be a power of two long. An allocation makes the rest of its last row unusable
    /// until the row is free again.
    #[test]
    fn rows_are_had_whole() {
        let mut free = FreeExtents::of_rows(48, 1000);
        free.insert(1000, 1000 + 10 * 48);
        assert_eq!(at(free.take_fitting(None, 16)), Some((1000, 16)));
        assert_eq!((free.bytes(), free.cut_off(), free.largest()), (464, 32, 432));
        assert_eq!(at(free.take_fitting(Some(1016), 64)), Some((1048, 64)), "two rows");
        assert_eq!(at(free.take_near(Some(1150), 48)), Some((1192, 48)));
        assert_eq!(at(free.take_largest(1000, 16)), Some((1240, 240)));
        assert_eq!((free.bytes(), free.cut_off()), (112, 64));
        assert_eq!(at(free.take_at(1144, 48)), Some((1144, 48)));
        assert_eq!(at(free.take_fitting(None, 16)), None);
        free.insert(1048, 1112);
        assert_eq!((free.largest(), free.cut_off()), (96, 32));
        free.insert(1000, 1016);
        assert_eq!((free.largest(), free.cut_off()), (144, 0));
        free.verify().expect("sound");
    }

    /// Near the goal means: first after the goal, then from the beginning.
    #[test]
    fn goes_on_from_the_goal() {
        let mut free = free(&[(0, 64), (128, 256), (512, 544)]);
        assert_eq!(at(free.take_near(Some(160), 32)), Some((160, 32)));
        assert_eq!(at(free.take_near(Some(192), 32)), Some((192, 32)));
        assert_eq!(at(free.take_near(Some(224), 32)), Some((224, 32)));
        assert_eq!(at(free.take_near(Some(256), 32)), Some((512, 32)));
        assert_eq!(at(free.take_near(Some(544), 32)), Some((0, 32)));
    }

    /// Beyond the bounded walk the size index is used, so that no fitting extent is missed.
    #[test]
    fn finds_the_only_fit_far_from_the_goal() {
        let mut small: Vec<_> = (0..10 * WALK_MAX as u64).map(|i| (i * 32, i * 32 + 16)).collect();
        small.push((100_000, 100_064));
        let mut free = free(&small);
        assert_eq!(at(free.take_near(Some(0), 64)), Some((100_000, 64)));
        assert_eq!(at(free.take_near(Some(0), 64)), None);
    }

    /// Data is allocated right behind the data that it continues, or else where large extents stay
    /// whole.
    #[test]
    fn fits_tightly_unless_it_continues() {
        let mut free = free(&[(0, 256), (512, 576), (1024, 1056)]);
        assert_eq!(at(free.take_fitting(None, 32)), Some((1024, 32)));
        assert_eq!(at(free.take_fitting(Some(64), 32)), Some((64, 32)));
        assert_eq!(at(free.take_fitting(Some(70), 64)), Some((0, 64)));
        free.verify().expect("sound");
    }
}
