//! Counts the nodes that a commit makes, where the crude bound of `reserve` no longer fits.
//!
//! The changed items are held against the trees as they were committed, leaf by leaf, with the weights that
//! leaves have; of trees that the commit alone changes every leaf counts. What came since is promised path by path, as
//! ever, until somebody counts again, and then only what is new is looked at.
//!
//! # Invariants
//!
//! The commit makes no more nodes than were counted, and what `reserve` adds for bytes. For:
//!
//! - **N1** A merge makes of a run of dirty leaves as few leaves as it can (M6 of the merge), so no more than each of
//!   them would become alone. A leaf of weight `w` becomes one while `w` fits, no more than `2w/room + 1` ever (two
//!   neighbours are more than one leaf together), and no more than `w/(room - b) + 1` where no item is
//!   over `b` (each but the last is that full).
//! - **N2** A leaf under a quarter takes in its neighbour (M5): one leaf more, as the two may become two.
//! - **N3** Of inner nodes a run of `d` with `n` new children makes `d + n/max + 1`, and takes in a neighbour: three for
//!   each that is dirty, and the share of what is below.
//! - **N4** The extent tree: all leaves are made anew, full, and packed again with what comes to it. A run of `d` dirty leaves
//!   to which `a` bytes come makes no more than `(d * room + a)/(room - b) + 1` (N1), and between two runs lies a leaf
//!   that is not dirty, so that the one more of each run is no more than if that leaf were dirty, too. What goes makes no
//!   room, and a neighbour that is taken in is one more dirty leaf. Leaves that record metadata may be changed in every
//!   round, where other runs are dirty: each counts twice more.
//! - **N5** The free-space tree: the same, where what comes is no more than its groups can say, as each changes its form
//!   before it has more to say. A leaf of another tree that the commit changes becomes three at most, but for the
//!   bytes of checksums, which are added twice.
//! - **N6** What is counted while a commit is under way is held against the trees before it. Each node that it makes may be
//!   dirty afterwards, and run over: two more for each, beside what the leaf that it replaces was counted as, which makes
//!   three. Where it made several of one leaf, and each of them had items so heavy that it became three, the
//!   global reserve is what stands behind the rest.
//! - **N7** What is not known is not counted, and the crude bound holds: nodes that snapshots share, whose data
//!   references change with them; snapshots, drops, devices, a free-space tree made anew; trees that are new; an extent tree too
//!   large to be looked at.
//!
//! # Locks
//!
//! Who counts holds a lock that only others who would count wait for, and reads nodes with it. Nothing waits for
//! him with a handle in hand.

mod whole;

use std::{
    collections::{HashMap, HashSet},
    sync::atomic::{AtomicBool, Ordering},
};

use buttress_base::sync::Mutex;
use buttress_format::{
    Generation, Logical, TreeId,
    header::{FLAG_RELOC, ITEM_LEN},
};
use buttress_space::SpaceKind;
use buttress_tree::{Changed, Expect, Geometry, Node, NodeSource, Store};

use crate::{Costs, Engine, Urgency, View, transaction::Transaction};
use whole::{Whole, is_whole};

/// Items that must have come before it is worth counting again.
const WORTH: u64 = 32;
/// Items of the root tree that a commit changes, beside those of subvolumes.
const ROOTS_MOVED: u64 = 12;
/// Bytes that a node may add to the extent tree, or take.
const NODE_BYTES: u64 = 84;
/// Bytes for each item to come in a tree that is counted whole, beside those that are promised with it: leaves are cut
/// where items end.
const WHOLE_BYTES: u64 = 16;
/// Nodes beside those that were counted.
const SLACK: u64 = 24;

/// What was counted of a transaction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Count {
    /// Nodes that a commit of what there was then makes.
    pub(crate) nodes: u64,
    /// Of these, nodes of trees that operations change; nothing where they changed others, too.
    pub(crate) of_items: Option<u64>,
    /// What there was: items in the overlay and their bytes, how many had another length, and bytes of references.
    items: u64,
    bytes: u64,
    resized: u64,
    added: u64,
    chunks: u64,
    /// The trees that it was held against, and bytes of nodes of the commit that was under way.
    roots: Generation,
    below: u64,
    /// It has made its nodes.
    is_settled: bool,
}

