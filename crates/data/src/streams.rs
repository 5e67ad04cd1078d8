//! Detects readers that read a file in order, and decides how far to read ahead of them.
//!
//! # Invariants
//!
//! - **M1** A file remembers a bounded number of streams, whatever number of threads reads it.
//!   Threads that read one file may each have a stream of their own, or may share a stream.
//! - **M2** A stream never gets the same range twice: each advice continues where the previous
//!   advice ended.
//! - **M3** A range that was advised is [awaited](Streams::awaited) until the reader has passed it.
//!
//! A stream is identified by the expected start of its next read. The expected start is the end of
//! the last read, or one stride from the start of the last read. Reads of one column of a table, or
//! of a file backwards, have a stride. The window doubles with each read that begins at the
//! expected offset. A read that continues no stream causes no read-ahead.

use std::ops::Range;

/// The maximum number of streams of one file, and of streams that have no order yet. So random
/// reads search few streams.
const STREAMS: usize = 64;
const FRESH: usize = 16;
/// The first window of a reader that begins at the front of a file, in bytes.
const FIRST: u64 = 128 << 10;
/// Reads further apart than this many bytes form no stride.
const STRIDE_MAX: u64 = 4 << 20;
/// The maximum number of pieces of a stride that are read ahead at once.
const PIECES: u64 = 16;

#[derive(Clone, Copy, Debug)]
struct Stream {
    start: u64,
    next: u64,
    window: u64,
    /// The offset up to which reading ahead was advised.
    advised_to: u64,
    /// The distance between the starts of the last two reads. Zero in a sequence.
    stride: i64,
    /// `strides` is the number of reads that the stride has predicted. `advised_strides` is the
    /// number of the last piece that was advised, counted the same way.
    strides: u64,
    advised_strides: u64,
}

/// Ranges to read before the reader asks for them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Advice {
    /// Bytes after the read that the reader needs next. If memory lacks some of these bytes, the
    /// same request reads them.
    pub(crate) window: u64,
    /// Ranges of the file to be read meanwhile.
    pub(crate) ahead: Vec<Range<u64>>,
}

/// The streams of a file, the youngest last.
#[derive(Debug, Default)]
pub(crate) struct Streams(Vec<Stream>);

impl Streams {
    /// Records a read, and returns the ranges that will likely be asked for next. No window is
    /// wider than `widest`.
    pub(crate) fn note(&mut self, read: &Range<u64>, widest: u64) -> Advice {
        let (stream, advice) = self.follow(read, widest);
        let mut fresh = self.0.iter().filter(|stream| stream.window == 0).count();
        while self.0.len() == STREAMS || fresh >= FRESH {
            fresh -= usize::from(self.0.remove(0).window == 0);
        }
        self.0.push(stream);
        advice
    }

    /// The part of a range that was read ahead and that its reader has not reached. The reader has
    /// already read the rest of the range, which may be evicted.
    pub(crate) fn awaited(&self, range: &Range<u64>) -> Range<u64> {
        let comes = |stream: &Stream| match stream.stride {
            0 => (stream.next < range.end && range.end <= stream.advised_to).then_some(stream.next),
            _ => Some(range.start),
        };
        let from = self.0.iter().filter_map(comes).min().unwrap_or(range.end);
        range.start.max(from)..range.end
    }

