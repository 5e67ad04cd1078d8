//! Finds sequential readers of a file, and says which part of the file they will ask for.
//!
//! A device knows its readers by addresses alone. So it sees neither that a file begins, nor where
//! the file goes on behind a gap in its addresses. It does not see which checksums a reader needs.
//!
//! # Invariants
//!
//! - **C1** Only a sequential reader causes this: a long read at the front of a file, or reads that
//!   each continue the read before. A random reader causes nothing.
//! - **C2** While a reader goes on, each byte of the file is said at most once. Its checksums are
//!   read in advance at most once. What is said may come to nothing, since
//!   threads and devices take as much as they can.

use std::ops::Range;

/// The readers of one file that are remembered.
const READERS: usize = 8;
/// How many reads must have continued earlier reads before anything is said.
const HITS: u32 = 2;
/// A first read of at least this many bytes at the front of a file counts as sequential.
const FRONT_MIN: u64 = 128 << 10;
/// Reads of one reader may overtake each other by this many bytes.
const SLACK: u64 = 1 << 20;
/// The first window, in reads as long as the reader's.
const READS: u64 = 8;

/// The parts of a file that a reader will ask for: data to say, and data to read the checksums of.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "it is said only by a call of `announce`"]
pub struct Coming {
    pub(crate) data: Range<u64>,
    pub(crate) sums: Range<u64>,
}

/// A reader that may be sequential.
#[derive(Clone, Copy, Debug)]
struct Position {
    next: u64,
    hits: u32,
    window: u64,
    /// The data up to here was said, and the checksums up to here were read in advance.
    said_to: u64,
    sums_to: u64,
}

/// The readers of a file, the youngest last.
#[derive(Debug, Default)]
pub(crate) struct Positions(Vec<Position>);

impl Positions {
    /// Notes a read of a file with `size` bytes. Returns what its reader will ask for, at most
    /// `most` bytes ahead.
    pub(crate) fn note(&mut self, read: &Range<u64>, size: u64, most: u64) -> Option<Coming> {
        let goes_on = |old: &Position| {
            let slack = if old.hits < HITS { 0 } else { SLACK };
            read.start + slack >= old.next && read.start <= old.next + slack
        };
        let len = read.end - read.start;
        let mut now = match self.0.iter().rposition(goes_on) {
            Some(index) => {
                let old = self.0.remove(index);
                Position { next: old.next.max(read.end), hits: old.hits.saturating_add(1), ..old }
            }
            None => {
                let is_front = read.start == 0 && len >= FRONT_MIN;
                let hits = if is_front { HITS } else { 0 };
                let (said_to, sums_to) = (read.start, read.start);
                Position { next: read.end, hits, window: 0, said_to, sums_to }
            }
        };
        let coming = now.say(read, size, most);
        if self.0.len() >= READERS {
            self.0.remove(0);
        }
        self.0.push(now);
        coming
    }
}

impl Position {
    fn say(&mut self, read: &Range<u64>, size: u64, most: u64) -> Option<Coming> {
        if self.hits < HITS {
            return None;
        }
        // It doubles with each read: at the front of a file, waiting costs more than reading too
        // much.
        self.window = (self.window * 2).max(READS * (read.end - read.start)).min(most);
        let end = (self.next + self.window).min(size);
        let from = self.said_to.max(read.start);
        // A quarter of a window is said at once, so that few jobs are made.
        if from >= end || end < size && end - from < self.window / 4 {
            return None;
        }
        let sums = self.sums_to.max(read.start)..(end + self.window).min(size);
        (self.said_to, self.sums_to) = (end, sums.end.max(self.sums_to));
        Some(Coming { data: from..end, sums })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: u64 = 128 << 10;
    const MOST: u64 = 16 << 20;
    const SIZE: u64 = 256 << 20;

    /// C1, C2: a reader from the front has a window at once. Its data is said without a gap and
    /// once, and so are its checksums, further ahead. Its reads may overtake each other.
    #[test]
    fn a_reader_is_told_of_once() {
        let mut positions = Positions::default();
        let (mut to, mut sums_to, mut times) = (0, 0, 0);
        let reads = (0..SIZE / READ).map(|number| match number % 8 {
            _ if number < 8 => number,
            3 => number + 1,
            4 => number - 1,
            _ => number,
        });
        for number in reads {
            let read = number * READ..(number + 1) * READ;
            let Some(coming) = positions.note(&read, SIZE, MOST) else { continue };
            assert_eq!((coming.data.start, coming.sums.start), (to, sums_to));
            assert!(coming.data.end <= coming.sums.end);
            assert!(coming.data.end <= read.end + READ + MOST, "{coming:?} at {read:?}");
            (to, sums_to, times) = (coming.data.end, coming.sums.end, times + 1);
            assert!(number > 0 || to == (1 + READS) * READ);
            assert!(number < 8 || to == SIZE || to >= read.end + MOST / 2, "{to} at {read:?}");
        }
        assert_eq!((to, sums_to), (SIZE, SIZE));
        assert!(times < 80, "{times}");
    }

    /// C1: random reads, and a short read at the front, cause nothing.
    #[test]
    fn a_random_reader_causes_nothing() {
        let mut positions = Positions::default();
        let mut rng = buttress_base::Rng::new(7);
        assert_eq!(positions.note(&(0..4096), SIZE, MOST), None);
        for _ in 0..1000 {
            let at = (1 + rng.below(SIZE / READ / 2 - 1)) * 2 * READ;
            assert_eq!(positions.note(&(at..at + READ), SIZE, MOST), None);
        }
        assert_eq!(positions.0.len(), READERS);
    }

    /// A reader that begins within a file, or reads little at once, is known by its third read.
    #[test]
    fn a_third_read_in_order_is_enough() {
        let mut positions = Positions::default();
        let at = |number: u64| (5 << 20) + number * 4096..(5 << 20) + (number + 1) * 4096;
        assert_eq!(positions.note(&at(0), SIZE, MOST), None);
        assert_eq!(positions.note(&at(1), SIZE, MOST), None);
        let coming = positions.note(&at(2), SIZE, MOST).expect("it is sequential");
        assert_eq!(coming.data, at(2).start..at(2).end + READS * 4096);
    }
}
