//! What a mount's space holds, who waited for it, and what was done about that.

use std::sync::atomic::Ordering;
use std::time::Duration;

use buttress_txn::{Accounts, Preempt, Stats};

use crate::filesystem::Filesystem;

/// Space of a mounted volume as it is now, and what was done since it was mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpaceStats {
    /// All accounts.
    pub accounts: Accounts,
    /// What the engine has done; waits for space among it.
    pub engine: Stats,
    /// The rule by which room is made ahead.
    pub preempt: Preempt,
    /// Bytes that are dirty, and those of them on their way.
    pub dirty: u64,
    /// Bytes on their way to the devices.
    pub ordered: u64,
    /// Ladders climbed for those who waited.
    pub ladders: u64,
    /// Rounds made before anybody waited.
    pub rounds: u64,
    /// Those of them that are over and wrote data back, and those that committed.
    pub rounds_dirty: u64,
    /// See [`rounds_dirty`](Self::rounds_dirty).
    pub rounds_commit: u64,
    /// Bytes of metadata that they were thought to give back, together.
    pub round_forecast: u64,
    /// Bytes of metadata that they did.
    pub round_yield: u64,
    /// Bytes of data that were written back to make room.
    pub flushed: u64,
    /// How often data that was written needed more metadata than it was promised.
    pub short_landings: u64,
    /// By how many bits the clamp lowers its threshold.
    pub clamp: u32,
    /// How long each operation is held up now.
    pub delay: Duration,
    /// Bytes a second that writeback was seen to manage.
    pub drain_rate: u64,
}

impl Filesystem {
    /// Space as it is now, and what was done about it.
    #[must_use]
    pub fn space_stats(&self) -> SpaceStats {
        let shared = self.shared();
        let background = &shared.background;
        SpaceStats {
            accounts: shared.engine.accounts(),
            engine: shared.engine.statistics(),
            preempt: shared.options.preempt,
            dirty: shared.files.dirty_bytes(),
            ordered: shared.files.ordered_bytes(),
            ladders: background.climbed.load(Ordering::Relaxed),
            rounds: background.rounds.load(Ordering::Relaxed),
            rounds_dirty: background.made_ahead.dirty.load(Ordering::Relaxed),
            rounds_commit: background.made_ahead.commits.load(Ordering::Relaxed),
            round_forecast: background.made_ahead.forecast.load(Ordering::Relaxed),
            round_yield: background.made_ahead.yielded.load(Ordering::Relaxed),
            flushed: background.flushed.load(Ordering::Relaxed),
            short_landings: shared.files.short_landings(),
            clamp: background.clamp_bits.load(Ordering::Relaxed),
            delay: background.turnstile.step(),
            drain_rate: background.flush.throttle.rate(),
        }
    }
}
