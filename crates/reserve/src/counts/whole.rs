//! The trees that commits alone change, of which every leaf is counted (`count::N4`, `count::N5`).
//!
//! # Invariants
//!
//! - **W1** The trees that are looked at do not change: each set of roots is read once.

use buttress_format::{Extent, TreeId, header::ITEM_LEN};
use buttress_space::free_space_form;
use buttress_tree::{Expect, Geometry, NodeSource, Roots, Store};

use buttress_transaction::delayed_ref::inline_max;

/// Leaves of the trees that only commits change: more are not looked at (`count::N7`).
const LEAVES_MAX: u64 = 4096;

/// The heaviest item of the free-space tree, a bitmap.
const FREE_SPACE_ITEM: u64 = free_space_form::BITMAP_BITS / 8 + ITEM_LEN as u64;

/// The trees that are counted as a whole.
#[derive(Debug, Default)]
pub(crate) struct Whole {
    /// Leaves of all but the extent and the root tree.
    pub(crate) others: u64,
    pub(crate) root_leaves: u64,
    extent_leaves: u64,
    /// Of these, those that record metadata.
    extent_meta: u64,
    pub(crate) inner: u64,
    pub(crate) trees: u64,
}

pub(crate) fn is_whole(tree: TreeId) -> bool {
    tree == TreeId::ROOT || tree == TreeId::EXTENT || others().contains(&tree)
}

fn others() -> [TreeId; 5] {
    [TreeId::CSUM, TreeId::FREE_SPACE, TreeId::BLOCK_GROUP, TreeId::DEV, TreeId::QUOTA]
}

/// Most leaves that so many bytes are cut into, none of their items heavier than that.
pub(crate) fn packed(bytes: u64, room: u64, heaviest: u64) -> u64 {
    bytes / (room - heaviest) + 1
}

/// The inner nodes under `at`, and how many leaves there are; `leaf` is called for each of them.
fn survey(
    store: &Store,
    tree: TreeId,
    at: &Expect,
    leaf: &mut dyn FnMut(&Expect) -> Option<()>,
    (inner, leaves): (&mut u64, &mut u64),
) -> Option<()> {
    if at.ptr.level == 0 {
        *leaves += 1;
        return if *leaves > LEAVES_MAX { None } else { leaf(at) };
    }
    *inner += 1;
    let node = store.node(tree, at).ok()?;
    if at.ptr.level == 1 && *leaves + node.len() as u64 > LEAVES_MAX {
        return None;
    }
    (0..node.len()).try_for_each(|slot| {
        survey(
            store,
            tree,
            &node.expect_child_below(slot, at.below),
            leaf,
            (&mut *inner, &mut *leaves),
        )
    })
}

impl Whole {
    /// Looks at the trees; `metadata` are the groups that nodes lie in, ascending.
    pub(crate) fn look(store: &Store, roots: &Roots, metadata: &[Extent]) -> Option<Self> {
        let room = store.geometry().leaf_room() as u64;
        let mut whole = Self::default();
        for tree in others() {
            let Some(root) = roots.find(tree) else { continue };
            let mut leaves = 0;
            let counts = (&mut whole.inner, &mut leaves);
            survey(store, tree, &Expect::root(root), &mut |_| Some(()), counts)?;
            whole.others += match tree {
                TreeId::FREE_SPACE => packed(leaves * room, room, FREE_SPACE_ITEM),
                // Merged once: two leaves together are more than one, and what it has grown by is
                // counted in bytes.
                TreeId::CSUM => 2 * leaves + 1,
                _ => 3 * leaves,
            };
            whole.trees += 1;
        }
        let root = Expect::root(roots.find(TreeId::ROOT)?);
        let counts = (&mut whole.inner, &mut whole.root_leaves);
        survey(store, TreeId::ROOT, &root, &mut |_| Some(()), counts)?;
        let (mut meta, mut behind_first) = (0, false);
        let mut look = |at: &Expect| {
            // An item before the first key of all comes into the first leaf.
            let first = at.first_key.filter(|_| behind_first).map_or(0, |key| key.objectid);
            behind_first = true;
            // A new group lies behind all others.
            let records = at.below.is_none_or(|below| {
                let before = metadata.partition_point(|group| group.end().0 <= first);
                metadata.get(before).is_some_and(|group| group.start.0 <= below.objectid)
            });
            meta += u64::from(records);
            Some(())
        };
        let root = Expect::root(roots.find(TreeId::EXTENT)?);
        let counts = (&mut whole.inner, &mut whole.extent_leaves);
        survey(store, TreeId::EXTENT, &root, &mut look, counts)?;
        whole.extent_meta = meta;
        whole.trees += 2;
        // The free space of metadata is written anew in every round (`count::N5`).
        whole.others += 2 * metadata.len() as u64;
        Some(whole)
    }

    /// Adds what the free-space tree may come to say of groups (`count::N5`).
    pub(crate) fn note_groups(&mut self, geometry: &Geometry, groups: &[Extent]) {
        let most = |group: &Extent| {
            let extents = free_space_form::upper_threshold(group.len, geometry.sectorsize) + 1;
            extents * ITEM_LEN as u64 + FREE_SPACE_ITEM
        };
        let room = geometry.leaf_room() as u64;
        self.others += packed(groups.iter().map(most).sum(), room, FREE_SPACE_ITEM) + 2;
    }

    /// Leaves of the extent tree once it is made anew, when so many bytes come (`count::N4`).
    pub(crate) fn extents(&self, geometry: &Geometry, bytes: u64) -> u64 {
        self.extents_of(self.extent_leaves, geometry, bytes)
    }

    /// The same of a tree that has so many leaves.
    pub(crate) fn extents_of(&self, leaves: u64, geometry: &Geometry, bytes: u64) -> u64 {
        let room = geometry.leaf_room() as u64;
        let heaviest = (inline_max(geometry.nodesize) + ITEM_LEN) as u64;
        packed(leaves * room + bytes, room, heaviest) + 2 * self.extent_meta
    }
}
