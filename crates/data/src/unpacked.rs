//! Compressed extents that were unpacked a moment ago: who reads a file in order needs each several times.
//!
//! # Invariants
//!
//! - **U1** An entry is of one file in one layout: whoever changes which extents a file has gives it a new
//!   layout, so that an address which comes to hold something else is never found.
//! - **U2** Memory is bounded, whatever the number of files.

use std::collections::VecDeque;
use std::sync::Arc;

use buttress_base::{Rank, Ranked};
use buttress_format::Logical;

/// Most bytes that are kept, unpacked.
const KEPT_BYTES: usize = 8 << 20;

/// Whose extent: a layout is never used twice (U1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Which {
    pub(crate) layout: u64,
    pub(crate) disk: Logical,
}

/// The extents themselves, the youngest last.
#[derive(Debug)]
pub(crate) struct Unpacked(Ranked<VecDeque<(Which, Arc<Vec<u8>>)>>);

impl Unpacked {
    pub(crate) fn new() -> Self {
        Self(Ranked::new(Rank::Leaf, VecDeque::new()))
    }

    pub(crate) fn find(&self, which: Which) -> Option<Arc<Vec<u8>>> {
        let kept = self.0.lock();
        kept.iter().rev().find(|(known, _)| *known == which).map(|(_, bytes)| Arc::clone(bytes))
    }

    pub(crate) fn keep(&self, which: Which, bytes: &Arc<Vec<u8>>) {
        let mut old = Vec::new();
        let mut kept = self.0.lock();
        let mut total: usize = kept.iter().map(|(_, bytes)| bytes.len()).sum();
        total += bytes.len();
        while total > KEPT_BYTES {
            let Some(first) = kept.pop_front() else { break };
            total -= first.1.len();
            old.push(first);
        }
        kept.push_back((which, Arc::clone(bytes)));
        drop(kept);
    }

    /// Gives the memory back.
    pub(crate) fn clear(&self) {
        let old = std::mem::take(&mut *self.0.lock());
        drop(old);
    }
}
