//! Dead subvolumes, dropped in bounded steps.
//!
//! A step cuts the front off a tree. The step frees the nodes that only this tree uses, and drops
//! the references of their entries. For a node that other trees use, the step drops only this
//! tree's reference. The remaining tree is valid. After a crash another system or a checker finds
//! nothing unusual, and the next step starts at the new root.
//!
//! # Invariants
//!
//! - **D1** A step changes no more references than its limit allows, and may end at any node of the
//!   tree. A step stops one node early, because a node is dropped or handed over as a whole. If the
//!   limit is below [`drop_min`], a step may exceed it by one node, so that each step makes
//!   progress.
//! - **D2** A node that the dead tree wrote may still be used by other trees. Such a node is handed
//!   over to the other trees before the dead tree drops its reference to the node. The node gets
//!   the flag FULL_BACKREF, so that it refers to its children or data by its own address
//!   (`commit::sharing::B2`). The nodes below are handed over in the same way, down to the leaves.
//! - **D3** If Linux began a drop, the root item has the key where the drop continues. Everything
//!   before that key is already gone.
//! - **D4** A crash may end a balance of Linux in the middle of a group. Such a balance leaves a
//!   tree for each subvolume. Each such tree shares nodes with its subvolume like a snapshot. A
//!   drop of the tree frees the nodes that the subvolume does not use. Owner and flag of each node
//!   already say which name its references carry (`commit::sharing::B1`). So nothing has to be
//!   handed over. From the first step on, the root item says that a drop has begun. So Linux does
//!   not try to merge the rest of this tree into the subvolume.

use std::collections::BTreeSet;
use std::sync::Arc;

use buttress_format::{Generation, Key, Kind, RootItem, TreeId, header::ITEM_LEN, ids};
use buttress_tree::{Cursor, Expect, Node, NodeAlloc, NodePtr, NodeSource, NodeStamp, PtrBuilder};

use super::{
    settle::{Changes, Settle},
    sharing::{NodeUse, RefName, State},
};
use crate::{Error, Result, Storage};

/// One step's work on one tree.
struct Step {
    tree: TreeId,
    /// References that may still be changed.
    budget: i64,
    /// Whether shared nodes were read, to count the nodes and data that the tree no longer reaches.
    has_followed: bool,
    /// Nodes up to this generation are older than the tree, so the tree did not write them.
    birth: Generation,
    /// The level and key at which Linux would continue the drop (D3).
    resume: Option<(u8, Key)>,
    /// Earlier steps have handed over all shared nodes before this key (D2).
    handed: Key,
}

/// References that a step changes besides the references of one node: for new nodes on the path to
/// the remaining tree, and for the root item.
const PATH_REFS: u64 = 32;
/// The fewest references that a step changes before it stops.
const PROGRESS_REFS: u64 = 64;

/// The smallest limit that a step surely keeps (D1): the references of the node with the most
/// entries, and `PROGRESS_REFS` more.
#[must_use]
pub fn drop_min(storage: &Storage) -> u32 {
    u32::try_from(refs_of_node_max(storage) + PROGRESS_REFS).unwrap_or(u32::MAX)
}

/// The most references that change when one node is dropped, or is handed over.
fn refs_of_node_max(storage: &Storage) -> u64 {
    let geometry = storage.store().geometry();
    let entries = geometry.ptrs_max().max(geometry.leaf_room() / ITEM_LEN);
    2 * entries as u64 + PATH_REFS
}

/// The number of changed references after which a step stops (D1).
fn drop_budget(storage: &Storage, may: u64) -> i64 {
    let left = may.saturating_sub(refs_of_node_max(storage));
    i64::try_from(left.max(may.min(PROGRESS_REFS))).unwrap_or(i64::MAX)
}

/// The rest of a pruned subtree: its first key and its new root. `None` if nothing is left.
type Rest = Option<(Key, NodePtr)>;

