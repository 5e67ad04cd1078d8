//! All block groups of a volume, sorted by address, immutable.
//!
//! # Place
//!
//! A change makes a new directory, which shares all leaves but those it touches, and swaps it in; a lookup
//! reads the one that is there and writes no memory that another reader writes.
//!
//! # Invariants
//!
//! - **D1** Groups are sorted and disjoint, and no leaf is empty.
//! - **D2** A group of the directory is in the slot that it says, among those of its kind, and in no other.

use std::sync::Arc;

use buttress_format::{Extent, Logical};

use crate::{Error, Group, SpaceKind};

/// Most groups of a leaf; what a change copies.
const LEAF_MAX: usize = 512;

/// Neighbours in address.
#[derive(Debug)]
struct Leaf {
    /// Apart from the groups, so that a search does not touch each group it passes.
    starts: Box<[u64]>,
    groups: Box<[Arc<Group>]>,
}

impl Leaf {
    fn new(groups: Vec<Arc<Group>>) -> Arc<Self> {
        let starts = groups.iter().map(|group| group.start().0).collect();
        Arc::new(Self { starts, groups: groups.into() })
    }
}

/// Groups of one kind by slot.
#[derive(Clone, Debug, Default)]
pub(crate) struct Slots {
    leaves: Vec<Arc<[Option<Arc<Group>>]>>,
    len: usize,
    /// How many slots hold a group.
    groups: usize,
}

impl Slots {
    /// One more than the highest slot that was ever in use.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// How many groups there are.
    pub(crate) fn groups(&self) -> usize {
        self.groups
    }

    /// The group in a slot.
    pub(crate) fn get(&self, slot: usize) -> Option<&Arc<Group>> {
        self.leaves.get(slot / LEAF_MAX)?.get(slot % LEAF_MAX)?.as_ref()
    }

    /// Puts groups where they say they are.
    fn put(&mut self, added: &[Arc<Group>]) {
        let mut at = 0;
        while at < added.len() {
            let leaf = added[at].slot() / LEAF_MAX;
            let here = added[at..].iter().take_while(|group| group.slot() / LEAF_MAX == leaf);
            let count = here.count();
            while self.leaves.len() <= leaf {
                self.leaves.push(Arc::new([]));
            }
            let mut entries = self.leaves[leaf].to_vec();
            for group in &added[at..at + count] {
                let within = group.slot() % LEAF_MAX;
                if entries.len() <= within {
                    entries.resize(within + 1, None);
                }
                assert!(entries[within].is_none(), "D2: a slot has two groups");
                entries[within] = Some(Arc::clone(group));
                self.len = self.len.max(group.slot() + 1);
            }
            self.leaves[leaf] = entries.into();
            at += count;
        }
        self.groups += added.len();
    }

    fn take(&mut self, slot: usize) {
        let mut entries = self.leaves[slot / LEAF_MAX].to_vec();
        assert!(entries[slot % LEAF_MAX].take().is_some(), "D2: an empty slot is emptied");
        self.leaves[slot / LEAF_MAX] = entries.into();
        self.groups -= 1;
    }
}

/// All groups by address, and those of each kind by slot.
#[derive(Clone, Debug, Default)]
pub(crate) struct Directory {
    starts: Vec<u64>,
    leaves: Vec<Arc<Leaf>>,
    kinds: [Slots; 3],
}

