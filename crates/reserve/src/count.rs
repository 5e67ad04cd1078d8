//! Counts the nodes that a commit makes, where the crude bound of `reserve` no longer fits.
//!
//! The changed items are compared with the trees as they were committed, leaf by leaf, with the
//! weights that leaves have. Of trees that the commit alone changes every leaf counts. What came
//! since is reserved path by path, until the next count, which looks at new items alone.
//!
//! # Invariants
//!
//! The commit makes no more nodes than were counted, and what `reserve` adds for bytes. Reasons:
//!
//! - **N1** A dirty leaf becomes one leaf while its items fit. It becomes no more than
//!   `2w/room + 1` ever, and no more than `w/(room - b) + 1` where no item is over `b`. A run of
//!   dirty leaves becomes no more than each of them alone (`ledger::tree::L2`).
//! - **N2** The end of a run that is under a quarter full takes in its neighbour: one leaf more
//!   (`ledger::tree::L3`).
//! - **N3** A dirty inner node becomes one, and one more where children come
//!   (`ledger::tree::L4`).
//! - **N4** The extent tree: all leaves are made anew, full, and packed again with what comes to
//!   it. A run of `d` dirty leaves to which `a` bytes come makes no more than
//!   `(d * room + a)/(room - b) + 1` (N1). Between two runs lies a leaf that is not dirty. So the
//!   one more of each run is no more than if that leaf were dirty, too. What goes makes no room,
//!   and a neighbour that is taken in is one more dirty leaf. Leaves that record metadata may be
//!   changed in every round, where other runs are dirty: each counts twice more.
//! - **N5** The free-space tree: the same, where what comes is no more than its groups can say, as
//!   each changes its form before it has more to say. A leaf of another tree that the commit
//!   changes becomes three at most. The bytes of checksums are the exception and are added twice:
//!   two leaves are more than one together, and what is cut out of an item makes two of it.
//! - **N6** What is counted while a commit is under way is compared with the trees before it, and
//!   counts with what that one makes. A leaf that it makes of items may be dirty afterwards, and
//!   run over: two more for each. With what the replaced leaf was counted as, that makes three.
//!   Where it made several of one leaf, each may have items so heavy that it becomes three; the
//!   global reserve stands behind the rest. Or what lies where one of both changed leaves is
//!   packed: of what the commit made, all full, as in N4, and of what only the other changes. The
//!   extent tree is packed once more, of all leaves that the commit may leave. Of the other trees
//!   all leaves are made once more, as many as it may make.
//! - **N7** What is not known is not counted, and the crude bound holds: nodes that a balance
//!   moved; snapshots, drops, devices, a free-space tree made anew; an extent tree too large to
//!   be looked at. Of a node that others may use all that it points to gets
//!   references, which come to the extent tree (N4).
//! - **N8** What is reserved for the dirty data of one inode dirties the leaves between its first
//!   extent and its last. It dirties no more nodes than those leaves become, in this transaction
//!   and in the next (D1, D2 of `count::inode`), beside what else is dirty. A run of dirty leaves
//!   becomes no more than its parts would by themselves (N1).
//!
//! # Locks
//!
//! A count holds a lock for which only other counts wait, and reads nodes with it. No thread waits
//! for a count while it has a handle.

mod inode;

use std::sync::{Arc, atomic::Ordering};

use buttress_space::SpaceKind;

use crate::counts::tally::Count;
use crate::counts::work::Work;
use crate::inode::{InodeReserve, Moment};
use crate::ledger::Ledger;
use crate::reservations::Reservations;
use crate::urgency::Urgency;
use crate::{Costs, View, transaction::Transaction};

/// Items that must have come before it is worth counting again.
const WORTH: u64 = 32;
/// Bytes for each item to come in a tree that is counted whole, beside those that are reserved
/// with it: leaves are cut where items end.
const WHOLE_BYTES: u64 = 16;
/// Nodes beside those that were counted.
const SLACK: u64 = 24;

