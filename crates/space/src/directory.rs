//! All block groups of a volume, sorted by address, immutable.
//!
//! # Place
//!
//! A change makes a new directory and swaps it in; a lookup reads the one that is there and writes
//! no memory that another reader writes.
//!
//! # Invariants
//!
//! - **D1** Groups are sorted and disjoint.

use std::sync::Arc;

use buttress_format::{Extent, Logical};

use crate::{Error, Group, SpaceKind};

/// Groups in ascending order.
#[derive(Debug, Default)]
pub(crate) struct Sorted {
    /// Apart from the groups, so that a search does not touch each group it passes.
    starts: Box<[u64]>,
    groups: Arc<[Arc<Group>]>,
}

impl Sorted {
    fn new(groups: Vec<Arc<Group>>) -> Self {
        Self { starts: groups.iter().map(|group| group.start().0).collect(), groups: groups.into() }
    }

    pub(crate) fn groups(&self) -> &Arc<[Arc<Group>]> {
        &self.groups
    }

    /// The last group that starts at or before `at`; the first, if none does.
    pub(crate) fn index_near(&self, at: Logical) -> usize {
        self.starts.partition_point(|&start| start <= at.0).saturating_sub(1)
    }

    /// The group that holds `at`.
    pub(crate) fn find(&self, at: Logical) -> Option<&Arc<Group>> {
        self.groups.get(self.index_near(at)).filter(|group| group.range().contains(at))
    }
}

/// All groups, and those of each kind.
#[derive(Debug, Default)]
pub(crate) struct Directory {
    all: Sorted,
    kinds: [Sorted; 3],
}

impl Directory {
    fn new(groups: Vec<Arc<Group>>) -> Self {
        let kinds = SpaceKind::ALL.map(|kind| {
            Sorted::new(groups.iter().filter(|group| group.kind() == kind).cloned().collect())
        });
        Self { all: Sorted::new(groups), kinds }
    }

    pub(crate) fn all(&self) -> &Sorted {
        &self.all
    }

    pub(crate) fn of(&self, kind: SpaceKind) -> &Sorted {
        &self.kinds[kind.index()]
    }

    /// The group that holds all of `extent`.
    pub(crate) fn find_whole(&self, extent: Extent) -> Result<&Arc<Group>, Error> {
        let group = self.all.find(extent.start).ok_or(Error::NoGroup { at: extent.start })?;
        // Inside the group by its start; a length past the end, or past the address space, is not.
        if extent.len > group.len() - extent.start.distance(group.start()) {
            return Err(Error::Outside { group: group.start(), extent });
        }
        Ok(group)
    }

    /// A directory with `added` too.
    pub(crate) fn with(&self, added: &[Arc<Group>]) -> Result<Self, Error> {
        let mut groups: Vec<_> = self.all.groups.iter().chain(added).cloned().collect();
        groups.sort_by_key(|group| group.start());
        for pair in groups.windows(2) {
            if pair[0].range().overlaps(&pair[1].range()) {
                return Err(Error::Overlap { start: pair[1].start(), other: pair[0].start() });
            }
        }
        Ok(Self::new(groups))
    }

    /// A directory without the group at `start`.
    pub(crate) fn without(&self, start: Logical) -> Self {
        let kept = self.all.groups.iter().filter(|group| group.start() != start);
        Self::new(kept.cloned().collect())
    }
}
