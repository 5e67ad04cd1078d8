//! Counts the nodes that a commit makes, where the crude bound of `fits` does not fit.
//!
//! A ledger of dirty leaves (`ledger`) records the items put so far. Items put since the last
//! count, and reserved items, cost a path each. `docs/internals/reservations.md` is the proof in
//! one page.
//!
//! # Invariants
//!
//! The commit makes at most the counted nodes, and the nodes that are added for bytes. Reasons:
//!
//! - **N1** The items put so far make no more nodes than the ledger says (`ledger::G1`).
//! - **N2** A future item dirties one path and one split. If it causes an item in a tree that only
//!   commits change, this item does, too; all of these together stay within `ledger::G6`. Future
//!   bytes count twice, since any two neighbours fill more than one leaf together.
//! - **N3** While a commit is under way, the figure is that of `ledger::G5`. If the older
//!   transaction was not counted completely, each of its nodes counts two more times: the younger
//!   transaction may change it again and split it.
//! - **N4** If something is not known, there is no count, and the crude bound holds. This concerns
//!   nodes that a balance moved; snapshots, drops, devices, and a rebuilt free-space tree.
//! - **N5** Reservations for the dirty data of one inode dirty the leaves between its first extent
//!   and its last. Other reservations may dirty more nodes. These dirty at most the nodes that the
//!   leaves become, in this transaction and in the next (D1, D2 of `ledger::span`). A run of dirty
//!   leaves becomes at most the sum of what its parts become separately (`ledger::tree::L2`).
//!
//! # Locks
//!
//! A count holds a lock and reads nodes under it. Only other counts wait for this lock. No thread
//! waits for a count while it has a handle.

use std::sync::{Arc, atomic::Ordering};

use buttress_space::SpaceKind;

use crate::counts::{Count, Known, Work};
use crate::inode::{InodeReserve, Moment};
use crate::reservations::Reservations;
use crate::urgency::Urgency;
use crate::{Costs, View, transaction::Transaction};

/// Number of paths to gain from which a new count is worthwhile.
const WORTH: u64 = 32;
/// Bytes for each future item in a tree that only commits change, besides its reserved bytes:
/// leaves are cut between items.
const WHOLE_BYTES: u64 = 16;
/// Nodes beside those that were counted.
const SLACK: u64 = 24;

impl Reservations {
    /// The most bytes of metadata that a transaction's commit may allocate, by its count, with
    /// `to_come` still to be put. `None` without a count.
    pub fn closer_need(&self, transaction: &Transaction, to_come: Costs) -> Option<u64> {
        Some(self.need_by_count(&self.known(transaction)?, to_come, false))
    }

    /// The count of a transaction, and what came since. `None` without a count.
    pub(crate) fn known(&self, transaction: &Transaction) -> Option<Known> {
        let counted = self.counts.of(transaction);
        let count = (*counted.seen.lock())?;
        if counted.is_never() || !transaction.is_plain() {
            return None;
        }
        Some(count.with_changes(transaction))
    }

    /// The most bytes of metadata that a commit may allocate, by what is known, with `to_come`
    /// still to be put. With `by_inodes`, `to_come` holds all reservations, and dirty data of an
    /// inode counts as the nodes that it can dirty (N5).
    pub(crate) fn need_by_count(&self, known: &Known, to_come: Costs, by_inodes: bool) -> u64 {
        let Known { count, since } = known;
        let inodes = &self.inode_reserves;
        // With a count on older trees, bounds would count again what the commit of those trees
        // freed.
        let is_of_these = || count.roots == self.view.load().roots().generation;
        let spares = by_inodes && inodes.items() > 0 && is_of_these();
        let spared = if spares { inodes.spared(count.roots) } else { 0 };
        let items = since.items + to_come.items.saturating_sub(spared);
        let commit_items = since.commit_items + to_come.commit_items;
        let paths = items.saturating_mul(self.levels() + self.shared_fills());
        let records = commit_items.saturating_mul(self.levels())
            + items.saturating_mul(self.shared_records());
        let records = records.min(count.rest.unwrap_or(u64::MAX));
        let nodes = count.nodes.saturating_add(paths).saturating_add(records).saturating_add(SLACK);
        let above = self.shared_nodes(self.space.account(SpaceKind::Metadata).used);
        let fills =
            2 * (since.bytes + to_come.bytes) + commit_items.saturating_mul(WHOLE_BYTES) + above;
        let nodesize = u64::from(self.store.geometry().nodesize);
        nodes.saturating_mul(nodesize).saturating_add(fills)
    }

    /// Notes whether a new count is due before it is needed: it saves more than twice as many bytes
    /// as are left.
    pub(crate) fn note_due(&self, known: &Known, left: u64) {
        let paths = known.paths(self.levels());
        let saved = paths.saturating_mul(self.levels() * u64::from(self.store.geometry().nodesize));
        self.counts.set_due(paths >= WORTH && saved / 2 > left);
    }

    /// Counts if that is due and no other thread counts. Meanwhile other writers go on with the
    /// space that is left.
    pub(crate) fn count_ahead(&self) {
        if self.counts.is_due() {
            self.counts.set_due(false);
            self.recount_with(WORTH - 1, false);
        }
    }