impl Reservations {
    /// Bytes of metadata that a commit of a transaction may allocate, by what was counted of it,
    /// with so much to come. Nothing where no count was made.
    pub fn closer_need(&self, transaction: &Transaction, to_come: Costs) -> Option<u64> {
        self.need_by_count(transaction, to_come, false)
    }

    /// The same with all that was reserved to come. The dirty data of an inode counts as the nodes
    /// that it can dirty (N8).
    pub(crate) fn need_with_promised(
        &self,
        transaction: &Transaction,
        to_come: Costs,
    ) -> Option<u64> {
        self.need_by_count(transaction, to_come, true)
    }

    fn need_by_count(
        &self,
        transaction: &Transaction,
        to_come: Costs,
        by_inodes: bool,
    ) -> Option<u64> {
        let counted = self.counts.of(transaction);
        let count = (*counted.seen.lock())?;
        if counted.is_never() || !transaction.is_plain() {
            return None;
        }
        let inodes = &self.inode_reserves;
        // Beside a count of older trees, bounds would count twice what their commit gave back.
        let is_of_these = || count.roots == self.view.load().roots().generation;
        let spares = by_inodes && inodes.items() > 0 && is_of_these();
        let spared = if spares { inodes.spared(count.roots) } else { 0 };
        let nodesize = u64::from(self.store.geometry().nodesize);
        let (nodes, since, fills) = count.now(transaction);
        let items = since + to_come.items.saturating_sub(spared);
        let paths = items.saturating_mul(self.levels() + self.shared_fills());
        let nodes = nodes.saturating_add(paths).saturating_add(SLACK);
        let whole = to_come.whole.saturating_mul(WHOLE_BYTES);
        let above = self.shared_nodes(self.space.account(SpaceKind::Metadata).used);
        let fills = fills.saturating_add(2 * to_come.bytes).saturating_add(whole + above);
        Some(nodes.saturating_mul(nodesize).saturating_add(fills))
    }

    /// Whether a count can help writers that fill the volume. It cannot where what they have
    /// reserved already is more than is free, whatever was counted.
    pub(crate) fn may_count(&self, urgency: Urgency) -> bool {
        let nodesize = u64::from(self.store.geometry().nodesize);
        let promised = || {
            // What is reserved for dirty data counts as what the count will find.
            let items = self.outstanding.lock().sum().items;
            let paths = items.saturating_sub(self.inode_reserves.items());
            paths.saturating_mul(self.levels() * nodesize)
        };
        urgency != Urgency::Normal || promised() < self.space.account(SpaceKind::Metadata).free()
    }

    /// Counts what the running transaction needs, as far as that was not done. Returns whether more
    /// is known now, so that a request that did not fit may fit.
    pub fn recount(&self) -> bool {
        self.recount_beyond(WORTH - 1)
    }

    /// The same if anything came.
    pub(crate) fn recount_all(&self) -> bool {
        self.recount_beyond(0)
    }

    /// The same if more items came than that.
    fn recount_beyond(&self, few: u64) -> bool {
        crate::held::expect_none("handle::H2: nodes are read");
        let view = self.view.load_full();
        let running = view.running();
        let counted = self.counts.of(running);
        let mut work = counted.work.lock();
        // If it was frozen since it was looked up, it may have been counted as a whole. Then no
        // reservation can be made from it.
        if !Arc::ptr_eq(self.view.load().running(), running) {
            return false;
        }
        let known = *counted.seen.lock();
        let below = match view.frozen() {
            None => Some(0),
            Some(frozen) => self.closer_need(frozen, Costs::default()),
        };
        let Some(below) = below else { return false };
        if let Some(known) = known
            && known.roots == view.roots().generation
            && known.below == below
            && known.now(running).1 <= few
            && !self.inode_reserves.are_fresh()
        {
            return false;
        }
        let Some(mut count) = work.count(&self.space, &view, running, counted.is_never()) else {
            return false;
        };
        if let Some(frozen) = view.frozen() {
            count.nodes = self.nodes_beside(frozen, below, &count, &work, running);
        }
        count.below = below;
        self.bound_inodes(&view, &work, below);
        *counted.seen.lock() = Some(count);
        drop(work);
        // Waiting tickets come first: no request passes them.
        self.serve();
        tracing::trace!(nodes = count.nodes, items = count.items, below, parts = ?count.parts, "counted");
        true
    }

