//! Flushes that come together share one.
//!
//! # Invariants
//!
//! - **G1** A flush is answered by a flush of the device that began after it was asked for. One that
//!   is under way already may have passed over the writes it is about.
//! - **G2** Once one has failed, all fail: asking a device again proves nothing (see
//!   [`buttress_block::device`]).
//!
//! # Locks
//!
//! One leaf, never held while the device flushes. Who flushes wakes everybody when it is done.

use std::sync::Arc;

use buttress_base::sync::Condvar;
use buttress_base::{Latch, Rank, Ranked};
use buttress_block::{Device, Error};

/// Who flushes, and which flushes are over.
#[derive(Debug)]
pub(crate) struct Flusher {
    turns: Ranked<Turns>,
    over: Condvar,
    failed: Latch<Arc<Error>>,
}

/// Flushes of the device are numbered from one. At most one is under way.
#[derive(Debug, Default)]
struct Turns {
    begun: u64,
    ended: u64,
}

impl Flusher {
    pub(crate) fn new() -> Self {
        let turns = Ranked::new(Rank::Leaf, Turns::default());
        Self { turns, over: Condvar::new(), failed: Latch::new() }
    }

    /// Makes durable what was written before this was called.
    pub(crate) fn flush(&self, device: &dyn Device) -> Result<(), Arc<Error>> {
        let mut turns = self.turns.lock();
        // G1: not the one under way, if any.
        let mine = turns.begun + 1;
        loop {
            self.failed.check()?;
            if turns.ended >= mine {
                return Ok(());
            }
            if turns.begun > turns.ended {
                turns.wait(&self.over);
                continue;
            }
            turns.begun += 1;
            drop(turns);
            let ending = Ending(self);
            if let Err(error) = device.flush() {
                self.failed.set(Arc::new(error));
            }
            drop(ending);
            turns = self.turns.lock();
        }
    }
}

/// Ends a turn, also of a device that panicked: nobody shall wait for that for ever.
struct Ending<'a>(&'a Flusher);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // G2. No error is at hand, and one that says where it comes from is as good.
            let operation = buttress_block::Operation::Flush;
            let source = std::io::Error::other("the server failed while flushing");
            let device = String::new();
            let error = Error::Io { device, operation, offset: 0, len: 0, source };
            self.0.failed.set(Arc::new(error));
        }
        let mut turns = self.0.turns.lock();
        turns.ended = turns.begun;
        self.0.over.notify_all();
    }
}