    fn follow(&mut self, read: &Range<u64>, widest: u64) -> (Stream, Advice) {
        let fresh = Stream {
            start: read.start,
            next: read.end,
            window: 0,
            advised_to: read.end,
            stride: 0,
            strides: 0,
            advised_strides: 0,
        };
        if let Some(index) = self.0.iter().rposition(|stream| stream.next == read.start) {
            let old = self.0.remove(index);
            let window = (old.window * 2).max(FIRST).min(widest);
            // Read two windows ahead: while the reader copies one, the next is being read.
            let (from, to) = (old.advised_to.max(read.end), read.end + 2 * window);
            let is_due = window == widest && old.advised_to < read.end + window;
            let advised_to = if is_due { to } else { old.advised_to };
            let ahead = (is_due && from < to).then_some(from..to).into_iter().collect();
            return (Stream { window, advised_to, ..fresh }, Advice { window, ahead });
        }
        if read.start == 0 {
            let window = FIRST.min(widest);
            return (Stream { window, ..fresh }, Advice { window, ahead: Vec::new() });
        }
        let step = |stream: &Stream| read.start.wrapping_sub(stream.start).cast_signed();
        let predicted = self.0.iter().rposition(|s| s.stride != 0 && step(s) == s.stride);
        if let Some(index) = predicted {
            let old = self.0.remove(index);
            let (stride, strides) = (old.stride, old.strides + 1);
            let advised_strides = old.advised_strides.max(strides);
            let mut stream = Stream { stride, strides, advised_strides, ..fresh };
            let ahead = stream.pieces(read, widest);
            return (stream, Advice { window: 0, ahead });
        }
        // Two reads may form a stride by chance. So the older stream is also kept without the
        // stride.
        let near = |s: &Stream| s.strides == 0 && step(s).unsigned_abs() <= STRIDE_MAX;
        let Some(old) = self.0.iter().rposition(near).map(|index| self.0[index]) else {
            return (fresh, Advice::default());
        };
        (Stream { stride: step(&old), ..fresh }, Advice::default())
    }
}

