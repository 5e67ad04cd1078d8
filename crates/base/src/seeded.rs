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
//! A run with [`Options::processors`] asks no chance: it measures what threads take, and has them take turns as on a machine
//! with so many processors (`machine`).
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
mod turns;

pub(crate) use self::child::{Child, child};
use self::machine::Machine;
pub use self::machine::{Cost, Processors, Waited};
pub(crate) use self::turns::{Place, Want};
use self::turns::{State, Task, Turns, Wait};
use crate::Rng;

/// How many times an overhead is measured, and what a lock costs a thread by itself, for each time that it is counted for that.
const LOCKS_TO_LEARN: usize = 200_000;
const LOCK_NANOS: u64 = 5;

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
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Steps after which it is given up as one that gets nowhere.
    pub steps_max: u64,
    /// Whether each step is kept, to find where two runs part.
    pub trace: bool,
    /// Whether time leaps by chance to the next that somebody waits for, while others can go on (D3). Without, a wait is as
    /// long as it has to be.
    pub leaps: bool,
    /// So many processors decide who is next, in place of chance.
    pub processors: Option<Processors>,
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
        machine: options.processors.map(Machine::new),
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
        busy: turns.machine.as_ref().map(Machine::busy).unwrap_or_default(),
        waited: turns.machine.as_ref().map(Machine::waited).unwrap_or_default(),
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
                let next = turns.choose_last();
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

/// The run that this thread belongs to.
fn mine() -> Option<(Arc<Run>, usize)> {
    if RUNS.load(Ordering::Relaxed) == 0 {
        return None;
    }
    MINE.try_with(|mine| mine.borrow().clone()).ok().flatten()
}

/// Says whether this thread runs from a seed.
#[must_use]
pub fn is_seeded() -> bool {
    mine().is_some()
}

/// This thread, if it runs from a seed.
pub(crate) fn myself() -> Option<Child> {
    mine().map(|(run, index)| Child { run, index })
}

pub(crate) fn index() -> Option<usize> {
    mine().map(|(_, index)| index)
}

/// How many processors this thread's run has, if it has any.
pub(crate) fn processors() -> Option<usize> {
    let (run, _) = mine()?;
    let turns = run.lock();
    turns.machine.as_ref().map(Machine::count)
}

/// How long they have been busy, all together.
pub(crate) fn busy() -> Option<Duration> {
    let (run, mine) = mine()?;
    let mut turns = run.lock();
    turns.count_time(mine, false);
    turns.resume(mine);
    turns.machine.as_ref().map(Machine::busy)
}

/// Measures what it takes to be counted, on a machine where work is measured, and has it taken off from now on: a place where
/// the turn may change hands is passed some hundred times in the time of one request.
pub fn learn_overhead() {
    let Some((run, _)) = mine() else { return };
    let counted = || run.lock().machine.as_ref().map(Machine::counted);
    let Some((count, busy)) = counted() else { return };
    let lock = crate::sync::Mutex::new(());
    for _ in 0..LOCKS_TO_LEARN {
        drop(lock.lock());
    }
    let Some((count_after, busy_after)) = counted() else { return };
    // Two of three of these are a lock taken, and one given up.
    let each = (busy_after - busy) / (count_after - count).max(1);
    if let Some(machine) = &mut run.lock().machine {
        machine.take_off(each.saturating_sub(LOCK_NANOS));
    }
}

pub(crate) fn bytes() -> Option<[u8; 16]> {
    let (run, _) = mine()?;
    let mut bytes = [0; 16];
    run.lock().rng.fill(&mut bytes);
    Some(bytes)
}

pub(crate) fn instant() -> Option<Instant> {
    let (run, _) = mine()?;
    let now = run.lock().present();
    // A day, since programs ask what was an hour ago.
    Some(run.began + Duration::from_secs(86_400) + Duration::from_nanos(now))
}

pub(crate) fn wall() -> Option<Duration> {
    let (run, _) = mine()?;
    let now = run.lock().present();
    Some(Duration::from_secs(1_700_000_000) + Duration::from_nanos(now))
}

#[track_caller]
pub(crate) fn sleep(time: Duration) -> bool {
    let Some((run, mine)) = mine() else { return false };
    let until = run.deadline(Some(time));
    run.wait(mine, Wait { want: Want::Time, place: Place(0), until, at: Location::caller() });
    true
}

/// A place where the turn may change hands.
#[track_caller]
pub(crate) fn point() {
    if let Some((run, mine)) = mine() {
        run.step(mine, Location::caller());
    }
}

/// Takes a lock for a thread of a run; nothing, for any other thread.
#[track_caller]
pub(crate) fn acquire<G>(place: Place, want: Want, attempt: impl Fn() -> Option<G>) -> Option<G> {
    let (run, mine) = mine()?;
    let at = Location::caller();
    run.step(mine, at);
    let since = run.lock().now;
    loop {
        // As parking_lot: a reader waits behind a writer that waits. It makes deadlocks of readers that
        // read again show.
        let behind = want == Want::Read
            && {
                let writes = |task: &Task| matches!(task.state, State::Waits(wait) if wait.place == place && wait.want == Want::Write);
                run.lock().tasks.iter().any(writes)
            };
        if !behind && let Some(guard) = attempt() {
            run.lock().note_taken(mine, place, want, since, at);
            return Some(guard);
        }
        run.wait(mine, Wait { want, place, until: None, at });
    }
}

/// A lock that was held so may be free.
pub(crate) fn released(place: Place, held: Want) {
    let Some((run, mine)) = mine() else { return };
    {
        let mut turns = run.lock();
        turns.count_time(mine, false);
        turns.note_freed(place, held);
        let woken = turns.wake_for_lock(place);
        turns.pay_for_waking(mine, woken);
        turns.resume(mine);
    }
    if !thread::panicking() {
        run.step(mine, Location::caller());
    }
}

/// Wakes one, by chance or who came first, or all who wait for a signal.
pub(crate) fn notify(place: Place, all: bool) {
    let Some((run, mine)) = mine() else { return };
    let mut turns = run.lock();
    turns.count_time(mine, false);
    let mut waiting = turns.waiting(place, |want| want == Want::Signal);
    if !all {
        let first = match turns.machine {
            Some(_) => turns.first_of(&waiting),
            None => turns.rng.choose(&waiting).copied(),
        };
        waiting = Vec::from_iter(first);
    }
    for index in &waiting {
        turns.make_ready(*index);
        turns.tasks[*index].late = false;
    }
    turns.pay_for_waking(mine, waiting.len());
    turns.resume(mine);
}

/// Waits for a signal, the lock at `lock` having been given up; says whether it came in time.
#[track_caller]
pub(crate) fn wait(signal: Place, lock: Place, limit: Option<Duration>) -> bool {
    let Some((run, mine)) = mine() else { return false };
    let until = run.deadline(limit);
    {
        let mut turns = run.lock();
        turns.count_time(mine, false);
        turns.note_freed(lock, Want::Mutex);
        let woken = turns.wake_for_lock(lock);
        turns.pay_for_waking(mine, woken);
        turns.resume(mine);
    }
    run.wait(mine, Wait { want: Want::Signal, place: signal, until, at: Location::caller() })
}

/// Waits for a lock that somebody holds.
#[track_caller]
pub(crate) fn wait_locked(place: Place) {
    if let Some((run, mine)) = mine() {
        let at = Location::caller();
        run.wait(mine, Wait { want: Want::Mutex, place, until: None, at });
    }
}

#[cfg(test)]
mod tests;