impl Settle<'_> {
    /// Drops dead subvolumes one step further. The root items change in one merge: a merge makes
    /// the root of the root tree anew, and that node grows with the number of subvolumes.
    pub(super) fn drops(&mut self) -> Result<()> {
        let wanted = self.transaction.drops.lock().clone();
        let (mut stepped, mut changes) = (BTreeSet::new(), Changes::new());
        for (tree, budget) in wanted {
            if !stepped.insert(tree) {
                // The second step of a tree reads the root item that the first step changed.
                self.merge(TreeId::ROOT, std::mem::take(&mut changes))?;
            }
            self.drop_step(tree, budget, &mut changes)?;
        }
        self.merge(TreeId::ROOT, changes)?;
        let wanted = self.transaction.leftovers.lock().clone();
        for (of, budget) in wanted {
            self.drop_leftover(of, budget)?;
        }
        Ok(())
    }

    /// Drops one more part of the tree that an interrupted balance left for the subvolume `of`
    /// (D4).
    fn drop_leftover(&mut self, of: TreeId, budget: u64) -> Result<()> {
        let tree = TreeId::TREE_RELOC;
        let key = Key::new(tree.0, Kind::ROOT_ITEM, of.0);
        let root = self.must_root(TreeId::ROOT)?;
        let found = self.reading(|source| {
            let found = Cursor::find(source, TreeId::ROOT, root, &key)?;
            Ok(found.map(|(node, slot)| RootItem::parse(node.item(slot))))
        })?;
        let malformed = |source| Error::Item { tree: TreeId::ROOT, key, source };
        let Some(item) = found.transpose().map_err(malformed)? else { return Ok(()) };
        let begun = item.refs == 0 && item.drop_progress != Key::MIN;
        let ptr = NodePtr { logical: item.bytenr, generation: item.generation, level: item.level };
        let node = self.read_node(tree, &Expect::root(ptr))?;
        if self.addresses.state(tree, &node)?.is_some_and(|state| state.full) {
            // Linux references such a root node by the node's own address. Replace this reference
            // by one that names the tree.
            self.addresses.sharing.refer(ptr.logical, ptr.level, RefName::Node(ptr.logical), -1);
            self.addresses.sharing.refer(ptr.logical, ptr.level, RefName::Tree(tree), 1);
        }
        let mut step = Step {
            tree,
            budget: drop_budget(self.owners.storage, budget),
            has_followed: false,
            birth: Generation(u64::MAX),
            resume: begun.then_some((item.drop_level, item.drop_progress)),
            handed: Key::MIN,
        };
        let rest = self.prune_root(&mut step, &Expect::root(ptr))?;
        self.addresses.node_delta.remove(&tree);
        let change = rest.map(|(_, ptr)| {
            let NodePtr { logical, generation, level } = ptr;
            let item = RootItem {
                bytenr: logical,
                generation,
                generation_v2: generation,
                level,
                refs: 0,
                drop_progress: Key::MIN,
                drop_level: 0,
                ..item
            };
            item.to_bytes().into()
        });
        self.merge(TreeId::ROOT, Changes::from([(key, change)]))
    }

    /// Drops one subvolume one step further, and adds the changes of its root item to `changes`.
    fn drop_step(&mut self, tree: TreeId, budget: u64, changes: &mut Changes) -> Result<()> {
        let (key, item) = self.root_item(tree)?;
        if item.refs > 0 {
            return Err(Error::Malformed(format!("the subvolume {tree} to be dropped is in use")));
        }
        let Some(root) = self.root_of(tree)? else { return Ok(()) };
        let begun = item.drop_progress != Key::MIN;
        if begun && let Some(trail) = &mut self.addresses.trail {
            let at = root.logical;
            trail.spoil(Error::Extents { at, what: "Linux has begun to drop this tree" });
        }
        let mut step = Step {
            tree,
            budget: drop_budget(self.owners.storage, budget),
            has_followed: false,
            birth: Generation(key.offset),
            resume: begun.then_some((item.drop_level, item.drop_progress)),
            handed: self.owners.commits.drop_mark(tree),
        };
        let rest = self.prune_root(&mut step, &Expect::root(root))?;
        match rest {
            Some((_, ptr)) => {
                self.owners.commits.set_drop_mark(tree, Some(step.handed));
                self.roots.set(tree, ptr);
                let item = RootItem { drop_progress: Key::MIN, drop_level: 0, ..item };
                changes.insert(key, Some(item.to_bytes().into()));
            }
            None => {
                self.owners.commits.set_drop_mark(tree, None);
                self.remove_tree(tree);
                self.quotas.subvolume_gone(tree);
                let orphan = Key::new(ids::ORPHAN, Kind::ORPHAN_ITEM, tree.0);
                changes.extend([(key, None), (orphan, None)]);
            }
        }
        Ok(())
    }

    fn read_node(&mut self, tree: TreeId, at: &Expect) -> Result<Arc<Node>> {
        self.reading(|nodes| Ok(nodes.node(tree, at)?))
    }

    /// Drops the front of a tree, until the step's budget is spent. Returns the rest.
    fn prune_root(&mut self, step: &mut Step, root: &Expect) -> Result<Rest> {
        let rest = self.prune(step, root)?;
        let beyond = step.budget.min(0).unsigned_abs();
        debug_assert!(
            beyond <= refs_of_node_max(self.owners.storage),
            "D1: {beyond} references more"
        );
        Ok(rest)
    }

    /// Drops the subtree under a node that only this tree uses, until the step's budget is spent.
    /// Returns the rest.
    fn prune(&mut self, step: &mut Step, at: &Expect) -> Result<Rest> {
        let node = self.read_node(step.tree, at)?;
        let from = step.first_slot(&node);
        if self.addresses.stop_using(step.tree, &node, from)? == NodeUse::Shared {
            let at = node.logical();
            return Err(Error::Extents { at, what: "a node of a dead tree has users unknown" });
        }
        self.fresh.forget(node.logical());
        step.budget -= 1;
        let name = RefName::Tree(step.tree);
        if node.level() == 0 {
            step.budget -= node.len() as i64;
            self.addresses.sharing.add_refs(&node, 0, name, -1)?;
            return Ok(None);
        }
        for slot in from..node.len() {
            let has_room = self.addresses.trail.as_ref().is_none_or(|trail| trail.has_room());
            if step.budget <= 0 || step.has_followed && !has_room {
                return self.regrow(step, &node, slot, None);
            }
            let child_at = node.expect_child_below(slot, at.below);
            let child = self.read_node(step.tree, &child_at)?;
            let state = self.addresses.state(step.tree, &child)?;
            match state {
                Some(state) if state.refs > 1 => {
                    let end = (slot + 1 < node.len()).then(|| node.key(slot + 1));
                    if !self.hand_over(step, &child, state, end)? {
                        return self.regrow(step, &node, slot, None);
                    }
                    self.follow(step, &child_at)?;
                    self.addresses.sharing.refer(child.logical(), child.level(), name, -1);
                    step.budget -= 1;
                }
                _ => {
                    if let Some(rest) = self.prune(step, &child_at)? {
                        return self.regrow(step, &node, slot + 1, Some(rest));
                    }
                }
            }
            step.resume = None;
        }
        Ok(None)
    }

    /// Records in the trail of full quotas that the dead tree no longer reaches a shared subtree.
    fn follow(&mut self, step: &mut Step, at: &Expect) -> Result<()> {
        if self.addresses.trail.is_none() || !step.tree.is_fs_tree() {
            return Ok(());
        }
        let mut waiting = vec![*at];
        while let Some(at) = waiting.pop() {
            let node = self.read_node(step.tree, &at)?;
            step.has_followed = true;
            let Some(trail) = &mut self.addresses.trail else { break };
            if !trail.lose_below(step.tree, &node) {
                break;
            }
            if node.level() > 0 {
                waiting.extend((0..node.len()).map(|slot| node.expect_child_below(slot, at.below)));
            }
        }
        Ok(())
    }

    /// Builds the node that replaces `old` in the rest: first the entry `first`, then the entries
    /// of `old` from slot `from` on.
    fn regrow(&mut self, step: &Step, old: &Node, from: usize, first: Rest) -> Result<Rest> {
        let geometry = *self.owners.storage.store().geometry();
        let mut builder = PtrBuilder::new(&geometry);
        let mut first_key = None;
        let rest = (from..old.len()).map(|slot| (old.key(slot), old.child(slot)));
        for (key, child) in first.into_iter().chain(rest) {
            builder.push(&key, &child);
            first_key.get_or_insert(key);
        }
        let Some(first_key) = first_key else { return Ok(None) };
        let logical = self.addresses.allocate(step.tree, old.level())?;
        let generation = self.transaction.generation;
        let stamp = NodeStamp { logical, generation, owner: step.tree };
        let node = builder.finish(&geometry, &stamp, old.level());
        let ptr = node.ptr();
        self.fresh.insert(Arc::new(node));
        Ok(Some((first_key, ptr)))
    }

    /// Hands over a shared node and the nodes below it, except for nodes that another tree wrote
    /// (D2). Returns false if the budget was spent first. `end` is the first key after the node.
    fn hand_over(
        &mut self,
        step: &mut Step,
        node: &Node,
        state: State,
        end: Option<Key>,
    ) -> Result<bool> {
        let done = end.is_some_and(|end| end <= step.handed);
        if done || node.owner() != step.tree || node.header().generation <= step.birth {
            return Ok(true);
        }
        if step.budget <= 0 {
            return Ok(false);
        }
        if !state.full {
            self.addresses.sharing.make_full(node)?;
            self.addresses.sharing.add_refs(node, 0, RefName::Tree(step.tree), -1)?;
            step.budget -= 2 * node.len() as i64;
        }
        if node.level() == 0 {
            if let Some(last) = node.len().checked_sub(1).map(|slot| node.key(slot)) {
                step.handed = last.next().unwrap_or(Key::MAX);
            }
            return Ok(true);
        }
        for slot in 0..node.len() {
            let end = if slot + 1 < node.len() { Some(node.key(slot + 1)) } else { end };
            let old = node.child(slot).generation <= step.birth;
            if old || end.is_some_and(|end| end <= step.handed) {
                continue;
            }
            let child = self.read_node(step.tree, &node.expect_child(slot))?;
            let state = match self.addresses.state(step.tree, &child)? {
                Some(state) => state,
                None => State { refs: 1, full: false },
            };
            if !self.hand_over(step, &child, state, end)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl Step {
    /// The first slot of a node that an earlier drop by Linux has not removed (D3).
    fn first_slot(&self, node: &Node) -> usize {
        match &self.resume {
            Some((level, key)) if node.level() >= *level && node.level() > 0 => {
                node.child_slot(key)
            }
            _ => 0,
        }
    }
}
