//! Walks trees with several threads. The order in which the threads work does not change the
//! result.
//!
//! One thread reads the inner nodes above level 1 and hands out units: a node of level 1 with its
//! leaves, or a root that is a leaf. Workers turn units into [`Span`]s; another thread joins the
//! spans in key order.
//!
//! # Invariants
//!
//! - **W1** The walk descends into a node only if the keys of the node lie within the range that
//!   its parent gives. So the walk meets each node once in a tree, and ends even if pointers are
//!   crafted.
//! - **W2** The records of a node are made only at its first visit, in whichever tree comes first.
//! - **W3** A node that was visited before is walked again only for its files, and the result is
//!   stored. Therefore a tree with many crafted roots costs little more than a tree with one root.
//! - **W4** Damage in a part of a tree ends only the walk of that part.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use buttress_base::queue::{self, Receiver, Sender};
use buttress_base::thread;
use buttress_format::header::{BACKREF_REV_MIXED, FLAG_RELOC};
use buttress_format::{Key, TreeId};
use buttress_sorter::{Sorter, Writer};
use buttress_tree::{Expect, Node, NodePtr};

use crate::context::{Context, Tree};
use crate::inode::Span;
use crate::leaf::Leaves;
use crate::memo::Memo;
use crate::record::{self, User, WORDS};
use buttress_issue::Issue;

/// The largest number of units that are handed out and not taken yet.
const UNITS_AHEAD: usize = 32;

/// Nodes of one parent that are read together.
const NODES_AT_ONCE: usize = 32;

/// The state that all threads of a walk share.
pub(crate) struct Walk<'w> {
    /// Records for the check of extents.
    pub(crate) records: &'w Sorter<WORDS>,
    pub(crate) memo: &'w Memo,
    pub(crate) counts: &'w Counts,
}

/// The size of all nodes that were met. A node counts once, even if several trees share it.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) tree_bytes: AtomicU64,
    pub(crate) fs_tree_bytes: AtomicU64,
    pub(crate) extent_tree_bytes: AtomicU64,
}

/// The state of one worker.
pub(crate) struct Worker<'w> {
    pub(crate) walk: &'w Walk<'w>,
    pub(crate) records: Writer<'w, WORDS>,
}

struct Unit<'t> {
    sequence: u64,
    index: usize,
    tree: &'t Tree,
    node: Arc<Node>,
    /// The next key in the parents. All keys of the node lie below that key.
    high: Option<Key>,
    /// The first child that still exists, in a tree that is being deleted.
    first: usize,
}

struct Done {
    sequence: u64,
    index: usize,
    span: Span,
}

/// Checks the header and the keys of a node, beyond the checks of reading the node. Returns false
/// if the walk must not descend (W1).
pub(crate) fn check_node(
    context: &Context<'_>,
    tree: &Tree,
    node: &Node,
    high: Option<&Key>,
) -> bool {
    let (id, logical, owner) = (tree.id, node.logical(), node.owner());
    let owner_fits =
        owner == id || (tree.may_share() && (owner.is_fs_tree() || owner == TreeId::DATA_RELOC));
    if !owner_fits {
        context.add(Issue::NodeOwner { tree: id, logical, found: owner });
    }
    let header = node.header();
    let (flags, revision) = (header.flags, header.backref_rev);
    // Nodes of relocation trees, and nodes that share children with these, always refer to their
    // children by address. The flag `FULL_BACKREF` of their extent items says so.
    let may_be = || tree.may_share() && context.refers_by_address(node);
    let is_odd = flags & FLAG_RELOC != 0 && !may_be();
    if is_odd || revision != BACKREF_REV_MIXED {
        context.add(Issue::NodeFlags { tree: id, logical, flags, revision });
    }
    let newest = context.superblock.generation;
    let found = node.header().generation;
    if found > newest {
        context.add(Issue::NodeGeneration { tree: id, logical, found, newest });
    }
    if let (Some(high), Some(last)) = (high, node.len().checked_sub(1))
        && node.key(last) >= *high
    {
        context.add(Issue::NodeBounds { tree: id, logical, key: node.key(last) });
        return false;
    }
    true
}

