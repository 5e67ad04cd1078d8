//! What many threads change at once, on lines of the processors' caches of its own.
//!
//! # Place
//!
//! A processor that writes a word takes its whole line away from all others, and what lies beside
//! the word with it. So a counter that every operation changes makes a constant field beside it as
//! dear as itself.
//!
//! # Invariants
//!
//! - **S1** A thread has one stripe for ever, so what it adds and takes away meets in one place.
//!   Under a seed that is the thread's number in the run.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::thread;

/// More than processors that write at a time gain nothing; fewer meet.
pub const STRIPES: usize = 16;

/// Something with lines of its own. Processors fetch lines in pairs.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(128))]
pub struct Apart<T>(pub T);

impl<T> Deref for Apart<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for Apart<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

/// Returns the stripe of this thread; threads get them in turn (S1).
#[must_use]
pub fn stripe() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static MINE: Cell<usize> = Cell::new(
            thread::seeded_index().unwrap_or_else(|| NEXT.fetch_add(1, Ordering::Relaxed)) % STRIPES
        );
    }
    MINE.with(Cell::get)
}
