//! Figures of a cache: those of dm-writecache's status line, and further ones.

use std::fmt;

use crate::count::Count;
use crate::layout::Cut;
use crate::units::Epoch;

/// Figures since the opening of the cache, or since the last `clear_stats`.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) reads: Count,
    pub(crate) read_hits: Count,
    pub(crate) writes: Count,
    pub(crate) hits_uncommitted: Count,
    pub(crate) hits_committed: Count,
    pub(crate) writes_around: Count,
    pub(crate) writes_allocated: Count,
    pub(crate) writes_blocked: Count,
    pub(crate) flushes: Count,
    pub(crate) discards: Count,
}

impl Counters {
    fn all(&self) -> [&Count; 10] {
        [
            &self.reads,
            &self.read_hits,
            &self.writes,
            &self.hits_uncommitted,
            &self.hits_committed,
            &self.writes_around,
            &self.writes_allocated,
            &self.writes_blocked,
            &self.flushes,
            &self.discards,
        ]
    }

    /// The counts together with the other figures of one moment.
    pub(crate) fn status(&self, moment: Moment) -> Status {
        let [
            reads,
            read_hits,
            writes,
            hits_uncommitted,
            hits_committed,
            writes_around,
            writes_allocated,
            writes_blocked,
            flushes,
            discards,
        ] = self.all().map(Count::get);
        let Moment { is_failed, blocks, free, writeback, committed, block_size, cut } = moment;
        Status {
            error: u64::from(is_failed),
            blocks,
            free,
            writeback,
            reads,
            read_hits,
            writes,
            hits_uncommitted,
            hits_committed,
            writes_around,
            writes_allocated,
            writes_blocked,
            flushes,
            discards,
            committed,
            block_size,
            cut,
        }
    }

    pub(crate) fn clear(&self) {
        self.all().iter().for_each(|counter| counter.clear());
    }
}

/// The figures of an open cache that are not counters.
#[derive(Debug)]
pub(crate) struct Moment {
    pub(crate) is_failed: bool,
    pub(crate) blocks: u64,
    pub(crate) free: u64,
    pub(crate) writeback: u64,
    pub(crate) committed: Epoch,
    pub(crate) block_size: u64,
    pub(crate) cut: Cut,
}

/// The figures of a cache at one moment. Their displayed form is the status line of the Linux
/// target: fourteen numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Whether a device has failed: 1 if so.
    pub error: u64,
    /// Slots.
    pub blocks: u64,
    /// Free slots.
    pub free: u64,
    /// Slots being written back.
    pub writeback: u64,
    /// Read requests.
    pub reads: u64,
    /// Read requests for which at least one block was in the cache.
    pub read_hits: u64,
    /// Write requests.
    pub writes: u64,
    /// Blocks that overwrote an uncommitted version in place.
    pub hits_uncommitted: u64,
    /// Blocks that got a new version beside a committed one.
    pub hits_committed: u64,
    /// Writes that went straight to the origin.
    pub writes_around: u64,
    /// Blocks that got a first version.
    pub writes_allocated: u64,
    /// Writes that waited for a free slot.
    pub writes_blocked: u64,
    /// Flushes.
    pub flushes: u64,
    /// Discards.
    pub discards: u64,
    /// The epoch below which everything is durable.
    pub committed: Epoch,
    /// Bytes of a block.
    pub block_size: u64,
    /// How consistent the origin is without the cache.
    pub cut: Cut,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fields = [
            self.error,
            self.blocks,
            self.free,
            self.writeback,
            self.reads,
            self.read_hits,
            self.writes,
            self.hits_uncommitted,
            self.hits_committed,
            self.writes_around,
            self.writes_allocated,
            self.writes_blocked,
            self.flushes,
            self.discards,
        ];
        for (index, field) in fields.iter().enumerate() {
            let space = if index == 0 { "" } else { " " };
            write!(f, "{space}{field}")?;
        }
        Ok(())
    }
}
