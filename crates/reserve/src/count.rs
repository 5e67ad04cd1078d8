//! Counts the nodes that a commit makes. The count is used when a request does not fit by the crude
//! bound of `fits`.
//!
//! A ledger of dirty leaves (`ledger`) bounds the nodes for the items that were put before the last
//! count. Each item put since, and each reserved item, costs a whole path.
//! `docs/internals/reservations.md` has the proof on one page.
//!
//! # Invariants
//!
//! The commit makes no more nodes than were counted, plus the nodes added for later items and
//! bytes. Reasons:
//!
//! - **N1** The items put before the count make no more nodes than the ledger says (`ledger::G1`).
//! - **N2** Each later item dirties one path and causes one split. A later item may cause another
//!   item in a tree that only commits change. That item also costs a path. All such items together
//!   cost no more than `ledger::G6` says. Later bytes count twice, because leaves may be only half
//!   full: two neighbours together hold more than one leaf can.
//! - **N3** While a commit is under way, the bound of `ledger::G5` applies. This bound requires
//!   that the older transaction was counted completely. Otherwise each node of the older
//!   transaction counts two more times, because the younger transaction may change the node again
//!   and split it.
//! - **N4** A transaction with changes that the ledger does not cover has no count. The crude bound
//!   applies to such a transaction. The ledger does not cover snapshots, drops, device changes,
//!   quota changes, a rebuilt free-space tree, and nodes that a balance moves.
//! - **N5** Finishing the dirty data of one inode dirties only the inode item's leaf and the leaves
//!   from the first extent to the last. So the reservations of the inode together count as no more
//!   than the nodes that these leaves become. The limit covers this transaction and the next
//!   together, because a part of the data may finish in each (`ledger::span::D1`, `D2`). Leaves
//!   that other reservations dirty are counted beside this limit. A run of dirty leaves becomes no
//!   more leaves than its parts would become separately (`ledger::tree::L2`).
//!
//! # Locks
//!
//! A count holds a lock while it reads nodes. Only other counts wait for this lock. No thread waits
//! for a count while it has a handle.

use std::sync::Arc;

use buttress_space::SpaceKind;

use crate::class::ReserveClass;
use crate::inode::{BoundEpoch, InodeReserve};
use crate::reservations::Reservations;
use crate::transaction_ledger::{Count, CountByNow, LedgerState};
use crate::{Cost, View, transaction::Transaction};

/// A new count is made only if it may save at least this many paths.
const WORTH: u64 = 32;
/// Bytes added for each later item of a tree that only commits change, beyond its reserved bytes. A
/// leaf is cut only between items, so part of its room stays unused.
const WHOLE_BYTES: u64 = 16;
/// Nodes added to every count as a margin.
const SLACK: u64 = 24;

impl Reservations {
    /// The most bytes of metadata that the commit of a transaction may allocate, by its count.
    /// `None` if there is no count.
    pub fn closer_need(&self, transaction: &Transaction) -> Option<u64> {
        Some(self.need_by_count(&self.count_by_now(transaction)?, Cost::default(), false))
    }

    /// The count of a transaction, and the changes since. `None` if there is no count.
    pub(crate) fn count_by_now(&self, transaction: &Transaction) -> Option<CountByNow> {
        let ledger = self.ledgers.of(transaction);
        let count = (*ledger.seen.lock())?;
        // A recount that was under way may have kept a count of a transaction that may have none
        // (N4). So this is the place that looks.
        if ledger.is_never() || !transaction.is_plain() {
            return None;
        }
        Some(count.with_changes(transaction))
    }

    /// The most bytes of metadata that a commit may allocate, by a count and the changes since.
    /// `to_come` is the cost of items not put yet. With `by_inodes`, `to_come` holds all
    /// reservations, and N5 limits the reservations for dirty data.
    pub(crate) fn need_by_count(&self, by_now: &CountByNow, to_come: Cost, by_inodes: bool) -> u64 {
        let CountByNow { count, since } = by_now;
        let inodes = &self.inode_reserves;
        // The bound of an inode subtracts the leaves that a commit under way will free. After that
        // commit is published, these leaves are free space already. So with a count on older trees,
        // they would be subtracted twice.
        let is_of_these = || count.roots == self.parts.view.load().roots().generation;
        let spares = by_inodes && inodes.items() > 0 && is_of_these();
        let spared = if spares { inodes.spared(count.roots) } else { 0 };
        let items = since.items + to_come.items.saturating_sub(spared);
        let commit_items = since.commit_items + to_come.commit_items;
        let paths = items.saturating_mul(self.levels() + self.shared_fills());
        let records = commit_items.saturating_mul(self.levels())
            + items.saturating_mul(self.shared_records());
        let records = records.min(count.rest.unwrap_or(u64::MAX));
        let nodes = count.nodes.saturating_add(paths).saturating_add(records).saturating_add(SLACK);
        let above = self.shared_nodes(self.parts.space.account(SpaceKind::Metadata).used);
        let fills =
            2 * (since.bytes + to_come.bytes) + commit_items.saturating_mul(WHOLE_BYTES) + above;
        nodes.saturating_mul(self.nodesize()).saturating_add(fills)
    }

    /// Notes whether a new count should be made soon. This is the case if the count may save
    /// `WORTH` paths, and more than twice the `left` bytes.
    pub(crate) fn note_due(&self, by_now: &CountByNow, left: u64) {
        let paths = by_now.paths(self.levels());
        let saved = paths.saturating_mul(self.levels() * self.nodesize());
        self.ledgers.set_due(paths >= WORTH && saved / 2 > left);
    }

    /// Makes a new count if `note_due` asked for one and no other thread counts. Meanwhile other
    /// writers use the space that is left.
    pub(crate) fn count_ahead(&self) {
        if self.ledgers.is_due() {
            self.ledgers.set_due(false);
            self.recount_beyond(WORTH - 1, false);
        }
    }

