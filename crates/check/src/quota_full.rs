//! Counts full quotas: the bytes that the subvolumes of each group reach.
//!
//! # Place
//!
//! The walk and its bounds are those of `joined_walk`.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use buttress_base::sets::{Number, Sets};
use buttress_format::{QuotaGroup, TreeId};
use buttress_tree::Node;

use crate::context::{Context, Tree};
use crate::joined_walk::{Reached, Unknown, walk, whole_trees};

/// Memberships: the groups that each group is a member of.
pub(crate) type Parents = BTreeMap<QuotaGroup, BTreeSet<QuotaGroup>>;

/// The referenced and exclusive bytes of groups.
pub(crate) type Bytes = BTreeMap<QuotaGroup, (u64, u64)>;

/// The bytes of each group that uses any.
pub(crate) fn count(
    context: &Context<'_>,
    trees: &[Tree],
    parents: &Parents,
) -> Result<Bytes, Unknown> {
    let trees = whole_trees(trees)?;
    let nodesize = context.nodesize();
    let mut sums = Sums { sets: Sets::default(), nodesize, bytes: HashMap::new() };
    for (len, set) in walk(context, &trees, &mut sums)?.into_values() {
        *sums.bytes.entry(set).or_default() += len;
    }
    let Sums { sets, bytes, .. } = sums;
    Ok(spread(bytes.into_iter().map(|(set, bytes)| (&**sets.members(set), bytes)), parents))
}

/// Gives the bytes that each set of subvolumes reaches to the groups of these subvolumes.
pub(crate) fn spread<'s>(
    sums: impl Iterator<Item = (&'s BTreeSet<TreeId>, u64)>,
    parents: &Parents,
) -> Bytes {
    let mut groups = Bytes::new();
    for (members, bytes) in sums {
        let mut hits: BTreeMap<QuotaGroup, usize> = BTreeMap::new();
        for tree in members {
            for group in above(QuotaGroup::of(*tree), parents) {
                *hits.entry(group).or_default() += 1;
            }
        }
        for (group, hits) in hits {
            let (referenced, exclusive) = groups.entry(group).or_default();
            *referenced += bytes;
            *exclusive += if hits == members.len() { bytes } else { 0 };
        }
    }
    groups
}

/// A group and all groups above it.
fn above(group: QuotaGroup, parents: &Parents) -> BTreeSet<QuotaGroup> {
    let mut found = BTreeSet::from([group]);
    let mut waiting = vec![group];
    while let Some(group) = waiting.pop() {
        let above = parents.get(&group).into_iter().flatten();
        waiting.extend(above.filter(|above| found.insert(**above)));
    }
    found
}

/// For each set of subvolumes, the bytes of nodes that exactly these subvolumes reach.
struct Sums {
    sets: Sets<TreeId>,
    nodesize: u64,
    bytes: HashMap<Number, u64>,
}

impl Reached<TreeId> for Sums {
    fn sets(&mut self) -> &mut Sets<TreeId> {
        &mut self.sets
    }

    fn root(&self, tree: TreeId) -> TreeId {
        tree
    }

    fn node(&mut self, _: &Node, set: Number) -> Number {
        *self.bytes.entry(set).or_default() += self.nodesize;
        set
    }

    fn entries(&self) -> usize {
        0
    }
}
