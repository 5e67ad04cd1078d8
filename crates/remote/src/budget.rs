//! How the memory of an open volume is divided.
//!
//! # Invariants
//!
//! - **MB1** The parts together take at most the memory of the volume, if that is at least four
//!   data objects.
//! - **MB2** A writer has at least two segments in memory: one that is filled, one that is sent.
//!   With a local log a store that does not answer stops no writer before the log is full.

use crate::options::Options;

/// The part of the memory that segments may take, if it has room for more than two.
const SEGMENTS_PART: u64 = 4;

/// The parts in bytes, and the number of segments and of threads that send them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Budget {
    /// The read cache in memory, with the pieces that are being read ahead.
    pub(crate) lines: u64,
    /// The pages of the map.
    pub(crate) map: u64,
    /// The index of the cache on a local disk.
    pub(crate) index: u64,
    /// How many sealed segments a writer finds at most when it fills the open one. Those that are
    /// read from the local log count.
    pub(crate) sealed: usize,
    /// How many segments are sent at the same time.
    pub(crate) senders: usize,
}

impl Budget {
    /// For a volume with data objects of `object_len` bytes.
    pub(crate) fn new(options: &Options, object_len: u64) -> Self {
        let (memory, object_len) = (options.memory, object_len.max(1));
        let wanted = 2 * options.in_flight.max(1) as u64;
        let fit = (memory / SEGMENTS_PART / object_len).max(2) - 1;
        let sealed = wanted.min(fit);
        let segments = if options.write { (sealed + 1).saturating_mul(object_len) } else { 0 };
        let rest = memory.saturating_sub(segments).max(memory / 4);
        Self {
            lines: rest / 2,
            map: rest / 4,
            index: rest / 4,
            sealed: sealed as usize,
            senders: options.in_flight.clamp(1, sealed.div_ceil(2).max(1) as usize),
        }
    }

    /// How many segments stay in memory after the local log has them. The senders may then read
    /// as many as they send from the log.
    pub(crate) fn kept(&self) -> usize {
        self.sealed - self.senders
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// MB1 and MB2, for any options.
        #[test]
        fn the_parts_fit(memory in 16_u64 << 20..1 << 40, object_len in 64_u64 << 10..64 << 20,
                         in_flight in 1_usize..65, write: bool) {
            let options = Options { memory, in_flight, write, ..Options::default() };
            let budget = Budget::new(&options, object_len);
            let segments = if write { (budget.sealed as u64 + 1) * object_len } else { 0 };
            let whole = budget.lines + budget.map + budget.index + segments;
            prop_assert!(whole <= memory || memory < 4 * object_len);
            prop_assert!(budget.sealed >= 1 && budget.senders >= 1);
            prop_assert!(budget.senders <= in_flight && budget.senders <= budget.sealed);
        }
    }
}