impl Stream {
    /// The next pieces of a stride that were not advised yet. Their number grows as the stride
    /// continues.
    fn pieces(&mut self, read: &Range<u64>, widest: u64) -> Vec<Range<u64>> {
        let len = read.end - read.start;
        let is_backwards = self.stride == -len.cast_signed();
        let most = if is_backwards { u64::MAX } else { PIECES };
        let count = (1 << self.strides.min(10)).min(widest / len.max(1)).min(most);
        let known = self.advised_strides - self.strides;
        if known > count / 2 {
            return Vec::new();
        }
        let place = |number: u64| {
            let start = read.start.checked_add_signed(self.stride.checked_mul(number as i64)?)?;
            Some(start..start.checked_add(len)?)
        };
        let pieces = (known + 1..=count).map_while(place);
        let ranges = if is_backwards {
            let end = read.start.saturating_sub(known * len);
            let start = pieces.last().map_or(end, |last| last.start);
            (start < end).then_some(start..end).into_iter().collect()
        } else {
            pieces.collect()
        };
        self.advised_strides = self.strides + count.max(known);
        ranges
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIECE: u64 = 32768;
    const WIDEST: u64 = 2 << 20;

    /// Sixteen readers take turns in one file, and each is found to read in order.
    #[test]
    fn streams_do_not_disturb_each_other() {
        let mut streams = Streams::default();
        for step in 0..6_u64 {
            for reader in 0..16_u64 {
                let start = reader * (1 << 30) + step * PIECE;
                let window = streams.note(&(start..start + PIECE), WIDEST).window;
                let expected = match (step, reader) {
                    (0, 0) => FIRST,
                    (0, _) => 0,
                    (step, 0) => (FIRST << step).min(WIDEST),
                    (step, _) => (FIRST << (step - 1)).min(WIDEST),
                };
                assert_eq!(window, expected, "reader {reader}, step {step}");
            }
        }
    }

    /// Any number of readers begin a file at its front, each at its own pace, and are recognized.
    #[test]
    fn many_read_a_file_from_its_front() {
        let mut streams = Streams::default();
        let mut rng = buttress_base::Rng::new(1);
        let mut steps = [0_u32; STREAMS];
        for _ in 0..10_000 {
            let step = &mut steps[rng.below(STREAMS as u64) as usize];
            let start = u64::from(*step) * PIECE;
            let window = streams.note(&(start..start + PIECE), WIDEST).window;
            assert_eq!(window, (FIRST << (*step).min(10)).min(WIDEST), "at {start}");
            *step += 1;
        }
    }

    /// M3: an advised range is awaited from the position of the rearmost reader on.
    #[test]
    fn advised_range_is_awaited_until_readers_pass_it() {
        let mut streams = Streams::default();
        let mut advised = Vec::new();
        for start in (0..8 << 20).step_by(PIECE as usize) {
            advised.extend(streams.note(&(start..start + PIECE), WIDEST).ahead);
        }
        let [first, .., last] = &advised[..] else { panic!("{advised:?}") };
        assert!(streams.awaited(first).is_empty(), "{first:?}");
        let rest = streams.awaited(last);
        assert!(rest == ((8 << 20).max(last.start)..last.end), "{rest:?} of {last:?}");
        assert!(streams.awaited(&(1 << 40..(1 << 40) + PIECE)).is_empty(), "of no reader");
        // A second reader follows the first one.
        for start in (0..6 << 20).step_by(PIECE as usize) {
            _ = streams.note(&(start..start + PIECE), WIDEST);
        }
        assert!(streams.awaited(&(5 << 20..7 << 20)) == (6 << 20..7 << 20));
    }

    /// A read that continues no stream gets no window.
    #[test]
    fn scattered_reads_have_no_window() {
        let mut streams = Streams::default();
        for number in 1..1000_u64 {
            let start = number * 7919 * 4096 % (1 << 30);
            assert_eq!(streams.note(&(start..start + 4096), WIDEST), Advice::default());
        }
        assert_eq!(streams.0.len(), FRESH);
    }

    /// A reader in order is advised of each byte once (M2), early enough, and never further ahead
    /// than two windows.
    #[test]
    fn a_sequence_is_advised_once() {
        let mut streams = Streams::default();
        let mut advised: Option<u64> = None;
        for start in (0..64 << 20).step_by(PIECE as usize) {
            let end = start + PIECE;
            for range in streams.note(&(start..end), WIDEST).ahead {
                assert!(
                    range.end <= end + 2 * WIDEST && range.start >= end,
                    "{range:?} at {start}"
                );
                assert!(
                    advised.is_none_or(|advised| advised == range.start),
                    "{range:?} after {advised:?}"
                );
                advised = Some(range.end);
            }
            assert!(
                start < 1 << 20 || advised.is_some_and(|advised| advised >= end + WIDEST),
                "at {start}"
            );
        }
    }

    /// Forward strides (columns) and backward strides are predicted, each piece once, while another
    /// reader reads in order.
    #[test]
    fn strides_are_predicted() {
        for (first, stride) in [(1 << 20, 256 << 10), (900 << 20, -65_536_i64), (8192, 40_960)] {
            let mut streams = Streams::default();
            let mut advised = Vec::new();
            let mut missed = 0;
            for number in 0..200_i64 {
                let start = u64::try_from(first + number * stride).expect("in the file");
                let read = start..start + 8192;
                missed += u32::from(!advised.contains(&read));
                let advice = streams.note(&read, WIDEST);
                assert_eq!(advice.window, 0);
                for range in advice.ahead {
                    assert!(!advised.contains(&range), "M2: {range:?} at {start}");
                    assert_eq!(range.end - range.start, 8192);
                    advised.push(range);
                }
                let other = (2 << 30) + number.unsigned_abs() * PIECE;
                streams.note(&(other..other + PIECE), WIDEST);
            }
            assert!(missed <= 3, "{missed} of 200 were not predicted, {stride}");
            assert!(advised.len() <= 200 + PIECES as usize, "{} for 200", advised.len());
        }
    }

    /// A reader that goes backwards is advised of long ranges, and of each byte once.
    #[test]
    fn a_file_is_read_backwards() {
        let mut streams = Streams::default();
        let (mut advised, mut ranges) = (None, 0);
        for number in (0..512_u64).rev() {
            let read = number * PIECE..(number + 1) * PIECE;
            for range in streams.note(&read, WIDEST).ahead {
                assert!(
                    advised.is_none_or(|advised| advised == range.end),
                    "{range:?} after {advised:?}"
                );
                assert!(range.end <= read.start);
                advised = Some(range.start);
                ranges += 1;
            }
        }
        assert_eq!(advised, Some(0));
        assert!(ranges < 512 / 16, "{ranges} ranges");
    }
}
