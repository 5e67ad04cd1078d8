//! One subvolume's log tree: its leaves in memory, which change in place, and the addresses of its
//! nodes on disk.
//!
//! A log grows to thousands of leaves, and one fsync changes about two of them. So the cost of
//! building a log depends on the changed leaves only.
//!
//! # Invariants
//!
//! - **L1** A node's place on disk is written again only after a later log without the node is
//!   durable. With each log, a changed leaf and all nodes above it get new addresses. The
//!   superblock on disk still references the nodes of the log before.
//! - **L2** Every item lies in the leaf with the last bound at or before its key. The first leaf's
//!   bound is the least key. A leaf is empty only if it is the only one.
//! - **L3** A branch has the leaves from its bound up to the bound of the next branch. While one of
//!   its leaves has no address, a branch has no address either.

use std::collections::BTreeMap;

use buttress_format::{Generation, Key, Logical, TreeId};
use buttress_tree::{Geometry, LeafEdit, Mismatch, Node, NodePtr, NodeStamp, Payload, PtrBuilder};

use buttress_txn::{Error, Result};

#[derive(Debug)]
struct Leaf {
    items: LeafEdit,
    /// The leaf's first key and its address on disk; `None` while the leaf has changes that are not
    /// on disk.
    at: Option<(Key, Logical)>,
}

/// The leaves below one node.
#[derive(Debug)]
struct Branch {
    leaves: usize,
    /// The first key below the branch, and its node; `None` while a leaf below has changed.
    node: Option<(Key, NodePtr)>,
}

#[derive(Debug, Default)]
pub(crate) struct LogTree {
    /// By bound (L2).
    leaves: BTreeMap<Key, Leaf>,
    /// By bound (L3).
    branches: BTreeMap<Key, Branch>,
    /// Addresses on disk of nodes that changed or were removed since the last build, and of all
    /// nodes above the branches.
    replaced: Vec<Logical>,
    root: Option<NodePtr>,
    /// How many leaves have no address.
    changed: usize,
    /// A leaf was removed, perhaps without any other change.
    shrank: bool,
    /// Bounds of the leaves that the last build gave addresses.
    fresh: Vec<Key>,
}

/// Input and output of building a log.
pub(crate) struct Build<'b> {
    pub(crate) geometry: Geometry,
    pub(crate) generation: Generation,
    /// Gives an address for a node.
    pub(crate) allocate: &'b mut dyn FnMut() -> Result<Logical>,
    /// New nodes other than leaves of logs, sealed.
    pub(crate) nodes: Vec<Node>,
    /// Nodes of the previous log that this log no longer uses.
    pub(crate) dropped: Vec<Logical>,
}

fn damaged(logical: Logical) -> impl Fn(Mismatch) -> Error {
    move |why| {
        let owner = TreeId::TREE_LOG;
        buttress_tree::Error::Damaged { logical, owner, why }.into()
    }
}

impl Build<'_> {
    pub(crate) fn stamp(&mut self) -> Result<NodeStamp> {
        let logical = (self.allocate)()?;
        Ok(NodeStamp { logical, generation: self.generation, owner: TreeId::TREE_LOG })
    }

    /// Takes a node that goes to disk with this log.
    pub(crate) fn add(&mut self, node: Node) -> Result<NodePtr> {
        let ptr = node.ptr();
        self.nodes.push(node.into_sealed(&self.geometry).map_err(damaged(ptr.logical))?);
        Ok(ptr)
    }
}

impl LogTree {
    fn leaf(&self, key: &Key) -> Option<&LeafEdit> {
        self.leaves.range(..=*key).next_back().map(|(_, leaf)| &leaf.items)
    }

    pub(crate) fn get(&self, key: &Key) -> Option<&[u8]> {
        let leaf = self.leaf(key)?;
        leaf.search(key).ok().map(|slot| leaf.item(slot))
    }

    /// Items in `low..=high`.
    pub(crate) fn range(&self, low: Key, high: Key) -> Vec<(Key, Payload)> {
        let mut found = Vec::new();
        let Some((from, _)) = self.leaves.range(..=low).next_back() else { return found };
        for (bound, leaf) in self.leaves.range(from..) {
            if *bound > high {
                break;
            }
            let (Ok(first) | Err(first)) = leaf.items.search(&low);
            for slot in first..leaf.items.len() {
                let key = leaf.items.key(slot);
                if key > high {
                    return found;
                }
                found.push((key, leaf.items.item(slot).into()));
            }
        }
        found
    }

    /// The last item in `low..=high`.
    pub(crate) fn last_in(&self, low: Key, high: Key) -> Option<(Key, Payload)> {
        for (_, leaf) in self.leaves.range(..=high).rev() {
            let slot = match leaf.items.search(&high) {
                Ok(slot) => slot,
                Err(0) => continue,
                Err(slot) => slot - 1,
            };
            let key = leaf.items.key(slot);
            return (key >= low).then(|| (key, leaf.items.item(slot).into()));
        }
        None
    }

