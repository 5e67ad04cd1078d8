//! A scheduler that runs the threads of a test one at a time, in an order that a seed decides.
//!
//! # Place
//!
//! Debug builds have it, and release builds with `--cfg buttress_seeded`. The threads are the system's; each holds its
//! turn until it waits for a lock, a signal, a time or another thread, or until chance takes the turn away at such a
//! place. Everything else in the program, and every thread outside of the run, goes on as ever.
//!
//! # Invariants
//!
//! - **D1** One thread of a run has the turn; only it executes code of the test.
//! - **D2** Who has the turn next follows from the seed and from what the threads did, and from nothing of
//!   the machine: no clock, no address, no identifier of the system. Measured processors alone are of the machine.
//! - **D3** Time passes when nobody can go on, or when chance says so. Then a sleep or a timed wait ends.
//! - **D4** When nobody can go on and nobody waits for a time, the run is over: a deadlock, reported with the
//!   place where each thread waits.
//!
//! A run with [`Options::processors`] asks no chance: a [`Machine`] counts what threads take and chooses
//! the next. `buttress_sim::processors` has one with any number of processors.
//!
//! # Not seen
//!
//! A thread that waits in something other than [`crate::sync`], [`crate::thread`] or [`crate::Ranked`] keeps
//! its turn: an initialiser of a `OnceLock` that takes a lock would stop the run for ever. Locks shared with
//! threads outside of the run are not waited for rightly. Atomics are sequentially consistent here.

use std::cell::RefCell;
use std::fmt;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

mod child;
mod machine;
mod points;
mod turns;

pub(crate) use self::child::{Child, child};
pub use self::machine::{Machine, Waited};
pub(crate) use self::points::{
    acquire, busy, bytes, index, instant, myself, notify, point, processors, released, sleep, wait,
    wait_locked, wall,
};
pub use self::points::{is_seeded, learn_overhead};
pub(crate) use self::turns::{Place, Want};
use self::turns::{State, Task, Turns, Wait};
use crate::Rng;

/// Runs at work. Zero: no thread asks further.
static RUNS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// The run that this thread belongs to, and its number there.
    static MINE: RefCell<Option<(Arc<Run>, usize)>> = const { RefCell::new(None) };
}

#[derive(Debug)]
struct Run {
    /// The turn is taken away once in so many places where it may be.
    odds: u64,
    /// Which instant and which time of day the run begins at.
    began: Instant,
    turn: AtomicUsize,
    turns: Mutex<Turns>,
    ended: Condvar,
}

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
    /// Who was where at each step, if that was asked for.
    pub trace: Vec<(usize, &'static Location<'static>)>,
}

/// How a run is made.
#[derive(Debug)]
pub struct Options {
    /// Steps after which it is given up as one that gets nowhere.
    pub steps_max: u64,
    /// Whether each step is kept, to find where two runs part.
    pub trace: bool,
    /// Whether time leaps by chance to the next that somebody waits for, while others can go on (D3). Without, a wait is as
    /// long as it has to be.
    pub leaps: bool,
    /// A machine of so many processors chooses the next thread, in place of chance.
    pub processors: Option<Box<dyn Machine>>,
}

impl Default for Options {
    fn default() -> Self {
        Self { steps_max: 200_000_000, trace: false, leaps: true, processors: None }
    }
}

/// A run that nobody could go on with.
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

