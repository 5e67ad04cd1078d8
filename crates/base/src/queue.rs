//! A queue, bounded or not, from any number of senders to any number of receivers.
//!
//! # Place
//!
//! The queues of other libraries wait in the system. A thread of a seeded run ([`crate::seeded`])
//! would keep its turn there, and the thread at the other end could never run. This queue waits in
//! [`crate::sync`].
//!
//! # Invariants
//!
//! - **Q1** Each value goes to one receiver. One receiver gets the values of one sender in order.
//! - **Q2** A receiver gets `None` only after all senders and all values are gone.
//! - **Q3** A sender does not wait for room if no receiver is left.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use crate::sync::{Condvar, Mutex};

/// Creates a queue for at most `most` values that no receiver took yet, and at least one.
#[must_use]
pub fn bounded<T>(most: usize) -> (Sender<T>, Receiver<T>) {
    let state = State { values: VecDeque::new(), senders: 1, receivers: 1 };
    let core = Arc::new(Core {
        most: most.max(1),
        state: Mutex::new(state),
        filled: Condvar::new(),
        emptied: Condvar::new(),
    });
    (Sender { core: Arc::clone(&core) }, Receiver { core })
}

/// Creates a queue that is never full.
#[must_use]
pub fn unbounded<T>() -> (Sender<T>, Receiver<T>) {
    bounded(usize::MAX)
}

struct State<T> {
    values: VecDeque<T>,
    senders: usize,
    receivers: usize,
}

struct Core<T> {
    most: usize,
    // Unranked: a leaf. A thread may hold ranked locks when it takes this one, and takes no lock
    // under it.
    state: Mutex<State<T>>,
    filled: Condvar,
    emptied: Condvar,
}

/// The end of a queue that values go into. A clone is another sender of the same queue.
pub struct Sender<T> {
    core: Arc<Core<T>>,
}

/// The end of a queue that values come out of. A clone is another receiver of the same queue.
pub struct Receiver<T> {
    core: Arc<Core<T>>,
}

impl<T> Sender<T> {
    /// Appends a value; waits while the queue is full.
    ///
    /// # Errors
    ///
    /// The value, if no receiver is left.
    #[track_caller]
    pub fn send(&self, value: T) -> Result<(), T> {
        let mut state = self.core.state.lock();
        while state.receivers > 0 && state.values.len() >= self.core.most {
            self.core.emptied.wait(&mut state);
        }
        if state.receivers == 0 {
            return Err(value);
        }
        state.values.push_back(value);
        drop(state);
        self.core.filled.notify_one();
        Ok(())
    }
}

impl<T> Receiver<T> {
    /// Takes the first value; waits while there is none. Returns `None` if no more will come.
    #[track_caller]
    pub fn recv(&self) -> Option<T> {
        let mut state = self.core.state.lock();
        while state.senders > 0 && state.values.is_empty() {
            self.core.filled.wait(&mut state);
        }
        let value = state.values.pop_front();
        drop(state);
        if value.is_some() {
            self.core.emptied.notify_one();
        }
        value
    }

    /// Takes the first value if there is one.
    #[track_caller]
    pub fn try_recv(&self) -> Option<T> {
        let value = self.core.state.lock().values.pop_front();
        if value.is_some() {
            self.core.emptied.notify_one();
        }
        value
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.core.state.lock().senders += 1;
        Self { core: Arc::clone(&self.core) }
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Self {
        self.core.state.lock().receivers += 1;
        Self { core: Arc::clone(&self.core) }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let mut state = self.core.state.lock();
        state.senders -= 1;
        let is_last = state.senders == 0;
        drop(state);
        if is_last {
            self.core.filled.notify_all();
        }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let mut state = self.core.state.lock();
        state.receivers -= 1;
        // No receiver will take what is left. It is dropped after the lock, since its destructors
        // may take locks.
        let left =
            if state.receivers == 0 { std::mem::take(&mut state.values) } else { VecDeque::new() };
        let is_last = state.receivers == 0;
        drop(state);
        drop(left);
        if is_last {
            self.core.emptied.notify_all();
        }
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::thread;

    /// Q1, Q2, from plain threads and in seeded runs. In a run, a queue of another library would
    /// stand still here: its threads would wait for one another outside of the scheduler.
    #[test]
    fn all_values_arrive_once_and_in_order() {
        let work = || {
            let (sender, receiver) = bounded(3);
            thread::scope(|scope| {
                for from in 0..3_u32 {
                    let sender = sender.clone();
                    scope.spawn(move || {
                        (0..40_u32).for_each(|nth| sender.send((from, nth)).expect("a receiver"));
                    });
                }
                drop(sender);
                let receivers: Vec<_> = (0..2)
                    .map(|_| {
                        let receiver = receiver.clone();
                        scope.spawn(move || {
                            let all: Vec<_> = std::iter::from_fn(|| receiver.recv()).collect();
                            for from in 0..3 {
                                assert!(all.iter().filter(|value| value.0 == from).is_sorted());
                            }
                            all
                        })
                    })
                    .collect();
                let parts = receivers.into_iter().flat_map(|part| part.join().expect("no panic"));
                let mut all: Vec<_> = parts.collect();
                all.sort_unstable();
                let expected = (0..3).flat_map(|from| (0..40).map(move |nth| (from, nth)));
                assert_eq!(all, expected.collect::<Vec<_>>());
            });
        };
        work();
        #[cfg(any(debug_assertions, buttress_seeded))]
        for seed in 0..20 {
            crate::seeded::run(seed, crate::seeded::Options::default(), work).expect("it goes on");
        }
    }

    /// Q3: a sender gets its value back, also while it waits for room.
    #[test]
    fn senders_do_not_wait_for_receivers_that_are_gone() {
        let work = || {
            let (sender, receiver) = bounded(1);
            thread::scope(|scope| {
                let sent =
                    scope.spawn(move || (0..3).map(|nth| sender.send(nth)).find(Result::is_err));
                thread::yield_now();
                drop(receiver);
                assert!(sent.join().expect("no panic").is_some());
            });
        };
        work();
        #[cfg(any(debug_assertions, buttress_seeded))]
        for seed in 0..20 {
            crate::seeded::run(seed, crate::seeded::Options::default(), work).expect("it goes on");
        }
    }
}
