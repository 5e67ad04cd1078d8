//! Which slots are free, handed out so that what is written together lies together.
//!
//! # Invariants
//!
//! - **A1** A slot is either free here, or held by exactly one version of one block, or on its way from
//!   the one to the other.
//! - **A2** What becomes free here has its free mark on the device already: the next data to lie in it can
//!   never be taken for what was there before.
//!
//! # Locks
//!
//! One, of [`Rank::Leaf`]. Who waits for a free slot waits on it; giving slots back signals.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use buttress_base::{Rank, Ranked};
use parking_lot::Condvar;

use crate::stripe::Apart;
use crate::units::Slot;

#[derive(Debug)]
pub(crate) struct Slots {
    total: u32,
    /// As many as `inner` says: every write asks, and none of them waits for that.
    free: Apart<AtomicU32>,
    inner: Ranked<Inner>,
    freed: Condvar,
}

#[derive(Debug)]
struct Inner {
    /// One bit a slot, set when it is free.
    words: Vec<u64>,
    /// One bit a word, set when the word has a free slot.
    summary: Vec<u64>,
    free: u32,
    /// Where the last search ended: big writes get neighbours.
    cursor: u32,
}

impl Slots {
    /// All taken.
    pub(crate) fn new(total: u32) -> Self {
        let words = (total as usize).div_ceil(64);
        let inner = Inner {
            words: vec![0; words],
            summary: vec![0; words.div_ceil(64)],
            free: 0,
            cursor: 0,
        };
        let inner = Ranked::new(Rank::Leaf, inner);
        Self { total, free: Apart::default(), inner, freed: Condvar::new() }
    }

    pub(crate) fn free(&self) -> u32 {
        self.free.0.load(Ordering::Relaxed)
    }

    /// Takes up to `count` slots, ascending from the cursor.
    pub(crate) fn take(&self, count: usize) -> Vec<Slot> {
        let mut inner = self.inner.lock();
        let count = count.min(inner.free as usize);
        let mut taken = Vec::with_capacity(count);
        while taken.len() < count {
            let at = inner.next_free().expect("A1: there are as many as are counted");
            inner.clear(at);
            inner.cursor = (at + 1) % self.total;
            taken.push(Slot(at));
        }
        self.free.0.store(inner.free, Ordering::Relaxed);
        taken
    }

    /// Gives slots back (A2).
    pub(crate) fn give(&self, slots: &[Slot]) {
        if slots.is_empty() {
            return;
        }
        let mut inner = self.inner.lock();
        for &Slot(at) in slots {
            inner.set(at);
        }
        self.free.0.store(inner.free, Ordering::Relaxed);
        drop(inner);
        self.freed.notify_all();
    }

    /// Waits until there is a free slot, or for `limit`.
    pub(crate) fn wait(&self, limit: Duration) {
        let mut inner = self.inner.lock();
        if inner.free == 0 {
            inner.wait_for(&self.freed, limit);
        }
    }
}

impl Inner {
    fn set(&mut self, at: u32) {
        let (word, bit) = (at as usize / 64, at % 64);
        assert!(self.words[word] >> bit & 1 == 0, "A1: slot {at} is freed twice");
        self.words[word] |= 1 << bit;
        self.summary[word / 64] |= 1 << (word % 64);
        self.free += 1;
    }

    fn clear(&mut self, at: u32) {
        let (word, bit) = (at as usize / 64, at % 64);
        self.words[word] &= !(1 << bit);
        if self.words[word] == 0 {
            self.summary[word / 64] &= !(1 << (word % 64));
        }
        self.free -= 1;
    }

    /// The first free slot from the cursor on, wrapping around.
    fn next_free(&self) -> Option<u32> {
        let (word, bit) = (self.cursor as usize / 64, self.cursor % 64);
        let rest = self.words.get(word).copied().unwrap_or(0) & (u64::MAX << bit);
        if rest != 0 {
            return Some(word as u32 * 64 + rest.trailing_zeros());
        }
        let found = self.next_word(word + 1).or_else(|| self.next_word(0))?;
        Some(found as u32 * 64 + self.words[found].trailing_zeros())
    }

    fn next_word(&self, from: usize) -> Option<usize> {
        let (group, bit) = (from / 64, from % 64);
        let first = self.summary.get(group)? & (u64::MAX << bit);
        if first != 0 {
            return Some(group * 64 + first.trailing_zeros() as usize);
        }
        let rest = &self.summary[group + 1..];
        let (index, bits) = rest.iter().enumerate().find(|&(_, &bits)| bits != 0)?;
        Some((group + 1 + index) * 64 + bits.trailing_zeros() as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A1: every slot is handed out once, in order, and again only after it was given back.
    #[test]
    fn hands_each_out_once() {
        let slots = Slots::new(10_000);
        let all: Vec<_> = (0..10_000).map(Slot).collect();
        slots.give(&all);
        assert_eq!(slots.take(300), all[..300]);
        assert_eq!(slots.take(20_000), all[300..]);
        assert!(slots.take(1).is_empty());
        slots.give(&[Slot(5), Slot(9_999), Slot(4_097)]);
        assert_eq!(slots.take(9), [Slot(5), Slot(4_097), Slot(9_999)]);
        assert_eq!(slots.free(), 0);
    }
}