/// Returns the upper bound, exclusive, of all keys below a slot.
pub(crate) fn high_of(node: &Node, slot: usize, high: Option<Key>) -> Option<Key> {
    if slot + 1 < node.len() { Some(node.key(slot + 1)) } else { high }
}

/// Calls `visit` for every leaf of a small tree, in order, with one thread and without records.
pub(crate) fn each_leaf(context: &Context<'_>, tree: &Tree, visit: &mut dyn FnMut(&Node)) {
    let expect = Expect::root(tree.root);
    each_leaf_below(context, tree, &expect, None, visit);
}

fn each_leaf_below(
    context: &Context<'_>,
    tree: &Tree,
    expect: &Expect,
    high: Option<Key>,
    visit: &mut dyn FnMut(&Node),
) {
    let Some(node) = context.source.read(tree.id, expect) else { return };
    if !check_node(context, tree, &node, high.as_ref()) {
        return;
    }
    if node.level() == 0 {
        visit(&node);
        return;
    }
    // The depth is at most eight, because each step down must find the next lower level.
    for slot in 0..node.len() {
        let high = high_of(&node, slot, high);
        each_leaf_below(context, tree, &node.expect_child(slot), high, visit);
    }
}

impl Walk<'_> {
    /// Walks trees. Calls `joined` with the joined result of each tree.
    pub(crate) fn run<'t>(
        &self,
        context: &Context<'_>,
        trees: &'t [Tree],
        joined: &mut (dyn FnMut(&'t Tree, Span) + Send),
    ) -> io::Result<()> {
        let (units, taken) = queue::bounded::<Unit<'t>>(UNITS_AHEAD);
        let (done, results) = queue::unbounded::<Done>();
        thread::scope(|scope| {
            let workers: Vec<_> = (0..context.threads)
                .map(|_| {
                    let (taken, done) = (taken.clone(), done.clone());
                    scope.spawn(move || {
                        self.work(context, &taken, |result| {
                            // Sending fails only if the receiving thread has ended. In that case
                            // that thread reports its error.
                            let _ = done.send(result);
                        })
                    })
                })
                .collect();
            // If all workers have panicked, the feeder gets errors, and does not wait for room.
            drop((taken, done));
            let joiner = scope.spawn(move || join(context, trees, &results, joined));
            let fed = self.feed(context, trees, &units);
            drop(units);
            let mut outcome = fed;
            for worker in workers {
                outcome = outcome
                    .and(worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            }
            joiner.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            outcome
        })
    }

    fn worker(&self) -> Worker<'_> {
        Worker { walk: self, records: self.records.writer() }
    }

    /// Reads inner nodes and hands out units, tree by tree.
    fn feed<'t>(
        &self,
        context: &Context<'_>,
        trees: &'t [Tree],
        units: &Sender<Unit<'t>>,
    ) -> io::Result<()> {
        let mut feeder = Feeder { context, worker: self.worker(), units, sequence: 0 };
        for (index, tree) in trees.iter().enumerate() {
            let mark = record::met(tree.root.logical, User::Tree(tree.id), context.nodesize());
            // Linux records the root of a relocation tree with the root's own address as the
            // parent, and the item of such a root has `FULL_BACKREF`. All other roots are recorded
            // by their tree.
            let own =
                record::met(tree.root.logical, User::Node(tree.root.logical), context.nodesize());
            let is_left = tree.id == TreeId::TREE_RELOC;
            if is_left {
                context.has_leftovers.store(true, Ordering::Relaxed);
            }
            let is_own = is_left && context.is_own_parent(tree.root.logical);
            feeder.worker.records.put(if is_own { own } else { mark })?;
            match context.source.read(tree.id, &Expect::root(tree.root)) {
                Some(root) => feeder.descend(index, tree, root, None, tree.drop.is_some())?,
                None => tree.cut(),
            }
        }
        feeder.worker.records.finish();
        Ok(())
    }

    fn work<'t>(
        &self,
        context: &Context<'_>,
        units: &Receiver<Unit<'t>>,
        done: impl Fn(Done),
    ) -> io::Result<()> {
        let mut worker = self.worker();
        let mut outcome = Ok(());
        while let Some(unit) = units.recv() {
            // After a failure, the worker still takes units, so that the feeder does not wait
            // forever.
            if outcome.is_ok() {
                outcome = walk_unit(context, &mut worker, &unit).map(|span| {
                    done(Done { sequence: unit.sequence, index: unit.index, span });
                });
            }
        }
        worker.records.finish();
        outcome
    }
}

