//! The trees that commits alone change, of which every leaf is counted (N4, N5).
//!
//! # Invariants
//!
//! - **W1** What is looked at does not change: it is asked for once for each set of roots.

use buttress_format::{Extent, TreeId};
use buttress_tree::{Expect, NodeSource, Roots, Store};

/// Leaves of the trees that only commits change: more are not looked at (N7).
const LEAVES_MAX: u64 = 4096;

/// The trees that are counted as a whole.
#[derive(Debug, Default)]
pub(super) struct Whole {
    /// Nodes of all but the extent and the root tree.
    pub(super) others: u64,
    pub(super) root_leaves: u64,
    extent_leaves: u64,
    /// Of these, those that record metadata.
    extent_meta: u64,
    pub(super) inner: u64,
    pub(super) trees: u64,
    /// What must come before so many leaves of the extent tree have run over, and go before they are hungry.
    to_run_over: Vec<u64>,
    to_be_hungry: Vec<u64>,
}

pub(super) fn is_whole(tree: TreeId) -> bool {
    tree == TreeId::ROOT || tree == TreeId::EXTENT || others().contains(&tree)
}

fn others() -> [TreeId; 5] {
    [TreeId::CSUM, TreeId::FREE_SPACE, TreeId::BLOCK_GROUP, TreeId::DEV, TreeId::QUOTA]
}

/// Sums of the smallest so many.
fn sums(mut each: Vec<u64>) -> Vec<u64> {
    each.sort_unstable();
    let mut sum = 0;
    each.into_iter()
        .map(|one| {
            sum += one;
            sum
        })
        .collect()
}

/// The nodes under `at` that are above leaves, and how many leaves there are; `leaf` is asked of each of them.
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
    pub(super) fn look(store: &Store, roots: &Roots, metadata: &[Extent]) -> Option<Self> {
        let room = store.geometry().leaf_room() as u64;
        let mut whole = Self::default();
        for tree in others() {
            let Some(root) = roots.find(tree) else { continue };
            let mut leaves = 0;
            let counts = (&mut whole.inner, &mut leaves);
            survey(store, tree, &Expect::root(root), &mut |_| Some(()), counts)?;
            whole.others += leaves * if tree == TreeId::FREE_SPACE { 4 } else { 3 };
            whole.trees += 1;
        }
        let root = Expect::root(roots.find(TreeId::ROOT)?);
        let counts = (&mut whole.inner, &mut whole.root_leaves);
        survey(store, TreeId::ROOT, &root, &mut |_| Some(()), counts)?;
        let (mut over, mut hungry) = (Vec::new(), Vec::new());
        let (mut meta, mut behind_first) = (0, false);
        let mut look = |at: &Expect| {
            let weight = store.node(TreeId::EXTENT, at).ok()?.used_bytes() as u64;
            over.push((room + 1).saturating_sub(weight));
            hungry.push((weight + 1).saturating_sub(room / 4));
            // What comes before the first key of all comes into the first leaf.
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
        (whole.to_run_over, whole.to_be_hungry) = (sums(over), sums(hungry));
        Some(whole)
    }

    /// Leaves that the extent tree is made anew of (N4).
    pub(super) fn extents(&self, bytes: u64) -> u64 {
        let over = self.to_run_over.partition_point(|enough| *enough <= bytes) as u64;
        let hungry = self.to_be_hungry.partition_point(|enough| *enough <= bytes) as u64;
        self.extent_leaves + 2 * (over + self.extent_meta) + hungry
    }
}
