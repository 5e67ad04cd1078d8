//! A queue of requests that wait for space, served in the order in which they came.
//!
//! # Place
//!
//! [`Space`](crate::Space) has one queue for data, `reserve` has one for metadata. A queue knows
//! the requests and their demands. Its owner decides whether a demand fits, and when to check
//! again.
//!
//! # Invariants
//!
//! - **Q1** Requests are served from the head; requests with priority come first. While the head
//!   does not fit, no request behind it is served.
//! - **Q2** No request is served at once while another request waits in the same list, or in a list
//!   with higher priority.
//! - **Q3** After a ticket has left, the queue has no entry for it. If the ticket was granted
//!   meanwhile, the caller gets the grant and must give it back.
//! - **Q4** Each waiter has its own event, so a grant wakes only its own waiter.
//! - **Q5** Space that comes free after a request did not fit is offered to that request. If a
//!   thread makes room and then sees no waiter, a request that comes later checks for space itself
//!   and finds this room.
//!
//! # Locks
//!
//! The queue's lock has [`Rank::SpaceInfo`](buttress_base::Rank::SpaceInfo). The owner's test of a
//! demand is called with the lock held.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::time::Duration;

use crate::waiting::{Arc, AtomicU64, AtomicUsize, Event, Lock, Ordering};

/// The list in which a request waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// Requests of operations that other threads may wait for: writeback, operations that free
    /// space, and callers with a file's writeback claim.
    High,
    /// All other requests.
    Normal,
}

const PRIORITIES: [Priority; 2] = [Priority::High, Priority::Normal];

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The demand was met; the space belongs to the waiter now.
    Granted,
    /// No flush step made enough space.
    Refused,
}

/// A position in a queue, to distinguish earlier requests from later ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TicketNumber(u64);

struct Waiter<D> {
    number: u64,
    demand: D,
    event: Arc<Event>,
}

struct QueueState<D> {
    lists: [VecDeque<Waiter<D>>; 2],
    /// Verdicts of requests that are in no list any more. Their waiters have not read the verdicts
    /// yet.
    verdicts: BTreeMap<u64, Verdict>,
    next_number: u64,
}

/// The requests that wait for one kind of space.
pub struct Queue<D> {
    state: Lock<QueueState<D>>,
    /// How many requests wait in each list, or are about to check whether they must wait.
    waiting: [AtomicUsize; 2],
    served: AtomicU64,
    refused: AtomicU64,
}

impl<D> Default for Queue<D> {
    fn default() -> Self {
        Self::new()
    }
}

impl<D> Queue<D> {
    /// Creates an empty queue.
    #[must_use]
    pub fn new() -> Self {
        let lists = [VecDeque::new(), VecDeque::new()];
        Self {
            state: Lock::new(QueueState { lists, verdicts: BTreeMap::new(), next_number: 0 }),
            waiting: [AtomicUsize::new(0), AtomicUsize::new(0)],
            served: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    /// Whether a request of `priority` must wait behind another one (Q2).
    pub fn blocks(&self, priority: Priority) -> bool {
        let lists = &self.waiting[..=priority as usize];
        lists.iter().any(|count| count.load(Ordering::SeqCst) > 0)
    }

    /// Whether a request waits.
    pub fn is_waiting(&self) -> bool {
        self.blocks(Priority::Normal)
    }

    /// The number of waiting requests.
    pub fn len(&self) -> usize {
        self.waiting.iter().map(|count| count.load(Ordering::SeqCst)).sum()
    }

    /// Whether no request waits.
    pub fn is_empty(&self) -> bool {
        !self.is_waiting()
    }

    /// The number of waiting requests that were granted since the queue was made. Threads that make
    /// room see their progress by this number.
    pub fn served(&self) -> u64 {
        self.served.load(Ordering::SeqCst)
    }

    /// The number of requests that were refused in the queue.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::SeqCst)
    }

    /// Calls `take` unless an earlier request waits, and returns whether the request was granted.
    /// Never joins the queue.
    pub fn at_once(&self, priority: Priority, take: impl FnOnce() -> bool) -> bool {
        !self.blocks(priority) && take()
    }

    /// Returns `None` if no earlier request waits and `take` grants the demand. Otherwise the
    /// request joins the queue.
    pub fn ask(
        &self,
        priority: Priority,
        demand: D,
        take: impl FnOnce(&D) -> bool,
    ) -> Option<Ticket<'_, D>> {
        let mut state = self.state.lock();
        let blocked = self.blocks(priority);
        // Threads that make room from now on see this request, and wait for the lock (Q5).
        self.waiting[priority as usize].fetch_add(1, Ordering::SeqCst);
        if !blocked && take(&demand) {
            self.waiting[priority as usize].fetch_sub(1, Ordering::SeqCst);
            return None;
        }
        let number = state.next_number;
        state.next_number += 1;
        let event = Arc::new(Event::default());
        let mine = Arc::clone(&event);
        state.lists[priority as usize].push_back(Waiter { number, demand, event });
        Some(Ticket { queue: self, priority, number, event: mine, is_decided: false })
    }

