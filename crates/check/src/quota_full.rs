//! Counts full quotas: the bytes that the subvolumes of each group reach.
//!
//! # Invariants
//!
//! - **F1** Each node is read once, however many subvolumes share it: the nodes of a level are read
//!   after all higher levels. At that moment the subvolumes that reach each of these nodes are
//!   known.
//! - **F2** The memory is bounded. If there are too many leaves, extents and sets of subvolumes, or
//!   a tree cannot be read as a whole, nothing is counted.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use buttress_format::{Body, FileExtent, Kind, Logical, QuotaGroup, TreeId};
use buttress_tree::{Expect, Node};

use crate::context::{Context, Tree};
use crate::sets::{Number, Sets};

/// Why the users of extents are not known (F2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unknown {
    /// Linux may have dropped a part of a tree without writing new nodes.
    #[error("a subvolume is being deleted: mount the volume until it is gone")]
    Deleting,
    #[error("a tree cannot be read: a check names what is damaged")]
    Damaged,
    #[error("there are too many: --memory lets it use more")]
    TooMany,
}

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
    let mut sets = Sets::default();
    let sums = sums(context, &trees, &mut sets)?;
    Ok(spread(sums.into_iter().map(|(set, bytes)| (sets.get(set), bytes)), parents))
}

/// The trees of files, if all of them can be read as a whole.
pub(crate) fn whole_trees(trees: &[Tree]) -> Result<Vec<&Tree>, Unknown> {
    let trees: Vec<&Tree> = trees.iter().filter(|tree| tree.id.is_fs_tree()).collect();
    if trees.iter().any(|tree| tree.drop.is_some()) {
        return Err(Unknown::Deleting);
    }
    if trees.iter().any(|tree| tree.is_cut()) { Err(Unknown::Damaged) } else { Ok(trees) }
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

/// For each set of subvolumes, the bytes that exactly these subvolumes reach (F1).
fn sums(
    context: &Context<'_>,
    trees: &[&Tree],
    sets: &mut Sets<TreeId>,
) -> Result<HashMap<Number, u64>, Unknown> {
    let most = context.sort_bytes();
    let mut levels: Vec<BTreeMap<Logical, (Expect, Number)>> = Vec::new();
    levels.resize_with(1 + usize::from(u8::MAX), BTreeMap::new);
    for tree in trees {
        let set = sets.number(BTreeSet::from([tree.id]));
        let level = &mut levels[usize::from(tree.root.level)];
        let there = level.entry(tree.root.logical).or_insert((Expect::root(tree.root), set));
        there.1 = sets.join(there.1, set);
    }
    let mut sums: HashMap<Number, u64> = HashMap::new();
    let mut data: HashMap<Logical, (u64, Number)> = HashMap::new();
    for level in (0..levels.len()).rev() {
        for (expect, set) in std::mem::take(&mut levels[level]).into_values() {
            *sums.entry(set).or_default() += context.nodesize();
            let node = context.source.read(TreeId::FS, &expect).ok_or(Unknown::Damaged)?;
            if level == 0 {
                extents(&node, &mut |at, len| {
                    let there = data.entry(at).or_insert((len, set));
                    there.1 = sets.join(there.1, set);
                })?;
            } else {
                for slot in 0..node.len() {
                    let expect = node.expect_child(slot);
                    let below = &mut levels[level - 1];
                    let there = below.entry(expect.ptr.logical).or_insert((expect, set));
                    there.1 = sets.join(there.1, set);
                }
            }
            let below = level.checked_sub(1).map_or(0, |below| levels[below].len());
            if sets.bytes(data.len() + below) > most {
                return Err(Unknown::TooMany);
            }
        }
    }
    for (len, set) in data.into_values() {
        *sums.entry(set).or_default() += len;
    }
    Ok(sums)
}

/// Calls `each` with the address and length of every data extent that a leaf refers to.
pub(crate) fn extents(leaf: &Node, each: &mut dyn FnMut(Logical, u64)) -> Result<(), Unknown> {
    for slot in (0..leaf.len()).filter(|slot| leaf.key(*slot).kind == Kind::EXTENT_DATA) {
        let item = FileExtent::parse(leaf.item(slot)).map_err(|_| Unknown::Damaged)?;
        if let Body::Regular(region) | Body::Prealloc(region) = &item.body
            && region.disk.0 != 0
        {
            each(region.disk, region.disk_len);
        }
    }
    Ok(())
}
