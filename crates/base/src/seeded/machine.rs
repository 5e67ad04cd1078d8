//! A machine with so many processors, which there need not be: threads of a run take the time that they take, or as much
//! for each step, each on a processor of its own as far as there are any.
//!
//! # Place
//!
//! In place of chance it says who of a run has the turn: who is furthest behind. The thread that has it runs on the real
//! machine; how long it did is added to its own time, and then the others catch up.
//!
//! # Invariants
//!
//! - **M1** Nobody is ahead of another who has a processor by more than [`AHEAD`] and what lies between two places where the
//!   turn may change hands.
//! - **M2** A lock is taken no earlier than it was given up, in the time of the run, though nobody else ran meanwhile.
//! - **M3** A processor has one thread at a time. Who waits for one gets it when another waits for something, or had it for
//!   a [`SLICE`] and ran more.
//!
//! # Not seen
//!
//! Lines of memory that processors take from each other, caches and memory that they share, the order of a real scheduler.
//! Who waits for a lock a short time is thought to spin, as `parking_lot` does, and to sleep otherwise.

use std::collections::HashMap;
use std::panic::Location;
use std::time::{Duration, Instant};

use super::turns::{Place, State, Turns, Want};

mod cost;

pub use cost::{Cost, Processors, Waited};

/// How far one may be ahead of the others: passing the turn on takes longer than most steps.
const AHEAD: u64 = 2_000;

/// For how long a thread has its processor, while others wait for one: as Linux, with few processors.
const SLICE: u64 = 1_400_000;

/// Who waits longer for a lock than this sleeps.
const SPIN: u64 = 4_000;

/// What a processor needs to go from one thread to another.
const SWITCH: u64 = 1_500;

/// What one thread did, in nanoseconds of the run.
#[derive(Clone, Copy, Debug, Default)]
struct Clock {
    /// Where it is.
    at: u64,
    /// Since when it could run.
    ready: u64,
    /// How long it has run, but that who slept long is not let run for ever.
    ran: u64,
    /// Its processor, and since when.
    on: Option<usize>,
    since: u64,
    /// When it began to wait.
    asked: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Processor {
    thread: Option<usize>,
    free: u64,
}

/// When a lock was given up last: by who had it alone, and by who had a share.
#[derive(Clone, Copy, Debug, Default)]
struct Freed {
    whole: u64,
    share: u64,
}

#[derive(Debug)]
pub(super) struct Machine {
    cost: Cost,
    processors: Vec<Processor>,
    clocks: Vec<Clock>,
    freed: HashMap<Place, Freed>,
    waited: HashMap<&'static Location<'static>, Waited>,
    /// Since when the thread with the turn has run on the real machine.
    resumed: Instant,
    /// What all did together.
    busy: u64,
    /// What counting takes of the thread that is counted, each time, and how often that was.
    overhead: u64,
    counted: u64,
}

impl Machine {
    /// One thread is there, and has a processor.
    pub(super) fn new(processors: Processors) -> Self {
        let mut slots = vec![Processor::default(); processors.count.max(1)];
        slots[0].thread = Some(0);
        Self {
            cost: processors.cost,
            processors: slots,
            clocks: vec![Clock { on: Some(0), ..Clock::default() }],
            freed: HashMap::new(),
            waited: HashMap::new(),
            resumed: Instant::now(),
            busy: 0,
            overhead: 0,
            counted: 0,
        }
    }

    /// Where threads waited for locks, and how long; most first.
    pub(super) fn waited(&self) -> Vec<Waited> {
        let mut all: Vec<_> = self.waited.values().copied().collect();
        all.sort_by_key(|waited| std::cmp::Reverse(waited.time));
        all
    }

    /// What was counted so far: how often, and how much in all.
    pub(super) fn counted(&self) -> (u64, u64) {
        (self.counted, self.busy)
    }

    /// From now on so much is taken off, each time.
    pub(super) fn take_off(&mut self, overhead: u64) {
        self.overhead = overhead;
    }

    pub(super) fn count(&self) -> usize {
        self.processors.len()
    }

    pub(super) fn busy(&self) -> Duration {
        Duration::from_nanos(self.busy)
    }

    /// How long the thread with the turn has run since it was counted last.
    pub(super) fn uncounted(&self) -> u64 {
        match self.cost {
            Cost::Step(_) => 0,
            Cost::Measured { .. } => self.resumed.elapsed().as_nanos() as u64,
        }
    }