impl Count {
    /// Nodes, items that came since, and bytes that are to be promised beside them.
    fn now(&self, transaction: &Transaction) -> (u64, u64, u64) {
        if self.is_settled {
            return (self.nodes, 0, 0);
        }
        let overlay = &transaction.overlay;
        let items = overlay.items().saturating_sub(self.items)
            + overlay.resized().saturating_sub(self.resized)
            + (transaction.chunks.lock().len() as u64).saturating_sub(self.chunks);
        let grown = overlay.bytes().saturating_sub(self.bytes);
        let added = transaction.refs.added().saturating_sub(self.added);
        (self.nodes, items, 2 * (grown + added + transaction.sums.bytes()))
    }
}

/// What a transaction knows of its nodes.
#[derive(Debug, Default)]
pub(crate) struct Counted {
    work: Mutex<Work>,
    seen: Mutex<Option<Count>>,
    /// It was frozen with what is not counted, which its commit takes out of it (N7).
    never: AtomicBool,
}

impl Counted {
    /// The transaction is settled, and these are its nodes.
    pub(crate) fn settle(&self, nodes: u64) {
        if let Some(count) = &mut *self.seen.lock() {
            (count.nodes, count.is_settled) = (nodes, true);
        }
    }
}

/// A leaf with changed items.
#[derive(Clone, Copy, Debug)]
struct Leaf {
    weight: u64,
    /// The heaviest item.
    heaviest: u64,
    added: u64,
    removed: u64,
    /// What it was counted as.
    counted: u64,
}

impl Leaf {
    /// Leaves that it may become (N1, N2).
    fn becomes(&self, room: u64) -> u64 {
        let most = self.weight + self.added;
        let hungry = u64::from(self.weight.saturating_sub(self.removed) < room / 4);
        if most <= room {
            return 1 + hungry;
        }
        let by_pairs = 2 * (most / room) + 1;
        let by_fill = most / room.saturating_sub(self.heaviest).max(1) + 1;
        by_pairs.min(by_fill) + hungry
    }
}

#[derive(Debug, Default)]
struct Work {
    /// What everything below was held against; nothing before the first time.
    roots: Option<Generation>,
    /// It was not possible, and is not tried again with these.
    hopeless: Option<Generation>,
    leaves: HashMap<Logical, Leaf>,
    /// What the leaves become, together.
    becomes: u64,
    inner: HashSet<Logical>,
    /// The subvolumes among the trees that were looked at, and all of them.
    trees: HashMap<TreeId, Generation>,
    /// Bytes and items that operations changed in trees that are counted as a whole.
    whole_bytes: u64,
    root_items: u64,
    whole: Whole,
}

/// Why nothing was counted: what is not known, or cannot be read.
struct Unknown;

impl Work {
    /// Adds changed items of one tree, ascending, which lie under a node.
    fn descend(
        &mut self,
        store: &Store,
        tree: TreeId,
        shared: Generation,
        at: &Expect,
        changes: &[Changed],
    ) -> Result<(), Unknown> {
        if changes.is_empty() {
            return Ok(());
        }
        let node = store.node(tree, at).map_err(|_| Unknown)?;
        if node.header().generation <= shared || node.header().flags & FLAG_RELOC != 0 {
            return Err(Unknown);
        }
        if node.level() == 0 {
            self.leaf(store.geometry(), &node, changes);
            return Ok(());
        }
        self.inner.insert(node.logical());
        let mut rest = changes;
        for slot in 0..node.len() {
            let child = node.expect_child_below(slot, at.below);
            let split = match (slot + 1 < node.len()).then(|| node.key(slot + 1)) {
                Some(next) => rest.partition_point(|(_, key, _)| *key < next),
                None => rest.len(),
            };
            let (mine, others) = rest.split_at(split);
            self.descend(store, tree, shared, &child, mine)?;
            rest = others;
        }
        Ok(())
    }

