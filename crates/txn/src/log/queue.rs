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

use buttress_base::sync::{Condvar, Mutex};

use super::tracked::LoggedId;
use crate::Result;

/// Somebody in the queue.
#[derive(Debug, Default)]
struct Waiter {
    told: Mutex<Option<Joined>>,
    turned: Condvar,
}

impl Waiter {
    fn tell(&self, what: Joined) {
        *self.told.lock() = Some(what);
        self.turned.notify_one();
    }
}

#[derive(Debug, Default)]
struct Gathering {
    wanted: BTreeSet<LoggedId>,
    waiters: Vec<Arc<Waiter>>,
    led: bool,
    /// How many the last log served.
    served: usize,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Queue(Mutex<Gathering>);

/// What somebody who joined is to do.
#[derive(Debug)]
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
            let mine = Arc::new(Waiter::default());
            gathering.waiters.push(Arc::clone(&mine));
            mine
        };
        let mut told = mine.told.lock();
        loop {
            if let Some(told) = told.take() {
                return told;
            }
            mine.turned.wait(&mut told);
        }
    }

    /// Whether who leads is alone, and others asked at the time of the last log: with the processor left to them
    /// for once they may join.
    pub(super) fn expects_company(&self) -> bool {
        let gathering = self.0.lock();
        gathering.waiters.is_empty() && gathering.served > 1
    }

    /// Ends the gathering: who comes from now on is of the next batch.
    pub(super) fn take(&self) -> Batch {
        let mut gathering = self.0.lock();
        gathering.served = gathering.waiters.len() + 1;
        Batch {
            wanted: std::mem::take(&mut gathering.wanted),
            waiters: std::mem::take(&mut gathering.waiters),
        }
    }

    /// Hands the lead on, then tells everybody of `batch` what became of it (Q1).
    pub(super) fn pass_on(&self, batch: Batch, outcome: &Result<()>) {
        let next = {
            let mut gathering = self.0.lock();
            gathering.led = !gathering.waiters.is_empty();
            gathering.led.then(|| gathering.waiters.remove(0))
        };
        if let Some(next) = next {
            next.tell(Joined::Lead);
        }
        for waiter in batch.waiters {
            waiter.tell(Joined::Done(outcome.clone()));
        }
    }
}
