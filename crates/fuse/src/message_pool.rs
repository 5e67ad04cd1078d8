//! Memory for messages of the device, which is kept for later requests.
//!
//! # Invariants
//!
//! - **MP1** The pool keeps about as many buffers as requests lately needed at once. In each
//!   period, half of the buffers that no request needed go back to the system. So a burst of large
//!   writes does not hold memory for good. Only the end of a request gives buffers back: a mount
//!   without requests keeps its buffers.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use buttress_base::clock;
use buttress_base::rank::{Rank, Ranked};

/// The most buffers that are kept.
const KEPT_MAX: usize = 16;
/// The least time between two rounds that give buffers back.
const TRIM_PERIOD: Duration = Duration::from_millis(500);

/// Bytes of all buffers of this process that were touched.
static TOUCHED: AtomicU64 = AtomicU64::new(0);

/// Bytes of the buffers that requests by `/dev/fuse` have, or that are kept for them. Parts that
/// were never touched take no memory, and are not counted.
pub(crate) fn touched_bytes() -> u64 {
    TOUCHED.load(Ordering::Relaxed)
}

/// Memory of one message.
#[derive(Debug, Default)]
pub(crate) struct Buffer {
    bytes: Box<[u8]>,
    /// Bytes from the start that were touched.
    touched: usize,
}

impl Buffer {
    /// A buffer of zeros.
    pub(crate) fn new(len: usize) -> Self {
        Self { bytes: vec![0; len].into_boxed_slice(), touched: 0 }
    }

    /// Notes that the first `len` bytes were read or written.
    pub(crate) fn note_touched(&mut self, len: usize) {
        let len = len.min(self.bytes.len());
        if len > self.touched {
            TOUCHED.fetch_add((len - self.touched) as u64, Ordering::Relaxed);
            self.touched = len;
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        TOUCHED.fetch_sub(self.touched as u64, Ordering::Relaxed);
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

/// Buffers of one length.
#[derive(Debug)]
pub(crate) struct MessagePool {
    len: usize,
    kept: Ranked<Kept>,
}

#[derive(Debug)]
struct Kept {
    buffers: Vec<Buffer>,
    /// The least number of kept buffers since the last trim. No request since then needed these
    /// buffers.
    spare: usize,
    trimmed: Instant,
}

impl MessagePool {
    /// Keeps buffers of `len` bytes.
    pub(crate) fn new(len: usize) -> Self {
        let kept = Kept { buffers: Vec::new(), spare: 0, trimmed: clock::now() };
        Self { len, kept: Ranked::new(Rank::Leaf, kept) }
    }

    pub(crate) fn take(&self) -> Buffer {
        let mut kept = self.kept.lock();
        let buffer = kept.buffers.pop();
        kept.spare = kept.spare.min(kept.buffers.len());
        drop(kept);
        buffer.unwrap_or_else(|| Buffer::new(self.len))
    }

    /// Keeps a buffer. A buffer of another length is dropped.
    pub(crate) fn put(&self, buffer: Buffer) {
        self.put_at(buffer, clock::now());
    }

    fn put_at(&self, buffer: Buffer, now: Instant) {
        if buffer.len() != self.len {
            return;
        }
        // The buffers are dropped after the lock is released.
        let _given = {
            let mut kept = self.kept.lock();
            if kept.buffers.len() >= KEPT_MAX {
                return;
            }
            kept.buffers.push(buffer);
            if now.saturating_duration_since(kept.trimmed) < TRIM_PERIOD {
                return;
            }
            let left = kept.buffers.len() - kept.spare.div_ceil(2);
            let given = kept.buffers.split_off(left);
            (kept.spare, kept.trimmed) = (left, now);
            given
        };
    }

    /// The number of buffers that are kept.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.kept.lock().buffers.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// MP1: after a burst the pool soon keeps only the buffers that requests need.
    #[test]
    fn pool_gives_up_unneeded_memory() {
        let pool = MessagePool::new(4096);
        let mut now = clock::now();
        let mut burst: Vec<_> = (0..40).map(|_| pool.take()).collect();
        burst.iter_mut().for_each(|buffer| buffer.note_touched(4000));
        burst.iter_mut().for_each(|buffer| buffer.note_touched(100));
        assert!(touched_bytes() >= 40 * 4000);
        burst.into_iter().for_each(|buffer| pool.put_at(buffer, now));
        assert_eq!(pool.count(), KEPT_MAX);
        for _ in 0..10 {
            // Between two rounds two requests come at once.
            now += TRIM_PERIOD;
            let two = [pool.take(), pool.take()];
            two.into_iter().for_each(|buffer| pool.put_at(buffer, now));
        }
        assert_eq!(pool.count(), 2);
        pool.put_at(Buffer::new(100), now);
        assert_eq!(pool.count(), 2, "a buffer of another length");
    }
}
