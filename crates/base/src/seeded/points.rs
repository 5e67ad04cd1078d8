//! What locks, threads and clocks ask of the run that their thread belongs to. For a thread of no
//! run each is one relaxed load.

use std::panic::Location;
use std::thread;
use std::time::{Duration, Instant};

use super::run::mine;
use super::turns::{Place, State, Task, Wait, Want};

/// How many times an overhead is measured, and what a lock costs a thread by itself, for each time
/// that it is counted for that.
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

/// How many processors this thread's run has, if it has any.
pub(crate) fn processors() -> Option<usize> {
    let (run, _) = mine()?;
    let turns = run.lock();
    turns.machine.as_ref().map(|machine| machine.count())
}

/// How long they have been busy, all together.
pub(crate) fn busy() -> Option<Duration> {
    let (run, mine) = mine()?;
    let mut turns = run.lock();
    turns.count_time(mine, false);
    turns.resume(mine);
    turns.machine.as_ref().map(|machine| machine.busy())
}

/// Measures what it takes to be counted, on a machine where work is measured, and has it taken off
/// from now on: a place where the turn may change hands is passed some hundred times in the time of
/// one request.
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
        // As parking_lot: a reader waits behind a writer that waits. It makes deadlocks of readers
        // that read again show.
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

/// Wakes one thread that waits for a signal, by chance or the first that came, or all of them.
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

/// Waits for a lock that another thread holds.
#[track_caller]
pub(crate) fn wait_locked(place: Place) {
    if let Some((run, mine)) = mine() {
        let at = Location::caller();
        run.wait(mine, Wait { want: Want::Mutex, place, until: None, at });
    }
}