    /// Whether a count can help writers that fill the volume. It cannot help if their reservations
    /// already exceed the free space, whatever the count.
    pub(crate) fn may_count(&self, urgency: Urgency) -> bool {
        let nodesize = u64::from(self.store.geometry().nodesize);
        let reserved = || {
            // Reservations for dirty data are left out, since the count bounds them.
            let items = self.outstanding.lock().sum().items;
            let paths = items.saturating_sub(self.inode_reserves.items());
            paths.saturating_mul(self.levels() * nodesize)
        };
        urgency != Urgency::Normal || reserved() < self.space.account(SpaceKind::Metadata).free()
    }

    /// Counts the needs of the running transaction, as far as they are not counted yet. Returns
    /// whether the result is new, so that a request that did not fit may fit.
    pub fn recount(&self) -> bool {
        self.recount_beyond(WORTH - 1)
    }

    /// As [`Self::recount`], if the items put since the last count cost more than `few` paths.
    pub(crate) fn recount_beyond(&self, few: u64) -> bool {
        self.recount_with(few, true)
    }

    /// With `waits`, waits for other counts; otherwise makes none beside them.
    fn recount_with(&self, few: u64, waits: bool) -> bool {
        crate::held::expect_none("handle::H2: nodes are read");
        let view = self.view.load_full();
        let running = view.running();
        let counted = self.counts.of(running);
        let work = &counted.work;
        let work = if waits { Some(work.lock()) } else { work.try_lock() };
        let Some(mut work) = work else { return false };
        // A freeze since the lookup may have had this transaction counted completely. Then no
        // reservation can use the count.
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
            && known.with_changes(running).paths(self.levels()) <= few
            && !self.inode_reserves.are_fresh()
        {
            return false;
        }
        if counted.is_never() {
            return false;
        }
        let Some(mut count) = work.count(&self.space, &view, running) else { return false };
        if let Some(frozen) = view.frozen() {
            self.set_beside(frozen, below, &mut count, &work);
        }
        count.below = below;
        self.bound_inodes(&view, &work, below);
        *counted.seen.lock() = Some(count);
        drop(work);
        // Waiting tickets come first: no request passes them.
        self.serve();
        tracing::trace!(nodes = count.nodes, rest = count.rest, below, "counted");
        true
    }

    /// Adds the frozen transaction to the result of a count (`ledger::G5`). Its commit makes
    /// `below` bytes of nodes.
    fn set_beside(&self, frozen: &Transaction, below: u64, count: &mut Count, work: &Work) {
        let geometry = self.store.geometry();
        let each_twice = 2 * below.div_ceil(u64::from(geometry.nodesize));
        // The caller holds the younger transaction's work. No thread takes the two in the other
        // order.
        let counted = self.counts.of(frozen);
        let older = counted.work.lock();
        let is_whole = counted.seen.lock().is_some_and(|known| known.is_whole);
        let (mut nodes, mut growth) = (count.nodes + each_twice, each_twice);
        if is_whole && older.roots == work.roots {
            let room = geometry.leaf_room() as u64;
            nodes = work.ledger.nodes_beside(&older.ledger, room).min(nodes);
            growth = older.ledger.growth().min(growth);
        }
        count.nodes = nodes;
        count.rest = count.rest.map(|rest| rest + growth);
    }

    /// Looks up how many nodes the dirty data of each inode with a large reservation can dirty
    /// (N5).
    fn bound_inodes(&self, view: &View, running: &Work, below: u64) {
        let Some(roots) = running.roots.filter(|_| self.inode_reserves.items() > 0) else { return };
        let frozen = view.frozen().map(|frozen| self.counts.of(frozen));
        let older = frozen.as_ref().map(|frozen| (frozen.work.lock(), *frozen.seen.lock()));
        // Bounds are unknown until the older transaction was counted completely, on the same trees.
        let is_sure = older.as_ref().is_none_or(|(work, count)| {
            work.roots == running.roots && count.is_some_and(|count| count.is_whole)
        });
        let (leaves, added) = running.ledger.dirty();
        let now = Moment { roots, below, leaves, added, is_sure };
        let Some((due, moment)) = self.inode_reserves.due(now) else { return };
        let bound = |inode: Arc<InodeReserve>| {
            let of = (inode.tree, inode.ino);
            let older = older.as_ref().map(|(work, _)| &work.ledger);
            let nodes = || running.ledger.nodes_of_inode(view, of, older, self.levels()).ok();
            let nodes = is_sure.then(nodes).flatten();
            (inode, nodes.map(|nodes| nodes.div_ceil(self.levels())))
        };
        let bounds: Vec<_> = due.into_iter().map(bound).collect();
        let _all_reservations = self.outstanding.lock();
        self.inode_reserves.set(moment, &bounds);
    }

    /// Counts the bytes that the commit of a frozen transaction needs, and its nodes that hold
    /// items. All changes are known, and no older commit is under way. A debug build always counts,
    /// and compares the result with the nodes made. Other builds count only if space is tight.
    pub fn count_if_crowded(&self, frozen: &Transaction) -> Option<(u64, Option<u64>)> {
        if cfg!(not(debug_assertions)) && !self.is_crowded(frozen) {
            return None;
        }
        let view = self.view.load_full();
        let counted = self.counts.of(frozen);
        if counted.is_never() {
            return None;
        }
        let mut work = counted.work.lock();
        let mut count = work.count(&self.space, &view, frozen)?;
        count.is_whole = true;
        *counted.seen.lock() = Some(count);
        drop(work);
        let bytes = self.closer_need(frozen, Costs::default())?;
        self.frozen_need.fetch_min(bytes, Ordering::Relaxed);
        // A waiting ticket may fit beside it, now that this count is known.
        self.serve_counted();
        Some((bytes, count.of_items))
    }
}
