//! A scheduler that runs the threads of a test one at a time, in an order that a seed decides.
//!
//! # Place
//!
//! Debug builds, and release builds with `--cfg buttress_seeded`, have this module. The threads are
//! threads of the system. Each thread keeps its turn, the right to run, until it waits for a lock,
//! a signal, a time or another thread. A random decision may take the turn away at such a call even
//! if the thread need not wait. The rest of the program, and every thread outside of the run, is
//! unchanged.
//!
//! # Invariants
//!
//! - **D1** One thread of a run has the turn; only this thread executes code of the test.
//! - **D2** The next thread to get the turn follows from the seed and from the actions of the
//!   threads. The computer has no influence: no clock, no address, no identifier of the system. The
//!   exception is a [`Machine`] that measures how long threads run.
//! - **D3** Time advances when no thread can go on, or by a random decision. At that moment a sleep
//!   or a timed wait ends.
//! - **D4** When no thread can go on and no thread waits for a time, the run ends with a deadlock.
//!   The report has the place where each thread waits.
//!
//! A run with [`Options::processors`] uses no random decisions. A [`Machine`] counts the time that
//! threads take and chooses the next thread. `buttress_sim::processors` has a machine with any
//! number of processors.
//!
//! # Not seen
//!
//! A thread that waits in something other than [`crate::sync`], [`crate::queue`],
//! [`crate::thread`] or [`crate::Ranked`] keeps its turn. In the crates that run in seeded runs,
//! `cargo xtask tidy` finds such waits (`unseeded-waits`).
//!
//! If the initialiser of a `OnceLock` took a lock, its thread could lose the turn. Another thread
//! that waits for the `OnceLock` would then keep the turn for ever. The scheduler does not handle
//! locks shared with threads outside of the run. Atomics are sequentially consistent here.

use std::fmt;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

mod child;
mod machine;
mod points;
mod run;
mod turns;

pub(crate) use self::child::{Child, child, myself};
pub use self::machine::{Machine, Waited};
pub(crate) use self::points::{
    acquire, busy, bytes, index, instant, notify, point, processors, released, sleep, wait,
    wait_locked, wall,
};
pub use self::points::{is_seeded, learn_overhead};
use self::run::{RUNS, Run};
pub(crate) use self::turns::{Place, Want};
use self::turns::{State, Task, Turns};
use crate::Rng;

/// The result of a run that ended.
#[derive(Clone, Debug)]
pub struct Report {
    /// The seed of the run.
    pub seed: u64,
    /// The number of places where the turn could have passed to another thread.
    pub steps: u64,
    /// A digest of all decisions. It is equal for two runs that took the same course.
    pub digest: u64,
    /// The time that passed for the threads.
    pub elapsed: Duration,
    /// The time that processors were busy, if the run had a [`Machine`].
    pub busy: Duration,
    /// The places where threads waited for locks, the longest waits first, if the run had a
    /// [`Machine`].
    pub waited: Vec<Waited>,
    /// The number of threads.
    pub threads: usize,
    /// The thread and the place of each step, if [`Options::trace`] is set.
    pub trace: Vec<(usize, &'static Location<'static>)>,
}

/// The settings of a run.
#[derive(Debug)]
pub struct Options {
    /// The number of steps after which a run is ended, because it seems to make no progress.
    pub steps_max: u64,
    /// Whether the run records each step, to find the first step at which two runs differ.
    pub trace: bool,
    /// Whether time leaps at random to the end of the next timed wait, while threads can go on
    /// (D3). Otherwise each wait takes its full time.
    pub leaps: bool,
    /// A machine that chooses the next thread, instead of a random decision.
    pub processors: Option<Box<dyn Machine>>,
}

impl Default for Options {
    fn default() -> Self {
        Self { steps_max: 200_000_000, trace: false, leaps: true, processors: None }
    }
}

/// A run in which no thread can go on.
#[derive(Clone, Debug)]
pub struct Stuck {
    /// The seed of the run.
    pub seed: u64,
    /// Each thread, with the object that it waited for.
    pub threads: String,
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {}: no thread can go on\n{}", self.seed, self.threads)
    }
}

impl std::error::Error for Stuck {}

/// Runs `work` and all threads that it starts, one at a time, in the order that `seed` decides.
///
/// # Errors
///
/// [`Stuck`], when all threads wait for each other (D4). The threads go on waiting.
///
/// # Panics
///
/// If `work` panics, with the same payload.
pub fn run<T: Send + 'static>(
    seed: u64,
    options: Options,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<(T, Report), Stuck> {
    let mut rng = Rng::new(seed);
    let odds = [1, 2, 4, 8, 16, 32, 64][rng.below(7) as usize];
    let turns = Turns {
        tasks: vec![Task {
            name: "first".into(),
            state: State::Ready,
            late: false,
            token: false,
            thread: None,
        }],
        rng,
        now: 0,
        alarm: u64::MAX,
        steps: 0,
        steps_max: options.steps_max,
        digest: 0xcbf2_9ce4_8422_2325,
        over: false,
        trouble: None,
        trace: options.trace.then(Vec::new),
        leaps: options.leaps && options.processors.is_none(),
        machine: options.processors,
    };
    let run = Arc::new(Run {
        odds,
        began: Instant::now(),
        turn: AtomicUsize::new(0),
        turns: Mutex::new(turns),
        ended: Condvar::new(),
    });
    RUNS.fetch_add(1, Ordering::SeqCst);
    let result = Arc::new(Mutex::new(None));
    let child = Child { run: Arc::clone(&run), index: 0 };
    let place = Arc::clone(&result);
    let first = thread::spawn(move || {
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            Child::run(Some(child), move || {
                let value = catch_unwind(AssertUnwindSafe(work));
                *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
            });
        }));
        drop(outcome);
    });
    let mut turns = run.lock();
    while !turns.over {
        turns = run.ended.wait(turns).unwrap_or_else(PoisonError::into_inner);
    }
    RUNS.fetch_sub(1, Ordering::SeqCst);
    if let Some(threads) = turns.trouble.take() {
        return Err(Stuck { seed, threads });
    }
    let report = Report {
        seed,
        steps: turns.steps,
        digest: turns.digest,
        elapsed: Duration::from_nanos(turns.now),
        busy: turns.machine.as_ref().map(|machine| machine.busy()).unwrap_or_default(),
        waited: turns.machine.as_ref().map(|machine| machine.waited()).unwrap_or_default(),
        threads: turns.tasks.len(),
        trace: turns.trace.take().unwrap_or_default(),
    };
    drop(turns);
    drop(first.join());
    let value = result.lock().unwrap_or_else(PoisonError::into_inner).take();
    match value.expect("the first thread ended") {
        Ok(value) => Ok((value, report)),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

#[cfg(test)]
mod tests;
