//! The calls that locks, threads and clocks make to the run of their thread. For a thread outside
//! of any run, each call costs one relaxed load.

use std::panic::Location;
use std::thread;
use std::time::{Duration, Instant};

use super::run::mine;
use super::turns::{Place, State, Task, Wait, Want};

/// `LOCKS_TO_LEARN` locks are taken and released to measure the overhead. `LOCK_NANOS` is the time
/// of one lock without a run, in nanoseconds.
const LOCKS_TO_LEARN: usize = 200_000;
const LOCK_NANOS: u64 = 5;

/// Says whether this thread runs from a seed.
#[must_use]
pub fn is_seeded() -> bool {
    mine().is_some()
}

pub(crate) fn index() -> Option<usize> {
    mine().map(|(_, index)| index)
}

/// How many processors this thread's run has, if it has a machine.
pub(crate) fn processors() -> Option<usize> {
    let (run, _) = mine()?;
    let turns = run.lock();
    turns.machine.as_ref().map(|machine| machine.count())
}

/// How long the processors of this thread's run have been busy, in sum.
pub(crate) fn busy() -> Option<Duration> {
    let (run, mine) = mine()?;
    let mut turns = run.lock();
    turns.count_time(mine, false);
    turns.resume(mine);
    turns.machine.as_ref().map(|machine| machine.busy())
}

/// On a machine that measures the work of threads, each measurement has an overhead. Measures this
/// overhead, and subtracts it from every later measurement. During a request the turn can pass to
/// another thread at some hundred places, so the overhead would distort the time of the request.
pub fn learn_overhead() {
    let Some((run, _)) = mine() else { return };
    let counted = || run.lock().machine.as_ref().map(|machine| machine.counted());
    let Some((count, busy)) = counted() else { return };
    let lock = parking_lot::Mutex::new(());
    let place = Place::of(&lock);
    for _ in 0..LOCKS_TO_LEARN {
        drop(acquire(place, Want::Mutex, || lock.try_lock()));
        released(place, Want::Mutex);
    }
    let Some((count_after, busy_after)) = counted() else { return };
    // During each pass of this loop, the machine counts the time three times. Two of the counted
    // spans contain the work of the lock itself. So the average `each` has a part of this work, and
    // `LOCK_NANOS` is subtracted for it.
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
    // The clock starts at one day, since programs may subtract an hour from the current time.
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

/// A place where the turn may pass to another thread.
#[track_caller]
pub(crate) fn point() {
    if let Some((run, mine)) = mine() {
        run.step(mine, Location::caller());
    }
}

/// Takes a lock for a thread of a run; returns `None` for any other thread.
#[track_caller]
pub(crate) fn acquire<G>(place: Place, want: Want, attempt: impl Fn() -> Option<G>) -> Option<G> {
    let (run, mine) = mine()?;
    let at = Location::caller();
    run.step(mine, at);
    let since = run.lock().now;
    loop {
        // As in `parking_lot`, a reader waits behind a writer that waits. So a thread that takes a
        // read lock twice deadlocks here, too.
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

/// Notes that this thread released a lock, so other threads may take it.
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

/// Wakes all threads that wait for a signal, or only one of them. On a machine, the one thread is
/// the thread that waited first. Without a machine, it is a random thread.
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

/// Waits for a signal after the release of the lock at `lock`; says whether the signal came in
/// time.
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

/// Waits for a lock that another thread holds.
#[track_caller]
pub(crate) fn wait_locked(place: Place) {
    if let Some((run, mine)) = mine() {
        let at = Location::caller();
        run.wait(mine, Wait { want: Want::Mutex, place, until: None, at });
    }
}