    /// Whether a count can help a request. For ordinary writers a count is useless if the
    /// reservations alone already exceed the free space. Other requests may always count.
    pub(crate) fn may_count(&self, class: ReserveClass) -> bool {
        let reserved = || {
            // Reservations for dirty data are left out, since a count limits them by the bounds of
            // their inodes (N5).
            let items = self.outstanding.lock().sum().items;
            let paths = items.saturating_sub(self.inode_reserves.items());
            paths.saturating_mul(self.levels() * self.nodesize())
        };
        class != ReserveClass::Normal
            || reserved() < self.parts.space.account(SpaceKind::Metadata).free()
    }

    /// Counts the running transaction, unless the last count is still good. Returns whether there
    /// is a new count, so that a request that did not fit may fit now.
    pub fn recount(&self) -> bool {
        self.recount_beyond(WORTH - 1, true)
    }

    /// Like [`Self::recount`], but counts if a new count may save more than `few` paths. With
    /// `waits`, waits until other counts of the transaction end. Without `waits`, returns at once
    /// if another count is running.
    pub(crate) fn recount_beyond(&self, few: u64, waits: bool) -> bool {
        crate::open_handles::expect_none("txn::handle::H2: nodes are read");
        let view = self.parts.view.load_full();
        let running = view.running();
        let ledger = self.ledgers.of(running);
        let work = &ledger.work;
        let work = if waits { Some(work.lock()) } else { work.try_lock() };
        let Some(mut work) = work else { return false };
        // The transaction may have been frozen since the view was loaded, and counted completely. A
        // new count would not help reservations, and would replace the complete count.
        if !Arc::ptr_eq(self.parts.view.load().running(), running) {
            return false;
        }
        let known = *ledger.seen.lock();
        let below = view.frozen().map_or(Some(0), |frozen| self.closer_need(frozen));
        let Some(below) = below else { return false };
        if let Some(known) = known
            && known.roots == view.roots().generation
            && known.below == below
            && known.with_changes(running).paths(self.levels()) <= few
            && !self.inode_reserves.are_missing(view.roots().generation)
        {
            return false;
        }
        let Some(mut count) = work.count(&self.parts.space, &view, running) else { return false };
        if let Some(frozen) = view.frozen() {
            self.set_beside(frozen, below, &mut count, &work);
        }
        count.below = below;
        self.bound_inodes(&view, &work, below);
        *ledger.seen.lock() = Some(count);
        drop(work);
        // Waiting tickets come first: no request passes them.
        self.serve();
        tracing::trace!(nodes = count.nodes, rest = count.rest, below, "counted");
        true
    }

    /// Adds the need of the frozen transaction to a count of the running transaction
    /// (`ledger::G5`). The commit of the frozen transaction allocates at most `below` bytes for
    /// nodes.
    fn set_beside(&self, frozen: &Transaction, below: u64, count: &mut Count, work: &LedgerState) {
        let geometry = self.parts.store.geometry();
        let each_twice = 2 * below.div_ceil(u64::from(geometry.nodesize));
        // The caller holds `work` of the younger transaction. No thread takes the locks of the two
        // transactions in the other order.
        let ledger = self.ledgers.of(frozen);
        let older = ledger.work.lock();
        let is_whole = ledger.seen.lock().is_some_and(|known| known.is_whole);
        let (mut nodes, mut growth) = (count.nodes + each_twice, each_twice);
        if is_whole && older.roots == work.roots {
            let room = geometry.leaf_room() as u64;
            nodes = work.ledger.nodes_beside(&older.ledger, room).min(nodes);
            growth = older.ledger.growth().min(growth);
        }
        count.nodes = nodes;
        count.rest = count.rest.map(|rest| rest + growth);
    }

    /// Looks up the bound of each inode with a large reservation: how many nodes its dirty data can
    /// dirty (N5).
    fn bound_inodes(&self, view: &View, running: &LedgerState, below: u64) {
        let Some(roots) = running.roots.filter(|_| self.inode_reserves.items() > 0) else { return };
        let frozen = view.frozen().map(|frozen| self.ledgers.of(frozen));
        let older = frozen.as_ref().map(|frozen| (frozen.work.lock(), *frozen.seen.lock()));
        // Bounds are unknown until the older transaction is counted completely, on the same trees.
        let is_sure = older.as_ref().is_none_or(|(work, count)| {
            work.roots == running.roots && count.is_some_and(|count| count.is_whole)
        });
        let (leaves, added) = running.ledger.dirty();
        let now = BoundEpoch { roots, below, leaves, added, is_sure };
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

    /// Counts a frozen transaction. Returns the bytes that its commit may allocate, and the number
    /// of nodes in trees that operations change. No more changes come, and no older commit is under
    /// way. A debug build always counts; the commit then compares the result with the nodes that it
    /// made. Other builds count only if space is tight.
    pub fn count_if_crowded(&self, frozen: &Transaction) -> Option<(u64, Option<u64>)> {
        if cfg!(not(debug_assertions)) && !self.is_crowded(frozen) {
            return None;
        }
        let view = self.parts.view.load_full();
        let ledger = self.ledgers.of(frozen);
        if ledger.is_never() {
            return None;
        }
        let mut work = ledger.work.lock();
        let mut count = work.count(&self.parts.space, &view, frozen)?;
        count.is_whole = true;
        *ledger.seen.lock() = Some(count);
        drop(work);
        let bytes = self.closer_need(frozen)?;
        self.frozen.bound(bytes);
        // The frozen transaction's need may be smaller now, so a waiting ticket may fit.
        self.serve_counted();
        Some((bytes, count.of_items))
    }
}
