//! Rounds of preemptive flushing for metadata: an idle thread writes some data back, or commits.

use std::sync::atomic::Ordering;

use buttress_txn::{MetadataUse, Round};

use super::Writeback;

impl Writeback {
    /// The present holders of metadata.
    pub(crate) fn pools(&self) -> MetadataUse {
        self.engine
            .reservations()
            .pools(self.files.counters().dirty_bytes(), self.files.counters().ordered_bytes())
    }

    /// Asks an idle thread to make a round. Returns false if no thread is idle.
    pub(crate) fn ask_idle(&self, round: Round) -> bool {
        self.list.ask_idle(round)
    }

    /// Makes a round of preemptive flushing in this thread. Returns whether another round may free
    /// more, because this round wrote bytes or shrank the pools. A round writes nothing and shrinks
    /// no pool if all dirty data is already in writeback.
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
    /// them. Returns the number of data bytes that were written back.
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

    /// Writes back `bytes` of the oldest dirty data, from files that no other thread writes.
    /// Returns the number of written bytes.
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
