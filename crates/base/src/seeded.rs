//! A scheduler that runs the threads of a test one at a time, in an order that a seed decides.
//!
//! # Place
//!
//! Debug builds have it, and release builds with `--cfg buttress_seeded`. The threads are the
//! system's. Each holds its turn until it waits for a lock, a signal, a time or another thread.
//! Chance may take the turn away at such a place, too. Everything else in the program, and every
//! thread outside of the run, is unchanged.
//!
//! # Invariants
//!
//! - **D1** One thread of a run has the turn; only it executes code of the test.
//! - **D2** Which thread has the turn next follows from the seed and from what the threads did.
//!   Nothing of the machine has a part in it: no clock, no address, no identifier of the system.
//!   Measured processors alone are of the machine.
//! - **D3** Time passes when no thread can go on, or when chance says so. Then a sleep or a timed
//!   wait ends.
//! - **D4** When no thread can go on and none waits for a time, the run is over: a deadlock,
//!   reported with the place where each thread waits.
//!
//! A run with [`Options::processors`] asks no chance: a [`Machine`] counts what threads take and
//! chooses the next. `buttress_sim::processors` has one with any number of processors.
//!
//! # Not seen
//!
//! A thread that waits in something other than [`crate::sync`], [`crate::thread`] or
//! [`crate::Ranked`] keeps its turn: an initialiser of a `OnceLock` that takes a lock would stop
//! the run for ever. Locks shared with threads outside of the run are not waited for rightly.
//! Atomics are sequentially consistent here.

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

/// What a run that came to its end was like.
#[derive(Clone, Debug)]
pub struct Report {
    /// Its seed.
    pub seed: u64,
    /// Places where the turn could have changed hands.
    pub steps: u64,
    /// Of all decisions: equal, of two runs that went the same way.
    pub digest: u64,
    /// How much time went by for the threads.
    pub elapsed: Duration,
    /// How long processors were busy, of a machine.
    pub busy: Duration,
    /// Where threads of a machine waited for locks, most first.
    pub waited: Vec<Waited>,
    /// Threads that there were.
    pub threads: usize,
    /// Which thread was where at each step, if that was asked for.
    pub trace: Vec<(usize, &'static Location<'static>)>,
}

/// How a run is made.
#[derive(Debug)]
pub struct Options {
    /// Steps after which it is given up as one that gets nowhere.
    pub steps_max: u64,
    /// Whether each step is kept, to find where two runs part.
    pub trace: bool,
    /// Whether time leaps by chance to the end of the next timed wait, while threads can go on
    /// (D3). Without, a wait is as long as it has to be.
    pub leaps: bool,
    /// A machine of so many processors chooses the next thread, in place of chance.
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
    /// Its seed.
    pub seed: u64,
    /// Which threads there were and what each waited for.
    pub threads: String,
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {}: nobody can go on\n{}", self.seed, self.threads)
    }
}

impl std::error::Error for Stuck {}

/// Runs `work` and all threads that it starts, one at a time, in the order that `seed` decides.
///
/// # Errors
///
/// [`Stuck`], when all threads wait for each other (D4); they are left behind as they are.
///
/// # Panics
///
/// With what `work` panicked with.
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
