//! Ranges of data that a transaction wrote, on volumes with a stripe tree. The commit gives each
//! range its items there.
//!
//! # Invariants
//!
//! - **W1** A range is noted in the handle that names it in a file, or moves it. So a commit that
//!   has the name has the items, too.
//! - **W2** Ranges that were noted apart stay apart, so no item belongs to two extents. Otherwise,
//!   Linux before 6.13 cannot free one of the two.
//! - **W3** Removing an extent in the transaction that made it also removes its ranges.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

use buttress_base::{CachePadded, RangeSet, sync::Mutex};
use buttress_format::{Extent, Logical, StripeItem};

#[derive(Debug, Default)]
struct Ranges {
    set: RangeSet,
    /// Addresses at which a noted range begins or ends (W2).
    ends: BTreeSet<u64>,
}

/// The ranges of data that one transaction wrote.
#[derive(Debug, Default)]
pub struct Written {
    /// Unranked: no other lock is taken under it.
    ranges: CachePadded<Mutex<Ranges>>,
    /// The most bytes of the items, for reservations, which read this number at every operation.
    /// The bytes of removed ranges stay, since they caused work.
    bytes: AtomicU64,
    count: AtomicU64,
}

impl Written {
    /// Notes that data was written to a range.
    pub fn insert(&self, range: Extent) {
        self.bytes.fetch_add(StripeItem::bytes_max(range.len), Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::Relaxed);
        let (start, end) = (range.start.0, range.end().0);
        let mut ranges = self.ranges.lock();
        ranges.set.insert(start..end);
        ranges.ends.extend([start, end]);
    }

    /// Forgets a range that is freed again (W3).
    pub fn remove(&self, range: Extent) {
        if self.count() > 0 {
            self.ranges.lock().set.remove(range.start.0..range.end().0);
        }
    }

    /// The ranges by address, without those of `freed` extents.
    pub fn sorted(&self, freed: &[Extent]) -> Vec<Extent> {
        if self.count() == 0 {
            return Vec::new();
        }
        let ranges = self.ranges.lock();
        let mut set = ranges.set.clone();
        for extent in freed {
            set.remove(extent.start.0..extent.end().0);
        }
        let mut sorted = Vec::new();
        for range in set.iter() {
            let mut start = range.start;
            let within = ranges.ends.range(start + 1..range.end);
            for end in within.copied().chain([range.end]) {
                sorted.push(Extent::new(Logical(start), end - start));
                start = end;
            }
        }
        sorted
    }

    /// The most bytes in leaves that the items of all ranges take.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// How many ranges were noted.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// W2 and W3; the ranges are in order.
    #[test]
    fn removed_ranges_have_no_items() {
        let written = Written::default();
        let extent = |start, len| Extent::new(Logical(start), len);
        assert!(written.sorted(&[]).is_empty());
        for (start, len) in [(40, 10), (0, 10), (10, 10), (60, 10)] {
            written.insert(extent(start, len));
        }
        written.remove(extent(60, 10));
        assert_eq!(written.sorted(&[]), [extent(0, 10), extent(10, 10), extent(40, 10)]);
        assert_eq!(written.sorted(&[extent(5, 40)]), [extent(0, 5), extent(45, 5)]);
        written.insert(extent(12, 3));
        let parts = [extent(0, 10), extent(10, 2), extent(12, 3), extent(15, 5), extent(40, 10)];
        assert_eq!(written.sorted(&[]), parts);
        written.insert(extent(12, 3));
        assert_eq!(written.count(), 6);
        assert_eq!(written.bytes(), 6 * StripeItem::bytes_max(10));
    }
}
