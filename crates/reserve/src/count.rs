//! Counts the nodes that a commit makes, where the crude bound of `fits` does not fit.
//!
//! What was put is noted in a ledger of dirty leaves (`ledger`). What came since the last count,
//! and what is reserved and not put, costs a path for each item. `docs/internals/reservations.md`
//! is the proof in one page.
//!
//! # Invariants
//!
//! The commit makes no more nodes than were counted, and what is added for bytes. Reasons:
//!
//! - **N1** What was put makes no more nodes than the ledger says (`ledger::G1`).
//! - **N2** An item to come dirties one path and one split. One that follows in a tree that commits
//!   alone change does, too, and all of those together no more than `ledger::G6` says. Bytes to
//!   come count twice, since two neighbours are more than one leaf together.
//! - **N3** While a commit is under way, the figure is that of `ledger::G5`. Where the older
//!   transaction was not counted as a whole, each of its nodes counts twice more: it may be changed
//!   again, and become two.
//! - **N4** What is not known is not counted, and the crude bound holds. That is nodes that a
//!   balance moved; snapshots, drops, devices, a free-space tree made anew.
//! - **N5** What is reserved for the dirty data of one inode dirties the leaves between its first
//!   extent and its last. It dirties no more nodes than those leaves become, in this transaction
//!   and in the next (D1, D2 of `ledger::span`), beside what else is dirty. A run of dirty leaves
//!   becomes no more than its parts would by themselves (`ledger::tree::L2`).
//!
//! # Locks
//!
//! A count holds a lock for which only other counts wait, and reads nodes with it. No thread waits
//! for a count while it has a handle.

use std::sync::{Arc, atomic::Ordering};

use buttress_space::SpaceKind;

use crate::counts::{Count, Work};
use crate::inode::{InodeReserve, Moment};
use crate::reservations::Reservations;
use crate::urgency::Urgency;
use crate::{Costs, View, transaction::Transaction};

/// Items that must have come before it is worth counting again.
const WORTH: u64 = 32;
/// Bytes for each item to come in a tree that commits alone change, beside those that are reserved
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

    /// The same. Where `by_inodes`, all that was reserved is to come, and dirty data of an inode
    /// counts as the nodes that it can dirty (N5).
    pub(crate) fn need_by_count(
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
        let since = count.since(transaction);
        let items = since.items + to_come.items.saturating_sub(spared);
        let whole = since.whole + to_come.whole;
        let paths = items.saturating_mul(self.levels() + self.shared_fills());
        let records =
            whole.saturating_mul(self.levels()) + items.saturating_mul(self.shared_records());
        let records = records.min(count.rest.unwrap_or(u64::MAX));
        let nodes = count.nodes.saturating_add(paths).saturating_add(records).saturating_add(SLACK);
        let above = self.shared_nodes(self.space.account(SpaceKind::Metadata).used);
        let fills = 2 * (since.bytes + to_come.bytes) + whole.saturating_mul(WHOLE_BYTES) + above;
        let nodesize = u64::from(self.store.geometry().nodesize);
        Some(nodes.saturating_mul(nodesize).saturating_add(fills))
    }

    /// Whether a count can help writers that fill the volume. It cannot where what they have
    /// reserved already is more than is free, whatever was counted.
    pub(crate) fn may_count(&self, urgency: Urgency) -> bool {
        let nodesize = u64::from(self.store.geometry().nodesize);
        let reserved = || {
            // What is reserved for dirty data counts as what the count will find.
            let items = self.outstanding.lock().sum().items;
            let paths = items.saturating_sub(self.inode_reserves.items());
            paths.saturating_mul(self.levels() * nodesize)
        };
        urgency != Urgency::Normal || reserved() < self.space.account(SpaceKind::Metadata).free()
    }

    /// Counts what the running transaction needs, as far as that was not done. Returns whether more
    /// is known now, so that a request that did not fit may fit.
    pub fn recount(&self) -> bool {
        self.recount_beyond(WORTH - 1)
    }

    /// The same if more items came than that.
    pub(crate) fn recount_beyond(&self, few: u64) -> bool {
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
            && known.since(running).all_items() <= few
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

    /// Sets the result of a count beside the frozen transaction, which makes so many bytes of nodes
    /// (`ledger::G5`).
    fn set_beside(&self, frozen: &Transaction, below: u64, count: &mut Count, work: &Work) {
        let geometry = self.store.geometry();
        let each_twice = 2 * below.div_ceil(u64::from(geometry.nodesize));
        // No thread holds the younger one's work while it waits for the older one's.
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
        // Bounds are unknown until the older one was counted as a whole, on the same trees.
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

    /// Counts what the commit of a frozen transaction needs, in bytes, and how many nodes of it are
    /// of items: all of it is there, and nothing is below it. A debug build always does, and
    /// compares what is made with it; others only if a request may not fit beside the crude bound.
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
