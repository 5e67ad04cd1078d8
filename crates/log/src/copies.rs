//! Copies of a log's nodes that follow when the log rests.
//!
//! A log of eight threads is some twenty nodes, most of which the next log replaces within a
//! millisecond. Where metadata has two copies on one device (DUP), an fsync waits for the first
//! alone, and the second is written of nodes that stay. Copies on other devices are always waited
//! for: a device may be gone after a crash.
//!
//! # Invariants
//!
//! - **K1** The superblock names a node only when its first copy is durable, which is the one
//!   that readers begin with. The others are written by the second period (100 ms) that the node
//!   sees, and durable by the third: a log that is made meanwhile flushes them, or they are
//!   flushed for themselves. That is where a thread calls [`SyncLog::complete`] so often; the
//!   commit that ends the log makes them needless.
//! - **K2** What another copy of a place holds is the node, or fails the checks that its reader
//!   makes: it is of an earlier transaction. So once other copies of a place were written, every
//!   later node there is written to all of them: an older node of the same log could be taken for
//!   it. And before the first commit of a session all nodes are: a crash before it, or a log that
//!   was thrown away, may have left nodes of that generation anywhere.
//!
//! # Locks
//!
//! The log's, across the writes: nothing of it is replaced or given back meanwhile.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use buttress_format::Logical;

use crate::sync_log::SyncLog;

/// Nodes that are written while the log is held. An fsync may wait for so many.
const AT_ONCE: usize = 32;

impl SyncLog {
    /// Writes the other copies of log nodes that an fsync did not wait for, if it is time (K1). To
    /// be called a few times in 100 ms.
    pub fn complete(&self) {
        self.forget_ended();
        if !self.owes_copies.load(Ordering::Relaxed) || self.engine.check_writable().is_err() {
            return;
        }
        let (old, unflushed) = {
            let (_hold, mut writer) = self.hold();
            let others = writer.others();
            if !others.next_round() {
                return;
            }
            self.owes_copies.store(others.are_owed(), Ordering::Relaxed);
            (others.old(), others.take_unflushed())
        };
        if unflushed && let Err(error) = self.engine.volume().flush() {
            // As behind a log: what was written since the last good flush is in doubt.
            self.engine.latch(error.into());
            return;
        }
        for places in old.chunks(AT_ONCE) {
            if !self.complete_some(&places.iter().copied().collect()) {
                return;
            }
        }
    }

    /// Of those places that are owed still. A failure leaves the log to be ended by a commit.
    fn complete_some(&self, places: &BTreeSet<Logical>) -> bool {
        let (_hold, mut writer) = self.hold();
        let nodes = writer.owed_bytes(places);
        let done: Vec<Logical> = nodes.iter().map(|(at, _)| *at).collect();
        let outcome = self.engine.volume().write_other_copies(&nodes);
        drop(nodes);
        writer.others().note_written(&done, outcome.is_ok());
        if let Err(error) = outcome {
            tracing::warn!(%error, "the other copies of a log: a commit will end it");
            writer.set_broken(true);
            return false;
        }
        self.owes_copies.store(true, Ordering::Relaxed);
        self.counters.note_copies(done.len() as u64);
        true
    }
}
