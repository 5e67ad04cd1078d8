//! The memory of a segment, kept for the next segment.
//!
//! # Why
//!
//! New memory of 8 MiB costs as much as all else that a small write does: the kernel clears each
//! page. So a segment that is no longer needed gives its memory back here.
//!
//! # Invariants
//!
//! - **SP1** No memory is made while there is spare memory. It is that of a segment which was one
//!   of those that the budget counts (`budget`), and it becomes the next of them. At most one is
//!   kept, without content.

use buttress_base::sync::Mutex;

use crate::envelope::LEN;
use crate::segment::{EXTENT, FRAME};
use crate::units::SECTOR;

/// Memory for a segment.
#[derive(Debug)]
pub(crate) struct Spare {
    /// Bytes of a full segment.
    full: usize,
    /// Unranked: nothing is taken under it.
    kept: Mutex<Option<Vec<u8>>>,
}

impl Spare {
    /// Extents for which a full segment has room. Segments with more of them grow.
    const EXTENTS: usize = 1024;

    /// For data objects of `object_len` bytes.
    pub(crate) fn new(object_len: u64) -> Self {
        let frames = object_len.div_ceil(SECTOR) as usize;
        let full = LEN + frames * FRAME + Self::EXTENTS * EXTENT;
        Self { full, kept: Mutex::default() }
    }

    /// Returns empty memory with room for a full segment.
    pub(crate) fn take(&self) -> Vec<u8> {
        let kept = self.kept.lock().take();
        kept.unwrap_or_else(|| Vec::with_capacity(self.full))
    }

    /// Keeps the memory of a segment, if it has about the size of a full one.
    pub(crate) fn put(&self, mut memory: Vec<u8>) {
        if (self.full..=self.full + self.full / 8).contains(&memory.capacity()) {
            memory.clear();
            *self.kept.lock() = Some(memory);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The memory of one segment is kept, empty. Memory of other sizes is not.
    #[test]
    fn one_memory_is_kept() {
        let spare = Spare::new(1 << 20);
        let (mut first, second) = (spare.take(), spare.take());
        first.extend([7; 4096]);
        let at = first.as_ptr();
        spare.put(second);
        spare.put(first);
        spare.put(Vec::with_capacity(64));
        let again = spare.take();
        assert_eq!((again.as_ptr(), again.len()), (at, 0));
        assert!(spare.kept.lock().is_none());
    }
}
