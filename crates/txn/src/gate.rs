//! The gate of the running transaction. Threads inside the gate change the transaction; a freeze
//! closes the gate.
//!
//! # Invariants
//!
//! - **G1** A thread inside the gate changes the running transaction. After the thread has entered,
//!   it looks up which transaction is running. The gate closes only when all threads have left. So
//!   all changes that a thread makes inside are part of the same commit.
//! - **G2** A closing thread waits only for the threads inside. The threads inside wait for
//!   nothing: no I/O, no space and no other thread inside.
//!
//! The tests run the gate with a model checker, which tries different orders of the threads.

use crate::sync::{CachePadded, RwLock, RwLockReadGuard, SHARDS, shard};

/// One lock per shard. A thread enters by the lock of its shard. A closing
/// thread takes all locks.
///
/// Unranked: it is outside all ranked locks. A closing thread takes the locks in order.
#[derive(Debug, Default)]
pub(crate) struct Gate([CachePadded<RwLock<()>>; SHARDS]);

/// Keeps its thread inside the gate until this value is dropped.
pub(crate) type Inside<'g> = RwLockReadGuard<'g, ()>;

impl Gate {
    /// Enters the gate. Calls `running` inside the gate, to get the running transaction (G1).
    pub(crate) fn enter<T>(&self, running: impl FnOnce() -> T) -> (Inside<'_>, T) {
        let inside = self.0[shard()].read();
        let running = running();
        (inside, running)
    }

    /// Waits until no thread is inside, then runs `change` with the gate closed.
    pub(crate) fn alone<T>(&self, change: impl FnOnce() -> T) -> T {
        let _alone: [_; SHARDS] = std::array::from_fn(|at| self.0[at].write());
        change()
    }
}
