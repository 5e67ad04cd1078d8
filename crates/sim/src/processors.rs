//! Simulates a machine with any number of processors. Threads of a seeded run take their measured
//! time, or a fixed time for each step. Each thread has its own processor as long as there are
//! enough processors.
//!
//! # Place
//!
//! The scheduler (`buttress_base::seeded`) asks the simulated machine, through [`Machine`], for the
//! next thread, instead of choosing at random. The machine chooses the thread that is furthest
//! behind. That thread runs on the real machine. Its running time is added to its own clock, and
//! then other threads run until they catch up.
//!
//! # Invariants
//!
//! - **M1** No thread is ahead of another running thread by more than [`AHEAD`] and one step. A
//!   step lies between two places where the scheduler may switch threads.
//! - **M2** In simulated time, a lock is taken only after its last release. If the real lock is
//!   free earlier, the thread's clock moves forward.
//! - **M3** A processor has one thread at a time. A queued thread gets the processor when the
//!   running thread waits for something. The running thread also loses the processor in two other
//!   cases. Either it has had the processor for a [`SLICE`] and has run longer in sum than the
//!   queued thread. Or it has run longer than the queued thread by more than two slices.
//!
//! # Not seen
//!
//! The simulation ignores cache-line transfers, shared caches and memory, and the order of a real
//! scheduler. A thread that waits briefly for a lock spins, as with `parking_lot`; otherwise it
//! sleeps.

use std::collections::HashMap;
use std::panic::Location;
use std::time::{Duration, Instant};

use buttress_base::seeded::{Machine, Waited};

mod cost;
#[cfg(test)]
mod tests;

pub use cost::Cost;

/// The nanoseconds that a thread may be ahead of other threads. Without this slack, real threads
/// would be switched at each step, and a switch takes longer than most steps.
const AHEAD: u64 = 2_000;

/// The nanoseconds for which a thread keeps its processor while other threads wait, as in Linux
/// with few processors.
const SLICE: u64 = 1_400_000;

/// A thread sleeps if it waits longer than this many nanoseconds for a lock.
const SPIN: u64 = 4_000;

/// Time of a context switch, in nanoseconds.
const SWITCH: u64 = 1_500;

/// The number of processors, and the cost of work.
#[derive(Clone, Copy, Debug)]
pub struct Processors {
    /// Number of processors.
    pub count: usize,
    /// The cost of a thread's work.
    pub cost: Cost,
}

impl Processors {
    /// Makes a machine with these processors, for one run of the scheduler.
    #[must_use]
    pub fn machine(self) -> Box<dyn Machine> {
        Box::new(Simulated::new(self))
    }
}

