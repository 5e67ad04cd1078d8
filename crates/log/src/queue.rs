//! The queue of threads that wait for a log. One thread leads and makes the log. All threads that
//! arrive meanwhile share the next log.
//!
//! # Invariants
//!
//! - **Q1** A thread leads exactly while `led` is set. The leader ends by calling
//!   [`Queue::pass_on`]. The lead then goes to a thread that arrived meanwhile, or to no thread if
//!   the queue is empty.
//! - **Q2** A waiter gets exactly one message: to lead its batch, or the result of the log.
//! - **Q3** No thread is woken under the lock. One call wakes all threads that a log served, except
//!   for the first in the queue.
//! - **Q4** If the queue is not empty when the lead passes on, the queue has a first waiter.
//!
//! Waking a sleeping processor takes a tenth of the time of a log on a fast device. So the first
//! waiter, which leads next, polls for a while before it sleeps, and yields its processor
//! meanwhile. At most one thread polls.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use buttress_base::activity::{self, Cause};
use buttress_base::sync::Mutex;
use buttress_base::{Event, clock, thread};

use buttress_txn::{LoggedId, Result};

/// A waiter does not poll if a log takes longer than this.
const POLL_MAX: Duration = Duration::from_micros(500);

/// After this many futile waits for other threads in a row, most logs do not wait.
const VAIN_MAX: u32 = 6;

/// The event for which a thread waits. The first thread in the queue has its own waiter; all other
/// threads share one waiter.
#[derive(Debug, Default)]
struct Waiter {
    message: OnceLock<Joined>,
    has_message: Event,
}

impl Waiter {
    fn send(&self, message: Joined) {
        assert!(self.message.set(message).is_ok(), "Q2: one message");
        self.has_message.set();
    }

    fn poll(&self, time: Duration) {
        let start = clock::now();
        while !self.has_message.is_set() && clock::since(start) < time {
            std::thread::yield_now();
        }
    }

    fn wait(&self) -> Joined {
        self.has_message.wait();
        self.message.get().expect("Q2: it was sent").clone()
    }
}

#[derive(Default)]
struct Gathering {
    wanted: BTreeSet<LoggedId>,
    /// The waiter that leads next.
    first: Option<Arc<Waiter>>,
    others: Option<Arc<Waiter>>,
    /// How many threads wait.
    waiting: usize,
    led: bool,
    /// How many threads the last log served, plus the threads that arrived during that log.
    expected: usize,
    /// How long the last log took.
    took: Duration,
    /// How many waits in a row were futile, and how many logs skip the wait because of those futile
    /// waits.
    vain: u32,
    skip: u32,
}

/// The queue of threads that wait for a log.
#[derive(Default)]
pub(crate) struct Queue(
    /// Unranked: no lock is taken under this lock.
    Mutex<Gathering>,
);

/// How an inode becomes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a commit may be needed"]
pub enum Logged {
    /// A log has the inode.
    Durable,
    /// No log can make the inode durable. The caller completes its own data, and then commits.
    NeedsCommit,
}

/// The task of a thread that joined the queue.
#[derive(Clone, Debug)]
pub(crate) enum Joined {
    /// Make the log for all threads in the queue.
    Lead,
    /// Another thread made the log.
    Done(Result<Logged>),
}

/// The inodes and waiters that one log serves.
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
    /// Joins the batch that is being gathered, and waits for the batch if another thread leads.
    pub(crate) fn join(&self, id: LoggedId) -> Joined {
        let (mine, time) = {
            let mut gathering = self.0.lock();
            gathering.wanted.insert(id);
            if !std::mem::replace(&mut gathering.led, true) {
                return Joined::Lead;
            }
            gathering.waiting += 1;
            let first = gathering.first.is_none();
            let place = if first { &mut gathering.first } else { &mut gathering.others };
            let mine = Arc::clone(place.get_or_insert_default());
            let first = first && gathering.took <= POLL_MAX;
            // The first waiter polls for twice the time of the last log. This time is mostly enough
            // for the rest of the present log.
            (mine, if first { gathering.took * 2 } else { Duration::ZERO })
        };
        let _waiting = activity::wait(Cause::Log);
        if thread::seeded_index().is_none() && thread::parallelism() > 1 {
            mine.poll(time);
        }
        mine.wait()
    }

    /// How many threads wait for the next log.
    pub(crate) fn waiting(&self) -> usize {
        self.0.lock().waiting
    }

    /// Whether the leader is alone, although other threads asked during or just before the last
    /// log. These threads may join if the leader yields its processor once.
    pub(crate) fn expects_others(&self) -> bool {
        let gathering = self.0.lock();
        gathering.waiting == 0 && gathering.expected > 1
    }

    /// Waits a little for threads that asked during or just before the last log and are about to
    /// ask again. A log mostly waits for the device. One log for all threads takes hardly longer
    /// than a log for half of the threads.
    pub(crate) fn wait_for_others(&self) {
        // Under the seeded scheduler, no other thread runs while this one reads the clock. So a
        // wait would gain nothing.
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
            gathering.took.min(POLL_MAX) / 2
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

    /// Ends the gathering; a thread that arrives later belongs to the next batch.
    pub(crate) fn take(&self) -> Batch {
        let mut gathering = self.0.lock();
        gathering.expected = std::mem::take(&mut gathering.waiting) + 1;
        Batch {
            wanted: std::mem::take(&mut gathering.wanted),
            waiters: [gathering.first.take(), gathering.others.take()],
        }
    }

    /// Passes the lead on, then tells all of `batch` the result (Q1).
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
            next.send(Joined::Lead);
        }
        for waiter in batch.waiters.into_iter().flatten() {
            waiter.send(Joined::Done(outcome.clone()));
        }
    }
}
