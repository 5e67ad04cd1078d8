//! The request for an allocation, and its result.
//!
//! # What must hold
//!
//! - The space in an [`AllocOutcome::Got`] is reserved: its owner records it or frees it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use buttress_format::{Extent, Generation, Logical};

use crate::{Group, SpaceKind};

/// The request for an allocation.
#[derive(Clone, Copy, Debug)]
pub struct AllocRequest {
    /// The kind of space.
    pub kind: SpaceKind,
    /// The wanted number of contiguous bytes; more are never returned.
    pub want: u64,
    /// The least number of contiguous bytes that the caller can use.
    pub min: u64,
    /// Unit of the extent's start and length: the sector size for data, the node size for nodes.
    pub align: u64,
    /// The preferred address. Without a goal, the address after the stream's last allocation is
    /// preferred.
    pub goal: Option<Logical>,
    /// The transaction that the extent is for (`search::L1`).
    pub limit: Generation,
    /// The stream of the allocation: extents of one stream are kept together.
    pub stream: u64,
    /// Whether to take fewer bytes from a loaded group rather than load another group.
    pub hurry: bool,
}

/// The result of an allocation.
#[derive(Clone, Debug)]
#[must_use = "an extent that is neither freed nor recorded is lost until the next mount"]
pub enum AllocOutcome {
    /// This extent belongs to the caller. It is reserved until it is recorded or freed.
    Got(Extent),
    /// Load this group and ask again.
    NeedsLoading(Arc<Group>),
    /// No group has enough contiguous space.
    Full {
        /// A number of contiguous bytes that a smaller request could get. There may be up to twice
        /// as many.
        largest: u64,
    },
}

/// Counts of searches since the volume was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AllocStats {
    /// Extents handed out.
    pub allocations: u64,
    /// Groups looked at for these extents.
    pub probes: u64,
    /// Groups skipped because another thread held their lock.
    pub busy: u64,
    /// Requests that got fewer bytes than they wanted.
    pub shortened: u64,
    /// Requests that no group could meet.
    pub failed: u64,
}

/// The counts of [`AllocStats`], counted by many threads. A sum is not exact, because it may miss
/// counts that threads add at that moment.
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
