//! One operation's part of the running transaction.
//!
//! # Invariants
//!
//! - **H1** The transaction of a handle does not freeze while the handle lives. So one commit has
//!   either all puts of the handle or none (`txn::T3`).
//! - **H2** No thread does device I/O or waits for space while it holds a handle.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use arc_swap::Guard;
use buttress_format::{Extent, Generation, Key, Logical, TreeId};

use buttress_transaction::{MovedExtent, snapshot::Snapshot};
use buttress_tree::NodePtr;

use crate::{
    Allocation, Commits, DataRef, MetaReservation, Storage, View,
    gate::Inside,
    open_handles,
    reserve::{QuotaLimits, Reservations},
    transaction::Transaction,
};

/// The right to put changes into the running transaction. Drop the handle so that a freeze can go
/// on.
#[must_use = "a handle that is dropped at once changes nothing"]
pub struct Handle<'e> {
    storage: &'e Storage,
    allocation: &'e Allocation,
    reservations: &'e Reservations,
    quota_limits: &'e QuotaLimits,
    /// The view with the running transaction, which cannot freeze while the handle lives.
    view: Guard<Arc<View>>,
    reservation: MetaReservation,
    _inside: Inside<'e>,
}

impl<'e> Handle<'e> {
    pub(crate) fn open(
        storage: &'e Storage,
        allocation: &'e Allocation,
        commits: &'e Commits,
        (reservations, quota_limits): (&'e Reservations, &'e QuotaLimits),
        reservation: MetaReservation,
    ) -> Self {
        let (inside, view) = commits.enter_view();
        open_handles::open();
        Self { storage, allocation, reservations, quota_limits, view, reservation, _inside: inside }
    }

    /// Records that the preceding puts make a subvolume within another one. From now on, writes to
    /// the new subvolume must keep the limits that will apply to it after the commit.
    pub fn note_subvolume(&self, tree: TreeId, within: TreeId) {
        self.quota_limits.note_made(tree, within, self.generation());
    }

    /// Requests a snapshot, which the commit of this transaction makes.
    /// [`Engine::commit_cut`](crate::Engine::commit_cut) waits for that commit.
    pub fn snapshot(&self, snapshot: Snapshot) {
        self.allocation.stamps().snapshot();
        self.transaction().snapshots.change(|snapshots| snapshots.push(snapshot));
    }

    pub(crate) fn transaction(&self) -> &Transaction {
        self.view.running()
    }