    /// Number of leaves.
    pub(crate) fn leaves(&self) -> usize {
        self.leaves.len()
    }

    /// Number of nodes that the next build makes.
    pub(crate) fn changed_nodes(&self) -> usize {
        let branches = self.branches.values().filter(|branch| branch.node.is_none()).count();
        self.changed + branches + usize::from(self.branches.len() > 1)
    }

    /// Sets or deletes an item.
    pub(crate) fn set(&mut self, geometry: &Geometry, key: Key, payload: Option<&[u8]>) {
        if self.leaves.is_empty() {
            self.branches.insert(Key::MIN, Branch { leaves: 0, node: None });
            self.add_leaf(geometry, Key::MIN, LeafEdit::new(geometry));
        }
        let (bound, leaf) = self.leaves.range_mut(..=key).next_back().expect("L2: the least bound");
        let slot = leaf.items.search(&key).ok();
        if slot.map(|slot| leaf.items.item(slot)) == payload {
            return;
        }
        let len = payload.map_or(0, <[u8]>::len);
        assert!(len <= geometry.item_max(), "an item of {len} bytes fits no leaf");
        let bound = *bound;
        let done = match payload {
            Some(payload) => leaf.items.set(&key, payload),
            None => leaf.items.remove(&key),
        };
        let emptied = leaf.items.is_empty();
        if let Some((_, at)) = leaf.at.take() {
            self.replaced.push(at);
            self.changed += 1;
            self.invalidate_branch(&bound);
        }
        match payload {
            Some(payload) => {
                if !done {
                    self.split(geometry, bound, &key);
                    self.set(geometry, key, Some(payload));
                }
            }
            None => {
                if emptied && self.leaves.len() > 1 {
                    self.remove_leaf(bound);
                }
            }
        }
    }

    /// Removes the address of the branch of a leaf (L3).
    fn invalidate_branch(&mut self, bound: &Key) -> (Key, &mut Branch) {
        let found = self.branches.range_mut(..=*bound).next_back();
        let (start, branch) = found.expect("L3: the least bound");
        // With a single leaf, the node of the branch is that leaf.
        self.replaced
            .extend(branch.node.take().filter(|(_, n)| n.level > 0).map(|(_, n)| n.logical));
        (*start, branch)
    }

    fn add_leaf(&mut self, geometry: &Geometry, bound: Key, items: LeafEdit) {
        self.leaves.insert(bound, Leaf { items, at: None });
        self.changed += 1;
        let (start, branch) = self.invalidate_branch(&bound);
        branch.leaves += 1;
        if branch.leaves <= geometry.ptrs_max() {
            return;
        }
        let all = branch.leaves;
        let inside: Vec<Key> = self.leaves.range(start..).take(all).map(|(at, _)| *at).collect();
        // If keys are put in ascending order, the new leaf is the last one. It then begins a branch
        // of its own, and the old branch stays full.
        let kept = if inside.last() == Some(&bound) { all - 1 } else { all / 2 };
        let middle = inside[kept];
        self.invalidate_branch(&start).1.leaves = kept;
        self.branches.insert(middle, Branch { leaves: all - kept, node: None });
    }

    /// Makes room for a key in a full leaf.
    fn split(&mut self, geometry: &Geometry, bound: Key, key: &Key) {
        let leaf = self.leaves.get_mut(&bound).expect("L2: a bound that was found");
        let Err(slot) = leaf.items.search(key) else {
            // The item became longer, so it is removed first and then inserted as a new one.
            leaf.items.remove(key);
            if leaf.items.is_empty() {
                return;
            }
            return self.split(geometry, bound, key);
        };
        let fresh = if slot == leaf.items.len() {
            // If keys are put in ascending order, the new key begins a leaf of its own, and the old
            // leaf stays full.
            (*key, LeafEdit::new(geometry))
        } else if leaf.items.len() > 1 {
            let half = leaf.items.split(geometry);
            (half.key(0), half)
        } else {
            let alone = std::mem::replace(&mut leaf.items, LeafEdit::new(geometry));
            (alone.key(0), alone)
        };
        self.add_leaf(geometry, fresh.0, fresh.1);
    }

    /// Removes a leaf, which has no address any more and is not the only one.
    fn remove_leaf(&mut self, bound: Key) {
        self.leaves.remove(&bound);
        self.changed -= 1;
        self.shrank = true;
        self.remove_from_branch(&bound);
        if bound == Key::MIN
            && let Some((second, leaf)) = self.leaves.pop_first()
        {
            self.remove_from_branch(&second);
            self.invalidate_branch(&Key::MIN).1.leaves += 1;
            self.leaves.insert(Key::MIN, leaf);
        }
        if self.branches.len() == 1 {
            // The node of this branch may now be the single leaf.
            self.invalidate_branch(&Key::MIN);
        }
    }

