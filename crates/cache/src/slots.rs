//! The free slots, handed out so that blocks written together are adjacent.
//!
//! # Invariants
//!
//! - **A1** Each slot is in one of three states: free in this list, used by exactly one version of
//!   one block, or moving between these two states.
//! - **A2** When a slot becomes free in this list, its free mark is on the device already. So
//!   recovery never takes the slot's next data for its old data.
//!
//! # Locks
//!
//! Taking slots needs one lock, of [`Rank::Leaf`]. Giving slots back takes no lock: a sweep frees
//! thousands of slots at a time, and a foreground write must not wait meanwhile. A thread that
//! waits for a free slot waits on a condition of the lock, and a thread that gives slots back
//! signals this condition.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use buttress_base::activity::{self, Cause};
use buttress_base::sync::Condvar;
use buttress_base::{CachePadded, Rank, Ranked};

use crate::units::Slot;

#[derive(Debug)]
pub(crate) struct Slots {
    total: u32,
    /// One bit for each slot, set when it is free.
    words: Box<[AtomicU64]>,
    /// One bit for each word, set when the word may have a free slot. A clear bit means that the
    /// word has no free slot, except for a moment while a slot is given back.
    summary: Box<[AtomicU64]>,
    /// The number of free slots; never more than the number of set bits.
    free: CachePadded<AtomicU32>,
    /// Where the last search ended, so that big writes get adjacent slots.
    cursor: Ranked<u32>,
    waiting: AtomicU32,
    freed: Condvar,
}

impl Slots {
    /// Starts with all slots taken.
    pub(crate) fn new(total: u32) -> Self {
        let zeroes = |count: usize| (0..count).map(|_| AtomicU64::new(0)).collect();
        let words = (total as usize).div_ceil(64);
        Self {
            total,
            words: zeroes(words),
            summary: zeroes(words.div_ceil(64)),
            free: CachePadded::default(),
            cursor: Ranked::new(Rank::Leaf, 0),
            waiting: AtomicU32::new(0),
            freed: Condvar::new(),
        }
    }

    pub(crate) fn free(&self) -> u32 {
        self.free.load(Ordering::Relaxed)
    }

    /// Takes up to `count` slots, ascending from the cursor.
    pub(crate) fn take(&self, count: usize) -> Vec<Slot> {
        let mut cursor = self.cursor.lock();
        let count = count.min(self.free() as usize);
        let mut taken = Vec::with_capacity(count);
        // Only a holder of the lock clears bits, so a found slot stays free.
        while taken.len() < count
            && let Some(at) = self.next_free(*cursor)
        {
            self.clear(at);
            *cursor = (at + 1) % self.total;
            taken.push(Slot(at));
        }
        self.free.fetch_sub(taken.len() as u32, Ordering::SeqCst);
        taken
    }

    /// Gives slots back (A2).
    pub(crate) fn give(&self, slots: &[Slot]) {
        if slots.is_empty() {
            return;
        }
        for neighbours in slots.chunk_by(|one, next| one.0 / 64 == next.0 / 64) {
            let word = neighbours[0].0 as usize / 64;
            let mask = neighbours.iter().fold(0, |mask, slot| mask | 1 << (slot.0 % 64));
            let before = self.words[word].fetch_or(mask, Ordering::SeqCst);
            assert_eq!(before & mask, 0, "A1: slots of {neighbours:?} are freed twice");
            assert_eq!(mask.count_ones() as usize, neighbours.len(), "A1: {neighbours:?}");
            self.summary[word / 64].fetch_or(1 << (word % 64), Ordering::SeqCst);
        }
        // The count is raised after the bits are set, so that a reader of the count finds that many
        // slots.
        self.free.fetch_add(slots.len() as u32, Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) > 0 {
            drop(self.cursor.lock());
            self.freed.notify_all();
        }
    }

    /// Waits until there is a free slot, or for `limit`.
    pub(crate) fn wait(&self, limit: Duration) {
        let _waiting = activity::wait(Cause::Cache);
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let mut cursor = self.cursor.lock();
        if self.free.load(Ordering::SeqCst) == 0 {
            cursor.wait_for(&self.freed, limit);
        }
        drop(cursor);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }

    fn clear(&self, at: u32) {
        let (word, bit) = (at as usize / 64, at % 64);
        if self.words[word].fetch_and(!(1 << bit), Ordering::SeqCst) == 1 << bit {
            self.summary[word / 64].fetch_and(!(1 << (word % 64)), Ordering::SeqCst);
            // Another thread may have given back a slot of the word just before the summary bit was
            // cleared. The bit is then set again.
            if self.words[word].load(Ordering::SeqCst) != 0 {
                self.summary[word / 64].fetch_or(1 << (word % 64), Ordering::SeqCst);
            }
        }
    }

    /// The first free slot from `cursor` on, wrapping around.
    fn next_free(&self, cursor: u32) -> Option<u32> {
        let (word, bit) = (cursor as usize / 64, cursor % 64);
        let rest = self.words.get(word)?.load(Ordering::SeqCst) & (u64::MAX << bit);
        if rest != 0 {
            return Some(word as u32 * 64 + rest.trailing_zeros());
        }
        self.next_in(word + 1).or_else(|| self.next_in(0))
    }

    /// The first free slot in a word or after it.
    fn next_in(&self, from: usize) -> Option<u32> {
        let mut above = u64::MAX << (from % 64);
        for (group, bits) in self.summary.iter().enumerate().skip(from / 64) {
            let mut bits = bits.load(Ordering::SeqCst) & above;
            above = u64::MAX;
            while bits != 0 {
                let word = group * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                let free = self.words[word].load(Ordering::SeqCst);
                if free != 0 {
                    return Some(word as u32 * 64 + free.trailing_zeros());
                }
            }
        }
        None
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

    /// A1 with many threads: no thread gets a slot that another thread holds, no slot is lost, and
    /// waiting threads wake up.
    #[test]
    fn threads_take_disjoint_slots() {
        const TOTAL: u32 = 700;
        let slots = Slots::new(TOTAL);
        slots.give(&(0..TOTAL).map(Slot).collect::<Vec<_>>());
        let held: Vec<_> = (0..TOTAL).map(|_| AtomicU32::new(0)).collect();
        std::thread::scope(|scope| {
            for seed in 0..8 {
                let (slots, held) = (&slots, &held);
                scope.spawn(move || {
                    let mut rng = buttress_base::Rng::new(seed);
                    for _ in 0..3000 {
                        let taken = slots.take(1 + rng.below(200) as usize);
                        if taken.is_empty() {
                            slots.wait(Duration::from_secs(100));
                        }
                        let add =
                            |slot: &Slot| held[slot.0 as usize].fetch_add(1, Ordering::SeqCst);
                        assert!(taken.iter().all(|slot| add(slot) == 0));
                        taken
                            .iter()
                            .for_each(|slot| held[slot.0 as usize].store(0, Ordering::SeqCst));
                        slots.give(&taken);
                    }
                });
            }
        });
        assert_eq!(slots.free(), TOTAL);
        assert_eq!(slots.take(TOTAL as usize).len(), TOTAL as usize);
    }
}
