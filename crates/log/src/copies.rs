//! Second copies of log nodes, which are written later than the log.
//!
//! The log of eight threads has about twenty nodes, and the next log replaces most of them within a
//! millisecond. Where metadata has two copies on one device (DUP), an fsync waits only for the
//! first. The second copy is written later, for nodes that still exist. An fsync always waits for
//! copies on other devices, because a device may be gone after a crash.
//!
//! # Invariants
//!
//! - **K1** The superblock references a node only when its first copy is durable. Readers begin
//!   with the first copy. The other copies are written within two periods (of 100 ms) after the
//!   node, and durable within three. If a log is made in between, its flush makes these copies
//!   durable; otherwise they get a flush of their own. A thread must call [`SyncLog::complete`] at
//!   least once in each period. The commit that ends the log makes the other copies unnecessary.
//! - **K2** Another copy at an address holds the same node, or a node of an earlier transaction. A
//!   reader's checks refuse such an older node. So after the other copies of an address were
//!   written once, every later node there goes to all copies. If a later node went to the first
//!   copy only, a reader of another copy could accept an older node of the same log. Before the
//!   first commit of a session, all nodes go to all copies. A crash or a discarded log may have
//!   left nodes of the running transaction's generation anywhere.
//!
//! # Locks
//!
//! The lock of the log is held across the writes, so no node of the log is replaced or freed
//! meanwhile.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use buttress_format::Logical;

use crate::sync_log::SyncLog;

/// How many nodes are written under one hold of the log. An fsync may have to wait for them.
const AT_ONCE: usize = 32;

impl SyncLog {
    /// Writes the other copies of log nodes that an fsync did not wait for, if it is time (K1). A
    /// thread calls this a few times in 100 ms.
    pub fn complete(&self) {
        self.forget_ended();
        if !self.lacks_copies.load(Ordering::Relaxed) || self.engine.check_writable().is_err() {
            return;
        }
        let (old, unflushed) = {
            let (_hold, mut writer) = self.hold();
            let others = writer.others();
            if !others.next_round() {
                return;
            }
            self.lacks_copies.store(others.is_any(), Ordering::Relaxed);
            (others.old(), others.take_unflushed())
        };
        if unflushed && let Err(error) = self.engine.volume().flush() {
            // A failed flush latches the volume here as in `sync`: data written since the last good
            // flush may be lost.
            self.engine.latch(error.into());
            return;
        }
        for places in old.chunks(AT_ONCE) {
            if !self.complete_some(&places.iter().copied().collect()) {
                return;
            }
        }
    }

    /// Writes the copies for those `places` that still need them. After a failure, a commit must
    /// end the log.
    fn complete_some(&self, places: &BTreeSet<Logical>) -> bool {
        let (_hold, mut writer) = self.hold();
        let nodes = writer.single_copy_bytes(places);
        let done: Vec<Logical> = nodes.iter().map(|(at, _)| *at).collect();
        let outcome = self.engine.volume().write_other_copies(&nodes);
        drop(nodes);
        writer.others().note_written(&done, outcome.is_ok());
        if let Err(error) = outcome {
            tracing::warn!(%error, "the other copies of a log: a commit will end it");
            writer.set_broken(true);
            return false;
        }
        self.lacks_copies.store(true, Ordering::Relaxed);
        self.counters.note_copies(done.len() as u64);
        true
    }
}
