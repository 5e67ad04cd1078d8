//! What an allocation asks for, and what became of it.
//!
//! # What must hold
//!
//! - An [`Outcome::Got`] is space that is reserved: its owner records it or frees it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use buttress_format::{Extent, Generation, Logical};

use crate::{Group, SpaceKind};

/// What an allocation asks for.
#[derive(Clone, Copy, Debug)]
pub struct AllocRequest {
    /// Which kind of space.
    pub kind: SpaceKind,
    /// Contiguous bytes wished for; more is never returned.
    pub want: u64,
    /// Least contiguous bytes that are of use.
    pub min: u64,
    /// Unit of the extent's start and length: the sector size for data, the node size for nodes.
    pub align: u64,
    /// Where it would be best; without one, after the stream's last allocation.
    pub goal: Option<Logical>,
    /// The transaction the extent is for (`search::L1`).
    pub limit: Generation,
    /// The stream of the allocation: extents of one stream are kept together.
    pub stream: u64,
    /// Take less from loaded groups rather than load another.
    pub hurry: bool,
}

/// The result of an allocation.
#[derive(Clone, Debug)]
#[must_use = "an extent that is neither freed nor recorded is lost until the next mount"]
pub enum Outcome {
    /// This extent is the caller's: reserved, until recorded or freed.
    Got(Extent),
    /// Load this group and ask again.
    NeedsLoading(Arc<Group>),
    /// No group has it.
    Full {
        /// Contiguous bytes that a smaller request could get; there may be up to twice as many.
        largest: u64,
    },
}

/// Counts of searches since the volume was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AllocStats {
    /// Extents handed out.
    pub allocations: u64,
    /// Groups looked at for them.
    pub probes: u64,
    /// Groups left because another thread held them.
    pub busy: u64,
    /// Requests that got less than they wanted.
    pub shortened: u64,
    /// Requests that no group could meet.
    pub failed: u64,
}

/// The same, counted by many threads. Not exact: a sum may miss what threads add at that moment.
#[derive(Debug, Default)]
pub(crate) struct AllocCounters {
    pub(crate) allocations: AtomicU64,
    pub(crate) probes: AtomicU64,
    pub(crate) busy: AtomicU64,
    pub(crate) shortened: AtomicU64,
    pub(crate) failed: AtomicU64,
}

impl AllocCounters {
    pub(crate) fn add_to(&self, sum: AllocStats) -> AllocStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        AllocStats {
            allocations: sum.allocations + read(&self.allocations),
            probes: sum.probes + read(&self.probes),
            busy: sum.busy + read(&self.busy),
            shortened: sum.shortened + read(&self.shortened),
            failed: sum.failed + read(&self.failed),
        }
    }
}
