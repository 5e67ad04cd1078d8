//! The nodes and data extents that subvolumes gain and lose in a commit, for full quotas.
//!
//! A commit makes a trail only while the counts of full quotas are right. The trees that change
//! report every node that they stop using. New nodes are found among the fresh nodes. The leaves
//! among the lost and new nodes show the references to data that were lost and gained. A step of
//! the trail says how many bytes moved from one set of subvolumes to another, or that a snapshot
//! was cut.
//!
//! # Invariants
//!
//! - **T1** A subvolume reaches a node that it made, or that it reached in the last commit, unless
//!   it reports the node lost. The same holds for a data extent, by the number of references.
//! - **T2** A cut adds the copy to each set that contains the source, except for the set of the
//!   source's root node. All changes that are noted before the first cut are summed before that
//!   cut.
//! - **T3** A node of this transaction that belongs to one tree alone changes in place, without a
//!   report. The trail keeps such nodes, and finds the change when it sums.
//! - **T4** A change that cannot be followed exactly spoils the trail. The commit then marks the
//!   counts as inconsistent.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use buttress_base::sets::{Number as Set, Sets};
use buttress_format::{Extent, Key, Logical, TreeId};
use buttress_tree::{Fresh, Node};

use super::reach::{Counts, LOOKS_MAX, Reachers, data_in};
use crate::{Error, Result};

/// The most references to data that a trail keeps until they are summed: some 48 MiB (T4).
const REFS_MAX: usize = 1 << 20;

/// One step of a trail.
pub(super) enum Step {
    /// Bytes that the first set reached before, and the second set reaches now.
    Moved(BTreeMap<(Set, Set), i64>),
    /// A snapshot of a subvolume was made.
    Cut { source: TreeId, target: TreeId },
}

/// How the trees that reach a node are found.
#[derive(Clone, Copy)]
enum Basis {
    /// The node is committed, and only the tree that lost the node reached it.
    Alone,
    /// The node is committed, at this address.
    Committed(Logical),
    /// This transaction made the node for one tree.
    Made(TreeId),
}

/// A node that a tree stopped using.
struct Lost {
    tree: TreeId,
    at: Logical,
    level: u8,
    key: Key,
    basis: Basis,
}

/// A reference to data that a tree gained or lost.
struct Ref {
    extent: Extent,
    tree: TreeId,
    /// 1 or -1.
    delta: i64,
    /// Whether only `tree` reaches the leaf with the lost reference.
    alone: bool,
}

pub(super) struct Trail<'e> {
    reach: Reachers<'e>,
    /// The reason why the trail is spoiled (T4).
    spoiled: Option<Error>,
    lost: Vec<Lost>,
    refs: Vec<Ref>,
    /// Nodes of this transaction that were summed already, or that are copies of committed nodes.
    known: HashMap<Logical, Arc<Node>>,
    /// Nodes in `known` that a tree reported lost.
    reported: HashSet<Logical>,
    /// The committed addresses of nodes and data that a balance moved, by their new addresses.
    moved_nodes: HashMap<Logical, Logical>,
    moved_data: HashMap<Logical, Logical>,
    cuts: Vec<(TreeId, TreeId)>,
    /// Root nodes that a cut did not share (T2).
    roots: HashMap<Logical, TreeId>,
    /// After the first sum: the trees that reach each node, and the references to each extent.
    nodes_then: HashMap<Logical, Set>,
    data_then: HashMap<Logical, Counts>,
    /// Changes of references before the first sum, for extents that were not looked up.
    drift: HashMap<Logical, Counts>,
    steps: Vec<Step>,
}

fn wrong<T>(at: Logical) -> Result<T> {
    Err(Error::Extents { at, what: "a subvolume loses what it did not reach" })
}

impl<'e> Trail<'e> {
    pub(super) fn new(reach: Reachers<'e>) -> Self {
        Self {
            reach,
            spoiled: None,
            lost: Vec::new(),
            refs: Vec::new(),
            known: HashMap::new(),
            reported: HashSet::new(),
            moved_nodes: HashMap::new(),
            moved_data: HashMap::new(),
            cuts: Vec::new(),
            roots: HashMap::new(),
            nodes_then: HashMap::new(),
            data_then: HashMap::new(),
            drift: HashMap::new(),
            steps: Vec::new(),
        }
    }

