//! Processors that there need not be: clocks, and locks in the time that these count.
//!
//! # Place
//!
//! Each simulated processor is a thread, but only one runs at a time: the one whose own clock is the earliest.
//!
//! # Invariants
//!
//! - **C1** The same work and costs give the same figures, on every machine: clocks that are equal go by number.
//! - **C2** A lock has one holder. Whoever waits goes on when it is given back, in the order of arrival.
//!
//! A lock costs its holder `hold`, and `cold` on top where somebody else had it last, because what it protects
//! must come from another processor's cache.

use std::collections::{BTreeSet, VecDeque};
use std::thread;

use parking_lot::{Condvar, Mutex};

/// What a lock costs, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct LockCost {
    /// Each time.
    pub hold: u64,
    /// On top, when another processor had it last.
    pub cold: u64,
}

#[derive(Debug)]
struct VirtualLock {
    cost: LockCost,
    holder: Option<usize>,
    last: Option<usize>,
    waiting: VecDeque<usize>,
}

#[derive(Debug)]
struct State {
    /// Who can run, by clock.
    ready: BTreeSet<(u64, usize)>,
    clocks: Vec<u64>,
    running: Option<usize>,
    locks: Vec<VirtualLock>,
}

impl State {
    /// Lets the earliest go on.
    fn elect(&mut self) -> Option<usize> {
        self.running = self.ready.pop_first().map(|(_, core)| core);
        self.running
    }
}

/// All processors and locks.
pub(crate) struct World {
    state: Mutex<State>,
    turns: Vec<Condvar>,
}

impl World {
    fn new(cores: usize, locks: impl IntoIterator<Item = LockCost>) -> Self {
        let lock = |cost| VirtualLock { cost, holder: None, last: None, waiting: VecDeque::new() };
        let locks = locks.into_iter().map(lock).collect();
        let ready = (0..cores).map(|core| (0, core)).collect();
        let state = State { ready, clocks: vec![0; cores], running: None, locks };
        let turns = (0..cores).map(|_| Condvar::new()).collect();
        Self { state: Mutex::new(state), turns }
    }

    /// Lets so many processors work, with these locks, by number. Answers what each of them answers, and what its clock
    /// said at the end.
    pub(crate) fn run<T: Send>(
        cores: usize,
        locks: impl IntoIterator<Item = LockCost>,
        work: impl Fn(usize, &Self) -> T + Sync,
    ) -> Vec<(u64, T)> {
        let world = Self::new(cores, locks);
        thread::scope(|scope| {
            let threads: Vec<_> = (0..cores)
                .map(|core| {
                    let (world, work) = (&world, &work);
                    scope.spawn(move || {
                        world.begin(core);
                        let answer = work(core, world);
                        let clock = world.state.lock().clocks[core];
                        world.end();
                        (clock, answer)
                    })
                })
                .collect();
            world.end();
            threads.into_iter().map(|thread| thread.join().expect("no core panics")).collect()
        })
    }

    fn begin(&self, core: usize) {
        let mut state = self.state.lock();
        while state.running != Some(core) {
            self.turns[core].wait(&mut state);
        }
    }

    /// Lets the earliest run, and returns when this is the one.
    fn turn(&self, core: usize, state: &mut parking_lot::MutexGuard<'_, State>) {
        match state.elect() {
            Some(next) if next == core => return,
            Some(next) => _ = self.turns[next].notify_one(),
            None => panic!("C2: everybody waits"),
        }
        while state.running != Some(core) {
            self.turns[core].wait(state);
        }
    }

    /// Spends time.
    pub(crate) fn spend(&self, core: usize, nanos: u64) {
        let mut state = self.state.lock();
        state.clocks[core] += nanos;
        let now = state.clocks[core];
        if state.ready.first().is_none_or(|first| *first > (now, core)) {
            return;
        }
        state.ready.insert((now, core));
        self.turn(core, &mut state);
    }

    /// Says whether it was free, and is held now.
    pub(crate) fn try_lock(&self, core: usize, lock: usize) -> bool {
        let mut state = self.state.lock();
        let free = state.locks[lock].holder.is_none();
        if free {
            state.locks[lock].holder = Some(core);
        }
        free
    }

    /// Waits for it.
    pub(crate) fn lock(&self, core: usize, lock: usize) {
        let mut state = self.state.lock();
        if state.locks[lock].holder.is_none() {
            state.locks[lock].holder = Some(core);
            return;
        }
        state.locks[lock].waiting.push_back(core);
        self.turn(core, &mut state);
    }

    /// Spends the time that the lock costs, and gives it back.
    pub(crate) fn use_and_unlock(&self, core: usize, lock: usize) {
        let cost = {
            let mut state = self.state.lock();
            let lock = &mut state.locks[lock];
            let cold = lock.last.replace(core).is_some_and(|last| last != core);
            lock.cost.hold + if cold { lock.cost.cold } else { 0 }
        };
        self.spend(core, cost);
        let mut state = self.state.lock();
        let now = state.clocks[core];
        let next = state.locks[lock].waiting.pop_front();
        state.locks[lock].holder = next;
        if let Some(next) = next {
            state.clocks[next] = state.clocks[next].max(now);
            let entry = (state.clocks[next], next);
            state.ready.insert(entry);
        }
    }

    /// Waits, holds it for as long as it costs, and gives it back.
    pub(crate) fn pass(&self, core: usize, lock: usize) {
        self.lock(core, lock);
        self.use_and_unlock(core, lock);
    }

    fn end(&self) {
        let mut state = self.state.lock();
        if let Some(next) = state.elect() {
            self.turns[next].notify_one();
        }
    }
}
