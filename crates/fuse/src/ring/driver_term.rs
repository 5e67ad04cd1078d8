//! The choice of the thread that drives a queue.
//!
//! # Invariants
//!
//! - **R6** A driver that returns from a request learns from one number whether it was replaced. It
//!   takes no lock. Its successor holds the lock of the driver's state while the successor waits
//!   for the kernel, maybe for ever. A replaced driver must not wait for this lock: it becomes a
//!   helper.

use std::sync::atomic::{AtomicU64, Ordering};

/// The term of the present driver, and whether that driver is away at a request. Each replacement
/// begins a term.
#[derive(Debug, Default)]
pub(super) struct DriverTerm(AtomicU64);

/// The lowest bit is set while the driver is away. The other bits hold the term.
const AWAY: u64 = 1;
const TERM: u64 = 2;

impl DriverTerm {
    /// The driver of a term gives up the driver's state for a request.
    pub(super) fn leave(&self, term: u64) {
        self.0.store(term * TERM + AWAY, Ordering::Release);
    }

    /// Ends a request of the driver of a term. Returns false if the driver was replaced.
    #[must_use]
    pub(super) fn come_back(&self, term: u64) -> bool {
        let (away, here) = (term * TERM + AWAY, term * TERM);
        self.0.compare_exchange(away, here, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// The term of a driver that is away.
    pub(super) fn away(&self) -> Option<u64> {
        let now = self.0.load(Ordering::Acquire);
        (now & AWAY != 0).then_some(now / TERM)
    }

    /// Replaces the driver of a term. Returns the next term, or `None` if the driver came back
    /// meanwhile.
    #[must_use]
    pub(super) fn replace(&self, term: u64) -> Option<u64> {
        let (away, next) = (term * TERM + AWAY, (term + 1) * TERM);
        let is_ours = self.0.compare_exchange(away, next, Ordering::AcqRel, Ordering::Relaxed);
        is_ours.ok().map(|_| term + 1)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    /// A driver is replaced only while it is away, and only once.
    #[test]
    fn a_driver_that_is_there_is_not_replaced() {
        let term = DriverTerm::default();
        assert_eq!(term.away(), None);
        assert_eq!(term.replace(0), None);
        term.leave(0);
        assert_eq!(term.away(), Some(0));
        assert!(term.come_back(0));
        assert_eq!(term.replace(0), None);
        term.leave(0);
        assert_eq!(term.replace(0), Some(1));
        assert_eq!(term.replace(0), None);
        // The new driver may be away as well when the former driver asks.
        term.leave(1);
        assert!(!term.come_back(0));
        assert_eq!(term.away(), Some(1));
        assert!(term.come_back(1));
    }

    /// If a driver comes back while a watch replaces it, exactly one of the two succeeds.
    #[test]
    fn one_of_both_drives() {
        for _ in 0..2_000 {
            let (term, start) = (DriverTerm::default(), Barrier::new(2));
            term.leave(0);
            let (is_back, next) = std::thread::scope(|scope| {
                let watch = scope.spawn(|| {
                    start.wait();
                    term.replace(0)
                });
                start.wait();
                (term.come_back(0), watch.join().expect("no panic"))
            });
            assert_ne!(is_back, next.is_some());
        }
    }
}
