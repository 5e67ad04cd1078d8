//! A lock that makes moving block groups and dropping dead subvolumes alternate. Its holder has the
//! turn.
//!
//! # Invariants
//!
//! - **T1** A step of a drop and a batch of a move never run at the same time. The step and the
//!   batch each commit before the turn passes on. Otherwise a move would rebuild nodes that a drop
//!   removes.
//! - **T2** A step waits a limited time. Between two batches, a mover lets a waiting step go first.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use buttress_base::clock;
use buttress_base::sync::{Mutex, MutexGuard};

/// How often a waiting step looks whether the turn is free.
const PERIOD: Duration = Duration::from_millis(10);

/// How long a step waits for its turn.
const WAIT_MAX: Duration = Duration::from_millis(200);

/// The turn, and flags by which waiting steps and callers stop movers.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    /// Unranked: this lock is held across I/O and commits.
    trees: Mutex<()>,
    /// Whether a step waits for the turn.
    is_wanted: AtomicBool,
    /// Whether movers must stop soon.
    stops: AtomicBool,
}

impl Turn {
    /// Takes the turn, and waits for it without a limit.
    pub(crate) fn take(&self) -> MutexGuard<'_, ()> {
        self.trees.lock()
    }

    /// Takes the turn. Returns `None` if a mover keeps it for too long (T2).
    pub(crate) fn take_soon(&self) -> Option<MutexGuard<'_, ()>> {
        let begun = clock::now();
        loop {
            if let Some(turn) = self.trees.try_lock() {
                return Some(turn);
            }
            if clock::since(begun) >= WAIT_MAX {
                return None;
            }
            self.is_wanted.store(true, Ordering::SeqCst);
            buttress_base::thread::sleep(PERIOD);
        }
    }

    /// Sleeps if a step of a drop waits, so that the step gets the turn. The caller must not hold
    /// the turn.
    pub(crate) fn give_way(&self) {
        if self.is_wanted.swap(false, Ordering::SeqCst) {
            // The step looks every `PERIOD`.
            buttress_base::thread::sleep(2 * PERIOD);
        }
    }

    /// Tells movers to stop soon, or to go on.
    pub(crate) fn stop(&self, stop: bool) {
        self.stops.store(stop, Ordering::SeqCst);
    }

    /// Whether movers must stop.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stops.load(Ordering::SeqCst)
    }
}
