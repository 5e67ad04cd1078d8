//! The memory of segments, kept for the next segments.
//!
//! # Why
//!
//! New memory of 8 MiB costs as much as all else that a small write does: the kernel clears each
//! page. So a segment that is no longer needed gives its memory back here.
//!
//! # Invariants
//!
//! - **SP1** No memory is made while there is spare memory. The memory in use and the spare memory
//!   are at most that of the segments that the budget counts (`budget`), unless more are in use. A
//!   small segment counts as a whole one. Spare memory has no content.
//! - **SP2** Of memory that stays unused, all but one are given to the allocator after a while, as
//!   long as the log is kept.

use buttress_base::sync::Mutex;

use crate::envelope::LEN;
use crate::segment::{EXTENT, FRAME};
use crate::units::SECTOR;

#[derive(Debug, Default)]
struct Inside {
    kept: Vec<Vec<u8>>,
    /// How many were taken and not given back.
    in_use: usize,
    /// How many stayed unused since the last call of [`Spare::age`].
    unused: usize,
}

/// Memory for segments.
#[derive(Debug)]
pub(crate) struct Spare {
    /// Bytes of a full segment.
    full: usize,
    /// How many segments the budget counts (SP1).
    most: usize,
    /// Unranked: nothing is taken under it.
    inside: Mutex<Inside>,
}

impl Spare {
    /// Extents for which a full segment has room. Segments with more of them grow.
    const EXTENTS: usize = 1024;

    /// For data objects of `object_len` bytes, and at most `most` segments in memory.
    pub(crate) fn new(object_len: u64, most: usize) -> Self {
        let frames = object_len.div_ceil(SECTOR) as usize;
        let full = LEN + frames * FRAME + Self::EXTENTS * EXTENT;
        Self { full, most, inside: Mutex::default() }
    }

    /// Returns empty memory with room for a full segment. It is given back once, by
    /// [`Spare::put`].
    pub(crate) fn take(&self) -> Vec<u8> {
        let kept = {
            let mut inside = self.inside.lock();
            inside.in_use += 1;
            let kept = inside.kept.pop();
            inside.unused = inside.unused.min(inside.kept.len());
            kept
        };
        kept.unwrap_or_else(|| Vec::with_capacity(self.full))
    }

    /// Takes memory back, and keeps it if it has about the size of a full segment (SP1).
    pub(crate) fn put(&self, mut memory: Vec<u8>) {
        let mut inside = self.inside.lock();
        inside.in_use = inside.in_use.saturating_sub(1);
        if self.fits(memory.capacity()) && inside.in_use + inside.kept.len() < self.most.max(1) {
            memory.clear();
            inside.kept.push(memory);
        }
    }

    /// Takes the memory of a segment that lives on in a smaller copy, which counts as in use until
    /// [`Spare::put`] gets it (SP1).
    pub(crate) fn exchange(&self, mut memory: Vec<u8>) {
        let mut inside = self.inside.lock();
        if self.fits(memory.capacity()) && inside.in_use + inside.kept.len() < self.most {
            memory.clear();
            inside.kept.push(memory);
        }
    }

    /// Whether memory has about the size of a full segment.
    fn fits(&self, capacity: usize) -> bool {
        (self.full..=self.full + self.full / 8).contains(&capacity)
    }

    /// Gives memory that stayed unused since the last call to the allocator (SP2).
    pub(crate) fn age(&self) {
        let old = {
            let mut inside = self.inside.lock();
            let count = inside.unused.min(inside.kept.len().saturating_sub(1));
            let old: Vec<_> = inside.kept.drain(..count).collect();
            inside.unused = inside.kept.len();
            old
        };
        drop(old);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(spare: &Spare) -> usize {
        spare.inside.lock().kept.len()
    }

    /// SP1: memory is used again, empty, as much of it as the budget counts. Memory of other sizes
    /// is not kept.
    #[test]
    fn memory_is_used_again() {
        let spare = Spare::new(1 << 20, 3);
        let mut all: Vec<Vec<u8>> = (0..4).map(|_| spare.take()).collect();
        all[0].extend([7; 4096]);
        let addresses: Vec<_> = all.iter().map(|memory| memory.as_ptr()).collect();
        all.into_iter().for_each(|memory| spare.put(memory));
        assert_eq!(kept(&spare), 3);
        let again: Vec<Vec<u8>> = (0..3).map(|_| spare.take()).collect();
        assert!(again.iter().all(|m| m.is_empty() && addresses.contains(&m.as_ptr())));
        let _new = spare.take();
        spare.put(Vec::with_capacity(64));
        assert_eq!(kept(&spare), 0);
        let [first, second, _third] = &mut again.into_iter().collect::<Vec<_>>()[..] else {
            panic!("three")
        };
        // Two are in use, so one more is within the budget.
        spare.put(std::mem::take(first));
        assert_eq!(kept(&spare), 1);
        spare.put(std::mem::take(second));
        assert_eq!(kept(&spare), 2);
    }

    /// SP2: what was unused between two calls is not kept, but for one.
    #[test]
    fn unused_memory_is_given_up() {
        let spare = Spare::new(1 << 20, 4);
        let all: Vec<Vec<u8>> = (0..4).map(|_| spare.take()).collect();
        all.into_iter().for_each(|memory| spare.put(memory));
        spare.age();
        assert_eq!(kept(&spare), 4, "they were used just now");
        let used = spare.take();
        spare.put(used);
        spare.age();
        assert_eq!(kept(&spare), 1);
        spare.age();
        assert_eq!(kept(&spare), 1);
    }
}
