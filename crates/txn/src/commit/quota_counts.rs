//! The counts of full quotas: applies the steps of a trail to the groups.
//!
//! # Invariants
//!
//! - **N1** A group references the nodes and data that at least one of its subvolumes reaches.
//!   Nodes and data that no other subvolume reaches are exclusive to the group. Memberships count
//!   as the last commit left them; changes of memberships in this commit follow afterwards.
//! - **N2** If a count would fall below zero, or the referenced count below the exclusive count,
//!   the old counts were wrong. The commit then marks the counts as inconsistent.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use buttress_base::sets::{Number as Set, Sets};
use buttress_format::{QuotaGroup, QuotaInfo, TreeId};

use super::quota::QuotaItems;
use super::trail::Step;
use crate::Result;

/// The groups of each subvolume that has been looked up.
#[derive(Default)]
struct Above(HashMap<TreeId, BTreeSet<QuotaGroup>>);

impl Above {
    /// The groups that count a subvolume: its own group, and the groups above.
    fn of(&mut self, items: &QuotaItems<'_>, tree: TreeId) -> Result<&BTreeSet<QuotaGroup>> {
        Ok(match self.0.entry(tree) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => place.insert(items.groups_above(QuotaGroup::of(tree))?),
        })
    }
}

impl QuotaItems<'_> {
    /// A group and all groups above it.
    pub(super) fn groups_above(&self, group: QuotaGroup) -> Result<BTreeSet<QuotaGroup>> {
        let mut found = BTreeSet::from([group]);
        let mut waiting = vec![group];
        while let Some(group) = waiting.pop() {
            waiting.extend(self.parents(group)?.into_iter().filter(|above| found.insert(*above)));
        }
        Ok(found)
    }

    /// Counts the steps of a commit. Returns false if the counts cannot be right (N2).
    pub(super) fn count(
        &mut self,
        steps: &[Step],
        sets: &Sets<TreeId>,
        nodesize: u64,
    ) -> Result<bool> {
        let mut above = Above::default();
        for step in steps {
            let is_right = match step {
                Step::Moved(moved) => self.count_moved(moved, sets, &mut above)?,
                Step::Cut { source, target } => self.count_cut(*source, *target, nodesize)?,
            };
            if !is_right {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn count_moved(
        &mut self,
        moved: &BTreeMap<(Set, Set), i64>,
        sets: &Sets<TreeId>,
        above: &mut Above,
    ) -> Result<bool> {
        let mut deltas: BTreeMap<QuotaGroup, (i64, i64)> = BTreeMap::new();
        for (&(before, after), &bytes) in moved {
            for (set, bytes) in [(before, -bytes), (after, bytes)] {
                let members = sets.members(set);
                let mut hits: BTreeMap<QuotaGroup, usize> = BTreeMap::new();
                for tree in members.iter() {
                    for group in above.of(self, *tree)? {
                        *hits.entry(*group).or_default() += 1;
                    }
                }
                for (group, hits) in hits {
                    let (referenced, exclusive) = deltas.entry(group).or_default();
                    *referenced += bytes;
                    *exclusive += if hits == members.len() { bytes } else { 0 };
                }
            }
        }
        for (group, (referenced, exclusive)) in deltas {
            if (referenced, exclusive) == (0, 0) {
                continue;
            }
            // A deleted group has no counts.
            let Some(mut info) = self.info(group)? else { continue };
            let sums = (
                info.referenced.checked_add_signed(referenced),
                info.exclusive.checked_add_signed(exclusive),
            );
            let (Some(referenced), Some(exclusive)) = sums else { return Ok(false) };
            (info.referenced, info.exclusive) = (referenced, exclusive);
            if !self.put_info(group, info) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Writes the counts of a group. Returns false if they cannot be right (N2).
    pub(super) fn put_info(&mut self, group: QuotaGroup, info: QuotaInfo) -> bool {
        let QuotaInfo { referenced, exclusive, .. } = info;
        let info = QuotaInfo {
            generation: self.generation,
            referenced,
            referenced_compressed: referenced,
            exclusive,
            exclusive_compressed: exclusive,
        };
        self.put(group.info_key(), info.to_bytes());
        exclusive <= referenced
    }

    /// Counts a snapshot. The copy shares everything except its root node with the source.
    fn count_cut(&mut self, source: TreeId, target: TreeId, nodesize: u64) -> Result<bool> {
        let (old, new) = (QuotaGroup::of(source), QuotaGroup::of(target));
        let is_known = self.info(new)?.is_some();
        self.make(target, Some(source), None)?;
        let Some(info) = self.info(old)? else { return Ok(false) };
        let Some(shared) = info.exclusive.checked_sub(nodesize) else { return Ok(false) };
        let was_alone = info.exclusive == info.referenced;
        for group in self.groups_above(old)? {
            let Some(mut info) = self.info(group)? else { continue };
            // If the source shared nothing before, all its nodes and data except the root node are
            // no longer exclusive to the group. If the source is the only subvolume of the group,
            // only the root node stays exclusive.
            if was_alone {
                let Some(left) = info.exclusive.checked_sub(shared) else { return Ok(false) };
                info.exclusive = left;
            } else if self.subvolumes_below(group)?.iter().eq([&old]) {
                info.exclusive = nodesize;
            } else {
                return Ok(false);
            }
            if !self.put_info(group, info) {
                return Ok(false);
            }
        }
        let info = QuotaInfo { exclusive: nodesize, ..info };
        Ok(!is_known && self.put_info(new, info))
    }

    /// The groups of the subvolumes that a group counts. A subvolume's own group has only itself;
    /// any other group has all groups of subvolumes below it.
    pub(super) fn subvolumes_below(&self, group: QuotaGroup) -> Result<BTreeSet<QuotaGroup>> {
        let (mut found, mut seen) = (BTreeSet::new(), BTreeSet::from([group]));
        let mut waiting = vec![group];
        while let Some(group) = waiting.pop() {
            if group.level() == 0 {
                found.insert(group);
            }
            let related = self.relations(group)?;
            let below = related.into_iter().filter(|other| other.level() < group.level());
            waiting.extend(below.filter(|other| seen.insert(*other)));
        }
        Ok(found)
    }
}