    fn wake_cost(&self) -> (u64, u64) {
        match self.cost {
            Cost::Step(_) => (0, 0),
            Cost::Measured { wake, until_awake } => {
                (wake.as_nanos() as u64, until_awake.as_nanos() as u64)
            }
        }
    }

    fn spend(&mut self, mine: usize, nanos: u64) {
        self.clocks[mine].at += nanos;
        self.clocks[mine].ran += nanos;
        self.busy += nanos;
    }

    /// Gives a thread's processor up.
    fn leave(&mut self, index: usize) {
        let clock = &mut self.clocks[index];
        clock.asked = clock.at;
        if let Some(on) = clock.on.take() {
            self.processors[on] = Processor { thread: None, free: clock.at };
        }
    }

    /// Gives a thread a processor that nobody has.
    fn place(&mut self, index: usize, on: usize) {
        let switch = if matches!(self.cost, Cost::Step(_)) { 0 } else { SWITCH };
        let clock = &mut self.clocks[index];
        clock.at = clock.ready.max(self.processors[on].free).max(clock.at) + switch;
        (clock.on, clock.since) = (Some(on), clock.at);
        self.processors[on].thread = Some(index);
    }

    /// Who has a processor and is furthest behind.
    fn last(&self) -> Option<usize> {
        let running = self.processors.iter().filter_map(|processor| processor.thread);
        running.min_by_key(|index| self.clocks[*index].at)
    }

    fn had_its_slice(&self, index: usize) -> bool {
        self.clocks[index].at - self.clocks[index].since >= SLICE
    }
}

impl Turns {
    /// Counts what the thread with the turn did; in a run by chance a step takes as long as any other.
    pub(super) fn count_time(&mut self, mine: usize, is_step: bool) {
        let Some(machine) = &mut self.machine else {
            self.now += if is_step { 200 } else { 0 };
            return;
        };
        let nanos = match machine.cost {
            Cost::Step(time) if is_step => time.as_nanos() as u64,
            _ => machine.uncounted().saturating_sub(machine.overhead),
        };
        machine.counted += 1;
        machine.spend(mine, nanos);
        self.now = machine.clocks[mine].at;
    }

    /// What time it is for the thread with the turn.
    pub(super) fn present(&self) -> u64 {
        self.now + self.machine.as_ref().map_or(0, Machine::uncounted)
    }

    /// The thread runs from here on.
    pub(super) fn resume(&mut self, mine: usize) {
        if let Some(machine) = &mut self.machine {
            self.now = machine.clocks[mine].at;
            machine.resumed = Instant::now();
        }
    }

    /// A thread that could not run can, by what happened now.
    pub(super) fn make_ready(&mut self, index: usize) {
        self.tasks[index].state = State::Ready;
        let Some(machine) = &mut self.machine else { return };
        let least = self
            .tasks
            .iter()
            .zip(&machine.clocks)
            .filter(|(task, _)| matches!(task.state, State::Ready))
            .map(|(_, clock)| clock.ran)
            .min();
        let (_, until_awake) = machine.wake_cost();
        let clock = &mut machine.clocks[index];
        clock.ready = self.now + until_awake;
        clock.ran = clock.ran.max(least.unwrap_or(0).saturating_sub(SLICE));
    }

    /// The thread with the turn has woken so many.
    pub(super) fn pay_for_waking(&mut self, mine: usize, count: usize) {
        if let Some(machine) = &mut self.machine {
            let (wake, _) = machine.wake_cost();
            machine.spend(mine, wake * count as u64);
            self.now = machine.clocks[mine].at;
        }
    }

