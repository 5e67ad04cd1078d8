//! Which part of a sharded count or lock a thread uses.
//!
//! # Place
//!
//! A processor that writes a word takes its whole cache line away from all others. So what many
//! threads change at once has a part for each of them, in a [`CachePadded`](crate::CachePadded).
//!
//! # Invariants
//!
//! - **S1** A thread has one shard for ever, so what it adds and takes away meets in one place.
//!   Under a seed that is the thread's number in the run.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::thread;

/// How many shards there are. More than processors that write at a time gain nothing; fewer meet.
pub const SHARDS: usize = 16;

/// Returns the shard of this thread, below [`SHARDS`]. Threads get them in turn (S1).
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
