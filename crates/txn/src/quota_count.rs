//! Counts full quotas from the trees of a commit. No lock is held meanwhile.
//!
//! The count needs memory for an entry for each leaf and each data extent. It also needs memory for
//! an entry for each set of subvolumes that share a node or an extent.
//!
//! # Invariants
//!
//! - **N1** A group references the extents that at least one of its members reaches. An extent is
//!   exclusive to a group if every subvolume that reaches it is a member. Data extents count with
//!   the bytes that they take on the devices, nodes with their size.
//! - **N2** Each node is read once, however many subvolumes share it: the nodes of a level are read
//!   only after all higher levels. By then all subvolumes that reach the node are known.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use buttress_base::sets::{Number as Set, Sets};
use buttress_format::{Body, FileExtent, Key, Kind, Logical, QuotaGroup, RootItem, TreeId};
use buttress_transaction::QuotaCounts;
use buttress_tree::{Cursor, Expect, Node, NodePtr, NodeSource, Roots, Store};

use crate::QuotaUse;
use crate::{Commits, Error, Result, Storage};

/// A node that is to be read: its place, its tree, and the set of subvolumes that reach it.
struct Reached {
    at: Expect,
    tree: TreeId,
    set: Set,
}

/// The nodes of one level, by address.
type Level = BTreeMap<Logical, Reached>;

fn reach(level: &mut Level, sets: &mut Sets<TreeId>, found: Reached) {
    let (at, set) = (found.at.ptr.logical, found.set);
    let there = level.entry(at).or_insert(found);
    there.set = sets.join(there.set, set);
}

impl Storage {
    /// Counts the use of each group of full quotas, from the trees of the last commit. Other
    /// threads and commits go on meanwhile. Space that later commits free stays pinned until the
    /// count ends. Tells `watch` the bytes of each node that was read.
    ///
    /// # Errors
    ///
    /// When a node cannot be read, or an item makes no sense. In this case nothing has changed.
    pub fn count_quotas(
        &self,
        commits: &Commits,
        watch: &mut dyn FnMut(u64),
    ) -> Result<QuotaCounts> {
        let view = commits.view();
        let roots = view.roots();
        let trees = self.committed_subvolumes(roots)?;
        let found = self.quotas_of(roots)?.map_or_else(Vec::new, |quotas| quotas.groups);
        let nodesize = u64::from(self.store().geometry().nodesize);
        let mut sets = Sets::default();
        let sums = sums(self.store(), &trees, nodesize, (&mut sets, watch))?;
        let mut groups: BTreeMap<QuotaGroup, (u64, u64)> = BTreeMap::new();
        let above: HashMap<TreeId, BTreeSet<QuotaGroup>> =
            trees.iter().map(|&(tree, _)| (tree, groups_of(tree, &found))).collect();
        for (set, bytes) in sums {
            let members = sets.members(set);
            let mut hits: BTreeMap<QuotaGroup, usize> = BTreeMap::new();
            for group in members.iter().filter_map(|tree| above.get(tree)).flatten() {
                *hits.entry(*group).or_default() += 1;
            }
            for (group, hits) in hits {
                let (referenced, exclusive) = groups.entry(group).or_default();
                *referenced += bytes;
                *exclusive += if hits == members.len() { bytes } else { 0 };
            }
        }
        Ok(QuotaCounts { of: roots.generation, groups })
    }

    /// The roots of all subvolumes in a commit, in the order of subvolume numbers.
    fn committed_subvolumes(&self, roots: &Roots) -> Result<Vec<(TreeId, NodePtr)>> {
        let tree = TreeId::ROOT;
        let root = roots.find(tree).ok_or(buttress_tree::Error::NoTree(tree))?;
        // If a subvolume has several root items, the last one counts.
        let mut found = BTreeMap::new();
        let mut cursor = Cursor::seek(&**self.store(), tree, root, &Key::MIN)?;
        while let Some((key, item)) = cursor.key().zip(cursor.item()) {
            if key.kind == Kind::ROOT_ITEM && TreeId(key.objectid).is_fs_tree() {
                let malformed = |source| Error::Item { tree, key, source };
                let item = RootItem::parse(item).map_err(malformed)?;
                let RootItem { bytenr: logical, generation, level, .. } = item;
                found.insert(TreeId(key.objectid), NodePtr { logical, generation, level });
            }
            cursor.advance()?;
        }
        Ok(found.into_iter().collect())
    }
}

/// The group of a subvolume, and all groups that it is directly or indirectly a member of.
fn groups_of(tree: TreeId, groups: &[QuotaUse]) -> BTreeSet<QuotaGroup> {
    let own = QuotaGroup::of(tree);
    let mut found = BTreeSet::from([own]);
    let mut waiting = vec![own];
    while let Some(group) = waiting.pop() {
        let Ok(at) = groups.binary_search_by_key(&group, |known| known.group) else { continue };
        let parents = groups[at].parents.iter().filter(|parent| found.insert(**parent));
        waiting.extend(parents);
    }
    found
}

/// For each set of subvolumes, the bytes that all subvolumes of the set and no others reach (N2).
fn sums(
    source: &Store,
    trees: &[(TreeId, NodePtr)],
    nodesize: u64,
    (sets, watch): (&mut Sets<TreeId>, &mut dyn FnMut(u64)),
) -> Result<HashMap<Set, u64>> {
    let mut levels: Vec<Level> = Vec::new();
    levels.resize_with(1 + usize::from(u8::MAX), Level::new);
    for &(tree, root) in trees {
        let set = sets.one(tree);
        let found = Reached { at: Expect::root(root), tree, set };
        reach(&mut levels[usize::from(root.level)], sets, found);
    }
    let mut sums: HashMap<Set, u64> = HashMap::new();
    let mut data: HashMap<Logical, (u64, Set)> = HashMap::new();
    for level in (0..levels.len()).rev() {
        for Reached { at, tree, set } in std::mem::take(&mut levels[level]).into_values() {
            *sums.entry(set).or_default() += nodesize;
            let node = source.node(tree, &at)?;
            watch(nodesize);
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
