//! Where each stream of allocations left off.
//!
//! # Place
//!
//! A hint and no more: two streams may share a slot, and a stale goal only costs a longer search.
//!
//! # Locks
//!
//! None. A slot is one atomic word.

use std::sync::atomic::{AtomicU64, Ordering};

use buttress_format::Logical;

use crate::SpaceKind;

/// Slots of each kind; a power of two.
const SLOTS: usize = 64;

/// The address after the last allocation, for each kind and slot of streams.
#[derive(Debug)]
pub(crate) struct Goals {
    slots: [[AtomicU64; SLOTS]; 3],
}

impl Goals {
    pub(crate) fn new() -> Self {
        Self { slots: std::array::from_fn(|_| std::array::from_fn(|_| AtomicU64::new(0))) }
    }

    fn slot(&self, kind: SpaceKind, stream: u64) -> &AtomicU64 {
        // Inode numbers are consecutive; a multiplication spreads them before the top bits choose.
        let spread = stream.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.slots[kind.index()][(spread >> 58) as usize]
    }

    /// Where `stream` left off; nothing before its first allocation.
    pub(crate) fn last(&self, kind: SpaceKind, stream: u64) -> Option<Logical> {
        match self.slot(kind, stream).load(Ordering::Relaxed) {
            0 => None,
            at => Some(Logical(at)),
        }
    }

    pub(crate) fn remember(&self, kind: SpaceKind, stream: u64, next: Logical) {
        self.slot(kind, stream).store(next.0, Ordering::Relaxed);
    }
}

const _: () = assert!(SLOTS == 1 << (64 - 58), "the shift chooses among all slots");
