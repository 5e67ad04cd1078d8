//! What may choose the next thread of a run in place of chance: a model of processors.
//!
//! The model is not in here (`buttress_sim::processors` is one); the scheduler tells it what
//! threads do, and asks it. Threads have the numbers in which they were started; times are
//! nanoseconds since the run began.

use std::fmt;
use std::panic::Location;
use std::time::Duration;

use super::turns::{Place, State, Turns, Want};

/// What threads waited at one place in the code, for a lock.
#[derive(Clone, Copy, Debug)]
pub struct Waited {
    /// Where it is taken.
    pub at: &'static Location<'static>,
    /// How often one waited there.
    pub count: u64,
    /// How long, all together.
    pub time: Duration,
}

/// A machine that threads of one run share. Thread 0 is there from the start, and runs.
pub trait Machine: fmt::Debug + Send {
    /// How many processors it has.
    fn count(&self) -> usize;

    /// How long they were busy, all together.
    fn busy(&self) -> Duration;

    /// Where threads waited for locks, and how long; most first.
    fn waited(&self) -> Vec<Waited>;

    /// How often time was counted, and how much in all.
    fn counted(&self) -> (u64, u64);

    /// Takes so much off, each time that time is counted from now on.
    fn take_off(&mut self, overhead: u64);

    /// How long the thread with the turn has run since it was counted last.
    fn uncounted(&self) -> u64;

    /// Counts what the thread with the turn did; returns where its time is.
    fn count_time(&mut self, thread: usize, is_step: bool) -> u64;

    /// The thread runs from here on; returns where its time is.
    fn resume(&mut self, thread: usize) -> u64;

    /// One more thread is about to be started.
    fn enter(&mut self, now: u64);

    /// A thread that could not run can, by what happened now.
    fn make_ready(&mut self, thread: usize, now: u64);

    /// The thread with the turn has woken so many; returns where its time is.
    fn pay_for_waking(&mut self, thread: usize, count: usize) -> u64;

    /// A thread waits, or has ended.
    fn leave(&mut self, thread: usize);

    /// A lock was given up that was held alone, or shared.
    fn note_freed(&mut self, lock: usize, is_shared: bool, now: u64);

    /// A thread took a lock that it wanted since then; returns where its time is.
    fn note_taken(
        &mut self,
        thread: usize,
        lock: usize,
        is_shared: bool,
        since: u64,
        at: &'static Location<'static>,
    ) -> u64;

    /// The first of those that wait for one thing.
    fn first_of(&self, waiting: &[usize]) -> Option<usize>;

    /// Whether the thread with the turn has to let others catch up, the alarm of a wait among them,
    /// or has lost its processor.
    fn is_ahead(&self, thread: usize, alarm: u64) -> bool;

    /// Chooses the next thread, with where its time is; none where all wait.
    fn choose(&mut self) -> Option<(usize, u64)>;
}

impl Turns {
    /// Counts what the thread with the turn did; in a run by chance each step takes as long.
    pub(super) fn count_time(&mut self, mine: usize, is_step: bool) {
        match &mut self.machine {
            None => self.now += if is_step { 200 } else { 0 },
            Some(machine) => self.now = machine.count_time(mine, is_step),
        }
    }

    /// What time it is for the thread with the turn.
    pub(super) fn present(&self) -> u64 {
        self.now + self.machine.as_ref().map_or(0, |machine| machine.uncounted())
    }

    /// The thread runs from here on.
    pub(super) fn resume(&mut self, mine: usize) {
        if let Some(machine) = &mut self.machine {
            self.now = machine.resume(mine);
        }
    }

    /// A thread that could not run can, by what happened now.
    pub(super) fn make_ready(&mut self, index: usize) {
        self.tasks[index].state = State::Ready;
        if let Some(machine) = &mut self.machine {
            machine.make_ready(index, self.now);
        }
    }

    /// The thread with the turn has woken so many.
    pub(super) fn pay_for_waking(&mut self, mine: usize, count: usize) {
        if let Some(machine) = &mut self.machine {
            self.now = machine.pay_for_waking(mine, count);
        }
    }

    /// A thread is about to be started.
    pub(super) fn enter(&mut self) {
        if let Some(machine) = &mut self.machine {
            machine.enter(self.now);
        }
    }

    /// A thread waits, or has ended.
    pub(super) fn leave(&mut self, index: usize) {
        if let Some(machine) = &mut self.machine {
            machine.leave(index);
        }
    }

    /// A lock was given up.
    pub(super) fn note_freed(&mut self, place: Place, want: Want) {
        if let Some(machine) = &mut self.machine {
            machine.note_freed(place.0, want == Want::Read, self.now);
        }
    }

    /// A lock was taken that a thread wanted since then.
    pub(super) fn note_taken(
        &mut self,
        mine: usize,
        place: Place,
        want: Want,
        since: u64,
        at: &'static Location<'static>,
    ) {
        if let Some(machine) = &mut self.machine {
            self.now = machine.note_taken(mine, place.0, want == Want::Read, since, at);
        }
    }

    /// The first of those that wait for one thing.
    pub(super) fn first_of(&self, waiting: &[usize]) -> Option<usize> {
        self.machine.as_ref()?.first_of(waiting)
    }

    /// Whether the thread with the turn has to let others catch up, or has lost its processor.
    pub(super) fn is_ahead(&self, mine: usize) -> bool {
        self.machine.as_ref().is_some_and(|machine| machine.is_ahead(mine, self.alarm))
    }

    /// Lets the machine choose the next thread; none, when no thread can go on or waits for a time.
    pub(super) fn choose_by_machine(&mut self) -> Option<usize> {
        loop {
            if self.tasks.iter().all(|task| matches!(task.state, State::Ended)) {
                return None;
            }
            let chosen = self.machine.as_mut()?.choose();
            let at = chosen.map_or(u64::MAX, |(_, at)| at);
            if self.alarm == u64::MAX || at <= self.alarm {
                return chosen.map(|(index, _)| index);
            }
            self.now = self.alarm;
            self.ring();
        }
    }
}
