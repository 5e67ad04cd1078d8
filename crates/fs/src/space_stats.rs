//! Statistics of a mount's space: its use, the waiting callers, the work to make room, and the
//! steps of maintenance.

use std::collections::BTreeMap;

use buttress_data::PageStats;
use buttress_maintenance::LoopSteps;
use buttress_txn::{Accounts, Preempt, Refusal, SpaceKind, Stats};

use crate::filesystem::Filesystem;

/// The present space of a mounted volume, and the work since it was mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpaceStats {
    /// All accounts.
    pub accounts: Accounts,
    /// Bytes that callers wait for now.
    pub waiting_bytes: WaitingBytes,
    /// Counts of the engine, including waits for space.
    pub engine: Stats,
    /// The last time that a caller was refused space.
    pub last_refusal: Option<Refusal>,
    /// The rule of preemptive flushing.
    pub preempt: Preempt,
    /// Bytes of dirty data, including data in writeback.
    pub dirty: u64,
    /// Bytes of buffers that were written back and wait for the next writer.
    pub spare: u64,
    /// The page cache.
    pub pages: PageStats,
    /// Bytes of data in writeback.
    pub ordered: u64,
    /// Runs of the flush states that made room for waiting callers, or refused a caller.
    pub flush_runs: u64,
    /// Rounds of preemptive flushing.
    pub rounds: u64,
    /// Bytes of data that were written back to make room.
    pub flushed: u64,
    /// Number of ordered extents that needed more metadata than their reservation to be finished.
    pub shortfalls: u64,
    /// The number of bits by which the clamp lowers the threshold of preemptive flushing.
    pub clamp: u32,
    /// Measured speed of writeback, in bytes a second.
    pub drain_rate: u64,
}

/// Bytes that callers wait for, by kind of space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitingBytes {
    /// Bytes of data.
    pub data: u64,
    /// Bytes of metadata.
    pub metadata: u64,
}

impl Filesystem {
    /// The steps of each loop of maintenance since the mount, with their bounds.
    #[must_use]
    pub fn loop_steps(&self) -> BTreeMap<&'static str, LoopSteps> {
        self.mount().maintenance.loop_steps()
    }

    /// The present space, and the work to make room.
    #[must_use]
    pub fn space_stats(&self) -> SpaceStats {
        let mount = self.mount();
        SpaceStats {
            accounts: mount.engine.reservations().accounts(),
            waiting_bytes: WaitingBytes {
                data: mount.engine.queues().waiting_bytes(SpaceKind::Data),
                metadata: mount.engine.queues().waiting_bytes(SpaceKind::Metadata),
            },
            engine: mount.engine.statistics(),
            last_refusal: mount.engine.last_refusal(),
            preempt: mount.options.baselines.preempt,
            dirty: mount.files.counters().dirty_bytes(),
            spare: mount.files.spare_bytes(),
            pages: mount.files.page_stats(),
            ordered: mount.files.counters().ordered_bytes(),
            flush_runs: mount.space.runs(),
            rounds: mount.writeback.rounds(),
            flushed: mount.writeback.flushed(),
            shortfalls: mount.files.counters().shortfalls(),
            clamp: mount.space.clamp_bits(),
            drain_rate: mount.writeback.rate(),
        }
    }
}
