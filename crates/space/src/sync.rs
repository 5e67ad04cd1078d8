//! What the guards of in-place writers are built on. The tests have another one of these, of a model checker.

use std::cell::Cell;

pub(crate) use std::sync::Arc;
pub(crate) use std::sync::atomic::{AtomicUsize, Ordering};

use buttress_base::thread;

pub(crate) use buttress_base::sync::{Condvar, Mutex};

/// Counters that processors have of their own, if there are no more of them.
pub(crate) const STRIPES: usize = 16;

/// Groups with different remainders are drained apart.
pub(crate) const BUCKETS: usize = 16;

/// The stripe of this thread; threads get them in turn.
pub(crate) fn stripe() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static MINE: Cell<usize> = Cell::new(
            thread::seeded_index().unwrap_or_else(|| NEXT.fetch_add(1, Ordering::Relaxed)) % STRIPES
        );
    }
    MINE.with(Cell::get)
}