    /// The transaction that this operation becomes part of.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.transaction().generation
    }

    /// Sets an item.
    pub fn put(&self, tree: TreeId, key: Key, payload: impl AsRef<[u8]>) {
        self.transaction().overlay.put(tree, key, payload.as_ref());
        self.transaction().tracked.note(tree, &key, false);
    }

    /// Deletes an item.
    pub fn delete(&self, tree: TreeId, key: Key) {
        self.transaction().overlay.set(tree, key, None);
        self.transaction().tracked.note(tree, &key, true);
    }

    /// Records the checksums of an extent's data, or of a part of it: one per sector, in order.
    pub fn insert_csums(&self, range: Extent, sums: Vec<u8>) {
        self.transaction().sums.insert(range, sums);
    }

    /// Records that the data of an extent, or of a part of it, is written. If the volume has a
    /// stripe tree, the commit records there where the data lies.
    pub fn note_written(&self, range: Extent) {
        if self.view.roots().find(TreeId::RAID_STRIPE).is_some() {
            self.transaction().written.insert(range);
        }
    }

    /// Adds one reference to a data extent. The first reference of a newly allocated extent makes
    /// the extent item.
    pub fn add_data_ref(&self, extent: Extent, user: DataRef) {
        let charge = self.allocation.unreferenced().remove(extent.start);
        let born = charge.is_some();
        if let Some(charge) = charge {
            self.storage.space().commit_used(extent);
            charge.add_first_ref(extent.start, self.generation());
        }
        self.change(extent, user, 1, born);
    }

    /// Extends an extent by the space that was allocated right after it. The extent must be new in
    /// this transaction and have no other user than `user`. Returns whether the extent was
    /// extended; if not, nothing has changed.
    pub fn extend_data(&self, extent: Extent, more: Extent, user: DataRef) -> bool {
        let together = self.storage.space().are_together(extent.start, more.start);
        if !together || !self.join(extent, more, user) {
            return false;
        }
        let charge = self.allocation.unreferenced().remove(more.start);
        assert!(charge.is_some(), "an extent with references goes on with none: {more}");
        self.storage.space().commit_used(more);
        if let Some(charge) = charge {
            charge.add_first_ref(extent.start, self.generation());
        }
        true
    }

    /// Joins two extents of one block group into one. The second extent has no reference yet.
    pub(crate) fn join(&self, extent: Extent, more: Extent, user: DataRef) -> bool {
        // An extent that a log names keeps its length. With parity, extents are not joined: space
        // that is allocated later is not in the rows of an older extent (`space::rows`).
        let fits = extent.end() == more.start
            && self.storage.row_slack() == 0
            && !self.transaction().tracked.has_extent(extent.start);
        if !fits || !self.transaction().refs.extend(extent, more.len, user) {
            return false;
        }
        self.allocation.stamps().touch(extent.start);
        true
    }

    /// Adds the first reference to an extent that already counts as used.
    pub(crate) fn add_first_ref(&self, extent: Extent, user: DataRef) {
        self.change(extent, user, 1, true);
    }

    /// Removes one reference to a data extent. Removing the last reference frees the extent. Its
    /// space is free at once if this transaction made the extent and no log names it. Otherwise its
    /// space is free when the transaction is durable (`txn::T5`, `txn::T6`).
    pub fn drop_data_ref(&self, extent: Extent, user: DataRef) {
        self.change(extent, user, -1, false);
    }

    /// Sets the owner of an extent that is new in this transaction, if the owner is not the
    /// subvolume of the first user.
    pub fn set_data_owner(&self, at: Logical, owner: Option<TreeId>) {
        self.transaction().refs.set_owner(at, owner);
    }

    /// Requires that this transaction becomes durable as a whole. An fsync then commits and writes
    /// no log, because a log would name only a part of the handle's puts.
    pub fn keep_whole(&self) {
        self.transaction().needs_commit.store(true, Ordering::Release);
    }

    /// Makes the commit rebuild the tree nodes on the path to each key.
    pub fn rebuild_at(&self, places: Vec<(TreeId, Key)>) {
        self.transaction().to_rebuild.change(|to_rebuild| to_rebuild.extend(places));
    }

    /// Makes the commit move committed nodes of subvolumes, given with their first keys, and all
    /// nodes above them. `cost` is the number of new nodes. Trees that share these nodes still
    /// share them afterwards.
    pub(crate) fn move_nodes(&self, nodes: &[(NodePtr, Key)], cost: u64) {
        self.transaction().moves.change(|moves| {
            moves.nodes.extend_from_slice(nodes);
            moves.cost += cost;
        });
    }

    /// Whether the running transaction has no change of an item so far.
    #[must_use]
    pub fn is_untouched(&self, tree: TreeId, key: &Key) -> bool {
        self.transaction().overlay.find(tree, key).is_none()
    }

    /// Records that the preceding puts and reference changes moved all users of an extent to a
    /// copy.
    pub fn note_moved_extent(&self, moved: MovedExtent) {
        self.transaction().moves.change(|moves| moves.moved.push(moved));
    }

    /// Makes the commit drop a further part of a dead subvolume, with about `budget` changed
    /// references.
    pub fn drop_tree(&self, tree: TreeId, budget: u32) {
        self.transaction().drops.change(|trees| trees.insert(tree, budget.into()));
    }

    /// Makes the commit drop a further part of the tree that an interrupted balance of Linux left
    /// for a subvolume.
    pub fn drop_leftover(&self, of: TreeId, budget: u32) {
        self.transaction().leftovers.change(|trees| trees.insert(of, budget.into()));
    }

    fn change(&self, extent: Extent, user: DataRef, delta: i64, born: bool) {
        self.allocation.stamps().touch(extent.start);
        if self.transaction().refs.change(extent, user, delta, born) {
            self.quota_limits.end(extent.start);
            self.transaction().sums.remove(extent);
            self.transaction().written.remove(extent);
            if self.transaction().tracked.keep_if_logged(extent) {
                self.storage
                    .space()
                    .pin(extent)
                    .expect("space::space::S1: it was in use until now");
            } else {
                // Count before the call of `free`, because another thread can allocate the extent
                // right after that call.
                self.allocation.stamps().note_freed_at_once();
                self.storage.space().free(extent);
            }
        }
    }
}

impl Drop for Handle<'_> {
    fn drop(&mut self) {
        open_handles::close();
        self.reservation.give_back(self.reservations);
    }
}
