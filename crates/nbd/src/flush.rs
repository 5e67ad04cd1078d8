//! Concurrent flushes share one flush of the device.
//!
//! # Invariants
//!
//! - **G1** A request to flush is answered after a device flush that began after the request. A
//!   running flush may have missed the writes that the request covers.
//! - **G2** Once a flush has failed, all later flushes fail: a second flush of the device proves
//!   nothing (see [`buttress_block::device`]).
//!
//! # Locks
//!
//! There is one lock of rank `Leaf`, never held while the device flushes. The thread that flushes
//! wakes all others when it is done.

use std::sync::Arc;

use buttress_base::sync::Condvar;
use buttress_base::{Latch, Rank, Ranked};
use buttress_block::{Device, Error};

/// The state of flushes: whether a flush runs, and the number of the last finished flush.
#[derive(Debug)]
pub(crate) struct Flusher {
    turns: Ranked<Turns>,
    over: Condvar,
    failed: Latch<Arc<Error>>,
}

/// Flushes of the device are numbered from one. At most one flush is under way.
#[derive(Debug, Default)]
struct Turns {
    begun: u64,
    ended: u64,
    /// The number of threads that wait for a running flush.
    waiting: u64,
}

impl Flusher {
    pub(crate) fn new() -> Self {
        let turns = Ranked::new(Rank::Leaf, Turns::default());
        Self { turns, over: Condvar::new(), failed: Latch::new() }
    }

    /// The number of requests that wait for the next flush of the device.
    pub(crate) fn waiting(&self) -> u64 {
        self.turns.lock().waiting
    }

    /// Makes durable all data that was written before this call.
    pub(crate) fn flush(&self, device: &dyn Device) -> Result<(), Arc<Error>> {
        let mut turns = self.turns.lock();
        // G1: wait for the flush after the running one.
        let mine = turns.begun + 1;
        loop {
            self.failed.check()?;
            if turns.ended >= mine {
                return Ok(());
            }
            if turns.begun > turns.ended {
                turns.waiting += 1;
                turns.wait(&self.over);
                turns.waiting -= 1;
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

/// Ends the running flush even if the device panicked, so that no thread waits for it for ever.
struct Ending<'a>(&'a Flusher);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // G2: a panic leaves no error, so an error that names the panic is made here.
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
