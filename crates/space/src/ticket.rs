//! A line of those who wait for space, served in the order in which they came.
//!
//! # Place
//!
//! [`Space`](crate::Space) has one for data, `txn` one for metadata. A line knows who waits and for what;
//! whether a demand fits is for its owner to say, who also says when to look again.
//!
//! # Invariants
//!
//! - **Q1** Served from the head, those with priority first; while the head does not fit nobody behind it is
//!   served.
//! - **Q2** Nobody is served at once while somebody waits in his list, or in one before it.
//! - **Q3** A ticket that goes leaves nothing in the line. One that was granted meanwhile says so to who
//!   drops it, for the grant is his to give back.
//! - **Q4** Each waiter has its own event: a grant wakes him to whom it was made.
//! - **Q5** What comes free after somebody found that he does not fit is offered to him: who makes room and
//!   then sees nobody waiting did so before that somebody looked.
//!
//! # Locks
//!
//! Takes [`Rank::SpaceInfo`](buttress_base::Rank::SpaceInfo), and calls its owner's test of a demand inside
//! it.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::time::Duration;

use crate::waiting::{Arc, AtomicU64, AtomicUsize, Event, Lock, Ordering};

/// In which list somebody waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Those on whom others wait: writeback, what frees space, whoever holds a file's writeback claim.
    Priority,
    /// Everybody else.
    Normal,
}

const CLASSES: [Class; 2] = [Class::Priority, Class::Normal];

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The demand was met; it is the waiter's now.
    Granted,
    /// Nothing helped.
    Refused,
}

/// A moment in the life of a line: who was in it, and who came later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Arrivals(u64);

struct Waiter<D> {
    number: u64,
    demand: D,
    event: Arc<Event>,
}

struct Line<D> {
    lists: [VecDeque<Waiter<D>>; 2],
    /// Of those who have left their list and do not know it yet.
    verdicts: BTreeMap<u64, Verdict>,
    next: u64,
}

/// Who waits for one kind of space.
pub struct Queue<D> {
    line: Lock<Line<D>>,
    /// How many wait in each list, with him who is about to find out whether he must.
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
    /// Creates a line with nobody in it.
    #[must_use]
    pub fn new() -> Self {
        let lists = [VecDeque::new(), VecDeque::new()];
        Self {
            line: Lock::new(Line { lists, verdicts: BTreeMap::new(), next: 0 }),
            waiting: [AtomicUsize::new(0), AtomicUsize::new(0)],
            served: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    /// Whether somebody waits whom one of `class` must not overtake (Q2).
    pub fn blocks(&self, class: Class) -> bool {
        let lists = &self.waiting[..=class as usize];
        lists.iter().any(|count| count.load(Ordering::SeqCst) > 0)
    }

    /// Whether anybody waits.
    pub fn is_waiting(&self) -> bool {
        self.blocks(Class::Normal)
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.waiting.iter().map(|count| count.load(Ordering::SeqCst)).sum()
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        !self.is_waiting()
    }

    /// How many were granted what they had waited for, since the beginning: progress, to those who make
    /// room.
    pub fn served(&self) -> u64 {
        self.served.load(Ordering::SeqCst)
    }

    /// How many were refused in the line.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::SeqCst)
    }

    /// Takes at once if nobody waits before; joins nobody.
    pub fn at_once(&self, class: Class, take: impl FnOnce() -> bool) -> bool {
        !self.blocks(class) && take()
    }

    /// Takes at once if nobody waits before and it fits, else joins the line. `None` is a grant.
    pub fn ask(
        &self,
        class: Class,
        demand: D,
        take: impl FnOnce(&D) -> bool,
    ) -> Option<Ticket<'_, D>> {
        let mut line = self.line.lock();
        let blocked = self.blocks(class);
        // Seen by whoever makes room from now on (Q5): he waits for the lock.
        self.waiting[class as usize].fetch_add(1, Ordering::SeqCst);
        if !blocked && take(&demand) {
            self.waiting[class as usize].fetch_sub(1, Ordering::SeqCst);
            return None;
        }
        let number = line.next;
        line.next += 1;
        let event = Arc::new(Event::default());
        let mine = Arc::clone(&event);
        line.lists[class as usize].push_back(Waiter { number, demand, event });
        Some(Ticket { queue: self, class, number, event: mine, told: false })
    }

    /// Grants from the head on, as long as it fits (Q1). To be called whenever space came free. Says how
    /// many were served.
    pub fn serve(&self, mut take: impl FnMut(&D) -> bool) -> u64 {
        if !self.is_waiting() {
            return 0;
        }
        let mut line = self.line.lock();
        let mut count = 0;
        for class in CLASSES {
            let list = class as usize;
            while let Some(first) = line.lists[list].front() {
                if !take(&first.demand) {
                    self.served.fetch_add(count, Ordering::SeqCst);
                    return count;
                }
                self.decide_first(&mut line, class, Verdict::Granted);
                count += 1;
            }
        }
        self.served.fetch_add(count, Ordering::SeqCst);
        count
    }

