//! What steps of an allocation of ours cost on this machine: what the simulation of processors that there are not takes
//! for its costs.
//!
//! # Invariants
//!
//! - **M1** What is cold costs more than what is not: two threads on two processors do the step in turns, and from what a
//!   turn takes goes what passing it on takes, and what the step takes the same thread over and over.
//! - **M2** No step is counted twice: what a group's lock is held for is without the account's lock inside of it.
//!
//! - **M3** The two processors are not of one core, which share its caches: the host of a virtual machine may have them so
//!   for minutes. A turn is passed on in 25 nanoseconds then, and in 180 between cores. If they do not part for
//!   seconds, or there is one, what is cold is what it was when they had parted ([`COLD`]), and that is said.
//!
//! The volume is the one that is simulated, and the steps are the engine's own; where one is a lock or a line alone, it is
//! a lock of the same kind, with a number under it.

use std::{
    fmt,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use buttress_base::Apart;
use buttress_space::{AllocPolicy, Next, Space};
use parking_lot::Mutex;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::{
    cores::{Costs, LockCost, empty_space, request},
    report::median,
};

const GROUPS: usize = 1024;
/// Repetitions that medians are of.
const TIMES: usize = 1001;
/// Steps of each: so few that most repetitions end before somebody else is given the processor.
const STEPS: usize = 64;
/// As measured on two cores of an EPYC, under a virtual machine.
const COLD: Cold = Cold { line: 119.0, lock: 102.0, group: 644.0 };
/// The first of them, for who shows both.
pub(crate) const LINE_APART: u64 = COLD.line as u64;
/// A turn is passed on within one core in less.
const APART: f64 = 60.0;
/// How often it is looked whether they are apart, and how long after each other.
const TRIES: usize = 20;
const PAUSE: Duration = Duration::from_millis(250);

/// Nanoseconds more, where another processor was there last.
#[derive(Clone, Copy, Debug)]
struct Cold {
    line: f64,
    lock: f64,
    group: f64,
}

/// Nanoseconds of each step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    /// Finding the group to try, and keeping the goal.
    choose: f64,
    /// Taking an extent of it, without the account (M2).
    take: f64,
    /// A lock that nobody waits for.
    lock: f64,
    /// A change of a line that nobody else has.
    hot_line: f64,
    /// A lock that is found held.
    busy: f64,
    /// A group on the walk over all, and one in the index.
    probe: [f64; 2],
    /// What is cold.
    cold: Cold,
    /// Whether that was measured.
    is_cold_measured: bool,
}

impl Measured {
    /// Measures, which takes a second, or some where processors do not part.
    pub(crate) fn here() -> Self {
        Self::within(TRIES)
    }

    fn within(tries: usize) -> Self {
        let lock = Apart(Mutex::new(0_u64));
        let count = Apart(AtomicU64::new(0));
        let add = || _ = count.fetch_add(1, Ordering::Relaxed);
        let pass = || *lock.lock() += 1;
        let (hot_line, hot_lock) = (over_and_over(&add), over_and_over(&pass));
        let held = lock.lock();
        let hot_busy = over_and_over(&|| assert!(lock.try_lock().is_none(), "it is held"));
        drop(held);
        let space = empty_space(GROUPS, AllocPolicy::IndexSingleGoal, 2);
        let choose = over_and_over(&|| choose(&space));
        let append = || append(&space);
        let whole = over_and_over(&append);
        let cold = Turns::apart(tries, |turns| {
            let extra = |step: &(dyn Fn() + Sync), hot| turns.extra(step, hot);
            let (line, lock) = (extra(&add, hot_line), extra(&pass, hot_lock));
            // The goal's line and the account's lock are in it.
            let all = extra(&append, whole);
            Cold { line, lock, group: (all - line - lock).max(0.0) }
        });
        let (is_cold_measured, cold) = (cold.is_some(), cold.unwrap_or(COLD));
        Self {
            choose,
            take: (whole - choose - hot_lock).max(0.0),
            lock: hot_lock,
            hot_line,
            // Who took it wrote the line.
            busy: hot_busy + cold.line,
            probe: [AllocPolicy::LinearTrylock, AllocPolicy::IndexSingleGoal].map(probe),
            cold,
            is_cold_measured,
        }
    }

    /// What changing a line costs, which others change as well.
    pub(crate) fn line(&self) -> LockCost {
        LockCost { hold: whole(self.hot_line), cold: whole(self.cold.line) }
    }

    /// What is simulated with them.
    pub(crate) fn costs(&self, policy: AllocPolicy) -> Costs {
        let lock = LockCost { hold: whole(self.lock), cold: whole(self.cold.lock) };
        let [walked, indexed] = self.probe;
        let probe = match policy {
            AllocPolicy::Linear | AllocPolicy::LinearTrylock => walked,
            AllocPolicy::IndexSingleGoal | AllocPolicy::IndexGoals => indexed,
        };
        Costs {
            private: whole((self.choose - probe).max(0.0)),
            goal: lock,
            group: LockCost { hold: whole(self.take), cold: whole(self.cold.group) },
            shared: lock,
            line: whole(self.cold.line),
            lists: None,
            probe: whole(probe),
            busy: whole(self.busy),
        }
    }
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            choose, take, lock, busy, probe: [walked, indexed], cold, is_cold_measured, ..
        } = self;
        let how = match is_cold_measured {
            true => "two threads in turns on two cores",
            false => "of another time, since there are no two cores",
        };
        writeln!(f, "ours, nanoseconds: choosing a group {choose:.0}, taking of it {take:.0}")?;
        writeln!(f, "  a lock {lock:.0}, one found held {busy:.0}")?;
        writeln!(f, "  a group looked at {walked:.1} on the walk, {indexed:.1} in the index")?;
        let Cold { line, lock, group } = cold;
        write!(f, "  more where another processor was last ({how}): ")?;
        write!(f, "a line {line:.0}, a lock {lock:.0}, a group {group:.0}")
    }
}

