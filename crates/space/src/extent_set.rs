//! A set of disjoint ranges. Inserting a byte that the set has, or removing a byte that it lacks,
//! is a bug.
//!
//! # Place
//!
//! A group keeps its reserved and pinned bytes in such sets. A second insertion of a byte is a
//! double allocation or a double free, so it panics.
//!
//! # Invariants
//!
//! - **E1** Ranges are not empty and do not overlap. Adjacent ranges are merged into one.
//! - **E2** `bytes` is the sum of the lengths of all ranges.

use std::collections::BTreeMap;

/// A set of addresses, kept as maximal ranges.
#[derive(Clone, Debug, Default)]
pub(crate) struct ExtentSet {
    /// Maps the end of each range to its start. Most removals take the front of a range, which
    /// keeps its end.
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
        self.ranges.iter().map(|(&end, &start)| (start, end))
    }

    /// The start and end of the first range that ends behind `at`. The start can be changed.
    fn first_behind(&mut self, at: u64) -> Option<(&mut u64, u64)> {
        let (&end, start) = self.ranges.range_mut(at + 1..).next()?;
        Some((start, end))
    }

    /// Whether any byte of `start..end` is held.
    pub(crate) fn overlaps(&self, start: u64, end: u64) -> bool {
        self.ranges.range(start + 1..).next().is_some_and(|(_, &held)| held < end)
    }

    /// Whether all of `start..end` is held.
    #[cfg(test)]
    pub(crate) fn covers(&self, start: u64, end: u64) -> bool {
        // By E1 a covered range lies in a single range of the set.
        self.ranges.range(start + 1..).next().is_some_and(|(&e, &s)| s <= start && end <= e)
    }

    /// Adds `start..end`. The set must hold no byte of it.
    ///
    /// # Panics
    ///
    /// When the set holds a byte of the range: a double allocation or a double free.
    pub(crate) fn insert(&mut self, start: u64, end: u64) {
        assert!(start < end, "E1: empty range at {start}");
        let next = self.first_behind(start).map(|(start, end)| (*start, end));
        assert!(next.is_none_or(|(held, _)| end <= held), "E1: {start}..{end} is held already");
        let start_of_all = self.ranges.remove(&start).unwrap_or(start);
        self.bytes += end - start;
        match next {
            Some((held, held_end)) if held == end => {
                self.ranges.insert(held_end, start_of_all);
            }
            _ => {
                self.ranges.insert(end, start_of_all);
            }
        }
    }

    /// Adds `start..end`. The set may hold parts of it already.
    pub(crate) fn insert_missing(&mut self, start: u64, end: u64) {
        self.remove_overlap(start, end);
        self.insert(start, end);
    }

    /// Removes `start..end`. The set must hold all of it.
    ///
    /// # Panics
    ///
    /// When the set lacks a byte of the range.
    pub(crate) fn remove(&mut self, start: u64, end: u64) {
        // By E1 `start..end` lies in a single range of the set.
        let removed = self.remove_overlap(start, end);
        assert_eq!(removed, end - start, "E1: {start}..{end} is not held");
    }

    /// Removes the held parts of `start..end`, and returns how many bytes they had.
    pub(crate) fn remove_overlap(&mut self, start: u64, end: u64) -> u64 {
        let mut removed = 0;
        while let Some((first, e)) = self.first_behind(start)
            && *first < end
        {
            let s = *first;
            removed += e.min(end) - s.max(start);
            if e > end {
                *first = end;
            } else {
                self.ranges.remove(&e);
            }
            if s < start {
                self.ranges.insert(start, s);
            }
        }
        self.bytes -= removed;
        removed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// E1, E2: adjacent ranges merge, removals split ranges, and the count of bytes stays right.
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

    /// E1, E2: the set equals a map of units after any insertions and removals.
    #[test]
    fn agrees_with_a_map() {
        let mut rng = buttress_base::Rng::new(1);
        let (mut set, mut model) = (ExtentSet::default(), [false; 64]);
        for step in 0..5000 {
            let start = rng.below(64) as usize;
            let end = start + 1 + rng.below(64 - start as u64) as usize;
            let (low, high) = (start as u64, end as u64);
            let held = model[start..end].iter().filter(|held| **held).count();
            assert_eq!(set.overlaps(low, high), held > 0, "step {step}");
            assert_eq!(set.covers(low, high), held == end - start, "step {step}");
            let keeps = match rng.below(4) {
                0 if held == 0 => {
                    set.insert(low, high);
                    true
                }
                1 => {
                    set.insert_missing(low, high);
                    true
                }
                2 if held == end - start => {
                    set.remove(low, high);
                    false
                }
                3 => {
                    assert_eq!(set.remove_overlap(low, high), held as u64, "step {step}");
                    false
                }
                _ => continue,
            };
            model[start..end].fill(keeps);
            let runs = model.chunk_by(|a, b| a == b).filter(|run| run[0]).count();
            assert_eq!(set.iter().count(), runs, "step {step}");
            let bytes = model.iter().filter(|held| **held).count();
            assert_eq!(set.bytes(), bytes as u64, "step {step}");
            assert!(set.iter().is_sorted(), "step {step}");
        }
    }

    /// E1: a byte cannot be inserted twice.
    #[test]
    #[should_panic(expected = "E1")]
    fn refuses_a_second_insertion() {
        let mut set = ExtentSet::default();
        set.insert(10, 20);
        set.insert(19, 21);
    }
}