    /// This moment. To be kept by whoever begins to make room.
    pub fn arrivals(&self) -> Arrivals {
        Arrivals(self.line.lock().next)
    }

    /// Refuses him who waits longest in a list, if he came before that moment: for who came later nothing was tried.
    /// Whoever calls this looks next whether those behind him fit.
    pub fn refuse_first(&self, class: Class, before: Arrivals) -> bool {
        let mut line = self.line.lock();
        let first = line.lists[class as usize].front();
        let refused = first.is_some_and(|waiter| waiter.number < before.0)
            && self.decide_first(&mut line, class, Verdict::Refused);
        drop(line);
        if refused {
            self.refused.fetch_add(1, Ordering::SeqCst);
        }
        refused
    }

    /// Refuses everybody: nothing will ever be granted again.
    pub fn refuse_all(&self) {
        let mut line = self.line.lock();
        for class in CLASSES {
            while self.decide_first(&mut line, class, Verdict::Refused) {}
        }
    }

    /// Sums up what is waited for.
    pub fn sum(&self, of: impl Fn(&D) -> u64) -> u64 {
        if !self.is_waiting() {
            return 0;
        }
        let line = self.line.lock();
        let all = line.lists.iter().flatten().map(|waiter| of(&waiter.demand));
        all.fold(0, u64::saturating_add)
    }

    fn decide_first(&self, line: &mut Line<D>, class: Class, verdict: Verdict) -> bool {
        let Some(waiter) = line.lists[class as usize].pop_front() else { return false };
        self.waiting[class as usize].fetch_sub(1, Ordering::SeqCst);
        line.verdicts.insert(waiter.number, verdict);
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

/// A place in a line. Leaves it when dropped.
#[must_use = "who drops his ticket does not wait"]
pub struct Ticket<'q, D> {
    queue: &'q Queue<D>,
    class: Class,
    number: u64,
    event: Arc<Event>,
    /// The verdict was taken, or the line was left.
    told: bool,
}

impl<D> Ticket<'_, D> {
    /// Waits for a verdict, at most so long.
    pub fn wait_for(&mut self, limit: Duration) -> Option<Verdict> {
        let mut line = self.queue.line.lock();
        loop {
            if let Some(verdict) = line.verdicts.remove(&self.number) {
                self.told = true;
                return Some(verdict);
            }
            if self.told || !self.event.wait_for(&mut line, limit) {
                // It may have come with the end of the wait.
                let verdict = line.verdicts.remove(&self.number);
                self.told |= verdict.is_some();
                return verdict;
            }
        }
    }

    /// The verdict, if there is one.
    pub fn poll(&mut self) -> Option<Verdict> {
        let verdict = self.queue.line.lock().verdicts.remove(&self.number);
        self.told |= verdict.is_some();
        verdict
    }

    /// Whether nobody is served before him.
    #[must_use]
    pub fn is_first(&self) -> bool {
        if self.class == Class::Normal && self.queue.blocks(Class::Priority) {
            return false;
        }
        let line = self.queue.line.lock();
        let first = line.lists[self.class as usize].front();
        first.is_some_and(|waiter| waiter.number == self.number)
    }

    /// Leaves the line (Q3). The caller gives back what may have been granted meanwhile, and then looks
    /// whether those behind him fit.
    pub fn leave(mut self) -> Option<Verdict> {
        self.withdraw()
    }

    fn withdraw(&mut self) -> Option<Verdict> {
        if std::mem::replace(&mut self.told, true) {
            return None;
        }
        let mut line = self.queue.line.lock();
        if let Some(verdict) = line.verdicts.remove(&self.number) {
            return Some(verdict);
        }
        let list = &mut line.lists[self.class as usize];
        let mine = list.iter().position(|waiter| waiter.number == self.number);
        list.remove(mine.expect("Q3: who has no verdict is in the line"));
        self.queue.waiting[self.class as usize].fetch_sub(1, Ordering::SeqCst);
        None
    }
}

impl<D> Drop for Ticket<'_, D> {
    fn drop(&mut self) {
        let verdict = self.withdraw();
        debug_assert!(
            verdict != Some(Verdict::Granted) || buttress_base::thread::panicking(),
            "Q3: a grant that nobody gives back"
        );
    }
}

impl<D> fmt::Debug for Ticket<'_, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket")
            .field("class", &self.class)
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}
