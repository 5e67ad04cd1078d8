//! A walk over trees of files that share nodes, which joins what reaches each node and extent.
//!
//! # Invariants
//!
//! - **JW1** Each node is read once, however many trees share it: the nodes of a level are read
//!   after all higher levels. At that moment everything that reaches each of these nodes is known.
//! - **JW2** The memory is bounded. If there are too many nodes, extents and sets, or a node cannot
//!   be read, the walk ends without a result.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

use buttress_base::sets::{Number, Sets};
use buttress_format::{Body, FileExtent, Kind, Logical, TreeId};
use buttress_tree::{Expect, Node};

use crate::context::{Context, Tree};

/// Why the users of extents are not known (JW2).
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

/// What a walk is for. The members of its sets are of the kind `M`.
pub(crate) trait Reached<M> {
    fn sets(&mut self) -> &mut Sets<M>;

    /// The member that a tree gives to its root.
    fn root(&self, tree: TreeId) -> M;

    /// Notes a node with the set that reaches it. Returns the set that reaches what is below it.
    fn node(&mut self, node: &Node, set: Number) -> Number;

    /// How many entries of its own it keeps.
    fn entries(&self) -> usize;
}

/// The data extents that the trees reach: the length of each, and the set that reaches it.
pub(crate) type Extents = HashMap<Logical, (u64, Number)>;

/// Walks over the trees (JW1).
pub(crate) fn walk<M: Clone + Ord + Hash>(
    context: &Context<'_>,
    trees: &[&Tree],
    reached: &mut impl Reached<M>,
) -> Result<Extents, Unknown> {
    let most = context.sort_bytes();
    let mut levels: Vec<BTreeMap<Logical, (Expect, Number)>> = Vec::new();
    levels.resize_with(1 + usize::from(u8::MAX), BTreeMap::new);
    for tree in trees {
        let root = reached.root(tree.id);
        let sets = reached.sets();
        let set = sets.one(root);
        let level = &mut levels[usize::from(tree.root.level)];
        let there = level.entry(tree.root.logical).or_insert((Expect::root(tree.root), set));
        there.1 = sets.join(there.1, set);
    }
    let mut data = Extents::new();
    for level in (0..levels.len()).rev() {
        for (expect, set) in std::mem::take(&mut levels[level]).into_values() {
            let node = context.source.read(TreeId::FS, &expect).ok_or(Unknown::Damaged)?;
            let set = reached.node(&node, set);
            let sets = reached.sets();
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
            let entries = data.len() + below + reached.entries();
            if reached.sets().bytes(entries) > most {
                return Err(Unknown::TooMany);
            }
        }
    }
    Ok(data)
}

/// The trees of files, if all of them can be read as a whole.
pub(crate) fn whole_trees(trees: &[Tree]) -> Result<Vec<&Tree>, Unknown> {
    let trees: Vec<&Tree> = trees.iter().filter(|tree| tree.id.is_fs_tree()).collect();
    if trees.iter().any(|tree| tree.drop.is_some()) {
        return Err(Unknown::Deleting);
    }
    if trees.iter().any(|tree| tree.is_cut()) { Err(Unknown::Damaged) } else { Ok(trees) }
}

/// Calls `each` with the address and length of every data extent that a leaf refers to.
fn extents(leaf: &Node, each: &mut dyn FnMut(Logical, u64)) -> Result<(), Unknown> {
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