    /// Gives the trail up (T4).
    pub(super) fn spoil(&mut self, why: Error) {
        self.spoiled.get_or_insert(why);
        (self.lost, self.refs) = Default::default();
    }

    fn guard(&mut self, act: impl FnOnce(&mut Self) -> Result<()>) {
        if self.spoiled.is_none()
            && let Err(error) = act(self)
        {
            self.spoil(error);
        }
    }

    /// Notes that a tree stops using a node. Each node below is noted separately. `born` says
    /// whether this transaction made the node.
    pub(super) fn lose(&mut self, tree: TreeId, node: &Node, born: bool) {
        let at = node.logical();
        if born && !self.known.contains_key(&at) {
            // The node was never summed.
            return;
        }
        self.guard(|trail| {
            let basis = if trail.known.contains_key(&at) {
                trail.reported.insert(at);
                match trail.moved_nodes.get(&at) {
                    Some(old) => Basis::Committed(*old),
                    None => Basis::Made(node.owner()),
                }
            } else if trail.reach.is_alone(tree, node)? {
                Basis::Alone
            } else {
                Basis::Committed(at)
            };
            let key = if node.is_empty() { Key::MIN } else { node.key(0) };
            trail.lost.push(Lost { tree, at, level: node.level(), key, basis });
            trail.refer(tree, node, -1, matches!(basis, Basis::Alone))
        });
    }

    /// Notes that a tree stops using a node below a shared node. Unlike [`Self::lose`], the caller
    /// may read many such nodes. Returns whether to go on.
    pub(super) fn lose_below(&mut self, tree: TreeId, node: &Node) -> bool {
        self.guard(|trail| trail.reach.look(node.logical()));
        self.lose(tree, node, false);
        self.spoiled.is_none()
    }

    /// Whether a drop may read more shared nodes in this commit. The lost nodes and references must
    /// be summed within the looks of a commit (`commit::reach::R4`). A spoiled trail sets no limit.
    pub(super) fn has_room(&self) -> bool {
        // A lost node costs one look. A reference costs three looks: the extent, the extent's user
        // and the user's leaf.
        let wanted = self.lost.len() as u64 + 3 * self.refs.len() as u64;
        self.spoiled.is_some() || self.reach.looks() + wanted <= LOOKS_MAX / 2
    }

    fn refer(&mut self, tree: TreeId, node: &Node, delta: i64, alone: bool) -> Result<()> {
        if node.level() > 0 {
            return Ok(());
        }
        for extent in data_in(node) {
            self.refs.push(Ref { extent: extent?, tree, delta, alone });
        }
        if self.refs.len() > REFS_MAX {
            let what = "counting quotas would keep too many references";
            return Err(Error::Extents { at: node.logical(), what });
        }
        Ok(())
    }

    /// Notes the copy of a node that a balance moves with all its users.
    pub(super) fn moved_node(&mut self, old: Logical, copy: Arc<Node>) {
        self.moved_nodes.insert(copy.logical(), old);
        self.known.insert(copy.logical(), copy);
    }

    /// Notes that a balance moved an extent with all its users.
    pub(super) fn moved_data(&mut self, old: Logical, new: Logical) {
        self.moved_data.insert(new, old);
    }

    /// Notes the cut of a snapshot. `root` is the root node of the source, `copy` is the root node
    /// of the target.
    pub(super) fn cut(&mut self, source: TreeId, target: TreeId, root: Logical, copy: Arc<Node>) {
        self.cuts.push((source, target));
        self.roots.insert(root, source);
        self.roots.insert(copy.logical(), target);
        self.known.insert(copy.logical(), copy);
        self.steps.push(Step::Cut { source, target });
    }

    /// Sums the noted changes. `has_born` says whether this transaction allocated an extent. With
    /// `goes_on`, more changes will be noted.
    pub(super) fn sum(
        &mut self,
        fresh: &Fresh,
        nodesize: u64,
        has_born: &dyn Fn(Logical) -> bool,
        goes_on: bool,
    ) {
        self.guard(|trail| {
            let mut moved = BTreeMap::new();
            let none = trail.reach.sets.number(BTreeSet::new());
            trail.sum_fresh(fresh, nodesize, none, goes_on, &mut moved)?;
            trail.sum_lost(nodesize, none, goes_on, &mut moved)?;
            trail.sum_data(has_born, none, goes_on, &mut moved)?;
            moved.retain(|(old, new), bytes| old != new && *bytes != 0);
            trail.steps.push(Step::Moved(moved));
            Ok(())
        });
    }

