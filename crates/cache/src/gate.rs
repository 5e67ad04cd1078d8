//! A gate that counts the threads inside it. Time is divided into turns, and a thread is counted in
//! the turn in which it entered. A thread can wait for all threads that entered before a certain
//! moment. Threads that enter later do not have to wait.
//!
//! # Place
//!
//! Writers enter with the open epoch as their turn. A commit opens the next epoch and waits for the
//! writers of the old epoch. Readers of slots enter a second gate. A slot is not given to another
//! block while a reader of an older turn may use it.
//!
//! # Invariants
//!
//! - **G1** When [`Gate::advance`] has returned, no thread of the previous turn is inside.
//! - **G2** Threads of at most two turns are inside. The caller holds a lock, so that only one
//!   thread opens turns at a time.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use buttress_base::CachePadded;
use buttress_base::shard::{SHARDS, shard};
use buttress_base::sync::Condvar;
use buttress_base::{Rank, Ranked};

#[derive(Debug)]
pub(crate) struct Gate {
    turn: CachePadded<AtomicU64>,
    /// Each shard of threads has a counter for even turns and a counter for odd turns. Once the
    /// turn has changed, one pass over the counters sees every thread of the old turn. A thread
    /// that was too late for the old turn notices the change and leaves again.
    inside: Box<[CachePadded<[AtomicUsize; 2]>]>,
    is_waited_for: AtomicBool,
    place: Ranked<()>,
    left: Condvar,
}

/// Proof that the thread is inside the gate. The thread leaves when this value is dropped.
#[derive(Debug)]
pub(crate) struct Inside<'a> {
    gate: &'a Gate,
    turn: u64,
    shard: usize,
}

impl Inside<'_> {
    pub(crate) fn turn(&self) -> u64 {
        self.turn
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.gate.leave(self.turn, self.shard);
    }
}

impl Gate {
    pub(crate) fn new(turn: u64) -> Self {
        Self {
            turn: CachePadded::new(AtomicU64::new(turn)),
            inside: (0..SHARDS).map(|_| CachePadded::default()).collect(),
            is_waited_for: AtomicBool::new(false),
            place: Ranked::new(Rank::Leaf, ()),
            left: Condvar::new(),
        }
    }

    pub(crate) fn turn(&self) -> u64 {
        self.turn.load(Ordering::SeqCst)
    }

    pub(crate) fn enter(&self) -> Inside<'_> {
        let shard = shard();
        loop {
            let turn = self.turn();
            self.count(turn, shard).fetch_add(1, Ordering::SeqCst);
            if self.turn() == turn {
                return Inside { gate: self, turn, shard };
            }
            self.leave(turn, shard);
        }
    }

    fn leave(&self, turn: u64, shard: usize) {
        let before = self.count(turn, shard).fetch_sub(1, Ordering::SeqCst);
        if before == 1 && self.is_waited_for.load(Ordering::SeqCst) {
            let _place = self.place.lock();
            self.left.notify_all();
        }
    }

    fn count(&self, turn: u64, shard: usize) -> &AtomicUsize {
        &self.inside[shard][(turn & 1) as usize]
    }

    /// Opens the next turn without waiting; returns the turn before.
    pub(crate) fn open_next(&self) -> u64 {
        self.turn.fetch_add(1, Ordering::SeqCst)
    }

    /// Returns whether no thread of `turn` is inside. `turn` must be before the present turn.
    pub(crate) fn is_empty(&self, turn: u64) -> bool {
        (0..SHARDS).all(|shard| self.count(turn, shard).load(Ordering::SeqCst) == 0)
    }

    /// Opens the next turn and waits for the threads of the turn before (G1); returns that turn.
    pub(crate) fn advance(&self) -> u64 {
        let before = self.open_next();
        if self.is_empty(before) {
            return before;
        }
        self.is_waited_for.store(true, Ordering::SeqCst);
        let mut place = self.place.lock();
        while !self.is_empty(before) {
            place.wait(&self.left);
        }
        self.is_waited_for.store(false, Ordering::SeqCst);
        before
    }
}
