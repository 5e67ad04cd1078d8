//! Values that many threads change, each on cache lines of its own.
//!
//! # Place
//!
//! A processor that writes a word invalidates the whole cache line in all other processors. So a
//! counter that every operation changes slows down reads of each constant field beside it (false
//! sharing).
//!
//! # Invariants
//!
//! - **S1** A thread keeps one stripe for its lifetime, so its increments and decrements reach the
//!   same counter. In a seeded run the stripe follows from the number of the thread in the run.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::thread;

/// The number of stripes. More stripes than processors that write at a time bring nothing. With
/// fewer, threads share a stripe more often.
pub const STRIPES: usize = 16;

/// A value with cache lines of its own. Processors fetch lines in pairs, so the alignment is two
/// lines.
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