    /// Finds new nodes, and nodes that changed in place (T3).
    fn sum_fresh(
        &mut self,
        fresh: &Fresh,
        nodesize: u64,
        none: Set,
        goes_on: bool,
        moved: &mut BTreeMap<(Set, Set), i64>,
    ) -> Result<()> {
        let stays = |at: &Logical, node: &Arc<Node>| {
            fresh.get(*at).is_some_and(|now| Arc::ptr_eq(now, node))
        };
        let changed: Vec<_> = self.known.extract_if(|at, node| !stays(at, node)).collect();
        for (at, node) in changed {
            if self.reported.remove(&at) {
                continue;
            }
            let set = self.reach.sets.one(node.owner());
            *moved.entry((set, none)).or_default() += nodesize as i64;
            self.refer(node.owner(), &node, -1, false)?;
        }
        for node in fresh.nodes().filter(|node| node.owner().is_fs_tree()) {
            if self.known.contains_key(&node.logical()) {
                continue;
            }
            let set = self.reach.sets.one(node.owner());
            *moved.entry((none, set)).or_default() += nodesize as i64;
            self.refer(node.owner(), node, 1, false)?;
            if goes_on {
                self.known.insert(node.logical(), Arc::clone(node));
            }
        }
        Ok(())
    }

    /// The set after all cuts (T2).
    fn after_cuts(&mut self, set: Set) -> Set {
        let mut set = set;
        for (source, target) in &self.cuts {
            if self.reach.sets.members(set).contains(source) {
                let target = self.reach.sets.one(*target);
                set = self.reach.sets.join(set, target);
            }
        }
        set
    }

    fn sum_lost(
        &mut self,
        nodesize: u64,
        none: Set,
        goes_on: bool,
        moved: &mut BTreeMap<(Set, Set), i64>,
    ) -> Result<()> {
        let mut lost = std::mem::take(&mut self.lost);
        lost.sort_unstable_by_key(|lost| (lost.at, lost.tree));
        for lost in lost.chunk_by(|a, b| a.at == b.at) {
            let Lost { tree, at, level, key, basis } = lost[0];
            let before = match (self.nodes_then.get(&at), basis) {
                (Some(then), _) => *then,
                (None, Basis::Alone) => self.reach.sets.one(tree),
                (None, Basis::Made(tree)) => self.reach.sets.one(tree),
                (None, Basis::Committed(old)) => self.reach.node(old, level, &key)?,
            };
            let before = match self.roots.get(&at) {
                Some(tree) => self.reach.sets.one(*tree),
                None => self.after_cuts(before),
            };
            let mut left = BTreeSet::clone(self.reach.sets.members(before));
            for Lost { tree, .. } in lost {
                if !left.remove(tree) {
                    return wrong(at);
                }
            }
            let after = if left.is_empty() { none } else { self.reach.sets.number(left) };
            *moved.entry((before, after)).or_default() += nodesize as i64;
            if goes_on {
                self.nodes_then.insert(at, after);
            }
        }
        Ok(())
    }

    fn sum_data(
        &mut self,
        has_born: &dyn Fn(Logical) -> bool,
        none: Set,
        goes_on: bool,
        moved: &mut BTreeMap<(Set, Set), i64>,
    ) -> Result<()> {
        let mut refs = std::mem::take(&mut self.refs);
        refs.sort_unstable_by_key(|one| (one.extent.start, one.tree));
        for refs in refs.chunk_by(|a, b| a.extent.start == b.extent.start) {
            let extent = refs[0].extent;
            if refs.iter().any(|one| one.extent != extent) {
                let what = "two leaves disagree about its length";
                return Err(Error::Extents { at: extent.start, what });
            }
            let mut change = Change::default();
            for refs in refs.chunk_by(|a, b| a.tree == b.tree) {
                change.add(refs);
            }
            if change.deltas.is_empty() {
                continue;
            }
            let before = match change.may_matter() {
                true => self.before(extent, &change, has_born)?,
                false => None,
            };
            let Some(before) = before else {
                if goes_on {
                    self.drift.insert(extent.start, change.deltas);
                }
                continue;
            };
            let mut after = before.clone();
            for (tree, delta) in &change.deltas {
                *after.entry(*tree).or_default() += delta;
            }
            if after.values().any(|count| *count < 0) {
                return wrong(extent.start);
            }
            after.retain(|_, count| *count > 0);
            let set = |sets: &mut Sets<TreeId>, counts: &Counts| match counts.is_empty() {
                true => none,
                false => sets.number(counts.keys().copied().collect()),
            };
            let sets = &mut self.reach.sets;
            let pair = (set(sets, &before), set(sets, &after));
            let len = i64::try_from(extent.len).unwrap_or(i64::MAX);
            let sum = moved.entry(pair).or_default();
            *sum = sum.saturating_add(len);
            if goes_on {
                self.data_then.insert(extent.start, after);
            }
        }
        Ok(())
    }

