//! Who reads a file in order, and how far ahead that is worth reading.
//!
//! # Invariants
//!
//! - **M1** A file remembers a bounded number of streams, whoever reads it: threads that share a file each
//!   have their own, and several may read the same one.
//!
//! A stream is known by where its next read will begin. Its window doubles with each read that does begin
//! there; a read that continues none gets what it asks for and no more.

use std::ops::Range;

/// Most streams of one file.
const STREAMS: usize = 16;
/// The first window, of who begins at the front of a file, and the widest.
const FIRST: u64 = 128 << 10;
const WIDEST: u64 = 2 << 20;

#[derive(Clone, Copy, Debug)]
struct Stream {
    next: u64,
    window: u64,
}

/// The streams of a file, the youngest last.
#[derive(Debug, Default)]
pub(crate) struct Streams(Vec<Stream>);

impl Streams {
    /// Takes note of a read; answers how many bytes behind it are likely to be asked for next.
    pub(crate) fn window(&mut self, read: &Range<u64>) -> u64 {
        let known = self.0.iter().rposition(|stream| stream.next == read.start);
        let window = match known {
            Some(index) => (self.0.remove(index).window * 2).clamp(FIRST, WIDEST),
            None if read.start == 0 => FIRST,
            None => 0,
        };
        if self.0.len() == STREAMS {
            self.0.remove(0);
        }
        self.0.push(Stream { next: read.end, window });
        window
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sixteen readers of one file, in turns, are each found to read in order.
    #[test]
    fn streams_do_not_disturb_each_other() {
        let mut streams = Streams::default();
        for step in 0..6_u64 {
            for reader in 0..16_u64 {
                let start = reader * (1 << 30) + step * 32768;
                let window = streams.window(&(start..start + 32768));
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

    /// Reads that continue nothing are not followed.
    #[test]
    fn scattered_reads_have_no_window() {
        let mut streams = Streams::default();
        for number in 1..1000_u64 {
            let start = number * 7919 * 4096 % (1 << 30);
            assert_eq!(streams.window(&(start..start + 4096)), 0);
        }
        assert!(streams.0.len() <= STREAMS);
    }
}