    /// Grants requests from the head on, as long as the head fits (Q1). The owner calls this
    /// whenever space became free. Returns how many requests were served.
    pub fn serve(&self, mut take: impl FnMut(&D) -> bool) -> u64 {
        if !self.is_waiting() {
            return 0;
        }
        let mut state = self.state.lock();
        let mut count = 0;
        for priority in PRIORITIES {
            let list = priority as usize;
            while let Some(first) = state.lists[list].front() {
                if !take(&first.demand) {
                    self.served.fetch_add(count, Ordering::SeqCst);
                    return count;
                }
                self.decide_first(&mut state, priority, Verdict::Granted);
                count += 1;
            }
        }
        self.served.fetch_add(count, Ordering::SeqCst);
        count
    }

    /// The present position of the queue. A thread stores the position when it begins to make room,
    /// for [`Queue::refuse_first`].
    pub fn next_ticket(&self) -> TicketNumber {
        TicketNumber(self.state.lock().next_number)
    }

    /// Refuses the oldest request of a list, if it came before the position `before`. For later
    /// requests, no full run of the flush steps was tried yet. The caller must then serve the
    /// queue, because requests behind it may fit.
    pub fn refuse_first(&self, priority: Priority, before: TicketNumber) -> bool {
        let mut state = self.state.lock();
        let first = state.lists[priority as usize].front();
        let refused = first.is_some_and(|waiter| waiter.number < before.0)
            && self.decide_first(&mut state, priority, Verdict::Refused);
        drop(state);
        if refused {
            self.refused.fetch_add(1, Ordering::SeqCst);
        }
        refused
    }

    /// Refuses all requests, because no request will ever be granted again.
    pub fn refuse_all(&self) {
        let mut state = self.state.lock();
        for priority in PRIORITIES {
            while self.decide_first(&mut state, priority, Verdict::Refused) {}
        }
    }

    /// Sums up the demands.
    pub fn sum(&self, of: impl Fn(&D) -> u64) -> u64 {
        if !self.is_waiting() {
            return 0;
        }
        let state = self.state.lock();
        let all = state.lists.iter().flatten().map(|waiter| of(&waiter.demand));
        all.fold(0, u64::saturating_add)
    }

    fn decide_first(
        &self,
        state: &mut QueueState<D>,
        priority: Priority,
        verdict: Verdict,
    ) -> bool {
        let Some(waiter) = state.lists[priority as usize].pop_front() else { return false };
        self.waiting[priority as usize].fetch_sub(1, Ordering::SeqCst);
        state.verdicts.insert(waiter.number, verdict);
        waiter.event.raise();
        true
    }
}

impl<D> fmt::Debug for Queue<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue")
            .field("waiting", &self.len())
            .field("served", &self.served())
            .field("refused", &self.refused())
            .finish()
    }
}

/// A place in a queue. A dropped ticket leaves the queue.
#[must_use = "a dropped ticket does not wait"]
pub struct Ticket<'q, D> {
    queue: &'q Queue<D>,
    priority: Priority,
    number: u64,
    event: Arc<Event>,
    /// Whether the verdict was taken, or the ticket has left the queue.
    is_decided: bool,
}

impl<D> Ticket<'_, D> {
    /// Waits for a verdict, at most for `limit`.
    pub fn wait_for(&mut self, limit: Duration) -> Option<Verdict> {
        let mut state = self.queue.state.lock();
        loop {
            if let Some(verdict) = state.verdicts.remove(&self.number) {
                self.is_decided = true;
                return Some(verdict);
            }
            if self.is_decided || !self.event.wait_for(&mut state, limit) {
                // The verdict may have come just as the wait ended.
                let verdict = state.verdicts.remove(&self.number);
                self.is_decided |= verdict.is_some();
                return verdict;
            }
        }
    }

    /// The verdict, if there is one.
    pub fn poll(&mut self) -> Option<Verdict> {
        let verdict = self.queue.state.lock().verdicts.remove(&self.number);
        self.is_decided |= verdict.is_some();
        verdict
    }

    /// Whether this request is the next that is served.
    #[must_use]
    pub fn is_first(&self) -> bool {
        if self.priority == Priority::Normal && self.queue.blocks(Priority::High) {
            return false;
        }
        let state = self.queue.state.lock();
        let first = state.lists[self.priority as usize].front();
        first.is_some_and(|waiter| waiter.number == self.number)
    }

    /// Leaves the queue (Q3). The caller gives back a grant that came meanwhile, and then serves
    /// the queue, because requests behind it may fit.
    pub fn leave(mut self) -> Option<Verdict> {
        self.withdraw()
    }

    fn withdraw(&mut self) -> Option<Verdict> {
        if std::mem::replace(&mut self.is_decided, true) {
            return None;
        }
        let mut state = self.queue.state.lock();
        if let Some(verdict) = state.verdicts.remove(&self.number) {
            return Some(verdict);
        }
        let list = &mut state.lists[self.priority as usize];
        let mine = list.iter().position(|waiter| waiter.number == self.number);
        list.remove(mine.expect("Q3: a request without a verdict is in the queue"));
        self.queue.waiting[self.priority as usize].fetch_sub(1, Ordering::SeqCst);
        None
    }
}

impl<D> Drop for Ticket<'_, D> {
    fn drop(&mut self) {
        let verdict = self.withdraw();
        debug_assert!(
            verdict != Some(Verdict::Granted) || buttress_base::thread::panicking(),
            "Q3: a grant that is not given back"
        );
    }
}

impl<D> fmt::Debug for Ticket<'_, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket")
            .field("priority", &self.priority)
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}
