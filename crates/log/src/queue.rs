//! The threads that wait for a log: one leads, and those that arrive meanwhile are the next log,
//! all of them together.
//!
//! # Invariants
//!
//! - **Q1** A thread leads exactly while `led` is set, and the leader ends by calling
//!   [`Queue::pass_on`]: the lead goes to one of those that came meanwhile, or to none.
//! - **Q2** A waiter is told exactly once: to lead the batch that it is in, or what became of it.
//! - **Q3** No thread is woken under the lock. Those that a log serves are woken with one call,
//!   but for the first in line.
//! - **Q4** Where the queue is not empty when the lead is handed on, there is a first in line.
//!
//! Waking a processor that sleeps takes a tenth of what a log on a fast device does. So the first
//! in line, which leads next, watches for a while before it sleeps, and yields its processor
//! meanwhile. It is one thread at most.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use buttress_base::sync::Mutex;
use buttress_base::{Event, clock, thread};

use buttress_txn::{LoggedId, Result};

/// A waiter does not watch where a log takes longer.
const WATCH_MAX: Duration = Duration::from_micros(500);

/// After so many logs that waited in vain for threads that asked before, most logs do not.
const VAIN_MAX: u32 = 6;

/// The first in the queue, or all others.
#[derive(Debug, Default)]
struct Waiter {
    told: OnceLock<Joined>,
    is_told: Event,
}

impl Waiter {
    fn tell(&self, what: Joined) {
        assert!(self.told.set(what).is_ok(), "Q2: told twice");
        self.is_told.set();
    }

    fn watch(&self, time: Duration) {
        let start = clock::now();
        while !self.is_told.is_set() && clock::since(start) < time {
            std::thread::yield_now();
        }
    }

    fn wait(&self) -> Joined {
        self.is_told.wait();
        self.told.get().expect("Q2: told before").clone()
    }
}

#[derive(Default)]
struct Gathering {
    wanted: BTreeSet<LoggedId>,
    /// Leads next, if it is not served before.
    first: Option<Arc<Waiter>>,
    others: Option<Arc<Waiter>>,
    /// How many wait.
    waiting: usize,
    led: bool,
    /// How many were served by the last log, or asked while it was under way.
    expected: usize,
    /// How long it took.
    took: Duration,
    /// How often in a row they were waited for in vain, and how many logs are not to wait for that.
    vain: u32,
    skip: u32,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Queue(
    /// Unranked: nothing is taken under it.
    Mutex<Gathering>,
);

/// How an inode becomes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a commit may be needed"]
pub enum Logged {
    /// A log names it.
    Durable,
    /// No log can. The caller completes its own data, and then commits.
    NeedsCommit,
}

/// What a thread that joined is to do.
#[derive(Clone, Debug)]
pub(crate) enum Joined {
    /// Make the log of all that are in the queue.
    Lead,
    /// Another thread made it.
    Done(Result<Logged>),
}

/// Those that one log serves.
pub(crate) struct Batch {
    pub(crate) wanted: BTreeSet<LoggedId>,
    waiters: [Option<Arc<Waiter>>; 2],
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").field("wanted", &self.0.lock().wanted).finish_non_exhaustive()
    }
}

impl Queue {
    /// Joins the batch that is being gathered, and waits for it if another thread leads.
    pub(crate) fn join(&self, id: LoggedId) -> Joined {
        let (mine, watch) = {
            let mut gathering = self.0.lock();
            gathering.wanted.insert(id);
            if !std::mem::replace(&mut gathering.led, true) {
                return Joined::Lead;
            }
            gathering.waiting += 1;
            let first = gathering.first.is_none();
            let place = if first { &mut gathering.first } else { &mut gathering.others };
            let mine = Arc::clone(place.get_or_insert_default());
            let first = first && gathering.took <= WATCH_MAX;
            // The log that is under way, and a part of the next where that was taken already.
            (mine, if first { gathering.took * 2 } else { Duration::ZERO })
        };
        if thread::seeded_index().is_none() && thread::parallelism() > 1 {
            mine.watch(watch);
        }
        mine.wait()
    }

    /// Whether the leader is alone, and others asked at the time of the last log: with the
    /// processor left to them for once they may join.
    pub(crate) fn expects_company(&self) -> bool {
        let gathering = self.0.lock();
        gathering.waiting == 0 && gathering.expected > 1
    }

    /// Waits a little for threads that are about to ask again, as they did around the last log. A
    /// log mostly waits for the device: one for all takes hardly longer than each of two for half
    /// of them.
    pub(crate) fn await_company(&self) {
        // Under the seeded scheduler no other thread comes while one looks at the clock.
        if thread::seeded_index().is_some() {
            return;
        }
        let limit = {
            let mut gathering = self.0.lock();
            if gathering.waiting + 1 >= gathering.expected {
                return;
            }
            if gathering.skip > 0 {
                gathering.skip -= 1;
                return;
            }
            gathering.took.min(WATCH_MAX) / 2
        };
        let start = clock::now();
        loop {
            std::thread::yield_now();
            let late = clock::since(start) >= limit;
            let mut gathering = self.0.lock();
            if gathering.waiting + 1 >= gathering.expected {
                gathering.vain = 0;
                return;
            }
            if late {
                gathering.vain = (gathering.vain + 1).min(VAIN_MAX);
                gathering.skip = (1 << gathering.vain) - 1;
                return;
            }
        }
    }

    /// Ends the gathering: a thread that comes from now on is of the next batch.
    pub(crate) fn take(&self) -> Batch {
        let mut gathering = self.0.lock();
        gathering.expected = std::mem::take(&mut gathering.waiting) + 1;
        Batch {
            wanted: std::mem::take(&mut gathering.wanted),
            waiters: [gathering.first.take(), gathering.others.take()],
        }
    }

    /// Hands the lead on, then tells all of `batch` what became of it (Q1).
    pub(crate) fn pass_on(&self, batch: Batch, took: Duration, outcome: &Result<Logged>) {
        let next = {
            let mut gathering = self.0.lock();
            gathering.took = took;
            gathering.expected += gathering.waiting;
            gathering.led = gathering.waiting > 0;
            let next = gathering.first.take();
            assert_eq!(next.is_some(), gathering.led, "Q4");
            gathering.waiting -= usize::from(gathering.led);
            next
        };
        if let Some(next) = next {
            next.tell(Joined::Lead);
        }
        for waiter in batch.waiters.into_iter().flatten() {
            waiter.tell(Joined::Done(outcome.clone()));
        }
    }
}