struct Feeder<'f, 'c, 't> {
    context: &'f Context<'c>,
    worker: Worker<'f>,
    units: &'f Sender<Unit<'t>>,
    sequence: u64,
}

impl<'t> Feeder<'_, '_, 't> {
    fn descend(
        &mut self,
        index: usize,
        tree: &'t Tree,
        node: Arc<Node>,
        high: Option<Key>,
        on_drop_path: bool,
    ) -> io::Result<()> {
        if !check_node(self.context, tree, &node, high.as_ref()) {
            tree.cut();
            return Ok(());
        }
        let drop = tree.drop.filter(|(_, level)| on_drop_path && node.level() >= *level);
        let first = drop.map_or(0, |(key, _)| node.child_slot(&key));
        if node.level() <= 1 {
            let sequence = self.sequence;
            self.sequence += 1;
            let unit = Unit { sequence, index, tree, node, high, first };
            // Sending fails only if all workers have panicked. The panic is passed on.
            let _ = self.units.send(unit);
            return Ok(());
        }
        let is_new = record_node(self.context, &mut self.worker, tree, &node, first)?;
        if !is_new && !tree.has_files() {
            return Ok(());
        }
        let slots: Vec<usize> = (first..node.len()).collect();
        for slots in slots.chunks(NODES_AT_ONCE) {
            let expects: Vec<_> = slots.iter().map(|&slot| node.expect_child(slot)).collect();
            let children = self.context.source.read_many(tree.id, &expects);
            for (&slot, child) in slots.iter().zip(children) {
                let high = high_of(&node, slot, high);
                let on_path = drop.is_some() && slot == first;
                match child {
                    Some(child) => self.descend(index, tree, child, high, on_path)?,
                    None => tree.cut(),
                }
            }
        }
        Ok(())
    }
}

/// Makes the records of a node at its first visit (W2): of the node itself, and of the uses of its
/// children. Returns whether this is the first visit.
pub(crate) fn record_node(
    context: &Context<'_>,
    worker: &mut Worker<'_>,
    tree: &Tree,
    node: &Node,
    first: usize,
) -> io::Result<bool> {
    let at = node.logical();
    if !context.visited_nodes.insert(at.0) {
        if !tree.may_share() {
            context.add(Issue::NodeShared { tree: tree.id, logical: at });
        }
        return Ok(false);
    }
    let counts = worker.walk.counts;
    counts.tree_bytes.fetch_add(context.nodesize(), Ordering::Relaxed);
    // btrfs-progs count the tree for moved data with those of subvolumes.
    if tree.id.is_fs_tree() || tree.id == TreeId::DATA_RELOC {
        counts.fs_tree_bytes.fetch_add(context.nodesize(), Ordering::Relaxed);
    }
    if tree.id == TreeId::EXTENT {
        counts.extent_tree_bytes.fetch_add(context.nodesize(), Ordering::Relaxed);
    }
    context.progress.advance(context.nodesize());
    if let Some(owned) = context.owned.get() {
        owned.add(node.owner(), node.header().generation, context.nodesize());
    }
    let by_address = tree.may_share() && context.refers_by_address(node);
    worker.records.put(record::node(node, by_address))?;
    if node.level() > 0 {
        let user = if by_address { User::Node(at) } else { User::Tree(node.owner()) };
        for slot in first..node.len() {
            let child = node.child(slot).logical;
            worker.records.put(record::met(child, user, context.nodesize()))?;
        }
    }
    Ok(true)
}

