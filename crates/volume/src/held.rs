//! Repairs that wait until all chunks are known.
//!
//! Nodes of the chunk tree are read when only the superblock's chunks are in the map. Where one of these lies over another
//! chunk, what looks like its bad copy is the other's content, and putting it right would destroy that. When all chunks
//! are there, such a volume is read-only (V3), and nothing is put right in it.

use buttress_format::Logical;

use crate::volume::Volume;

/// So many wait; what is beyond that is put right when it is read again.
const HELD_MAX: usize = 256;

/// A repair that was not made.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) at: Logical,
    pub(crate) bytes: Vec<u8>,
    pub(crate) good: u32,
    pub(crate) bad: Vec<u32>,
}

impl Volume {
    /// Says that all chunks were added: what was found bad until now is put right, where the volume may be written. A
    /// volume that is opened repairs nothing before.
    pub fn has_all_chunks(&self) {
        let waiting = self.held.lock().take().unwrap_or_default();
        for Held { at, bytes, good, bad } in waiting {
            self.repair(at, &bytes, good, &bad);
        }
    }

    /// Keeps a repair for later, if not all chunks are known; says whether it was kept.
    pub(crate) fn hold(&self, repair: impl FnOnce() -> Held) -> bool {
        let mut held = self.held.lock();
        let Some(waiting) = &mut *held else { return false };
        if waiting.len() < HELD_MAX {
            waiting.push(repair());
        }
        true
    }
}
