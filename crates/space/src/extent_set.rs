//! Disjoint ranges that refuse to hold a byte twice, or to give up one they do not hold.
//!
//! # Place
//!
//! What a group remembers of its reserved and pinned bytes. Unlike a lenient range set it treats a
//! double insertion as the double allocation or double free that it is.
//!
//! # Invariants
//!
//! - **E1** Ranges are not empty, do not overlap and do not touch: a neighbour is merged.
//! - **E2** `bytes` is the sum of their lengths.

use std::collections::BTreeMap;

/// A set of addresses, kept as maximal ranges.
#[derive(Clone, Debug, Default)]
pub(crate) struct ExtentSet {
    /// Start to end.
    ranges: BTreeMap<u64, u64>,
    bytes: u64,
}

impl ExtentSet {
    /// Bytes in the set.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The ranges as (start, end), ascending.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.ranges.iter().map(|(&start, &end)| (start, end))
    }

    /// The range with the greatest start below `before`.
    fn last_before(&self, before: u64) -> Option<(u64, u64)> {
        self.ranges.range(..before).next_back().map(|(&start, &end)| (start, end))
    }

    /// Whether any byte of `start..end` is held.
    pub(crate) fn overlaps(&self, start: u64, end: u64) -> bool {
        self.last_before(end).is_some_and(|(_, held_end)| held_end > start)
    }

    /// Whether all of `start..end` is held.
    pub(crate) fn covers(&self, start: u64, end: u64) -> bool {
        // By E1 a covered range lies in a single one of ours.
        self.last_before(end).is_some_and(|(s, e)| s <= start && end <= e)
    }

    /// Adds `start..end`, none of which may be held.
    ///
    /// # Panics
    ///
    /// When some of it is: the caller was told wrongly that it is new.
    pub(crate) fn insert(&mut self, start: u64, end: u64) {
        assert!(start < end, "E1: empty range at {start}");
        assert!(!self.overlaps(start, end), "E1: {start}..{end} is held already");
        let mut merged = (start, end);
        if let Some((s, e)) = self.last_before(start)
            && e == start
        {
            merged.0 = s;
        }
        if let Some(e) = self.ranges.remove(&end) {
            merged.1 = e;
        }
        self.ranges.insert(merged.0, merged.1);
        self.bytes += end - start;
    }

    /// Adds `start..end`, whatever of it is held already.
    pub(crate) fn insert_missing(&mut self, start: u64, end: u64) {
        self.remove_overlap(start, end);
        self.insert(start, end);
    }

    /// Removes `start..end`, all of which must be held.
    ///
    /// # Panics
    ///
    /// When some of it is not.
    pub(crate) fn remove(&mut self, start: u64, end: u64) {
        assert!(self.covers(start, end), "E1: {start}..{end} is not held");
        let removed = self.remove_overlap(start, end);
        assert_eq!(removed, end - start, "E2");
    }

    /// Removes whatever of `start..end` is held, and says how many bytes that was.
    pub(crate) fn remove_overlap(&mut self, start: u64, end: u64) -> u64 {
        let mut removed = 0;
        while let Some((s, e)) = self.last_before(end)
            && e > start
        {
            self.ranges.remove(&s);
            if s < start {
                self.ranges.insert(s, start);
            }
            if e > end {
                self.ranges.insert(end, e);
            }
            removed += e.min(end) - s.max(start);
        }
        self.bytes -= removed;
        removed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// E1, E2: neighbours merge, holes split, the count follows.
    #[test]
    fn merges_and_splits() {
        let mut set = ExtentSet::default();
        set.insert(10, 20);
        set.insert(30, 40);
        set.insert(20, 30);
        assert_eq!(set.iter().collect::<Vec<_>>(), [(10, 40)]);
        assert!(set.covers(15, 40) && !set.covers(15, 41) && set.overlaps(39, 50));
        set.remove(15, 25);
        assert_eq!(set.iter().collect::<Vec<_>>(), [(10, 15), (25, 40)]);
        assert_eq!(set.remove_overlap(0, 30), 10);
        assert_eq!(set.bytes(), 10);
        set.insert_missing(20, 35);
        assert_eq!(set.iter().collect::<Vec<_>>(), [(20, 40)]);
        assert_eq!(set.bytes(), 20);
    }

    /// E1: a byte goes in once.
    #[test]
    #[should_panic(expected = "E1")]
    fn refuses_a_second_insertion() {
        let mut set = ExtentSet::default();
        set.insert(10, 20);
        set.insert(19, 21);
    }
}
