//! Buffers of dirty data that are kept for the next writers.
//!
//! # Invariants
//!
//! - **B1** The pool keeps only as many buffers as writers need at once. Every period, half of the
//!   buffers that no writer needed in the period go back to the system.
//! - **B2** A buffer that is given back leaves no memory behind in the allocator. Allocators keep
//!   blocks of up to 512 KiB for the thread that took them, until that thread asks again. Often
//!   another thread gives buffers back. So a volume at rest once kept 4 MiB for each thread that
//!   had ever written. Larger blocks are not kept. So each buffer has more room, of which only
//!   [`PIECE_BYTES`] are ever touched.

use std::sync::Arc;
use std::time::{Duration, Instant};

use buttress_base::{Rank, Ranked, clock};

use crate::dirty::{PIECE_BYTES, Run};

/// The largest number of buffers of [`PIECE_BYTES`] that are kept for the next writer.
const POOL_PIECES: usize = 512;

/// The capacity of a buffer, in bytes (B2).
const CAPACITY: usize = (512 << 10) + 4096;

/// The least time between two trims of the kept buffers.
const TRIM_PERIOD: Duration = Duration::from_millis(500);

/// Buffers that were written back and can be filled again. Memory fresh from the system has to be
/// cleared first, which costs more than the copy into it.
#[derive(Debug)]
pub(crate) struct BufferPool(Ranked<Kept>);

/// The buffers of a pool.
#[derive(Debug)]
struct Kept {
    buffers: Vec<Vec<u8>>,
    /// The least number of buffers in the pool since the last trim. In that time no writer needed
    /// these buffers.
    spare: usize,
    trimmed: Instant,
}

impl BufferPool {
    pub(crate) fn new() -> Self {
        let kept = Kept { buffers: Vec::new(), spare: 0, trimmed: clock::now() };
        Self(Ranked::new(Rank::Leaf, kept))
    }

    pub(crate) fn take(&self) -> Vec<u8> {
        let mut kept = self.0.lock();
        let buffer = kept.buffers.pop();
        kept.spare = kept.spare.min(kept.buffers.len());
        drop(kept);
        buffer.unwrap_or_else(|| Vec::with_capacity(CAPACITY))
    }

    /// Gives half of the buffers that no writer needed since the last trim back to the system. So a
    /// steady load keeps the buffers that it needs, and a volume at rest soon keeps none.
    pub(crate) fn trim(&self, now: Instant) {
        let given = {
            let mut kept = self.0.lock();
            if now.saturating_duration_since(kept.trimmed) < TRIM_PERIOD {
                return;
            }
            let left = kept.buffers.len() - kept.spare.div_ceil(2);
            let given = kept.buffers.split_off(left);
            (kept.spare, kept.trimmed) = (left, now);
            given
        };
        drop(given);
    }

    /// Bytes of the kept buffers.
    pub(crate) fn bytes(&self) -> u64 {
        (self.0.lock().buffers.len() * PIECE_BYTES) as u64
    }

    /// Takes back the buffers of a run, except buffers that a thread still reads.
    pub(crate) fn give(&self, run: Run) {
        for piece in run.pieces {
            let Ok(mut piece) = Arc::try_unwrap(piece) else { continue };
            if piece.capacity() != CAPACITY {
                continue;
            }
            piece.clear();
            let mut kept = self.0.lock();
            if kept.buffers.len() < POOL_PIECES {
                kept.buffers.push(piece);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// B2: each buffer is too large for the blocks that allocators keep for a thread.
    #[test]
    fn buffers_exceed_the_caches_of_allocators() {
        assert!(BufferPool::new().take().capacity() > 512 << 10);
    }

    /// B1: under a load that never rests, the pool keeps the buffers that the load needs, and no
    /// more.
    #[test]
    fn pool_gives_up_unneeded_buffers() {
        let pool = BufferPool::new();
        let give = |buffers: Vec<Vec<u8>>| {
            let pieces = buffers.into_iter().map(Arc::new).collect();
            pool.give(Run { offset: 0, pieces, len: 0, unreserved: None });
        };
        let take = |count: usize| (0..count).map(|_| pool.take()).collect::<Vec<_>>();
        let mut now = clock::now();
        give(take(200));
        assert_eq!(pool.bytes(), (200 * PIECE_BYTES) as u64);
        for _ in 0..10 {
            // Between two trims the load needs ten buffers at once.
            now += TRIM_PERIOD;
            pool.trim(now);
            give(take(10));
        }
        assert_eq!(pool.bytes(), (10 * PIECE_BYTES) as u64);
        pool.trim(now);
        assert_eq!(pool.bytes(), (10 * PIECE_BYTES) as u64, "no second time in a period");
        for _ in 0..6 {
            now += TRIM_PERIOD;
            pool.trim(now);
        }
        assert_eq!(pool.bytes(), 0);
    }
}
