//! Something that happens once, and that any number of threads wait for.
//!
//! # Invariants
//!
//! - **V1** Who waits returns when it has happened, and sees what was done before. All are woken by one call of the
//!   kernel, and none waits for another that was woken: a condition variable hands its mutex from one to the next.

use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::futex;

use crate::sync::{Condvar, Mutex};
use crate::thread;

/// See the module.
#[derive(Debug, Default)]
pub struct Event {
    happened: AtomicU32,
    /// For threads under the seeded scheduler, which must know of everybody who waits.
    lock: Mutex<()>,
    seeded: Condvar,
}

impl Event {
    /// Lets it happen.
    pub fn set(&self) {
        {
            let _lock = self.lock.lock();
            self.happened.store(1, Ordering::Release);
        }
        self.seeded.notify_all();
        // It does not fail with an address of ours; nobody may be there to be woken.
        let _ = futex::wake(&self.happened, futex::Flags::PRIVATE, i32::MAX as u32);
    }

    /// Whether it has happened.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.happened.load(Ordering::Acquire) != 0
    }

    /// Waits until it happens.
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
            // It happened meanwhile, a signal came, or it was woken: it looks again.
            let _ = futex::wait(&self.happened, futex::Flags::PRIVATE, 0, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    /// V1, with threads that come before, about when it happens, and afterwards.
    #[test]
    fn everybody_is_woken() {
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
