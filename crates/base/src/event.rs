//! An event that happens once. Any number of threads can wait for it.
//!
//! # Invariants
//!
//! - **V1** A waiting thread returns when the event has happened, and sees all writes from before
//!   [`Event::set`]. One system call wakes all waiting threads. With a condition variable, each
//!   woken thread would wait for the mutex until the preceding thread has released it. Here no
//!   woken thread waits for another.

use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::futex;

use crate::sync::{Condvar, Mutex};
use crate::thread;

/// An event that happens at most once.
#[derive(Debug, Default)]
pub struct Event {
    happened: AtomicU32,
    /// For threads under the seeded scheduler, which must know of every waiting thread. Unranked:
    /// no other lock is taken under it.
    lock: Mutex<()>,
    seeded: Condvar,
}

impl Event {
    /// Makes the event happen, and wakes all waiting threads.
    pub fn set(&self) {
        {
            let _lock = self.lock.lock();
            self.happened.store(1, Ordering::Release);
        }
        self.seeded.notify_all();
        // The call cannot fail for an address of this process. It may find no thread to wake.
        let _ = futex::wake(&self.happened, futex::Flags::PRIVATE, i32::MAX as u32);
    }

    /// Returns whether the event has happened.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.happened.load(Ordering::Acquire) != 0
    }

    /// Waits until the event has happened.
    #[track_caller]
    pub fn wait(&self) {
        if thread::seeded_index().is_some() {
            let mut lock = self.lock.lock();
            while !self.is_set() {
                self.seeded.wait(&mut lock);
            }
            return;
        }
        while !self.is_set() {
            // The event happened meanwhile, a signal arrived, or the thread was woken. The loop
            // checks again.
            let _ = futex::wait(&self.happened, futex::Flags::PRIVATE, 0, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    /// V1: all threads return, whether they begin to wait before the event, at about its time, or
    /// after it.
    #[test]
    fn an_event_wakes_all_waiting_threads() {
        for round in 0..200_u64 {
            let (event, done) = (Event::default(), AtomicU64::new(0));
            std::thread::scope(|scope| {
                for thread in 0..4 {
                    let (event, done) = (&event, &done);
                    scope.spawn(move || {
                        for _ in 0..(round + thread * 37) % 50 {
                            std::hint::spin_loop();
                        }
                        event.wait();
                        assert_eq!(done.load(Ordering::Relaxed), 7);
                    });
                }
                if round % 2 == 0 {
                    std::thread::yield_now();
                }
                assert!(!event.is_set());
                done.store(7, Ordering::Relaxed);
                event.set();
            });
            assert!(event.is_set());
        }
    }
}
