//! Counts the threads inside by turn. A thread can wait for all that entered before a moment,
//! without holding up later ones.
//!
//! # Place
//!
//! Writers enter with the open epoch. A commit opens the next epoch and waits for the writers of
//! the old one. Readers of slots enter, so that a slot is not given to another block while they
//! read it.
//!
//! # Invariants
//!
//! - **G1** After [`Gate::advance`] returned, no thread is inside that entered with the turn
//!   before.
//! - **G2** Threads of at most two turns are inside: only one thread advances at a time (the
//!   caller's lock).

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use buttress_base::apart::{Apart, STRIPES, stripe};
use buttress_base::sync::Condvar;
use buttress_base::{Rank, Ranked};

#[derive(Debug)]
pub(crate) struct Gate {
    turn: Apart<AtomicU64>,
    /// Counters by the thread's shard, for even and for odd turns. After the turn has changed, one
    /// pass over the counters sees every thread of the old turn. A thread that enters the old turn
    /// later sees the new turn, and leaves.
    inside: Box<[Apart<[AtomicUsize; 2]>]>,
    is_waited_for: AtomicBool,
    place: Ranked<()>,
    left: Condvar,
}

/// Proof of being inside.
#[derive(Debug)]
pub(crate) struct Inside<'a> {
    gate: &'a Gate,
    turn: u64,
    stripe: usize,
}

impl Inside<'_> {
    pub(crate) fn turn(&self) -> u64 {
        self.turn
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.gate.leave(self.turn, self.stripe);
    }
}

impl Gate {
    pub(crate) fn new(turn: u64) -> Self {
        Self {
            turn: Apart(AtomicU64::new(turn)),
            inside: (0..STRIPES).map(|_| Apart::default()).collect(),
            is_waited_for: AtomicBool::new(false),
            place: Ranked::new(Rank::Leaf, ()),
            left: Condvar::new(),
        }
    }

    pub(crate) fn turn(&self) -> u64 {
        self.turn.0.load(Ordering::SeqCst)
    }

    pub(crate) fn enter(&self) -> Inside<'_> {
        let stripe = stripe();
        loop {
            let turn = self.turn();
            self.count(turn, stripe).fetch_add(1, Ordering::SeqCst);
            if self.turn() == turn {
                return Inside { gate: self, turn, stripe };
            }
            self.leave(turn, stripe);
        }
    }

    fn leave(&self, turn: u64, stripe: usize) {
        let before = self.count(turn, stripe).fetch_sub(1, Ordering::SeqCst);
        if before == 1 && self.is_waited_for.load(Ordering::SeqCst) {
            let _place = self.place.lock();
            self.left.notify_all();
        }
    }

    fn count(&self, turn: u64, stripe: usize) -> &AtomicUsize {
        &self.inside[stripe].0[(turn & 1) as usize]
    }

    /// Opens the next turn without waiting; returns the turn before.
    pub(crate) fn open_next(&self) -> u64 {
        self.turn.0.fetch_add(1, Ordering::SeqCst)
    }

    /// Says whether no thread of `turn` is inside any more. Only for turns before the present one.
    pub(crate) fn is_empty(&self, turn: u64) -> bool {
        (0..STRIPES).all(|stripe| self.count(turn, stripe).load(Ordering::SeqCst) == 0)
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