    fn leaf(&mut self, geometry: &Geometry, node: &Node, changes: &[Changed]) {
        let room = geometry.leaf_room() as u64;
        let weight_of = |slot| (ITEM_LEN + node.item(slot).len()) as u64;
        let leaf = self.leaves.entry(node.logical()).or_insert_with(|| Leaf {
            weight: node.used_bytes() as u64,
            heaviest: (0..node.len()).map(weight_of).max().unwrap_or(0),
            added: 0,
            removed: 0,
            counted: 0,
        });
        for (_, key, len) in changes {
            let old = node.search(key).map_or(0, weight_of);
            let new = len.map_or(0, |len| (ITEM_LEN + len) as u64);
            leaf.added += new.saturating_sub(old);
            leaf.removed += old.saturating_sub(new);
            leaf.heaviest = leaf.heaviest.max(new);
        }
        let becomes = leaf.becomes(room).max(leaf.counted);
        self.becomes += becomes - std::mem::replace(&mut leaf.counted, becomes);
    }
}

impl Work {
    /// Adds changed items, ascending.
    fn add(&mut self, view: &View, changes: &[Changed]) -> Result<(), Unknown> {
        let mut rest = changes;
        while let Some((tree, _, _)) = rest.first() {
            let tree = *tree;
            let (mine, others) = rest.split_at(rest.partition_point(|(t, _, _)| *t == tree));
            rest = others;
            if is_whole(tree) {
                let len = |change: &Changed| change.2.map_or(0, |len| (ITEM_LEN + len) as u64);
                self.whole_bytes += mine.iter().map(len).sum::<u64>();
                self.root_items += mine.len() as u64;
                continue;
            }
            let shared = match self.trees.get(&tree) {
                Some(shared) => *shared,
                None if !tree.is_fs_tree() => Generation(0),
                None => {
                    let item = view.committed_root_item(tree).map_err(|_| Unknown)?;
                    item.ok_or(Unknown)?.last_snapshot
                }
            };
            self.trees.insert(tree, shared);
            let root = view.committed_root(tree).ok().flatten().ok_or(Unknown)?;
            self.descend(view.store(), tree, shared, &Expect::root(root), mine)?;
        }
        Ok(())
    }

    /// Nodes of the trees that operations change (N1 to N3).
    fn of_items(&self, geometry: &Geometry) -> u64 {
        let share = geometry.ptrs_max() as u64 / 2;
        self.becomes
            + self.becomes / share
            + 3 * self.inner.len() as u64
            + 2 * self.trees.len() as u64
    }

    /// All nodes that a commit makes.
    fn total(&self, geometry: &Geometry, transaction: &Transaction) -> u64 {
        let room = geometry.leaf_room() as u64;
        let whole = &self.whole;
        let moved = ROOTS_MOVED + self.trees.len() as u64 + self.root_items;
        let leaves = whole.others
            + 3 * whole.root_leaves.min(moved)
            + whole.extents(geometry, transaction.refs.added());
        let inner = 3 * whole.inner + leaves / (geometry.ptrs_max() as u64 / 2) + 2 * whole.trees;
        let chunks = transaction.chunks.lock().len() as u64;
        let fills = 2 * self.whole_bytes / room + 2 * chunks;
        let all = self.of_items(geometry) + leaves + inner + fills;
        all + 2 * NODE_BYTES * all / room + 2
    }

    /// Counts a transaction, or what is new of it.
    fn count(&mut self, engine: &Engine, view: &View, transaction: &Transaction) -> Option<Count> {
        let roots = view.roots();
        let anew = self.roots != Some(roots.generation);
        let never = transaction.counted.never.load(Ordering::Relaxed);
        if never || self.hopeless == Some(roots.generation) || !transaction.is_plain() {
            return None;
        }
        if anew {
            *self = Self { hopeless: Some(roots.generation), ..Self::default() };
            let ranges = |kind| {
                let groups = engine.space.groups_of(kind);
                groups.iter().map(|group| group.range()).collect::<Vec<_>>()
            };
            let mut metadata = ranges(SpaceKind::Metadata);
            metadata.sort_unstable_by_key(|group| group.start);
            self.whole = Whole::look(view.store(), roots, &metadata)?;
            self.whole.note_groups(view.store().geometry(), &metadata);
            for kind in [SpaceKind::Data, SpaceKind::System] {
                self.whole.note_groups(view.store().geometry(), &ranges(kind));
            }
        }
        self.hopeless = Some(roots.generation);
        // These first: what comes meanwhile counts twice.
        let overlay = &transaction.overlay;
        let mut count = Count {
            nodes: 0,
            of_items: None,
            items: overlay.items(),
            bytes: overlay.bytes(),
            resized: overlay.resized(),
            added: transaction.refs.added(),
            chunks: transaction.chunks.lock().len() as u64,
            roots: roots.generation,
            below: 0,
            is_settled: false,
        };
        self.add(view, &overlay.changed(anew)).ok()?;
        let geometry = view.store().geometry();
        count.nodes = self.total(geometry, transaction);
        count.of_items = (self.root_items == 0).then(|| self.of_items(geometry));
        self.roots = Some(roots.generation);
        self.hopeless = None;
        Some(count)
    }
}