impl Directory {
    /// All groups, ascending.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Group>> {
        self.leaves.iter().flat_map(|leaf| leaf.groups.iter())
    }

    /// Groups of a kind by slot.
    pub(crate) fn of(&self, kind: SpaceKind) -> &Slots {
        &self.kinds[kind.index()]
    }

    /// The last leaf that starts at or before `at`; the first, if none does.
    fn leaf_near(&self, at: u64) -> usize {
        self.starts.partition_point(|&start| start <= at).saturating_sub(1)
    }

    /// The group that holds `at`.
    pub(crate) fn find(&self, at: Logical) -> Option<&Arc<Group>> {
        let leaf = self.leaves.get(self.leaf_near(at.0))?;
        let index = leaf.starts.partition_point(|&start| start <= at.0).checked_sub(1)?;
        Some(&leaf.groups[index]).filter(|group| group.range().contains(at))
    }

    /// The group that begins at `start`.
    pub(crate) fn starting(&self, start: Logical) -> Result<&Arc<Group>, Error> {
        let group = self.find(start).filter(|group| group.start() == start);
        group.ok_or(Error::NoGroup { at: start })
    }

    /// The group that holds all of `extent`.
    pub(crate) fn find_whole(&self, extent: Extent) -> Result<&Arc<Group>, Error> {
        let group = self.find(extent.start).ok_or(Error::NoGroup { at: extent.start })?;
        // Inside the group by its start; a length past the end, or past the address space, is not.
        if extent.len > group.len() - extent.start.distance(group.start()) {
            return Err(Error::Outside { group: group.start(), extent });
        }
        Ok(group)
    }

    /// Replaces a leaf by these groups, in leaves of their own.
    fn set_leaf(&mut self, index: usize, mut groups: Vec<Arc<Group>>) {
        let mut fresh = Vec::new();
        while !groups.is_empty() {
            // The last leaf is filled up, since addresses grow at the end.
            let rest = groups.split_off(groups.len().min(LEAF_MAX));
            fresh.push(Leaf::new(groups));
            groups = rest;
        }
        let end = (index + 1).min(self.leaves.len());
        self.leaves.splice(index..end, fresh);
        self.starts = self.leaves.iter().map(|leaf| leaf.starts[0]).collect();
    }

    /// The first two groups that overlap if `added`, in ascending order, join.
    pub(crate) fn overlap(&self, added: &[Arc<Group>]) -> Result<(), Error> {
        for (index, group) in added.iter().enumerate() {
            let last = Logical(group.range().end().0 - 1);
            let leaf = self.leaves.get(self.leaf_near(last.0));
            let there = leaf.and_then(|leaf| {
                let index = leaf.starts.partition_point(|&start| start <= last.0);
                leaf.groups.get(index.checked_sub(1)?)
            });
            let before = index.checked_sub(1).map(|before| &added[before]);
            for other in there.into_iter().chain(before) {
                if other.range().overlaps(&group.range()) {
                    return Err(Error::Overlap { start: group.start(), other: other.start() });
                }
            }
        }
        Ok(())
    }

    /// A directory with `added` too, which are in ascending order, overlap nothing, and know their slots.
    pub(crate) fn with(&self, added: &[Arc<Group>]) -> Self {
        let mut new = self.clone();
        if added.len() > LEAF_MAX {
            let mut groups: Vec<_> = self.iter().chain(added).cloned().collect();
            groups.sort_by_key(|group| group.start());
            new.leaves.clear();
            new.set_leaf(0, groups);
        } else {
            for group in added {
                let index = new.leaf_near(group.start().0);
                let mut groups = new.leaves.get(index).map_or_else(Vec::new, |l| l.groups.to_vec());
                let at = groups.partition_point(|there| there.start() < group.start());
                groups.insert(at, Arc::clone(group));
                new.set_leaf(index, groups);
            }
        }
        for kind in SpaceKind::ALL {
            let mut of: Vec<_> =
                added.iter().filter(|group| group.kind() == kind).cloned().collect();
            of.sort_by_key(|group| group.slot());
            new.kinds[kind.index()].put(&of);
        }
        new
    }

    /// A directory without `group`, which is in it.
    pub(crate) fn without(&self, group: &Group) -> Self {
        let mut new = self.clone();
        let index = new.leaf_near(group.start().0);
        let kept = new.leaves[index].groups.iter().filter(|there| there.start() != group.start());
        let kept: Vec<_> = kept.cloned().collect();
        new.set_leaf(index, kept);
        new.kinds[group.kind().index()].take(group.slot());
        new
    }

    /// Compares order and slots (D1, D2).
    pub(crate) fn verify(&self) -> Result<(), String> {
        let mut last: Option<&Arc<Group>> = None;
        let mut counts = [0; 3];
        for group in self.iter() {
            if let Some(last) = last
                && last.range().end() > group.start()
            {
                return Err(format!("D1: group {} reaches into {}", last.start(), group.start()));
            }
            let there = self.of(group.kind()).get(group.slot());
            if !there.is_some_and(|there| Arc::ptr_eq(there, group)) {
                return Err(format!("D2: group {} is not in slot {}", group.start(), group.slot()));
            }
            counts[group.kind().index()] += 1;
            last = Some(group);
        }
        if self.kinds.each_ref().map(Slots::groups) != counts {
            return Err("D2: slots hold other groups than there are".into());
        }
        Ok(())
    }
}
