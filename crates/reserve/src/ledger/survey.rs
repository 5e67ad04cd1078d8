//! Counts the nodes of trees. Only the nodes above the leaves are read.

use buttress_format::header::FLAG_RELOC;
use buttress_format::{Extent, Generation, Key, TreeId};
use buttress_tree::{Expect, NodeSource, Roots, Store};

/// The number of nodes is unknown. Either a node cannot be read, was moved by a balance or may be
/// shared, or there are too many leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Uncountable;

/// The most leaves counted in a tree. The number of leaves in a larger tree stays unknown.
const LEAVES_MAX: u64 = 1 << 16;

/// Nodes of a tree, or of a part of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Nodes {
    pub(crate) leaves: u64,
    pub(crate) inner: u64,
}

impl Nodes {
    pub(crate) fn sum(self) -> u64 {
        self.leaves + self.inner
    }
}

/// Which nodes of a tree are counted.
#[derive(Clone, Copy)]
pub(super) struct Survey<'s> {
    pub(super) store: &'s Store,
    pub(super) tree: TreeId,
    /// Only nodes with items between two keys; all nodes if `None`.
    pub(super) keys: Option<(Key, Key)>,
    /// If set, the count fails at a node of this generation or an older one, since snapshots may
    /// share such a node. It also fails at an inner node that a balance has moved.
    pub(super) unshared: Option<Generation>,
}

impl Survey<'_> {
    /// The number of nodes below a node, and the node itself.
    pub(super) fn under(&self, at: &Expect) -> Result<Nodes, Uncountable> {
        let mut nodes = Nodes::default();
        self.add(at, &mut nodes)?;
        Ok(nodes)
    }

    fn add(&self, at: &Expect, nodes: &mut Nodes) -> Result<(), Uncountable> {
        if self.unshared.is_some_and(|shared| at.ptr.generation <= shared) {
            return Err(Uncountable);
        }
        if at.ptr.level == 0 {
            nodes.leaves += 1;
            return if nodes.leaves > LEAVES_MAX { Err(Uncountable) } else { Ok(()) };
        }
        nodes.inner += 1;
        let node = self.store.node(self.tree, at).map_err(|_| Uncountable)?;
        if self.unshared.is_some() && node.header().flags & FLAG_RELOC != 0 {
            return Err(Uncountable);
        }
        let slots = match &self.keys {
            Some((first, last)) => node.child_slot(first)..node.child_slot(last) + 1,
            None => 0..node.len(),
        };
        slots
            .into_iter()
            .try_for_each(|slot| self.add(&node.expect_child_below(slot, at.below), nodes))
    }
}

/// The number of nodes of a tree that `roots` names; none if there is no such tree.
pub(crate) fn all_of(store: &Store, roots: &Roots, tree: TreeId) -> Result<Nodes, Uncountable> {
    let survey = Survey { store, tree, keys: None, unshared: None };
    roots.find(tree).map_or(Ok(Nodes::default()), |root| survey.under(&Expect::root(root)))
}

/// Counts the nodes of the extent tree, from `at` down, that hold records of `groups`. The groups
/// are in ascending order.
pub(super) fn recording(
    store: &Store,
    at: &Expect,
    groups: &[Extent],
    nodes: &mut Nodes,
) -> Result<(), Uncountable> {
    if at.ptr.level == 0 {
        nodes.leaves += 1;
        return Ok(());
    }
    nodes.inner += 1;
    let node = store.node(TreeId::EXTENT, at).map_err(|_| Uncountable)?;
    for slot in 0..node.len() {
        let child = node.expect_child_below(slot, at.below);
        // Items before the first key of the tree would also go into the first leaf.
        let first = if slot > 0 { node.key(slot).objectid } else { 0 };
        let before = groups.partition_point(|group| group.end().0 <= first);
        let records = child.below.is_none_or(|below| {
            groups.get(before).is_some_and(|group| group.start.0 <= below.objectid)
        });
        if records {
            recording(store, &child, groups, nodes)?;
        }
    }
    Ok(())
}