    /// A thread is about to be started.
    pub(super) fn enter(&mut self) {
        let now = self.now;
        if let Some(machine) = &mut self.machine {
            let ran = machine.clocks.iter().map(|clock| clock.ran).max().unwrap_or(0);
            machine.clocks.push(Clock { at: now, ready: now, ran, ..Clock::default() });
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
        let now = self.now;
        if let Some(machine) = &mut self.machine {
            let freed = machine.freed.entry(place).or_default();
            let when = if want == Want::Read { &mut freed.share } else { &mut freed.whole };
            *when = now.max(*when);
        }
    }

    /// A lock was taken (M2) that a thread wanted since then.
    pub(super) fn note_taken(
        &mut self,
        mine: usize,
        place: Place,
        want: Want,
        since: u64,
        at: &'static Location<'static>,
    ) {
        let Some(machine) = &mut self.machine else { return };
        let freed = machine.freed.get(&place).copied().unwrap_or_default();
        let free = if want == Want::Read { freed.whole } else { freed.whole.max(freed.share) };
        let waits = free.saturating_sub(machine.clocks[mine].at);
        if waits > 0 {
            let (_, until_awake) = machine.wake_cost();
            let asleep = if waits > SPIN { until_awake } else { 0 };
            machine.clocks[mine].at += waits + asleep;
            self.now = machine.clocks[mine].at;
        }
        if self.now > since {
            let none = Waited { at, count: 0, time: Duration::ZERO };
            let waited = machine.waited.entry(at).or_insert(none);
            waited.count += 1;
            waited.time += Duration::from_nanos(self.now - since);
        }
    }

    /// Of those who wait for one thing, who came first.
    pub(super) fn first_of(&self, waiting: &[usize]) -> Option<usize> {
        let machine = self.machine.as_ref()?;
        waiting.iter().copied().min_by_key(|index| machine.clocks[*index].asked)
    }

    /// Whether the thread with the turn has to let others catch up, or has lost its processor (M1, M3).
    pub(super) fn is_ahead(&self, mine: usize) -> bool {
        let Some(machine) = &self.machine else { return false };
        let at = machine.clocks[mine].at.saturating_sub(AHEAD);
        let is_behind = |processor: &Processor| {
            processor.thread.is_some_and(|other| other != mine && machine.clocks[other].at < at)
        };
        if self.alarm < at || machine.processors.iter().any(is_behind) {
            return true;
        }
        let has_room = machine.processors.iter().any(|processor| processor.thread.is_none());
        (has_room || machine.had_its_slice(mine)) && self.queued().next().is_some()
    }

    /// Who could run and has no processor.
    fn queued(&self) -> impl Iterator<Item = usize> {
        let clocks = self.machine.iter().flat_map(|machine| &machine.clocks);
        let tasks = self.tasks.iter().zip(clocks).enumerate();
        let waits = |task: &super::Task, clock: &Clock| {
            matches!(task.state, State::Ready) && clock.on.is_none()
        };
        tasks.filter(move |(_, (task, clock))| waits(task, clock)).map(|(index, _)| index)
    }

    /// Gives processors to those who can run (M3).
    fn dispatch(&mut self) {
        loop {
            let Some(machine) = &self.machine else { return };
            let Some(next) = self.queued().min_by_key(|index| machine.clocks[*index].ran) else {
                return;
            };
            let clock = machine.clocks[next];
            let free = machine.processors.iter().enumerate();
            let free = free.filter(|(_, processor)| processor.thread.is_none());
            // The one that it can have first, and of those the one that was free last.
            let slot = free
                .min_by_key(|(_, processor)| {
                    (processor.free.max(clock.ready), u64::MAX - processor.free)
                })
                .map(|(slot, _)| slot);
            let running = machine.processors.iter().filter_map(|processor| processor.thread);
            let may_go = |index: &usize| {
                let other = machine.clocks[*index];
                let is_over = other.ran > clock.ran && machine.had_its_slice(*index);
                other.at >= clock.ready && (is_over || other.ran > clock.ran + 2 * SLICE)
            };
            let victim = running.filter(may_go).max_by_key(|index| machine.clocks[*index].ran);
            let Some(machine) = &mut self.machine else { return };
            match (slot, victim) {
                (Some(slot), _) => machine.place(next, slot),
                (None, Some(victim)) => {
                    let Some(slot) = machine.clocks[victim].on else { return };
                    machine.leave(victim);
                    machine.clocks[victim].ready = machine.clocks[victim].at;
                    machine.place(next, slot);
                }
                (None, None) => return,
            }
        }
    }

    /// Who has the turn next: who is furthest behind (M1). Nobody, when nobody can go on and none waits for a time.
    pub(super) fn choose_last(&mut self) -> Option<usize> {
        loop {
            if self.tasks.iter().all(|task| matches!(task.state, State::Ended)) {
                return None;
            }
            self.dispatch();
            let machine = self.machine.as_ref()?;
            let last = machine.last();
            let at = last.map_or(u64::MAX, |index| machine.clocks[index].at);
            if self.alarm == u64::MAX || at <= self.alarm {
                return last;
            }
            self.now = self.alarm;
            self.ring();
        }
    }
}
