//! The gate of the running transaction: threads inside change it, and one closes it.
//!
//! # Invariants
//!
//! - **G1** A thread inside changes the transaction that runs. It asks for the transaction inside,
//!   and the gate closes when all threads that found it have left. So all that a thread does inside
//!   is part of one commit, or none of it is.
//! - **G2** A closing thread waits for nothing but those inside. They wait for nothing at all: no
//!   I/O, no space, no other thread inside.
//!
//! The tests run this under a scheduler that tries the orders of threads.

use crate::sync::{CachePadded, RwLock, RwLockReadGuard, SHARDS, shard};

/// Open to many threads, each by the door of its shard; closed by one, which closes all doors.
///
/// Unranked: the outermost; a closing thread takes all doors in order.
#[derive(Debug, Default)]
pub(crate) struct Gate([CachePadded<RwLock<()>>; SHARDS]);

/// A thread inside, until it is dropped.
pub(crate) type Inside<'g> = RwLockReadGuard<'g, ()>;

impl Gate {
    /// Enters; `running` is called inside and returns the transaction that runs (G1).
    pub(crate) fn enter<T>(&self, running: impl FnOnce() -> T) -> (Inside<'_>, T) {
        let inside = self.0[shard()].read();
        let running = running();
        (inside, running)
    }

    /// Waits until no thread is inside, and lets none in during `change`.
    pub(crate) fn alone<T>(&self, change: impl FnOnce() -> T) -> T {
        let _alone: [_; SHARDS] = std::array::from_fn(|door| self.0[door].write());
        change()
    }
}