fn walk_unit(context: &Context<'_>, worker: &mut Worker<'_>, unit: &Unit<'_>) -> io::Result<Span> {
    let Unit { tree, node, high, first, .. } = unit;
    let mut leaves = Leaves::new(context, tree);
    let is_new = record_node(context, worker, tree, node, *first)?;
    if !is_new && !tree.has_files() {
        return Ok(Span::default());
    }
    if node.level() == 0 {
        return leaves.leaf(&mut worker.records, node, is_new);
    }
    let memo = worker.walk.memo;
    let remembers = tree.has_files() && *first == 0;
    if remembers
        && !is_new
        && let Some(span) = memo.find(&node.ptr())
    {
        return Ok(span);
    }
    let mut whole = Span::default();
    let mut is_whole = true;
    let slots: Vec<usize> = (*first..node.len()).collect();
    for slots in slots.chunks(NODES_AT_ONCE) {
        let parts = slots.iter().map(|&slot| {
            let (expect, high) = (node.expect_child(slot), high_of(node, slot, *high));
            (expect, high, remembered(context, worker, tree, &expect, high))
        });
        let parts: Vec<_> = parts.collect();
        let unread = parts.iter().filter(|(.., span)| span.is_none());
        let unread: Vec<_> = unread.map(|(expect, ..)| *expect).collect();
        let mut read = context.source.read_many(tree.id, &unread).into_iter();
        for (expect, high, span) in parts {
            let span = match span {
                Some(span) => {
                    leaves.forget();
                    Some(span)
                }
                None => match read.next().flatten() {
                    Some(leaf) => walk_leaf(context, worker, &mut leaves, &expect, &leaf, high)?,
                    None => None,
                },
            };
            match span {
                Some(span) => whole.append(span, &mut leaves.checker),
                None => is_whole = false,
            }
        }
    }
    if !is_whole {
        tree.cut();
    }
    if is_whole && remembers && (!is_new || context.shared.contains(node.logical().0)) {
        memo.keep(node.ptr(), &whole);
    }
    Ok(whole)
}

/// Whether the result of a leaf is remembered: the leaf was met before, or will be met again.
fn is_remembered(context: &Context<'_>, tree: &Tree, ptr: &NodePtr) -> bool {
    let at = ptr.logical;
    tree.has_files() && (context.shared.contains(at.0) || context.visited_nodes.contains(at.0))
}

/// The result of a leaf that was walked before (W3).
fn remembered(
    context: &Context<'_>,
    worker: &Worker<'_>,
    tree: &Tree,
    expect: &Expect,
    high: Option<Key>,
) -> Option<Span> {
    if !is_remembered(context, tree, &expect.ptr) {
        return None;
    }
    let span = worker.walk.memo.find(&expect.ptr)?;
    let is_below = high.is_none_or(|high| span.last_key().is_none_or(|last| last < high));
    (span.first_key() == expect.first_key && is_below).then_some(span)
}

fn walk_leaf(
    context: &Context<'_>,
    worker: &mut Worker<'_>,
    leaves: &mut Leaves<'_, '_>,
    expect: &Expect,
    node: &Arc<Node>,
    high: Option<Key>,
) -> io::Result<Option<Span>> {
    let tree = leaves.tree;
    let remembers = is_remembered(context, tree, &expect.ptr);
    if !check_node(context, tree, node, high.as_ref()) {
        return Ok(None);
    }
    let is_new = record_node(context, worker, tree, node, 0)?;
    if !is_new && !tree.has_files() {
        return Ok(Some(Span::default()));
    }
    let span = leaves.leaf(&mut worker.records, node, is_new)?;
    if remembers {
        worker.walk.memo.keep(expect.ptr, &span);
    }
    Ok(Some(span))
}

/// Joins spans in the order of their units.
fn join<'t>(
    context: &Context<'_>,
    trees: &'t [Tree],
    results: &Receiver<Done>,
    joined: &mut (dyn FnMut(&'t Tree, Span) + Send),
) {
    let mut early: BTreeMap<u64, Done> = BTreeMap::new();
    let mut next = 0;
    let mut current: Option<(usize, Leaves<'_, '_>, Span)> = None;
    while let Some(done) = results.recv() {
        early.insert(done.sequence, done);
        while let Some(Done { index, span, .. }) = early.remove(&next) {
            next += 1;
            match &mut current {
                Some((at, leaves, whole)) if *at == index => {
                    whole.append(span, &mut leaves.checker);
                }
                _ => {
                    if let Some((at, _, whole)) = current.take() {
                        joined(&trees[at], whole);
                    }
                    current = Some((index, Leaves::new(context, &trees[index]), span));
                }
            }
        }
    }
    if let Some((at, _, whole)) = current {
        joined(&trees[at], whole);
    }
}
