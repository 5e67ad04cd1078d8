//! A set of numbers kept as ranges, for example free, pinned or dirty space.
//!
//! # Invariants
//!
//! - **R1** Ranges are half-open, not empty, and neither overlap nor touch.
//! - **R2** `total` is the sum of the lengths of all ranges.
//!
//! The crate `range-set-blaze` is not used, because it has only inclusive ranges. Each call would
//! have to convert its range and check for empty ranges, which occur in data from disks.

use std::collections::BTreeMap;
use std::ops::Range;

/// A set of `u64`, stored as disjoint half-open ranges in ascending order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeSet {
    /// The end of each range, by its start.
    ranges: BTreeMap<u64, u64>,
    total: u64,
}

impl RangeSet {
    /// Creates an empty set.
    #[must_use]
    pub const fn new() -> Self {
        Self { ranges: BTreeMap::new(), total: 0 }
    }

    /// Adds a range, and joins it with the ranges that it overlaps or touches. An empty range adds
    /// nothing.
    pub fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let Range { mut start, mut end } = range;
        if let Some((&before, &before_end)) = self.ranges.range(..=start).next_back()
            && before_end >= start
        {
            start = before;
            end = end.max(before_end);
            self.take(before);
        }
        while let Some((&next, &next_end)) = self.ranges.range(start..=end).next() {
            end = end.max(next_end);
            self.take(next);
        }
        self.ranges.insert(start, end);
        self.total += end - start;
    }

    /// Removes every number of a range. Stored ranges that cross an end of the range are cut.
    pub fn remove(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        if let Some((&before, &before_end)) = self.ranges.range(..range.start).next_back()
            && before_end > range.start
        {
            self.take(before);
            self.put(before..range.start);
            self.put(range.end..before_end);
        }
        while let Some((&next, &next_end)) = self.ranges.range(range.clone()).next() {
            self.take(next);
            self.put(range.end..next_end);
        }
    }

    /// Empties the set.
    pub fn clear(&mut self) {
        self.ranges.clear();
        self.total = 0;
    }

    /// Says whether one number is in the set.
    #[must_use]
    pub fn contains(&self, at: u64) -> bool {
        self.range_of(at).is_some()
    }

    /// Says whether every number of a range is in the set. An empty range always is.
    #[must_use]
    pub fn contains_all(&self, range: &Range<u64>) -> bool {
        range.is_empty() || self.range_of(range.start).is_some_and(|held| held.end >= range.end)
    }

    /// Says whether any number of a range is in the set.
    #[must_use]
    pub fn overlaps(&self, range: &Range<u64>) -> bool {
        !range.is_empty()
            && self.ranges.range(..range.end).next_back().is_some_and(|(_, &end)| end > range.start)
    }

    /// Returns the stored range around one number.
    #[must_use]
    pub fn range_of(&self, at: u64) -> Option<Range<u64>> {
        let (&start, &end) = self.ranges.range(..=at).next_back()?;
        (at < end).then_some(start..end)
    }

    /// Returns the first stored range that ends after `at`: the range around `at`, or the next one.
    #[must_use]
    pub fn next_from(&self, at: u64) -> Option<Range<u64>> {
        self.range_of(at)
            .or_else(|| self.ranges.range(at..).next().map(|(&start, &end)| start..end))
    }

    /// Lists the ranges in ascending order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Range<u64>> + '_ {
        self.ranges.iter().map(|(&start, &end)| start..end)
    }

    /// Returns how many numbers the set holds.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Returns how many ranges the set holds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Says whether the set holds nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    fn take(&mut self, start: u64) {
        let end = self.ranges.remove(&start).expect("the caller has just seen this range");
        self.total -= end - start;
    }

    /// Stores a range, unless it is empty. The range must not touch any other (R1).
    fn put(&mut self, range: Range<u64>) {
        if !range.is_empty() {
            self.total += range.end - range.start;
            self.ranges.insert(range.start, range.end);
        }
    }
}

impl FromIterator<Range<u64>> for RangeSet {
    fn from_iter<I: IntoIterator<Item = Range<u64>>>(ranges: I) -> Self {
        let mut set = Self::new();
        for range in ranges {
            set.insert(range);
        }
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rng;

    /// R1 and R2: any sequence of changes agrees with a plain array of flags.
    #[test]
    fn agrees_with_flags() {
        const SIZE: u64 = 64;
        let mut rng = Rng::new(7);
        let mut set = RangeSet::new();
        let mut flags = [false; SIZE as usize];
        for step in 0..4000 {
            let start = rng.below(SIZE);
            let end = start + rng.below(SIZE - start + 1).min(12);
            let add = rng.below(2) == 0;
            if add {
                set.insert(start..end);
            } else {
                set.remove(start..end);
            }
            flags[start as usize..end as usize].fill(add);

            let total = flags.iter().filter(|&&flag| flag).count() as u64;
            assert_eq!(set.total(), total, "R2 at step {step}");
            for at in 0..SIZE {
                assert_eq!(set.contains(at), flags[at as usize], "step {step}, at {at}");
            }
            let ranges: Vec<_> = set.iter().collect();
            assert!(ranges.iter().all(|range| !range.is_empty()), "R1");
            assert!(ranges.windows(2).all(|pair| pair[0].end < pair[1].start), "R1 at step {step}");

            let probe = start..end;
            let held = &flags[start as usize..end as usize];
            assert_eq!(set.contains_all(&probe), held.iter().all(|&flag| flag));
            assert_eq!(set.overlaps(&probe), held.iter().any(|&flag| flag));
        }
    }

    /// The largest possible range does not overflow.
    #[test]
    fn holds_the_whole_space() {
        let mut set = RangeSet::new();
        set.insert(0..u64::MAX);
        set.remove(10..20);
        assert_eq!(set.total(), u64::MAX - 10);
        assert_eq!(set.next_from(10), Some(20..u64::MAX));
        assert_eq!(set.next_from(3), Some(0..10));
    }
}
