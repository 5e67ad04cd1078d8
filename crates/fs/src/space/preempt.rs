//! The thread that makes room before any caller waits.
//!
//! # Place
//!
//! The thread inspects the use of metadata and applies the rule (`buttress_space::preempt`). It
//! then writes data back or commits. No caller waits for this thread.
//!
//! # Invariants
//!
//! - **P1** The thread never waits for a file's writeback claim, nor for data in writeback.
//! - **P2** While no metadata is reserved, the thread only makes checks, at long intervals.

use std::sync::atomic::Ordering;
use std::time::Duration;

use buttress_txn::{Clamp, MetadataUse, Round};

use super::Space;
use crate::stop::StopSignal;

/// Period of the thread's checks while metadata is reserved, and while none is.
const TICK: Duration = Duration::from_millis(4);
const IDLE_TICK: Duration = Duration::from_millis(40);

/// The most rounds of preemptive flushing in a row, so that they do not delay the end of the mount.
const ROUNDS_MAX: u32 = 64;

impl Space {
    /// Runs preemptive flushing until the mount ends.
    pub(crate) fn make_room_ahead(&self, stop: &StopSignal) {
        let runs = &self.figures.runs_for_metadata;
        let mut clamp = Clamp::default();
        let mut seen = runs.load(Ordering::Relaxed);
        let mut last = MetadataUse::default();
        while !stop.is_set() {
            let pools = self.writeback.pools();
            let limit = if pools == last { IDLE_TICK } else { TICK };
            last = pools;
            self.engine.reservations().wait_for_reservations(clamp.lacks(&pools), limit);
            let now = runs.load(Ordering::Relaxed);
            if now != seen {
                seen = now;
                clamp.note_wait(&self.writeback.pools());
            }
            let mut rounds = 0;
            let mut pools = self.writeback.pools();
            while rounds < ROUNDS_MAX && clamp.is_due(&pools) && !stop.is_set() {
                rounds += 1;
                let round = clamp.round(&pools);
                let helped = matches!(round, Round::Dirty { .. }) && self.writeback.ask_idle(round);
                let goes_on = helped || self.writeback.clamp_round(&round);
                pools = self.writeback.pools();
                if !goes_on {
                    break;
                }
            }
            if rounds > 0 {
                clamp.note_end(rounds, &pools);
            }
            self.figures.clamp_bits.store(clamp.bits(), Ordering::Relaxed);
        }
    }
}