    /// Removes a leaf from its branch.
    fn remove_from_branch(&mut self, bound: &Key) {
        let (start, branch) = self.invalidate_branch(bound);
        branch.leaves -= 1;
        if branch.leaves == 0 && start != Key::MIN {
            self.branches.remove(&start);
        }
    }

    /// The root as of the last build.
    pub(crate) fn root(&self) -> Option<NodePtr> {
        self.root
    }

    /// The leaves that the last build made, to be written.
    pub(crate) fn fresh(&self) -> impl Iterator<Item = (Logical, &[u8])> {
        let leaves = self.fresh.iter().filter_map(|bound| self.leaves.get(bound));
        leaves.filter_map(|leaf| Some((leaf.at?.1, leaf.items.bytes())))
    }

    /// Leaves that are the same on disk and in memory.
    pub(crate) fn written(&self) -> impl Iterator<Item = (Logical, &[u8])> {
        self.leaves.values().filter_map(|leaf| Some((leaf.at?.1, leaf.items.bytes())))
    }

    /// Gives addresses to changed nodes (L1), and seals them.
    pub(crate) fn build(&mut self, build: &mut Build<'_>) -> Result<()> {
        self.fresh.clear();
        if std::mem::take(&mut self.changed) == 0 && !std::mem::take(&mut self.shrank) {
            return Ok(());
        }
        self.shrank = false;
        build.dropped.append(&mut self.replaced);
        let alone = self.leaves.len() == 1;
        let mut level: Vec<(Key, NodePtr)> = Vec::with_capacity(self.branches.len());
        for (bound, branch) in &mut self.branches {
            let node = match branch.node {
                Some(node) => node,
                None => {
                    let leaves = self.leaves.range_mut(bound..).take(branch.leaves);
                    let children = place(leaves, build, &mut self.fresh)?;
                    if alone { children[0] } else { join(&children, build)? }
                }
            };
            branch.node = Some(node);
            level.push(node);
        }
        let max = build.geometry.ptrs_max();
        while level.len() > 1 {
            let joined: Result<Vec<_>> = level.chunks(max).map(|part| join(part, build)).collect();
            level = joined?;
            self.replaced.extend(level.iter().map(|(_, node)| node.logical));
        }
        self.root = level.first().map(|(_, root)| *root);
        Ok(())
    }
}

/// Gives addresses to the leaves that have none.
fn place<'l>(
    leaves: impl Iterator<Item = (&'l Key, &'l mut Leaf)>,
    build: &mut Build<'_>,
    fresh: &mut Vec<Key>,
) -> Result<Vec<(Key, NodePtr)>> {
    let mut children = Vec::new();
    for (bound, leaf) in leaves {
        let (first, logical) = match leaf.at {
            Some(at) => at,
            None => {
                let stamp = build.stamp()?;
                let sealed = leaf.items.seal(&build.geometry, &stamp);
                sealed.map_err(damaged(stamp.logical))?;
                fresh.push(*bound);
                let first = if leaf.items.is_empty() { *bound } else { leaf.items.key(0) };
                *leaf.at.insert((first, stamp.logical))
            }
        };
        children.push((first, NodePtr { logical, generation: build.generation, level: 0 }));
    }
    Ok(children)
}

/// Makes a node above others.
fn join(children: &[(Key, NodePtr)], build: &mut Build<'_>) -> Result<(Key, NodePtr)> {
    let mut builder = PtrBuilder::new(&build.geometry);
    for (key, child) in children {
        builder.push(key, child);
    }
    let (first, below) = children[0];
    let stamp = build.stamp()?;
    let node = builder.finish(&build.geometry, &stamp, below.level + 1);
    Ok((first, build.add(node)?))
}

#[cfg(test)]
mod tests {
    use buttress_base::Rng;
    use buttress_format::{CsumType, Kind};
    use buttress_tree::Expect;

    use super::*;

    const GEOMETRY: Geometry = Geometry {
        nodesize: 4096,
        sectorsize: 4096,
        csum: CsumType::Crc32c,
        fsid: [1; 16],
        seeds: buttress_volume::SeedIds::NONE,
        chunk_tree_uuid: [2; 16],
    };

    type Model = BTreeMap<Key, Vec<u8>>;
    type Disk = BTreeMap<Logical, Vec<u8>>;

    fn look(disk: &Disk, at: Logical) -> Node {
        let bytes = disk.get(&at).unwrap_or_else(|| panic!("nothing is at {at}"));
        let mut buf = buttress_base::AlignedBuf::zeroed(bytes.len());
        buf.copy_from_slice(bytes);
        Node::verify(
            buf,
            &GEOMETRY,
            &Expect::root(NodePtr { logical: at, generation: Generation(5), level: bytes[100] }),
            true,
        )
        .unwrap_or_else(|why| panic!("{at}: {why}"))
    }

