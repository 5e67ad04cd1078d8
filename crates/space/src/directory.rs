//! All block groups of a volume, sorted by address, immutable.
//!
//! # Place
//!
//! A change makes a new directory and swaps it in. In each of its trees the new directory copies
//! only the path to the change, and shares the rest with the old one. A lookup reads the current
//! directory and writes no memory that another reader writes.
//!
//! # Invariants
//!
//! - **D1** Groups are sorted and disjoint.
//! - **D2** A group of the directory is in the slot that the group names, among the slots of its
//!   kind, and in no other slot.

use std::sync::Arc;

use buttress_base::CowMap;
use buttress_base::cow_map::FAN;
use buttress_format::{Extent, Logical};

use crate::{Error, Group, SpaceKind};

/// Slots of a leaf, and leaves of a shelf. A change copies one leaf and one shelf.
const LEAF_MAX: usize = 256;
const SHELF_MAX: usize = 64;

type Leaf = Arc<[Option<Arc<Group>>]>;

/// Groups of one kind by slot.
#[derive(Clone, Debug, Default)]
pub(crate) struct Slots {
    shelves: Vec<Arc<Vec<Leaf>>>,
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
        let leaf = slot / LEAF_MAX;
        let leaf = self.shelves.get(leaf / SHELF_MAX)?.get(leaf % SHELF_MAX)?;
        leaf.get(slot % LEAF_MAX)?.as_ref()
    }

    /// Changes a copy of a leaf. Other directories that share the leaf keep the old leaf.
    fn change(&mut self, leaf: usize, act: impl FnOnce(&mut Vec<Option<Arc<Group>>>)) {
        let (shelf, within) = (leaf / SHELF_MAX, leaf % SHELF_MAX);
        if self.shelves.len() <= shelf {
            self.shelves.resize(shelf + 1, Arc::default());
        }
        let shelf = Arc::make_mut(&mut self.shelves[shelf]);
        if shelf.len() <= within {
            shelf.resize(within + 1, Arc::new([]));
        }
        let mut entries = shelf[within].to_vec();
        act(&mut entries);
        shelf[within] = entries.into();
    }

    /// Puts each group into the slot that it names.
    fn put(&mut self, added: &[Arc<Group>]) {
        let mut at = 0;
        while at < added.len() {
            let leaf = added[at].slot() / LEAF_MAX;
            let here = added[at..].iter().take_while(|group| group.slot() / LEAF_MAX == leaf);
            let count = here.count();
            self.change(leaf, |entries| {
                for group in &added[at..at + count] {
                    let within = group.slot() % LEAF_MAX;
                    if entries.len() <= within {
                        entries.resize(within + 1, None);
                    }
                    assert!(entries[within].is_none(), "D2: a slot has two groups");
                    entries[within] = Some(Arc::clone(group));
                }
            });
            at += count;
        }
        let highest = added.last().map_or(0, |group| group.slot() + 1);
        self.len = self.len.max(highest);
        self.groups += added.len();
    }

    fn take(&mut self, slot: usize) {
        self.change(slot / LEAF_MAX, |entries| {
            assert!(entries[slot % LEAF_MAX].take().is_some(), "D2: an empty slot is emptied");
        });
        self.groups -= 1;
    }
}

/// All groups by address, and the groups of each kind by slot.
#[derive(Clone, Debug, Default)]
pub(crate) struct Directory {
    groups: CowMap<Arc<Group>>,
    kinds: [Slots; 3],
}

impl Directory {
    /// All groups, ascending.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Group>> {
        self.groups.iter().map(|(_, group)| group)
    }

    /// How many groups there are.
    pub(crate) fn len(&self) -> usize {
        self.groups.len()
    }

    /// Groups of a kind by slot.
    pub(crate) fn of(&self, kind: SpaceKind) -> &Slots {
        &self.kinds[kind.index()]
    }

    /// The group that holds `at`.
    pub(crate) fn find(&self, at: Logical) -> Option<&Arc<Group>> {
        let (_, group) = self.groups.floor(at.0)?;
        group.range().contains(at).then_some(group)
    }

    /// The group that begins at `start`.
    pub(crate) fn starting(&self, start: Logical) -> Result<&Arc<Group>, Error> {
        let group = self.find(start).filter(|group| group.start() == start);
        group.ok_or(Error::NoGroup { at: start })
    }

    /// The group that holds all of `extent`.
    pub(crate) fn find_whole(&self, extent: Extent) -> Result<&Arc<Group>, Error> {
        let group = self.find(extent.start).ok_or(Error::NoGroup { at: extent.start })?;
        // `find` has checked the start. The length may still reach past the group's end, or past
        // the address space.
        if extent.len > group.len() - extent.start.distance(group.start()) {
            return Err(Error::Outside { group: group.start(), extent });
        }
        Ok(group)
    }

    /// Fails with the first two groups that would overlap if `added` were in the directory. `added`
    /// is in ascending order.
    pub(crate) fn overlap(&self, added: &[Arc<Group>]) -> Result<(), Error> {
        for (index, group) in added.iter().enumerate() {
            let last = Logical(group.range().end().0 - 1);
            let there = self.groups.floor(last.0).map(|(_, there)| there);
            let before = index.checked_sub(1).map(|before| &added[before]);
            for other in there.into_iter().chain(before) {
                if other.range().overlaps(&group.range()) {
                    return Err(Error::Overlap { start: group.start(), other: other.start() });
                }
            }
        }
        Ok(())
    }

    /// Returns a directory that also has `added`. These groups are in ascending order, overlap no
    /// other group, and have slots.
    pub(crate) fn with(&self, added: &[Arc<Group>]) -> Self {
        let mut new = self.clone();
        if added.len() > self.len() / FAN {
            let mut groups: Vec<_> = self.iter().chain(added).cloned().collect();
            groups.sort_by_key(|group| group.start());
            new.groups =
                CowMap::from_sorted(groups.into_iter().map(|group| (group.start().0, group)));
        } else {
            for group in added {
                new.groups = new.groups.with(group.start().0, Arc::clone(group));
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

    /// Returns a directory without `group`, which is in this directory.
    pub(crate) fn without(&self, group: &Group) -> Self {
        let mut new = self.clone();
        new.groups = self.groups.without(group.start().0).expect("D2: it is in it").0;
        new.kinds[group.kind().index()].take(group.slot());
        new
    }

    /// Checks the order and the slots of the groups (D1, D2).
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
