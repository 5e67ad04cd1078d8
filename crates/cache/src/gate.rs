//! Who is inside, by turn: lets one wait for all who entered before a moment, without holding up those
//! who come after it.
//!
//! # Place
//!
//! Writers enter with the open epoch; a commit opens the next one and waits for those of the old. Readers
//! of slots enter, so that a slot is not given to another block under them.
//!
//! # Invariants
//!
//! - **G1** After [`Gate::advance`] returned, nobody is inside who entered with the turn before.
//! - **G2** At most two turns have somebody inside: only one thread advances at a time (the caller's lock).

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use buttress_base::{Rank, Ranked};
use parking_lot::Condvar;

#[derive(Debug)]
pub(crate) struct Gate {
    turn: AtomicU64,
    inside: [AtomicUsize; 2],
    is_waited_for: AtomicBool,
    place: Ranked<()>,
    left: Condvar,
}

/// Proof of being inside.
#[derive(Debug)]
pub(crate) struct Inside<'a> {
    gate: &'a Gate,
    turn: u64,
}

impl Inside<'_> {
    pub(crate) fn turn(&self) -> u64 {
        self.turn
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.gate.leave(self.turn);
    }
}

impl Gate {
    pub(crate) fn new(turn: u64) -> Self {
        Self {
            turn: AtomicU64::new(turn),
            inside: [AtomicUsize::new(0), AtomicUsize::new(0)],
            is_waited_for: AtomicBool::new(false),
            place: Ranked::new(Rank::Leaf, ()),
            left: Condvar::new(),
        }
    }

    pub(crate) fn turn(&self) -> u64 {
        self.turn.load(Ordering::SeqCst)
    }

    pub(crate) fn enter(&self) -> Inside<'_> {
        loop {
            let turn = self.turn.load(Ordering::SeqCst);
            self.count(turn).fetch_add(1, Ordering::SeqCst);
            if self.turn.load(Ordering::SeqCst) == turn {
                return Inside { gate: self, turn };
            }
            self.leave(turn);
        }
    }

    fn leave(&self, turn: u64) {
        let before = self.count(turn).fetch_sub(1, Ordering::SeqCst);
        if before == 1 && self.is_waited_for.load(Ordering::SeqCst) {
            let _place = self.place.lock();
            self.left.notify_all();
        }
    }

    fn count(&self, turn: u64) -> &AtomicUsize {
        &self.inside[(turn & 1) as usize]
    }

    /// Opens the next turn without waiting; returns the one before.
    pub(crate) fn open_next(&self) -> u64 {
        self.turn.fetch_add(1, Ordering::SeqCst)
    }

    /// Says whether nobody is inside from `turn` any more.
    pub(crate) fn is_empty(&self, turn: u64) -> bool {
        self.count(turn).load(Ordering::SeqCst) == 0
    }

    /// Opens the next turn and waits for those of the one before (G1); returns that one.
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
