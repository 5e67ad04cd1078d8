//! Who changes the running transaction, and the moment it closes.
//!
//! # Invariants
//!
//! - **G1** Who is inside changes the transaction that runs: it is asked for inside, and closes
//!   when everybody has left who found it. So all that one does inside is part of one commit, or
//!   none of it is.
//! - **G2** Who closes it waits for nothing but those inside, and they for nothing at all: no
//!   I/O, no space, no other who is inside.
//!
//! The tests run this under a scheduler that tries the orders of threads.

use crate::sync::{Apart, RwLock, RwLockReadGuard, STRIPES, stripe};

/// Open to many, each by the door of his stripe, closed by one, who closes all doors.
#[derive(Debug, Default)]
pub(crate) struct Gate([Apart<RwLock<()>>; STRIPES]);

/// Somebody inside, until it is dropped.
pub(crate) type Inside<'g> = RwLockReadGuard<'g, ()>;

impl Gate {
    /// Goes in; `running` is asked there which transaction runs (G1).
    pub(crate) fn enter<T>(&self, running: impl FnOnce() -> T) -> (Inside<'_>, T) {
        let inside = self.0[stripe()].read();
        let running = running();
        (inside, running)
    }

    /// Waits until nobody is inside, and lets nobody in during `change`.
    pub(crate) fn alone<T>(&self, change: impl FnOnce() -> T) -> T {
        let _alone: [_; STRIPES] = std::array::from_fn(|door| self.0[door].write());
        change()
    }
}
