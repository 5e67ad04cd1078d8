//! The state of the scheduler: the threads that can run, the object that each other thread waits
//! for, and the time.

use std::fmt::Write;
use std::panic::Location;
use std::thread::Thread;

use super::machine::Machine;
use crate::Rng;

/// The address of a lock or a signal. The scheduler only compares addresses for equality
/// (`seeded::D2`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place(pub(super) usize);

impl Place {
    pub(crate) fn of<T: ?Sized>(thing: &T) -> Self {
        Self(std::ptr::from_ref(thing).addr())
    }
}

/// The kind of object for which a thread waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    Mutex,
    Read,
    Write,
    Signal,
    Time,
    Park,
    Thread(usize),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    pub(super) want: Want,
    pub(super) place: Place,
    pub(super) until: Option<u64>,
    pub(super) at: &'static Location<'static>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum State {
    Ready,
    Waits(Wait),
    Ended,
}

#[derive(Debug)]
pub(super) struct Task {
    pub(super) name: String,
    pub(super) state: State,
    /// Whether the thread's last wait ended at its time limit.
    pub(super) late: bool,
    /// Whether the next [`crate::thread::park`] of the thread returns at once.
    pub(super) token: bool,
    pub(super) thread: Option<Thread>,
}

#[derive(Debug)]
pub(super) struct Turns {
    pub(super) tasks: Vec<Task>,
    pub(super) rng: Rng,
    /// Nanoseconds since the run began.
    pub(super) now: u64,
    /// The next end of a timed wait; `u64::MAX` if none.
    pub(super) alarm: u64,
    pub(super) steps: u64,
    pub(super) steps_max: u64,
    pub(super) digest: u64,
    pub(super) over: bool,
    pub(super) trouble: Option<String>,
    pub(super) leaps: bool,
    /// The machine that chooses the next thread. Without a machine the next thread is chosen at
    /// random.
    pub(super) machine: Option<Box<dyn Machine>>,
    pub(super) trace: Option<Vec<(usize, &'static Location<'static>)>>,
}

impl Turns {
    pub(super) fn fold(&mut self, value: u64) {
        self.digest = (self.digest ^ value).wrapping_mul(0x0100_0000_01b3);
    }

    /// Ends the timed waits that are over at `now`.
    pub(super) fn ring(&mut self) {
        let now = self.now;
        self.alarm = u64::MAX;
        for index in 0..self.tasks.len() {
            let State::Waits(Wait { until: Some(until), .. }) = self.tasks[index].state else {
                continue;
            };
            if until <= now {
                self.make_ready(index);
                self.tasks[index].late = true;
            } else {
                self.alarm = self.alarm.min(until);
            }
        }
    }

    /// Wakes the threads that wait at a place for an object of a kind that `wanted` accepts.
    /// Returns their number.
    pub(super) fn wake(&mut self, place: Place, wanted: impl Fn(Want) -> bool) -> usize {
        let waiting = self.waiting(place, wanted);
        waiting.iter().for_each(|index| self.make_ready(*index));
        waiting.len()
    }

    /// The threads that wait at a place for an object of a kind that `wanted` accepts.
    pub(super) fn waiting(&self, place: Place, wanted: impl Fn(Want) -> bool) -> Vec<usize> {
        let waits = |task: &Task| matches!(task.state, State::Waits(wait) if wait.place == place && wanted(wait.want));
        let all = self.tasks.iter().enumerate();
        all.filter(|(_, task)| waits(task)).map(|(index, _)| index).collect()
    }

    /// Wakes threads for a lock that may be free, and returns their number. Without a machine these
    /// are all threads that want the lock. On a machine, where waking costs time, these are the
    /// threads that `parking_lot` would wake.
    pub(super) fn wake_for_lock(&mut self, place: Place) -> usize {
        let lock = |want| matches!(want, Want::Mutex | Want::Read | Want::Write);
        if self.machine.is_none() {
            return self.wake(place, lock);
        }
        let Some(first) = self.first_of(&self.waiting(place, lock)) else { return 0 };
        if matches!(self.tasks[first].state, State::Waits(Wait { want: Want::Read, .. })) {
            return self.wake(place, |want| want == Want::Read);
        }
        self.make_ready(first);
        1
    }

    pub(super) fn list(&self) -> String {
        let mut text = String::new();
        for (index, task) in self.tasks.iter().enumerate() {
            // Writing to a string cannot fail.
            let _ = match task.state {
                State::Ready => writeln!(text, "  {index} {}: could run", task.name),
                State::Ended => continue,
                State::Waits(wait) => writeln!(
                    text,
                    "  {index} {}: waits for {:?} {:#x} at {}",
                    task.name, wait.want, wait.place.0, wait.at
                ),
            };
        }
        text
    }
}