/// The clock of one thread, in nanoseconds of the run.
#[derive(Clone, Copy, Debug, Default)]
struct Clock {
    /// The thread's current time.
    at: u64,
    /// Whether the thread waits only for a processor.
    is_ready: bool,
    /// The time since which the thread could run.
    ready: u64,
    /// The thread's running time, adjusted so that a thread that slept long does not run for ever.
    ran: u64,
    /// The thread's processor, and the time at which it got the processor.
    on: Option<usize>,
    since: u64,
    /// The time at which the thread began to wait.
    asked: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Processor {
    thread: Option<usize>,
    free: u64,
}

/// When a lock was last released: from exclusive use, and from shared use.
#[derive(Clone, Copy, Debug, Default)]
struct Freed {
    whole: u64,
    share: u64,
}

/// The machine.
#[derive(Debug)]
struct Simulated {
    cost: Cost,
    processors: Vec<Processor>,
    clocks: Vec<Clock>,
    freed: HashMap<usize, Freed>,
    waited: HashMap<&'static Location<'static>, Waited>,
    /// The moment at which the current thread resumed on the real machine.
    resumed: Instant,
    /// The running time of all threads together.
    busy: u64,
    /// `overhead` is the time that one measurement costs the measured thread, and is subtracted.
    /// `counted` is the number of measurements.
    overhead: u64,
    counted: u64,
}

impl Simulated {
    /// Begins with one thread, which has a processor.
    fn new(processors: Processors) -> Self {
        let mut slots = vec![Processor::default(); processors.count.max(1)];
        slots[0].thread = Some(0);
        Self {
            cost: processors.cost,
            processors: slots,
            clocks: vec![Clock { is_ready: true, on: Some(0), ..Clock::default() }],
            freed: HashMap::new(),
            waited: HashMap::new(),
            resumed: Instant::now(),
            busy: 0,
            overhead: 0,
            counted: 0,
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

    /// Releases a thread's processor.
    fn give_up(&mut self, index: usize) {
        let clock = &mut self.clocks[index];
        clock.asked = clock.at;
        if let Some(on) = clock.on.take() {
            self.processors[on] = Processor { thread: None, free: clock.at };
        }
    }

    /// Gives a thread a processor that is free.
    fn place(&mut self, index: usize, on: usize) {
        let switch = if matches!(self.cost, Cost::Step(_)) { 0 } else { SWITCH };
        let clock = &mut self.clocks[index];
        clock.at = clock.ready.max(self.processors[on].free).max(clock.at) + switch;
        (clock.on, clock.since) = (Some(on), clock.at);
        self.processors[on].thread = Some(index);
    }

    /// The thread that is furthest behind, of the threads with a processor.
    fn last(&self) -> Option<usize> {
        let running = self.processors.iter().filter_map(|processor| processor.thread);
        running.min_by_key(|index| self.clocks[*index].at)
    }

    fn had_its_slice(&self, index: usize) -> bool {
        self.clocks[index].at - self.clocks[index].since >= SLICE
    }

    /// The threads that could run and have no processor.
    fn queued(&self) -> impl Iterator<Item = usize> {
        let waits = |clock: &Clock| clock.is_ready && clock.on.is_none();
        let clocks = self.clocks.iter().enumerate();
        clocks.filter(move |(_, clock)| waits(clock)).map(|(index, _)| index)
    }

    /// Gives processors to threads that can run (M3).
    fn dispatch(&mut self) {
        loop {
            let Some(next) = self.queued().min_by_key(|index| self.clocks[*index].ran) else {
                return;
            };
            let clock = self.clocks[next];
            let free = self.processors.iter().enumerate();
            let free = free.filter(|(_, processor)| processor.thread.is_none());
            // Takes the processor that is free first. If several processors are free at that time,
            // takes the processor that was used last.
            let slot = free
                .min_by_key(|(_, processor)| {
                    (processor.free.max(clock.ready), u64::MAX - processor.free)
                })
                .map(|(slot, _)| slot);
            let running = self.processors.iter().filter_map(|processor| processor.thread);
            let may_go = |index: &usize| {
                let other = self.clocks[*index];
                let is_over = other.ran > clock.ran && self.had_its_slice(*index);
                other.at >= clock.ready && (is_over || other.ran > clock.ran + 2 * SLICE)
            };
            let victim = running.filter(may_go).max_by_key(|index| self.clocks[*index].ran);
            match (slot, victim) {
                (Some(slot), _) => self.place(next, slot),
                (None, Some(victim)) => {
                    let Some(slot) = self.clocks[victim].on else { return };
                    self.give_up(victim);
                    self.clocks[victim].ready = self.clocks[victim].at;
                    self.place(next, slot);
                }
                (None, None) => return,
            }
        }
    }
}

impl Machine for Simulated {
    fn count(&self) -> usize {
        self.processors.len()
    }

    fn busy(&self) -> Duration {
        Duration::from_nanos(self.busy)
    }

    fn waited(&self) -> Vec<Waited> {
        let mut all: Vec<_> = self.waited.values().copied().collect();
        all.sort_by_key(|waited| std::cmp::Reverse(waited.time));
        all
    }

    fn counted(&self) -> (u64, u64) {
        (self.counted, self.busy)
    }

    fn take_off(&mut self, overhead: u64) {
        self.overhead = overhead;
    }

    fn uncounted(&self) -> u64 {
        match self.cost {
            Cost::Step(_) => 0,
            Cost::Measured { .. } => self.resumed.elapsed().as_nanos() as u64,
        }
    }

    fn count_time(&mut self, thread: usize, is_step: bool) -> u64 {
        let nanos = match self.cost {
            Cost::Step(time) if is_step => time.as_nanos() as u64,
            _ => self.uncounted().saturating_sub(self.overhead),
        };
        self.counted += 1;
        self.spend(thread, nanos);
        self.clocks[thread].at
    }

    fn resume(&mut self, thread: usize) -> u64 {
        self.resumed = Instant::now();
        self.clocks[thread].at
    }

    fn enter(&mut self, now: u64) {
        let ran = self.clocks.iter().map(|clock| clock.ran).max().unwrap_or(0);
        let clock = Clock { is_ready: true, at: now, ready: now, ran, ..Clock::default() };
        self.clocks.push(clock);
    }

    fn make_ready(&mut self, thread: usize, now: u64) {
        self.clocks[thread].is_ready = true;
        let ready = self.clocks.iter().filter(|clock| clock.is_ready);
        let least = ready.map(|clock| clock.ran).min().unwrap_or(0);
        let (_, until_awake) = self.wake_cost();
        let clock = &mut self.clocks[thread];
        clock.ready = now + until_awake;
        clock.ran = clock.ran.max(least.saturating_sub(SLICE));
    }

    fn pay_for_waking(&mut self, thread: usize, count: usize) -> u64 {
        let (wake, _) = self.wake_cost();
        self.spend(thread, wake * count as u64);
        self.clocks[thread].at
    }

    fn leave(&mut self, thread: usize) {
        self.clocks[thread].is_ready = false;
        self.give_up(thread);
    }

    fn note_freed(&mut self, lock: usize, is_shared: bool, now: u64) {
        let freed = self.freed.entry(lock).or_default();
        let when = if is_shared { &mut freed.share } else { &mut freed.whole };
        *when = now.max(*when);
    }

    fn note_taken(
        &mut self,
        thread: usize,
        lock: usize,
        is_shared: bool,
        since: u64,
        at: &'static Location<'static>,
    ) -> u64 {
        let freed = self.freed.get(&lock).copied().unwrap_or_default();
        let free = if is_shared { freed.whole } else { freed.whole.max(freed.share) };
        let waits = free.saturating_sub(self.clocks[thread].at);
        if waits > 0 {
            let (_, until_awake) = self.wake_cost();
            let asleep = if waits > SPIN { until_awake } else { 0 };
            self.clocks[thread].at += waits + asleep;
        }
        let now = self.clocks[thread].at;
        if now > since {
            let none = Waited { at, count: 0, time: Duration::ZERO };
            let waited = self.waited.entry(at).or_insert(none);
            waited.count += 1;
            waited.time += Duration::from_nanos(now - since);
        }
        now
    }

    fn first_of(&self, waiting: &[usize]) -> Option<usize> {
        waiting.iter().copied().min_by_key(|index| self.clocks[*index].asked)
    }

    fn is_ahead(&self, thread: usize, alarm: u64) -> bool {
        let at = self.clocks[thread].at.saturating_sub(AHEAD);
        let is_behind = |processor: &Processor| {
            processor.thread.is_some_and(|other| other != thread && self.clocks[other].at < at)
        };
        if alarm < at || self.processors.iter().any(is_behind) {
            return true;
        }
        let has_room = self.processors.iter().any(|processor| processor.thread.is_none());
        (has_room || self.had_its_slice(thread)) && self.queued().next().is_some()
    }

    fn choose(&mut self) -> Option<(usize, u64)> {
        self.dispatch();
        self.last().map(|index| (index, self.clocks[index].at))
    }
}