impl Engine {
    /// Bytes of metadata that a commit of a transaction may allocate, by what was counted of it, with so much to come.
    /// Nothing where nobody counted.
    pub(crate) fn closer_need(&self, transaction: &Transaction, to_come: Costs) -> Option<u64> {
        let count = (*transaction.counted.seen.lock())?;
        if transaction.counted.never.load(Ordering::Relaxed) || !transaction.is_plain() {
            return None;
        }
        let nodesize = u64::from(self.store.geometry().nodesize);
        let (nodes, since, fills) = count.now(transaction);
        let paths = (since + to_come.items).saturating_mul(self.levels());
        let nodes = nodes.saturating_add(paths).saturating_add(SLACK);
        let whole = to_come.whole.saturating_mul(WHOLE_BYTES);
        let fills = fills.saturating_add(2 * to_come.bytes).saturating_add(whole);
        Some(nodes.saturating_mul(nodesize).saturating_add(fills))
    }

    /// Whether it can help those who fill the volume to count: not where the paths of what they were promised already are
    /// more than is free.
    pub(crate) fn may_count(&self, urgency: Urgency) -> bool {
        let nodesize = u64::from(self.store.geometry().nodesize);
        let promised =
            || self.outstanding.lock().sum().items.saturating_mul(self.levels() * nodesize);
        urgency != Urgency::Normal || promised() < self.space.account(SpaceKind::Metadata).free()
    }

    /// Counts what the running transaction needs, as far as that was not done. Says whether more is known now: who did not
    /// fit may.
    pub(crate) fn recount(&self) -> bool {
        crate::handle::expect_none("H2: nodes are read");
        let view = self.view.load_full();
        let running = view.running();
        let mut work = running.counted.work.lock();
        let known = *running.counted.seen.lock();
        let below = match view.frozen() {
            None => Some(0),
            Some(frozen) => self.closer_need(frozen, Costs::default()),
        };
        let Some(below) = below else { return false };
        if let Some(known) = known
            && known.roots == view.roots().generation
            && known.below == below
            && known.now(running).1 < WORTH
        {
            return false;
        }
        let Some(mut count) = work.count(self, &view, running) else { return false };
        // N6.
        count.nodes += 2 * below.div_ceil(u64::from(self.store.geometry().nodesize));
        count.below = below;
        *running.counted.seen.lock() = Some(count);
        tracing::trace!(nodes = count.nodes, items = count.items, below, "counted");
        true
    }

    /// What is known of a transaction that is about to be frozen.
    pub(crate) fn close_count(&self, frozen: &Transaction) -> Option<u64> {
        frozen.counted.never.store(!frozen.is_plain(), Ordering::Relaxed);
        self.closer_need(frozen, Costs::default())
    }

    /// Counts what the frozen transaction needs, in bytes, and how many nodes of it are of items: all of it is there,
    /// and nothing is below it.
    pub(crate) fn count_frozen(&self, frozen: &Transaction) -> Option<(u64, Option<u64>)> {
        let view = self.view.load_full();
        let mut work = frozen.counted.work.lock();
        let count = work.count(self, &view, frozen)?;
        *frozen.counted.seen.lock() = Some(count);
        drop(work);
        let bytes = self.closer_need(frozen, Costs::default())?;
        Some((bytes, count.of_items))
    }
}