fn whole(nanos: f64) -> u64 {
    nanos.round() as u64
}

/// Finds a group, and takes nothing.
fn choose(space: &Space) {
    space.with_search(request(0, None), |search| {
        std::hint::black_box(search.step());
    });
}

/// Appends, as the engine does. What is taken stays taken: there is room for all.
fn append(space: &Space) {
    let request = request(0, None);
    let extent = space.with_search(request, |search| {
        loop {
            let Next::Group { group, take, .. } = search.step() else {
                panic!("L2: a volume with room is full")
            };
            if let Some(extent) = space.take_from(search, group, take, false) {
                return extent;
            }
        }
    });
    space.note_goal(&request, extent);
}

/// Looking at a group, of a search that finds each of them busy.
fn probe(policy: AllocPolicy) -> f64 {
    let space = empty_space(GROUPS, policy, 2);
    let search = || {
        space.with_search(request(0, None), |search| {
            let start = Instant::now();
            while let Next::Group { wait: false, .. } = search.step() {
                search.was_busy();
            }
            start.elapsed().as_nanos() as f64 / f64::from(search.probes())
        })
    };
    median(&(0..TIMES).map(|_| search()).collect::<Vec<_>>())
}

/// A step of one thread that does nothing else.
pub(crate) fn over_and_over(step: &dyn Fn()) -> f64 {
    let once = || {
        let start = Instant::now();
        (0..STEPS).for_each(|_| step());
        start.elapsed().as_nanos() as f64 / STEPS as f64
    };
    median(&(0..TIMES).map(|_| once()).collect::<Vec<_>>())
}

/// Two processors, and what passing a turn from one to the other takes.
struct Turns {
    processors: [usize; 2],
    pass: f64,
}

impl Turns {
    /// Measures by them while they are of two cores (M3); none where they are not.
    fn apart<T>(tries: usize, mut measure: impl FnMut(&Self) -> T) -> Option<T> {
        for _ in 0..tries {
            let turns = Self::new()?;
            if turns.pass >= APART {
                let found = measure(&turns);
                if turns.of_each(&|| ()) >= APART {
                    return Some(found);
                }
            }
            thread::sleep(PAUSE);
        }
        None
    }

    fn new() -> Option<Self> {
        let all = sched_getaffinity(None).ok()?;
        let mut own = (0..CpuSet::MAX_CPU).filter(|processor| all.is_set(*processor));
        // The two that are farthest apart by number: neighbours may share a core.
        let processors = [own.next()?, own.next_back()?];
        let turns = Self { processors, pass: 0.0 };
        Some(Self { pass: turns.of_each(&|| ()), ..turns })
    }

    /// What a step that takes `hot` takes more in turns (M1).
    fn extra(&self, step: &(dyn Fn() + Sync), hot: f64) -> f64 {
        (self.of_each(step) - self.pass - hot).max(0.0)
    }

    fn of_each(&self, step: &(dyn Fn() + Sync)) -> f64 {
        let turn = Apart(AtomicUsize::new(0));
        let work = |own: usize| {
            let mut one = CpuSet::new();
            one.set(self.processors[own]);
            // Where it is not allowed, the scheduler will have them on two.
            let _ = sched_setaffinity(None, &one);
            let once = || {
                let start = Instant::now();
                for _ in 0..STEPS {
                    while turn.load(Ordering::Acquire) != own {
                        std::hint::spin_loop();
                    }
                    step();
                    turn.store(1 - own, Ordering::Release);
                }
                start.elapsed().as_nanos() as f64 / (2 * STEPS) as f64
            };
            median(&(0..TIMES).map(|_| once()).collect::<Vec<_>>())
        };
        thread::scope(|scope| {
            let (own, other) = (scope.spawn(|| work(0)), scope.spawn(|| work(1)));
            let both = [own.join(), other.join()];
            median(&both.map(|nanos| nanos.expect("steps do not panic")))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// M2: on one processor the costs add up to what an allocation takes, and its lock of the account.
    #[test]
    fn steps_are_counted_once() {
        let measured = Measured {
            choose: 40.0,
            take: 50.0,
            lock: 10.0,
            hot_line: 5.0,
            busy: 30.0,
            probe: [3.0, 6.0],
            cold: COLD,
            is_cold_measured: false,
        };
        let costs = measured.costs(AllocPolicy::IndexGoals);
        let sum = costs.private + costs.probe + costs.group.hold + costs.shared.hold;
        assert_eq!(sum, 100);
        assert_eq!(measured.costs(AllocPolicy::Linear).probe, 3);
        assert!(measured.to_string().contains("of another time"));
    }

    /// M1, M3: what is said is finite, on whatever machine, two cores or not.
    #[test]
    fn this_machine_is_measured() {
        let costs = Measured::within(1).costs(AllocPolicy::IndexGoals);
        assert!((1..1_000_000).contains(&(costs.private + costs.group.hold)), "{costs:?}");
    }
}
