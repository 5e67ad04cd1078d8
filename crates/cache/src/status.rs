//! What a cache has done and holds: the target's status line, and more.

use std::fmt;
use std::sync::atomic::Ordering;

use crate::core::Core;
use crate::layout::Cut;
use crate::stripe::Count;
use crate::units::Epoch;

/// Figures since the cache was opened or `clear_stats`.
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

    pub(crate) fn clear(&self) {
        self.all().iter().for_each(|counter| counter.clear());
    }
}

/// A moment of a cache. Its text is the target's status line: fourteen numbers.
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
    /// Read requests that found something in the cache.
    pub read_hits: u64,
    /// Write requests.
    pub writes: u64,
    /// Blocks written over an uncommitted version.
    pub hits_uncommitted: u64,
    /// Blocks that got a newer version than the committed one.
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
    /// The epoch up to which all is durable.
    pub committed: Epoch,
    /// Bytes of a block.
    pub block_size: u64,
    /// What the origin is worth without the cache.
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

impl Core {
    pub(crate) fn status(&self) -> Status {
        let all = self.counters.all().map(Count::get);
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
        ] = all;
        let error = self.broken.is_set() || self.is_stalled.load(Ordering::Relaxed);
        Status {
            error: u64::from(error),
            blocks: u64::from(self.geometry.slots()),
            free: u64::from(self.slots.free()),
            writeback: self.in_flight.load(Ordering::Relaxed),
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
            committed: self.committed(),
            block_size: self.geometry.block_size(),
            cut: self.header.lock().stamp.map_or(Cut::None, |stamp| stamp.cut),
        }
    }
}
