//! The interface of a processor model. The model chooses the next thread of a run. Without a model
//! the next thread is chosen at random.
//!
//! This module only has the interface; `buttress_sim::processors` is a model. The scheduler reports
//! the actions of threads to the model, and asks it for the next thread. Threads are numbered in
//! the order of their start. Times are nanoseconds since the run began.

use std::fmt;
use std::panic::Location;
use std::time::Duration;

use super::turns::{Place, State, Turns, Want};

/// How long threads waited for a lock at one place in the code.
#[derive(Clone, Copy, Debug)]
pub struct Waited {
    /// The place that takes the lock.
    pub at: &'static Location<'static>,
    /// How often a thread waited at that place.
    pub count: u64,
    /// The sum of the waits.
    pub time: Duration,
}

/// A machine that the threads of one run share. Thread 0 exists from the start, and runs.
pub trait Machine: fmt::Debug + Send {
    /// How many processors the machine has.
    fn count(&self) -> usize;

    /// How long the processors were busy, in sum.
    fn busy(&self) -> Duration;

    /// Where threads waited for locks, and how long; the longest waits first.
    fn waited(&self) -> Vec<Waited>;

    /// How often the machine counted time, and the sum of the counted times.
    fn counted(&self) -> (u64, u64);

    /// Subtracts `overhead` nanoseconds from each later count.
    fn take_off(&mut self, overhead: u64);

    /// How long the thread with the turn has run since its last count.
    fn uncounted(&self) -> u64;

    /// Counts the time of the thread with the turn; returns the new time of that thread.
    fn count_time(&mut self, thread: usize, is_step: bool) -> u64;

    /// Notes that the thread runs from here on; returns the time of that thread.
    fn resume(&mut self, thread: usize) -> u64;

    /// Notes that one more thread is about to start.
    fn enter(&mut self, now: u64);

    /// Notes that a waiting thread can run, because of an event at `now`.
    fn make_ready(&mut self, thread: usize, now: u64);

    /// Charges the thread with the turn for waking `count` threads; returns the time of that
    /// thread.
    fn pay_for_waking(&mut self, thread: usize, count: usize) -> u64;

    /// Notes that a thread waits or has ended.
    fn leave(&mut self, thread: usize);

    /// Notes that a thread released a lock, held exclusively or shared.
    fn note_freed(&mut self, lock: usize, is_shared: bool, now: u64);

    /// Notes that a thread took a lock that it had wanted since `since`; returns the time of that
    /// thread.
    fn note_taken(
        &mut self,
        thread: usize,
        lock: usize,
        is_shared: bool,
        since: u64,
        at: &'static Location<'static>,
    ) -> u64;

    /// The thread in `waiting` that began to wait first. All of these threads wait for the same
    /// lock or signal.
    fn first_of(&self, waiting: &[usize]) -> Option<usize>;

    /// Whether the thread with the turn must pass the turn on. One reason is that another thread
    /// with a processor, or the end of a timed wait at `alarm`, is behind in simulated time. The
    /// other reason is that a thread waits for a processor, and a processor is free or the time
    /// slice of `thread` is over.
    fn is_ahead(&self, thread: usize, alarm: u64) -> bool;

    /// Chooses the next thread; returns its index and time, or `None` if all threads wait.
    fn choose(&mut self) -> Option<(usize, u64)>;
}

impl Turns {
    /// Counts the time of the thread with the turn. Without a machine every step takes the same
    /// time.
    pub(super) fn count_time(&mut self, mine: usize, is_step: bool) {
        match &mut self.machine {
            None => self.now += if is_step { 200 } else { 0 },
            Some(machine) => self.now = machine.count_time(mine, is_step),
        }
    }

    /// The current time of the thread with the turn.
    pub(super) fn present(&self) -> u64 {
        self.now + self.machine.as_ref().map_or(0, |machine| machine.uncounted())
    }

    /// Notes that the thread runs from here on.
    pub(super) fn resume(&mut self, mine: usize) {
        if let Some(machine) = &mut self.machine {
            self.now = machine.resume(mine);
        }
    }

    /// Marks a waiting thread as ready, because of an event now.
    pub(super) fn make_ready(&mut self, index: usize) {
        self.tasks[index].state = State::Ready;
        if let Some(machine) = &mut self.machine {
            machine.make_ready(index, self.now);
        }
    }

    /// Charges the thread with the turn for waking `count` threads.
    pub(super) fn pay_for_waking(&mut self, mine: usize, count: usize) {
        if let Some(machine) = &mut self.machine {
            self.now = machine.pay_for_waking(mine, count);
        }
    }

    /// Notes that a thread is about to start.
    pub(super) fn enter(&mut self) {
        if let Some(machine) = &mut self.machine {
            machine.enter(self.now);
        }
    }

    /// Notes that a thread waits or has ended.
    pub(super) fn leave(&mut self, index: usize) {
        if let Some(machine) = &mut self.machine {
            machine.leave(index);
        }
    }

    /// Notes that a thread released a lock.
    pub(super) fn note_freed(&mut self, place: Place, want: Want) {
        if let Some(machine) = &mut self.machine {
            machine.note_freed(place.0, want == Want::Read, self.now);
        }
    }

    /// Notes that a thread took a lock that it had wanted since `since`.
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

    /// The thread in `waiting` that waited first; `None` without a machine.
    pub(super) fn first_of(&self, waiting: &[usize]) -> Option<usize> {
        self.machine.as_ref()?.first_of(waiting)
    }

    /// Whether the thread with the turn must pass the turn on; see [`Machine::is_ahead`].
    pub(super) fn is_ahead(&self, mine: usize) -> bool {
        self.machine.as_ref().is_some_and(|machine| machine.is_ahead(mine, self.alarm))
    }

    /// Lets the machine choose the next thread; `None` when no thread can run and no timed wait is
    /// pending.
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
