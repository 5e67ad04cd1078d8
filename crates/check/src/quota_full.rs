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

/// Approximate bytes of memory for one leaf or extent.
const ENTRY_BYTES: u64 = 128;

/// Approximate bytes of memory for one member of a set. Each set is kept twice.
const MEMBER_BYTES: u64 = 48;

type Set = usize;

/// Sets of subvolumes, each kept once.
#[derive(Default)]
struct Sets {
    all: Vec<BTreeSet<TreeId>>,
    numbers: HashMap<BTreeSet<TreeId>, Set>,
    joined: HashMap<(Set, Set), Set>,
    /// The members of all sets together.
    members: u64,
}

impl Sets {
    fn number(&mut self, set: BTreeSet<TreeId>) -> Set {
        *self.numbers.entry(set).or_insert_with_key(|set| {
            self.members += set.len() as u64;
            self.all.push(set.clone());
            self.all.len() - 1
        })
    }

    fn join(&mut self, one: Set, other: Set) -> Set {
        if one == other {
            return one;
        }
        let pair = (one.min(other), one.max(other));
        if let Some(known) = self.joined.get(&pair) {
            return *known;
        }
        let both = self.all[one].union(&self.all[other]).copied().collect();
        let number = self.number(both);
        self.joined.insert(pair, number);
        number
    }
}

/// Memberships: the groups that each group is a member of.
pub(crate) type Parents = BTreeMap<QuotaGroup, BTreeSet<QuotaGroup>>;

/// The referenced and exclusive bytes of each group that uses any. `None` if they are not known
/// (F2).
pub(crate) fn count(
    context: &Context<'_>,
    trees: &[Tree],
    parents: &Parents,
) -> Option<BTreeMap<QuotaGroup, (u64, u64)>> {
    let trees: Vec<&Tree> = trees.iter().filter(|tree| tree.id.is_fs_tree()).collect();
    // Linux may have dropped a part of a tree without writing new nodes.
    if trees.iter().any(|tree| tree.is_cut() || tree.drop.is_some()) {
        return None;
    }
    let mut sets = Sets::default();
    let sums = sums(context, &trees, &mut sets)?;
    let mut groups: BTreeMap<QuotaGroup, (u64, u64)> = BTreeMap::new();
    for (set, bytes) in sums {
        let members = &sets.all[set];
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
    Some(groups)
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
fn sums(context: &Context<'_>, trees: &[&Tree], sets: &mut Sets) -> Option<HashMap<Set, u64>> {
    let most = context.sort_bytes();
    let mut levels: Vec<BTreeMap<Logical, (Expect, Set)>> = Vec::new();
    levels.resize_with(1 + usize::from(u8::MAX), BTreeMap::new);
    for tree in trees {
        let set = sets.number(BTreeSet::from([tree.id]));
        let level = &mut levels[usize::from(tree.root.level)];
        let there = level.entry(tree.root.logical).or_insert((Expect::root(tree.root), set));
        there.1 = sets.join(there.1, set);
    }
    let mut sums: HashMap<Set, u64> = HashMap::new();
    let mut data: HashMap<Logical, (u64, Set)> = HashMap::new();
    for level in (0..levels.len()).rev() {
        for (expect, set) in std::mem::take(&mut levels[level]).into_values() {
            *sums.entry(set).or_default() += context.nodesize();
            let node = context.source.read(TreeId::FS, &expect)?;
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
            let entries = data.len() + below + sets.all.len() + sets.joined.len();
            if entries as u64 * ENTRY_BYTES + sets.members * MEMBER_BYTES > most {
                return None;
            }
        }
    }
    for (len, set) in data.into_values() {
        *sums.entry(set).or_default() += len;
    }
    Some(sums)
}

/// Calls `each` with the address and length of every data extent that a leaf refers to.
fn extents(leaf: &Node, each: &mut dyn FnMut(Logical, u64)) -> Option<()> {
    for slot in (0..leaf.len()).filter(|slot| leaf.key(*slot).kind == Kind::EXTENT_DATA) {
        let item = FileExtent::parse(leaf.item(slot)).ok()?;
        if let Body::Regular(region) | Body::Prealloc(region) = &item.body
            && region.disk.0 != 0
        {
            each(region.disk, region.disk_len);
        }
    }
    Some(())
}
