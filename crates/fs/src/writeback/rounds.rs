//! Rounds that make room for metadata ahead: an idle thread writes some data back, or commits.

use std::sync::atomic::Ordering;

use buttress_txn::{Pools, Round};

use super::Writeback;

impl Writeback {
    /// What holds metadata now.
    pub(crate) fn pools(&self) -> Pools {
        self.engine
            .reservations()
            .pools(self.files.counters().dirty_bytes(), self.files.counters().ordered_bytes())
    }

    /// Has an idle thread make a round. Returns whether there is one.
    pub(crate) fn ask_idle(&self, round: Round) -> bool {
        self.list.ask_idle(round)
    }

    /// Makes a round of the clamp in this thread. Returns whether another round may give back more:
    /// bytes were written, or the pools shrank. Neither happens if all dirty data is on its way.
    pub(crate) fn clamp_round(&self, round: &Round) -> bool {
        let before = self.pools();
        let written = self.make_round(round);
        let yielded = self.pools().room().saturating_sub(before.room());
        let pool = if *round == Round::Commit { "overlay" } else { "dirty" };
        let source = "clamp";
        tracing::debug!(target: "buttress::flush", source, pool, yielded, "made room ahead");
        written > 0 || yielded > 0
    }

    /// Makes a round, and waits for its commit. The engine latches failures, or the inodes keep
    /// them. Returns how many bytes of data were written back.
    fn make_round(&self, round: &Round) -> u64 {
        self.figures.rounds.fetch_add(1, Ordering::Relaxed);
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

    /// Writes `bytes` of the oldest dirty data back, of files that no other thread writes. Returns
    /// how many bytes it wrote.
    pub(crate) fn write_some(&self, bytes: u64) -> u64 {
        let mut left = bytes;
        while left > 0 {
            let taken = self.write_free_batch(left);
            if taken == 0 {
                break;
            }
            left = left.saturating_sub(taken);
        }
        let written = bytes - left;
        self.figures.flushed.fetch_add(written, Ordering::Relaxed);
        written
    }
}