    /// The result of a count beside the frozen transaction, which makes so many bytes of nodes
    /// (N6).
    fn nodes_beside(
        &self,
        frozen: &Transaction,
        below: u64,
        count: &Count,
        work: &Work,
        running: &Transaction,
    ) -> u64 {
        let geometry = self.store.geometry();
        let each_twice = count.nodes + 2 * below.div_ceil(u64::from(geometry.nodesize));
        // No thread holds the younger one's work while it waits for the older one's.
        let counted = self.counts.of(frozen);
        let older = counted.work.lock();
        let known = counted.seen.lock().filter(|known| known.is_whole);
        let Some(known) = known.filter(|_| older.roots == work.roots) else { return each_twice };
        let parts = work.parts_beside(&older, known.parts, geometry, running);
        parts.nodes(geometry.leaf_room() as u64).min(each_twice)
    }

    /// Looks up how many nodes the dirty data of each inode with a large reservation can dirty
    /// (N8).
    fn bound_inodes(&self, view: &View, running: &Work, below: u64) {
        let Some(roots) = running.roots.filter(|_| self.inode_reserves.items() > 0) else { return };
        let frozen = view.frozen().map(|frozen| self.counts.of(frozen));
        let older = frozen.as_ref().map(|frozen| (frozen.work.lock(), *frozen.seen.lock()));
        // Bounds are unknown until the older one was counted as a whole, on the same trees.
        let is_sure = older.as_ref().is_none_or(|(work, count)| {
            work.roots == running.roots && count.is_some_and(|count| count.is_whole)
        });
        let (leaves, added) = running.dirty();
        let now = Moment { roots, below, leaves, added, is_sure };
        let Some((due, moment)) = self.inode_reserves.due(now) else { return };
        let bound = |inode: Arc<InodeReserve>| {
            let of = (inode.tree, inode.ino);
            let older = older.as_ref().map(|(work, _)| &**work);
            let nodes = is_sure.then(|| self.nodes_of_inode(view, of, running, older)).flatten();
            (inode, nodes.map(|nodes| nodes.div_ceil(self.levels())))
        };
        let bounds: Vec<_> = due.into_iter().map(bound).collect();
        let _all_promises = self.outstanding.lock();
        self.inode_reserves.set(moment, &bounds);
    }

    /// What is known of a transaction that is about to be frozen.
    pub(crate) fn close_count(&self, frozen: &Transaction) -> Option<u64> {
        self.counts.of(frozen).never.store(!frozen.is_plain(), Ordering::Relaxed);
        self.closer_need(frozen, Costs::default())
    }

    /// Counts what the frozen transaction needs, in bytes, and how many nodes of it are of items:
    /// all of it is there, and nothing is below it.
    pub(crate) fn count_frozen(&self, frozen: &Transaction) -> Option<(u64, Option<u64>)> {
        let view = self.view.load_full();
        let counted = self.counts.of(frozen);
        let mut work = counted.work.lock();
        let mut count = work.count(&self.space, &view, frozen, counted.is_never())?;
        count.is_whole = true;
        *counted.seen.lock() = Some(count);
        drop(work);
        let bytes = self.closer_need(frozen, Costs::default())?;
        Some((bytes, count.is_of_files.then_some(count.parts.items)))
    }

    /// Bytes of nodes that the commit of a frozen transaction makes, by the ledger of all that it
    /// holds. Nothing where it changes more than items and references, or a node is not known.
    pub fn exact_need(&self, frozen: &Transaction) -> Option<u64> {
        if !frozen.is_plain() {
            return None;
        }
        let view = self.view.load_full();
        let mut ledger = Ledger::new(&self.store, view.roots(), &self.space).ok()?;
        ledger.note_all(&view, &self.space, frozen).ok()?;
        let geometry = self.store.geometry();
        let nodes = ledger.nodes(geometry.leaf_room() as u64);
        Some(nodes * u64::from(geometry.nodesize))
    }
}