    /// The references to an extent before a change. `None` if the change makes no difference to the
    /// subvolumes that reach it.
    fn before(
        &mut self,
        extent: Extent,
        change: &Change,
        has_born: &dyn Fn(Logical) -> bool,
    ) -> Result<Option<Counts>> {
        let at = extent.start;
        let mut counts = if let Some(then) = self.data_then.get(&at) {
            then.clone()
        } else {
            let old = self.moved_data.get(&at).copied();
            let mut counts = if old.is_none() && has_born(at) {
                Counts::new()
            } else {
                let extent = Extent { start: old.unwrap_or(at), len: extent.len };
                let users = self.reach.users(extent)?;
                let total: i64 = users.iter().map(|(_, count)| count).sum();
                match change.alone {
                    // All references were in leaves that only this tree reaches.
                    Some(tree) if self.cuts.is_empty() && -change.lost == total => {
                        Counts::from([(tree, total)])
                    }
                    _ if self.cuts.is_empty() && change.is_known(&users) => return Ok(None),
                    _ => self.reach.data(extent, &users)?,
                }
            };
            for (tree, delta) in self.drift.get(&at).into_iter().flatten() {
                *counts.entry(*tree).or_default() += delta;
            }
            counts
        };
        for (source, target) in &self.cuts {
            if let Some(count) = counts.get(source).copied() {
                counts.insert(*target, count);
            }
        }
        counts.retain(|_, count| *count != 0);
        Ok(Some(counts))
    }

    /// Ends the trail. Returns its steps and the sets that the steps name; `None` if the trail is
    /// spoiled.
    pub(super) fn end(self) -> Option<(Vec<Step>, Sets<TreeId>)> {
        if let Some(error) = self.spoiled {
            tracing::info!(%error, "this commit does not count quotas");
            return None;
        }
        Some((self.steps, self.reach.sets))
    }
}

/// The change of the references to one extent.
#[derive(Default)]
struct Change {
    deltas: Counts,
    /// The sum of the lost references, negative.
    lost: i64,
    /// The only tree that changes references, if it only loses references, all in leaves that no
    /// other tree reaches.
    alone: Option<TreeId>,
    trees: u32,
    /// Whether a tree lost references and gained none.
    loses: bool,
    /// Trees that gained references and lost none.
    gains: Vec<TreeId>,
}

impl Change {
    /// Adds the changes of one tree.
    fn add(&mut self, refs: &[Ref]) {
        let tree = refs[0].tree;
        let sum: i64 = refs.iter().map(|one| one.delta).sum();
        let lost: i64 = refs.iter().map(|one| one.delta.min(0)).sum();
        self.trees += 1;
        self.lost += lost;
        let only_own = sum == lost && refs.iter().all(|one| one.alone);
        self.alone = (self.trees == 1 && only_own).then_some(tree);
        self.loses |= lost < 0 && sum == lost;
        if lost == 0 {
            self.gains.push(tree);
        }
        if sum != 0 {
            self.deltas.insert(tree, sum);
        }
    }

    /// Whether a tree may begin or cease to reach the extent.
    fn may_matter(&self) -> bool {
        self.loses || !self.gains.is_empty()
    }

    /// Whether the users of the extent show that each tree with new references had a reference
    /// before.
    fn is_known(&self, users: &[(crate::delayed_ref::User, i64)]) -> bool {
        use crate::delayed_ref::User;
        let has = |tree: &TreeId| {
            users.iter().any(|(user, _)| matches!(user, User::File(file) if file.root == *tree))
        };
        !self.loses && self.gains.iter().all(has)
    }
}
