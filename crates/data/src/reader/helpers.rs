//! Threads that work ahead of a reader.
//!
//! # Invariants
//!
//! - **H1** A job is a hint. It may be refused, dropped unstarted, or done late. No thread waits
//!   for a job to begin, because any thread that needs the result can do the work itself.
//! - **H2** If no thread is idle, a thread is started for a job, up to `Helpers::most` threads.
//!   When [`Helpers::stop`] returns, no thread is left except the caller.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use buttress_base::activity;
use buttress_base::sync::{Condvar, Mutex};
use buttress_base::thread::{self, JoinHandle};

/// The maximum number of threads, and of jobs that wait for a thread.
const THREADS: usize = 4;
const WAITING: usize = 32;

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    idle: usize,
    threads: Vec<JoinHandle<()>>,
    is_stopped: bool,
}

/// The threads, and the jobs that wait for a thread.
pub(crate) struct Helpers {
    /// Unranked: nothing is locked under it.
    state: Mutex<State>,
    wanted: Condvar,
    cores: usize,
}

impl fmt::Debug for Helpers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        f.debug_struct("Helpers")
            .field("jobs", &state.jobs.len())
            .field("idle", &state.idle)
            .field("threads", &state.threads.len())
            .finish_non_exhaustive()
    }
}

impl Helpers {
    pub(crate) fn new() -> Arc<Self> {
        let cores = thread::parallelism();
        Arc::new(Self { state: Mutex::default(), wanted: Condvar::new(), cores })
    }

    /// The maximum number of threads. It is two even on one processor, because one thread may wait
    /// for the device.
    pub(crate) fn threads_max(&self) -> usize {
        self.cores.clamp(2, THREADS)
    }

    /// Whether this number of readers leaves processors idle for reading ahead.
    pub(crate) fn are_idle_beside(&self, readers: usize) -> bool {
        readers <= (self.cores / 2).max(1)
    }

    /// Offers a job to the threads. Returns false if they are busy with other jobs (H1).
    pub(crate) fn offer(self: &Arc<Self>, job: impl FnOnce() + Send + 'static) -> bool {
        let mut state = self.state.lock();
        if state.is_stopped || state.jobs.len() >= WAITING {
            return false;
        }
        if state.idle <= state.jobs.len() && state.threads.len() < self.threads_max() {
            let own = Arc::clone(self);
            let name = "buttress-ahead".to_owned();
            match thread::Builder::new().name(name).spawn(move || own.work()) {
                Ok(thread) => state.threads.push(thread),
                Err(error) => tracing::warn!(%error, "no thread that reads ahead"),
            }
        }
        if state.threads.is_empty() {
            return false;
        }
        state.jobs.push_back(Box::new(job));
        drop(state);
        self.wanted.notify_one();
        true
    }

    fn work(&self) {
        activity::register();
        loop {
            let job = {
                let mut state = self.state.lock();
                loop {
                    if state.is_stopped {
                        return;
                    }
                    if let Some(job) = state.jobs.pop_front() {
                        break job;
                    }
                    state.idle += 1;
                    self.wanted.wait(&mut state);
                    state.idle -= 1;
                }
            };
            let _busy = activity::busy();
            job();
        }
    }

    /// Ends the threads. Their current jobs are finished first, waiting jobs are dropped (H2).
    pub(crate) fn stop(&self) {
        let (jobs, threads) = {
            let mut state = self.state.lock();
            state.is_stopped = true;
            (std::mem::take(&mut state.jobs), std::mem::take(&mut state.threads))
        };
        self.wanted.notify_all();
        drop(jobs);
        for thread in threads {
            // A job may hold the last reference to the helpers, so a helper thread may run `stop`.
            if thread.thread().id() != thread::current().id() && thread.join().is_err() {
                tracing::error!("a thread that read ahead panicked");
            }
        }
    }
}

/// The number of threads that read at this moment.
#[derive(Debug, Default)]
pub(crate) struct Reading(AtomicUsize);

/// One reader, counted until it is dropped.
pub(crate) struct CountedReader<'r> {
    all: &'r Reading,
    count: usize,
}

impl Reading {
    pub(crate) fn enter(&self) -> CountedReader<'_> {
        CountedReader { all: self, count: self.0.fetch_add(1, Ordering::Relaxed) + 1 }
    }
}

impl CountedReader<'_> {
    /// The number of readers when this reader began, including this reader.
    pub(crate) fn count(&self) -> usize {
        self.count
    }
}

impl Drop for CountedReader<'_> {
    fn drop(&mut self) {
        self.all.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    /// A job that has begun ends before `stop` returns; afterwards no job begins.
    #[test]
    fn stopping_waits_for_what_was_begun() {
        let helpers = Helpers::new();
        let done = Arc::new(AtomicUsize::new(0));
        let (begun, begins) = mpsc::channel();
        let counted = Arc::clone(&done);
        assert!(helpers.offer(move || {
            begun.send(()).expect("the receiver is there");
            thread::sleep(Duration::from_millis(20));
            counted.fetch_add(1, Ordering::SeqCst);
        }));
        begins.recv().expect("it begins");
        helpers.stop();
        assert_eq!(done.load(Ordering::SeqCst), 1);
        assert!(!helpers.offer(|| ()));
    }

    /// Jobs beyond the limit are refused, and no more threads are made than allowed.
    #[test]
    fn too_many_are_refused() {
        let helpers = Helpers::new();
        let gate = Arc::new(Mutex::new(()));
        let held = gate.lock();
        let mut taken = 0;
        for _ in 0..10 * WAITING {
            let gate = Arc::clone(&gate);
            taken += usize::from(helpers.offer(move || drop(gate.lock())));
        }
        assert!((WAITING..=WAITING + THREADS).contains(&taken), "{taken} are taken");
        assert!(helpers.state.lock().threads.len() <= THREADS);
        drop(held);
        helpers.stop();
    }
}