    /// Follows the pointers below a node; returns the items found and the addresses of the nodes.
    fn walk(
        disk: &Disk,
        ptr: NodePtr,
        first: Option<Key>,
        found: &mut Model,
        seen: &mut Vec<Logical>,
    ) {
        let node = look(disk, ptr.logical);
        assert_eq!((node.level(), node.header().generation), (ptr.level, ptr.generation));
        assert!(
            first.is_none_or(|first| first == node.key(0)),
            "a pointer has its child's first key"
        );
        seen.push(ptr.logical);
        for slot in 0..node.len() {
            if node.level() == 0 {
                found.insert(node.key(slot), node.item(slot).to_vec());
            } else {
                walk(disk, node.child(slot), Some(node.key(slot)), found, seen);
            }
        }
    }

    /// The log tree behaves like a map, and splits and shrinks as one tree. No node is written
    /// twice while it is in use. The tree on disk equals the one in memory, with up to three
    /// levels.
    #[test]
    fn is_a_map_with_nodes_that_move() {
        for seed in 0..8 {
            let mut rng = Rng::new(seed);
            let (most, steps) = if seed % 2 == 0 { (200, 60) } else { (3000, 1500) };
            let mut model = Model::new();
            let mut tree = LogTree::default();
            let mut disk = Disk::new();
            let (mut next, mut deepest, mut most_seen) = (0, 0, 0);
            for round in 0..60 {
                // Sometimes all items but one are removed.
                let clears = round % 20 == 19;
                for key in model.keys().skip(1).copied().collect::<Vec<_>>() {
                    if clears {
                        model.remove(&key);
                        tree.set(&GEOMETRY, key, None);
                    }
                }
                for _ in 0..rng.below(if clears { 2 } else { steps }) {
                    let key = Key::new(rng.below(9), Kind::EXTENT_DATA, rng.below(most));
                    let long = if rng.below(30) == 0 { 3800 } else { 90 };
                    let payload = vec![rng.below(256) as u8; rng.below(long) as usize];
                    let gone = rng.below(if round % 20 < 10 { 4 } else { 2 }) == 0;
                    let payload = (!gone).then_some(payload);
                    tree.set(&GEOMETRY, key, payload.as_deref());
                    match payload {
                        Some(payload) => model.insert(key, payload),
                        None => model.remove(&key),
                    };
                    assert_eq!(tree.get(&key), model.get(&key).map(Vec::as_slice));
                }
                let low = Key::new(rng.below(9), Kind::EXTENT_DATA, rng.below(most));
                let high =
                    Key::new(low.objectid + rng.below(2), Kind::EXTENT_DATA, rng.below(most));
                let high = high.max(low);
                let expected: Vec<(Key, Payload)> =
                    model.range(low..=high).map(|(k, v)| (*k, v.as_slice().into())).collect();
                assert_eq!(tree.range(low, high), expected, "seed {seed}");
                assert_eq!(tree.last_in(low, high), expected.last().cloned(), "seed {seed}");
                let expected = tree.changed_nodes();
                let mut allocate = || {
                    next += 4096;
                    Ok(Logical(next))
                };
                let mut build = Build {
                    geometry: GEOMETRY,
                    generation: Generation(5),
                    allocate: &mut allocate,
                    nodes: Vec::new(),
                    dropped: Vec::new(),
                };
                tree.build(&mut build).expect("a log");
                for at in &build.dropped {
                    assert!(disk.remove(at).is_some(), "seed {seed}: {at} was not there");
                }
                let inner = build.nodes.iter().map(|node| (node.logical(), node.bytes()));
                let made: Vec<_> = inner.chain(tree.fresh()).collect();
                assert!(made.len() <= expected, "seed {seed}: {} of {expected} nodes", made.len());
                for (at, bytes) in made {
                    assert!(
                        disk.insert(at, bytes.to_vec()).is_none(),
                        "seed {seed}: {at} is in use"
                    );
                }
                let Some(root) = tree.root() else { continue };
                let (mut found, mut seen) = (Model::new(), Vec::new());
                walk(&disk, root, None, &mut found, &mut seen);
                assert_eq!(found, model, "seed {seed}, round {round}");
                seen.sort_unstable();
                assert_eq!(
                    seen,
                    disk.keys().copied().collect::<Vec<_>>(),
                    "seed {seed}: left behind"
                );
                deepest = deepest.max(root.level);
                most_seen = most_seen.max(tree.leaves());
            }
            let expected = if seed % 2 == 0 { 1 } else { 2 };
            assert_eq!(deepest, expected, "seed {seed}: {most_seen} leaves");
        }
    }
}
