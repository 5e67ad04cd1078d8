//! The address after the last allocation of each stream.
//!
//! # Place
//!
//! A goal is a hint: streams may share a slot, and a stale goal only costs a longer search. There
//! are as many slots in use as processors, but at most one slot for four groups. With more slots,
//! streams would take each other's groups, and their extents would scatter.
//!
//! If a stream meets busy groups, its next allocation begins in the group where it found space.
//! Only this separates streams that share a group.
//!
//! # Locks
//!
//! Normal builds have no lock here. The published baseline has one goal under one lock
//! ([`Rank::Leaf`]).

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use buttress_base::CachePadded;
#[cfg(feature = "baselines")]
use buttress_base::{Rank, Ranked};
use buttress_format::Logical;

use crate::{AllocPolicy, SpaceKind};

/// The largest number of slots for each kind.
const SLOTS: usize = 256;

/// The number of groups for each goal.
const GROUPS_PER_GOAL: usize = 4;

/// The address after the last allocation, for each kind and slot of streams.
#[derive(Debug)]
pub(crate) struct Goals {
    slots: [Box<[CachePadded<AtomicU64>]>; 3],
    /// The number of slots in use.
    active: [AtomicUsize; 3],
    /// The goal of the baseline, under a lock.
    #[cfg(feature = "baselines")]
    locked: [Ranked<u64>; 3],
    processors: usize,
}

impl Goals {
    pub(crate) fn new(processors: usize) -> Self {
        let zeros = || (0..SLOTS).map(|_| CachePadded::default()).collect();
        Self {
            slots: std::array::from_fn(|_| zeros()),
            active: std::array::from_fn(|_| AtomicUsize::new(1)),
            #[cfg(feature = "baselines")]
            locked: std::array::from_fn(|_| Ranked::new(Rank::Leaf, 0)),
            processors: processors.clamp(1, SLOTS),
        }
    }

    /// Sets the number of slots in use, after the number of groups changed.
    pub(crate) fn resize(&self, kind: SpaceKind, groups: usize) {
        let active = self.processors.min(groups.div_ceil(GROUPS_PER_GOAL)).max(1);
        self.active[kind.index()].store(active, Ordering::Relaxed);
    }

    /// How many streams of a kind are kept apart.
    pub(crate) fn active(&self, kind: SpaceKind) -> usize {
        self.active[kind.index()].load(Ordering::Relaxed)
    }

    fn slot(&self, kind: SpaceKind, stream: u64, policy: AllocPolicy) -> &AtomicU64 {
        let active = if policy.has_one_goal() { 1 } else { self.active(kind) };
        // Inode numbers are consecutive; a multiplication spreads them before the top bits select a
        // slot.
        let spread = stream.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        &self.slots[kind.index()][spread as usize % active]
    }

    /// The address after the last allocation of `stream`; `None` before its first allocation.
    pub(crate) fn last(
        &self,
        kind: SpaceKind,
        stream: u64,
        policy: AllocPolicy,
    ) -> Option<Logical> {
        #[cfg(feature = "baselines")]
        if policy.is_linear() {
            let at = *self.locked[kind.index()].lock();
            return (at != 0).then_some(Logical(at));
        }
        let at = self.slot(kind, stream, policy).load(Ordering::Relaxed);
        (at != 0).then_some(Logical(at))
    }

    pub(crate) fn remember(
        &self,
        kind: SpaceKind,
        stream: u64,
        policy: AllocPolicy,
        next: Logical,
    ) {
        #[cfg(feature = "baselines")]
        if policy.is_linear() {
            *self.locked[kind.index()].lock() = next.0;
            return;
        }
        self.slot(kind, stream, policy).store(next.0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: AllocPolicy = AllocPolicy::IndexGoals;

    /// X13: the number of goals is at most a quarter of the number of groups, and at most the
    /// number of processors.
    #[test]
    fn goals_are_as_many_as_groups_allow() {
        let goals = Goals::new(8);
        for (groups, expected) in [(0, 1), (4, 1), (5, 2), (31, 8), (1000, 8)] {
            goals.resize(SpaceKind::Data, groups);
            assert_eq!(goals.active(SpaceKind::Data), expected);
        }
        let kind = SpaceKind::Data;
        for stream in 0..64 {
            goals.remember(kind, stream, POLICY, Logical(4096 * (stream + 1)));
        }
        let mut seen: Vec<_> = (0..64).filter_map(|s| goals.last(kind, s, POLICY)).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 8);
        assert_eq!(goals.last(SpaceKind::Metadata, 1, POLICY), None);
    }

    /// All streams share a single goal.
    #[test]
    fn a_single_goal_is_shared() {
        let goals = Goals::new(8);
        goals.resize(SpaceKind::Data, 1000);
        for policy in [AllocPolicy::Linear, AllocPolicy::IndexSingleGoal] {
            goals.remember(SpaceKind::Data, 1, policy, Logical(4096));
            assert_eq!(goals.last(SpaceKind::Data, 77, policy), Some(Logical(4096)));
        }
    }
}
