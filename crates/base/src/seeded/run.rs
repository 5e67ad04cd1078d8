//! A run: it knows which thread has the turn, and passes the turn on.
//!
//! # What must hold
//!
//! - One thread of a run has the turn (`seeded::D1`). Only [`Run::hand_over`] gives it to another
//!   thread.

use std::cell::RefCell;
use std::panic::Location;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::turns::{State, Task, Turns, Wait};

/// The number of runs in progress. If it is zero, no thread looks for its run.
pub(super) static RUNS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// The run that this thread belongs to, and its number there.
    pub(super) static MINE: RefCell<Option<(Arc<Run>, usize)>> = const { RefCell::new(None) };
}

#[derive(Debug)]
pub(super) struct Run {
    /// At places where a thread may lose the turn, the thread loses it once in `odds` times on
    /// average.
    pub(super) odds: u64,
    /// The instant at which the run began.
    pub(super) began: Instant,
    pub(super) turn: AtomicUsize,
    /// Unranked: the scheduler runs below ranked locks, and takes no other lock under this one.
    pub(super) turns: Mutex<Turns>,
    pub(super) ended: Condvar,
}

/// Returns the run of this thread and the number of the thread in it.
pub(super) fn mine() -> Option<(Arc<Run>, usize)> {
    if RUNS.load(Ordering::Relaxed) == 0 {
        return None;
    }
    MINE.try_with(|mine| mine.borrow().clone()).ok().flatten()
}

impl Run {
    pub(super) fn lock(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Chooses the next thread, or `None` if the run is over.
    pub(super) fn choose(&self, turns: &mut Turns) -> Option<usize> {
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

    /// Gives the turn to the next thread, and returns when this thread has the turn again.
    fn pass(&self, mine: usize, mut turns: MutexGuard<'_, Turns>) {
        let next = self.choose(&mut turns);
        if next == Some(mine) {
            return turns.resume(mine);
        }
        self.hand_over(next, &turns);
        drop(turns);
        self.await_turn(mine);
    }

    pub(super) fn hand_over(&self, next: Option<usize>, turns: &Turns) {
        // `usize::MAX` is no thread's number: when a run is over, no thread has the turn.
        self.turn.store(next.unwrap_or(usize::MAX), Ordering::SeqCst);
        if let Some(thread) = next.and_then(|next| turns.tasks[next].thread.as_ref()) {
            thread.unpark();
        }
    }

    pub(super) fn await_turn(&self, mine: usize) {
        while self.turn.load(Ordering::SeqCst) != mine {
            thread::park();
        }
        self.lock().resume(mine);
    }

    /// Counts a step of the thread that has the turn. Time advances, and the turn may pass to
    /// another thread.
    pub(super) fn step(&self, mine: usize, at: &'static Location<'static>) {
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

    /// Waits. Returns whether the thread was woken before its time ran out.
    pub(super) fn wait(&self, mine: usize, wait: Wait) -> bool {
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

    pub(super) fn deadline(&self, limit: Option<Duration>) -> Option<u64> {
        let nanos = u64::try_from(limit?.as_nanos()).unwrap_or(u64::MAX);
        Some(self.lock().present().saturating_add(nanos))
    }
}