impl Run {
    fn lock(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Chooses who is next; nobody, if the run is over.
    fn choose(&self, turns: &mut Turns) -> Option<usize> {
        loop {
            if turns.machine.is_some() {
                let next = turns.choose_by_machine();
                if next.is_none() {
                    if !turns.tasks.iter().all(|task| matches!(task.state, State::Ended)) {
                        turns.trouble = Some(turns.list());
                    }
                    turns.over = true;
                    self.ended.notify_all();
                }
                turns.fold(next.unwrap_or(0) as u64);
                return next;
            }
            let ready = |task: &&Task| matches!(task.state, State::Ready);
            let count = turns.tasks.iter().filter(ready).count();
            if count > 0 {
                let nth = if count == 1 { 0 } else { turns.rng.below(count as u64) as usize };
                let mut ready = turns
                    .tasks
                    .iter()
                    .enumerate()
                    .filter(|(_, task)| matches!(task.state, State::Ready));
                let next = ready.nth(nth).map(|(index, _)| index);
                turns.fold(next.unwrap_or(0) as u64);
                return next;
            }
            if turns.tasks.iter().all(|task| matches!(task.state, State::Ended)) {
                turns.over = true;
                self.ended.notify_all();
                return None;
            }
            if turns.alarm == u64::MAX {
                self.give_up(turns);
                return None;
            }
            turns.now = turns.now.max(turns.alarm);
            turns.ring();
        }
    }

    fn give_up(&self, turns: &mut Turns) {
        turns.trouble = Some(turns.list());
        turns.over = true;
        self.ended.notify_all();
    }

    /// Gives the turn to whom chance chooses, and comes back with it.
    fn pass(&self, mine: usize, mut turns: MutexGuard<'_, Turns>) {
        let next = self.choose(&mut turns);
        if next == Some(mine) {
            return turns.resume(mine);
        }
        self.hand_over(next, &turns);
        drop(turns);
        self.await_turn(mine);
    }

    fn hand_over(&self, next: Option<usize>, turns: &Turns) {
        // A number that no thread has: of a run that is over nobody has the turn.
        self.turn.store(next.unwrap_or(usize::MAX), Ordering::SeqCst);
        if let Some(thread) = next.and_then(|next| turns.tasks[next].thread.as_ref()) {
            thread.unpark();
        }
    }

    fn await_turn(&self, mine: usize) {
        while self.turn.load(Ordering::SeqCst) != mine {
            thread::park();
        }
        self.lock().resume(mine);
    }

    /// One step of the thread that has the turn: time goes on, and the turn may change hands.
    fn step(&self, mine: usize, at: &'static Location<'static>) {
        let mut turns = self.lock();
        turns.steps += 1;
        turns.count_time(mine, true);
        turns.fold(mine as u64 | u64::from(at.line()) << 8);
        if let Some(trace) = &mut turns.trace {
            trace.push((mine, at));
        }
        if turns.steps > turns.steps_max {
            self.give_up(&mut turns);
            self.hand_over(None, &turns);
            drop(turns);
            return self.await_turn(mine);
        }
        if turns.leaps && turns.alarm != u64::MAX && turns.rng.chance(1, 4000) {
            turns.now = turns.now.max(turns.alarm);
        }
        if turns.machine.is_some() {
            match turns.is_ahead(mine) {
                true => self.pass(mine, turns),
                false => turns.resume(mine),
            }
            return;
        }
        if turns.now >= turns.alarm {
            turns.ring();
        }
        if turns.rng.chance(1, self.odds) {
            self.pass(mine, turns);
        }
    }

    /// Waits; says whether it was woken, and not late.
    fn wait(&self, mine: usize, wait: Wait) -> bool {
        let mut turns = self.lock();
        turns.steps += 1;
        turns.count_time(mine, false);
        turns.fold(mine as u64 | 1 << 40 | u64::from(wait.at.line()) << 8);
        if let Some(trace) = &mut turns.trace {
            trace.push((mine, wait.at));
        }
        if let Some(until) = wait.until {
            turns.alarm = turns.alarm.min(until);
        }
        turns.tasks[mine].late = false;
        turns.tasks[mine].state = State::Waits(wait);
        turns.leave(mine);
        self.pass(mine, turns);
        !self.lock().tasks[mine].late
    }

    fn deadline(&self, limit: Option<Duration>) -> Option<u64> {
        let nanos = u64::try_from(limit?.as_nanos()).unwrap_or(u64::MAX);
        Some(self.lock().present().saturating_add(nanos))
    }
}

#[cfg(test)]
mod tests;
