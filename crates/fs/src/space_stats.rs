//! What a mount's space holds, which callers waited for it, and what was done about that.

use buttress_txn::{Accounts, Preempt, Refusal, SpaceKind, Stats};

use crate::filesystem::Filesystem;

/// Space of a mounted volume as it is now, and what was done since it was mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpaceStats {
    /// All accounts.
    pub accounts: Accounts,
    /// Bytes that are waited for now, of data and of metadata.
    pub waited_for: (u64, u64),
    /// What the engine has done; waits for space among it.
    pub engine: Stats,
    /// The last time that a caller was refused space.
    pub last_refusal: Option<Refusal>,
    /// The rule by which room is made ahead.
    pub preempt: Preempt,
    /// Bytes that are dirty, and those of them on their way.
    pub dirty: u64,
    /// Bytes on their way to the devices.
    pub ordered: u64,
    /// Runs of the flush states for waiting callers: those that made room, or refused one.
    pub ladders: u64,
    /// Rounds that made room before any caller waited.
    pub rounds: u64,
    /// Bytes of data that were written back to make room.
    pub flushed: u64,
    /// How often finishing an ordered extent needed more metadata than its reservation.
    pub shortfalls: u64,
    /// By how many bits the clamp lowers its threshold.
    pub clamp: u32,
    /// Bytes a second that writeback was seen to manage.
    pub drain_rate: u64,
}

impl Filesystem {
    /// Space as it is now, and what was done about it.
    #[must_use]
    pub fn space_stats(&self) -> SpaceStats {
        let mount = self.mount();
        SpaceStats {
            accounts: mount.engine.accounts(),
            waited_for: (
                mount.engine.waited_for(SpaceKind::Data),
                mount.engine.waited_for(SpaceKind::Metadata),
            ),
            engine: mount.engine.statistics(),
            last_refusal: mount.engine.last_refusal(),
            preempt: mount.options.baselines.preempt,
            dirty: mount.files.counters().dirty_bytes(),
            ordered: mount.files.counters().ordered_bytes(),
            ladders: mount.space.runs(),
            rounds: mount.writeback.rounds(),
            flushed: mount.writeback.flushed(),
            shortfalls: mount.files.counters().shortfalls(),
            clamp: mount.space.clamp_bits(),
            drain_rate: mount.writeback.rate(),
        }
    }
}
