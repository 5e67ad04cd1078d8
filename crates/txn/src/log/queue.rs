//! Who waits for a log: one leads, those who arrive meanwhile are the next log, all of them together.
//!
//! # Invariants
//!
//! - **Q1** Somebody leads exactly while `led` is set, and who leads ends by calling [`Queue::pass_on`]: the lead
//!   goes to one of those who came meanwhile, or nobody has it.
//! - **Q2** Who waits is told exactly once: to lead the batch that he is in, or what became of it.
//! - **Q3** Nobody is woken under the lock, and each by himself: they do not wait for one another.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use buttress_base::sync::Mutex;
use buttress_base::thread::{self, Thread};

use super::tracked::LoggedId;
use crate::{Error, Result};

const WAITS: u8 = 0;
const LEADS: u8 = 1;
const DONE: u8 = 2;

/// Somebody in the queue.
#[derive(Debug)]
struct Waiter {
    thread: Thread,
    state: AtomicU8,
    failure: Mutex<Option<Error>>,
}

impl Waiter {
    fn tell(&self, state: u8) {
        self.state.store(state, Ordering::Release);
        self.thread.unpark();
    }
}

#[derive(Debug, Default)]
struct Gathering {
    wanted: BTreeSet<LoggedId>,
    waiters: Vec<Arc<Waiter>>,
    led: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Queue(Mutex<Gathering>);

/// What somebody who joined is to do.
pub(super) enum Joined {
    /// Make the log of all who are in the queue.
    Lead,
    /// Somebody else made it.
    Done(Result<()>),
}

/// Those whom one log serves.
pub(super) struct Batch {
    pub(super) wanted: BTreeSet<LoggedId>,
    waiters: Vec<Arc<Waiter>>,
}

impl Queue {
    /// Joins the batch that is being gathered, and waits for it if somebody leads.
    pub(super) fn join(&self, id: LoggedId) -> Joined {
        let mine = {
            let mut gathering = self.0.lock();
            gathering.wanted.insert(id);
            if !std::mem::replace(&mut gathering.led, true) {
                return Joined::Lead;
            }
            let mine = Arc::new(Waiter {
                thread: thread::current(),
                state: AtomicU8::new(WAITS),
                failure: Mutex::default(),
            });
            gathering.waiters.push(Arc::clone(&mine));
            mine
        };
        loop {
            match mine.state.load(Ordering::Acquire) {
                WAITS => thread::park(),
                LEADS => return Joined::Lead,
                _ => return Joined::Done(mine.failure.lock().take().map_or(Ok(()), Err)),
            }
        }
    }

    /// Ends the gathering: who comes from now on is of the next batch.
    pub(super) fn take(&self) -> Batch {
        let mut gathering = self.0.lock();
        Batch {
            wanted: std::mem::take(&mut gathering.wanted),
            waiters: std::mem::take(&mut gathering.waiters),
        }
    }

    /// Hands the lead on, then tells everybody of `batch` what became of it (Q1).
    pub(super) fn pass_on(&self, batch: Batch, outcome: &Result<()>) {
        let next = {
            let mut gathering = self.0.lock();
            let next = gathering.waiters.pop();
            gathering.led = next.is_some();
            next
        };
        if let Some(next) = next {
            next.tell(LEADS);
        }
        for waiter in batch.waiters {
            *waiter.failure.lock() = outcome.as_ref().err().cloned();
            waiter.tell(DONE);
        }
    }
}
