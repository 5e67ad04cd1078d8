//! Counts full quotas from the trees of a commit.
//!
//! # Invariants
//!
//! - **N1** A group references the extents that one of its members reaches. An extent is exclusive
//!   to a group if every subvolume that reaches it is a member. Data extents count with the bytes
//!   that they take on the devices, nodes with their size.
//! - **N2** Each node is read once, however many subvolumes share it: the nodes of a level are read
//!   when it is known which subvolumes reach them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use buttress_format::{Body, FileExtent, Key, Kind, Logical, QuotaGroup, QuotaInfo, TreeId};
use buttress_tree::{Cursor, Expect, Node, NodePtr, NodeSource};

use super::quota::Work;
use crate::{Error, Result};

/// The number of a set of subvolumes.
type Set = usize;

/// Sets of subvolumes, each kept once.
#[derive(Default)]
struct Sets {
    all: Vec<Arc<BTreeSet<TreeId>>>,
    numbers: HashMap<Arc<BTreeSet<TreeId>>, Set>,
    joined: HashMap<(Set, Set), Set>,
}

impl Sets {
    fn number(&mut self, set: BTreeSet<TreeId>) -> Set {
        let set = Arc::new(set);
        if let Some(number) = self.numbers.get(&set) {
            return *number;
        }
        self.all.push(Arc::clone(&set));
        self.numbers.insert(set, self.all.len() - 1);
        self.all.len() - 1
    }

    fn join(&mut self, one: Set, other: Set) -> Set {
        if one == other {
            return one;
        }
        let pair = (one.min(other), one.max(other));
        if let Some(number) = self.joined.get(&pair) {
            return *number;
        }
        let set = self.all[one].union(&self.all[other]).copied().collect();
        let number = self.number(set);
        self.joined.insert(pair, number);
        number
    }
}

/// A node that is to be read: which one, of which tree, and what reaches it.
struct Reached {
    at: Expect,
    tree: TreeId,
    set: Set,
}

/// The nodes of one level, by address.
type Level = BTreeMap<Logical, Reached>;

fn reach(level: &mut Level, sets: &mut Sets, found: Reached) {
    let (at, set) = (found.at.ptr.logical, found.set);
    let there = level.entry(at).or_insert(found);
    there.set = sets.join(there.set, set);
}

impl Work<'_> {
    /// Counts what each group uses, from the roots of all subvolumes.
    pub(super) fn count(&mut self, trees: &[(TreeId, NodePtr)], nodesize: u64) -> Result<()> {
        let mut sets = Sets::default();
        let sums = self.sums(trees, nodesize, &mut sets)?;
        let mut counts: BTreeMap<QuotaGroup, (u64, u64)> = BTreeMap::new();
        let mut above: HashMap<TreeId, BTreeSet<QuotaGroup>> = HashMap::new();
        for &(tree, _) in trees {
            above.insert(tree, self.groups_of(tree)?);
        }
        for (set, bytes) in sums {
            let members = &sets.all[set];
            let mut hits: BTreeMap<QuotaGroup, usize> = BTreeMap::new();
            for group in members.iter().filter_map(|tree| above.get(tree)).flatten() {
                *hits.entry(*group).or_default() += 1;
            }
            for (group, hits) in hits {
                let (referenced, exclusive) = counts.entry(group).or_default();
                *referenced += bytes;
                *exclusive += if hits == members.len() { bytes } else { 0 };
            }
        }
        for group in self.groups()? {
            let (referenced, exclusive) = counts.get(&group).copied().unwrap_or_default();
            let info = QuotaInfo {
                generation: self.generation,
                referenced,
                referenced_compressed: referenced,
                exclusive,
                exclusive_compressed: exclusive,
            };
            self.put(group.info_key(), info.to_bytes());
        }
        Ok(())
    }

    /// The bytes that each set of subvolumes reaches together (N2).
    fn sums(
        &self,
        trees: &[(TreeId, NodePtr)],
        nodesize: u64,
        sets: &mut Sets,
    ) -> Result<HashMap<Set, u64>> {
        let mut levels: Vec<Level> = Vec::new();
        levels.resize_with(1 + usize::from(u8::MAX), Level::new);
        for &(tree, root) in trees {
            let set = sets.number(BTreeSet::from([tree]));
            let found = Reached { at: Expect::root(root), tree, set };
            reach(&mut levels[usize::from(root.level)], sets, found);
        }
        let mut sums: HashMap<Set, u64> = HashMap::new();
        let mut data: HashMap<Logical, (u64, Set)> = HashMap::new();
        for level in (0..levels.len()).rev() {
            for Reached { at, tree, set } in std::mem::take(&mut levels[level]).into_values() {
                *sums.entry(set).or_default() += nodesize;
                let node = self.source.node(tree, &at)?;
                if level == 0 {
                    extents(&node, &mut |extent, len| {
                        let there = data.entry(extent).or_insert((len, set));
                        there.1 = sets.join(there.1, set);
                    })?;
                    continue;
                }
                for slot in 0..node.len() {
                    let at = node.expect_child_below(slot, at.below);
                    reach(&mut levels[level - 1], sets, Reached { at, tree, set });
                }
            }
        }
        for (len, set) in data.into_values() {
            *sums.entry(set).or_default() += len;
        }
        Ok(sums)
    }

    /// The group of a subvolume, and all that it is a member of.
    fn groups_of(&self, tree: TreeId) -> Result<BTreeSet<QuotaGroup>> {
        let own = QuotaGroup::of(tree);
        let mut found = BTreeSet::from([own]);
        let mut waiting = vec![own];
        while let Some(group) = waiting.pop() {
            for other in self.relations(group)? {
                if other.level() > group.level() && found.insert(other) {
                    waiting.push(other);
                }
            }
        }
        Ok(found)
    }

    /// All groups.
    fn groups(&self) -> Result<BTreeSet<QuotaGroup>> {
        let first = Key::new(0, Kind::QGROUP_INFO, 0);
        let last = Key::new(0, Kind::QGROUP_INFO, u64::MAX);
        let mut found = BTreeSet::new();
        let mut cursor = Cursor::seek(self.source, TreeId::QUOTA, self.root, &first)?;
        while let Some(key) = cursor.key().filter(|key| *key <= last) {
            found.insert(QuotaGroup(key.offset));
            cursor.advance()?;
        }
        for (key, change) in self.changes.range(first..=last) {
            match change {
                Some(_) => found.insert(QuotaGroup(key.offset)),
                None => found.remove(&QuotaGroup(key.offset)),
            };
        }
        Ok(found)
    }
}

/// Calls `each` with the address and length of every data extent that a leaf refers to.
fn extents(leaf: &Node, each: &mut dyn FnMut(Logical, u64)) -> Result<()> {
    for slot in 0..leaf.len() {
        let key = leaf.key(slot);
        if key.kind != Kind::EXTENT_DATA {
            continue;
        }
        let malformed = |source| Error::Item { tree: leaf.owner(), key, source };
        let item = FileExtent::parse(leaf.item(slot)).map_err(malformed)?;
        if let Body::Regular(region) | Body::Prealloc(region) = &item.body
            && region.disk.0 != 0
        {
            each(region.disk, region.disk_len);
        }
    }
    Ok(())
}
