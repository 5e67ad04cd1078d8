//! The thread that makes room before any caller waits.
//!
//! # Place
//!
//! Looks at what holds metadata, asks the rule (`buttress_space::preempt`) and does what it says:
//! it writes data back or commits. No caller waits for this thread.
//!
//! # Invariants
//!
//! - **P1** It never waits for a file's writeback claim, nor for data on its way.
//! - **P2** While no metadata is taken it only looks, and seldom.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use buttress_txn::{Clamp, Pools, Round};

use crate::shared::Shared;

/// How often it looks while metadata is taken, and while not.
const TICK: Duration = Duration::from_millis(4);
const IDLE_TICK: Duration = Duration::from_millis(40);

/// Most rounds of the clamp in a row: its loop must not hold up the end of the mount.
const ROUNDS_MAX: u32 = 64;

impl Shared {
    fn pools(&self) -> Pools {
        self.engine.pools(self.files.dirty_bytes(), self.files.ordered_bytes())
    }

    /// Makes room ahead until the mount ends.
    pub(crate) fn preempter(self: &Arc<Self>) {
        let mut clamp = Clamp::default();
        let mut climbed = self.background.climbed_for_metadata.load(Ordering::Relaxed);
        let mut last = Pools::default();
        while !self.background.is_stopping() {
            let pools = self.pools();
            let limit = if pools == last { IDLE_TICK } else { TICK };
            last = pools;
            self.engine.wait_for_promises(clamp.lacks(&pools), limit);
            let now = self.background.climbed_for_metadata.load(Ordering::Relaxed);
            if now != climbed {
                climbed = now;
                clamp.note_wait(&self.pools());
            }
            let mut rounds = 0;
            let mut pools = self.pools();
            while rounds < ROUNDS_MAX && clamp.is_due(&pools) && !self.background.is_stopping() {
                rounds += 1;
                let round = clamp.round(&pools);
                let helped =
                    matches!(round, Round::Dirty { .. }) && self.background.flush.ask_idle(round);
                let goes_on = helped || self.clamp_round(&round);
                pools = self.pools();
                if !goes_on {
                    break;
                }
            }
            if rounds > 0 {
                clamp.note_end(rounds, &pools);
            }
            self.background.clamp_bits.store(clamp.bits(), Ordering::Relaxed);
        }
    }

    /// Does what was asked for, and waits for a commit. Failures are latched by the engine, or stay with the
    /// inodes. Says how many bytes of data were written back.
    fn make_round(&self, round: &Round) -> u64 {
        self.background.rounds.fetch_add(1, Ordering::Relaxed);
        match round {
            Round::Dirty { bytes } => self.write_some(*bytes),
            Round::Commit => {
                if let Err(error) = self.engine.commit() {
                    tracing::debug!(%error, "a commit to make room failed");
                }
                0
            }
        }
    }

    /// Makes a round of the clamp, here or in an idle thread; says whether another may give back more. What others took
    /// meanwhile was given back; nothing was where everything dirty is on its way already.
    pub(crate) fn clamp_round(&self, round: &Round) -> bool {
        let before = self.pools();
        let written = self.make_round(round);
        let yielded = self.pools().room().saturating_sub(before.room());
        let pool = if *round == Round::Commit { "overlay" } else { "dirty" };
        let source = "clamp";
        tracing::debug!(target: "buttress::flush", source, pool, yielded, "made room ahead");
        written > 0 || yielded > 0
    }
}
