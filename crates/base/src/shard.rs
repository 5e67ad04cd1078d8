//! Gives each thread its part of a sharded counter or lock.
//!
//! # Place
//!
//! A processor that writes a word takes the whole cache line away from all other processors. So a
//! counter that many threads change is split into several parts, each in a
//! [`CachePadded`](crate::CachePadded).
//!
//! # Invariants
//!
//! - **S1** A thread has the same shard for ever. So a thread subtracts from the part of a counter
//!   to which the thread has added. In a seeded run the shard follows from the thread's number in
//!   the run.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::thread;

/// The number of shards. More shards than processors that write at a time gain nothing. With fewer
/// shards, more threads share each shard.
pub const SHARDS: usize = 16;

/// Returns the shard of this thread, below [`SHARDS`]. New threads get the shards in turn (S1).
#[must_use]
pub fn shard() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static MINE: Cell<usize> = Cell::new(
            thread::seeded_index().unwrap_or_else(|| NEXT.fetch_add(1, Ordering::Relaxed)) % SHARDS
        );
    }
    MINE.with(Cell::get)
}
