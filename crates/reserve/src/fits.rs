//! What a reservation takes at most beside all that is reserved and running, and whether that
//! fits (`reserve::P1`).
//!
//! # Invariants
//!
//! - **F1** A bound is never below what a commit takes: closer ones only replace the crude one
//!   where they are proven (`count`).
//! - **F2** What is reserved beyond the groups is kept from data in the same step in which it is
//!   said to fit.

use std::sync::atomic::Ordering;

use buttress_format::TreeId;
use buttress_space::{Account, SpaceKind};
use buttress_volume::DeviceSpace;

use crate::outstanding::Outstanding;
use crate::reservations::Reservations;
use crate::urgency::Urgency;
use crate::{Cost, Costs, Result, View, transaction::Transaction};

/// Less than this of the devices makes no chunk.
const CHUNK_MIN: u64 = 1 << 20;

/// Reservations of more than this part of what is left, in thousandths, should be needed soon.
const TIGHT: u64 = 500;

impl Reservations {
    /// What a transaction and reservations need together, by what bounds both.
    pub(crate) fn crude_need(&self, running: &Transaction, to_come: Costs, used: u64) -> u64 {
        let items = running.items() + to_come.all_items();
        let alone = self.need(items, running.bytes() + to_come.bytes, used);
        alone + self.shared_need(running.shared_leaf_changes_max() + to_come.items, used)
    }

    /// Replaces, in one step, what the running transaction and reservations take beyond the groups.
    /// Data must not take that space in between.
    pub(crate) fn keep_anew(&self) {
        let outstanding = self.outstanding.lock();
        let excess = self.excess(outstanding.sum(), Urgency::Normal, true);
        let mut devices = self.devices.lock();
        let most = devices.available(self.kind_flags(SpaceKind::Metadata));
        devices.keep_exactly(excess.min(most));
    }

    pub(crate) fn fits(&self, outstanding: &Outstanding, cost: Cost, urgency: Urgency) -> bool {
        let excess = self.excess(outstanding.sum() + cost.into(), urgency, true);
        excess == 0 || self.overcommit(excess, urgency)
    }

    /// What the running transaction and all that is to come take beyond the groups, by the crude
    /// bound or by a closer one; `by_inodes` is of [`need_by_count`](Self::need_by_count).
    pub(crate) fn excess(&self, to_come: Costs, urgency: Urgency, by_inodes: bool) -> u64 {
        let running = self.view.load();
        // An operation that frees space does not make writers hurry.
        let note_pressure = |pressure| {
            if !urgency.frees() {
                self.note_pressure(pressure);
            }
        };
        let (account, frozen) = self.account_and_frozen();
        let firsts = running.running().shared_leaf_changes_max() + to_come.items;
        let reserve = account.global_reserve - account.for_copies;
        let kept = match urgency {
            // The part of the reserve that is for the extent tree is for all operations of one
            // transaction.
            Urgency::Normal => {
                account.for_copies + reserve.saturating_sub(self.shared_leaves(firsts))
            }
            // Dirty data is lost if finishing its ordered extent is refused. So it comes before
            // deletes, where those have less.
            Urgency::Finishes if self.is_shared() => reserve / 8,
            Urgency::Frees if self.is_shared() => reserve / 4,
            Urgency::Finishes => reserve / 4,
            Urgency::Frees => reserve / 8,
            Urgency::Drops => 0,
        };
        let apart = self.reserved_apart(to_come);
        // By the published rule reservations add to what the transaction needs without them.
        let with_apart = |need: u64, put: &dyn Fn() -> u64| match apart {
            0 => need,
            apart => need.max(put() + apart),
        };
        let crude = self.crude_need(running.running(), to_come, account.used);
        let crude = with_apart(crude, &|| self.need_of(running.running()));
        let taken = frozen + kept;
        // Without what data has reserved in mixed groups.
        let free = account.free().saturating_sub(account.may_use);
        if crude + taken <= free {
            note_pressure(0);
            return 0;
        }
        let known = self.known(running.running());
        let closer = known.map(|known| self.need_by_count(&known, to_come, by_inodes));
        // All but what operations hold: they may give that back when they put less.
        let put = known.map(|known| self.need_by_count(&known, Costs::default(), false));
        let need =
            closer.map_or(crude, |closer| with_apart(closer, &|| put.unwrap_or(closer)).min(crude));
        if let Some(known) = known {
            self.note_due(&known, free.saturating_sub(need + taken));
        }
        let put = put.unwrap_or(need).min(need);
        let left = free.saturating_sub(put + taken);
        note_pressure((need - put).saturating_mul(1000) / left.max(1));
        (need + taken).saturating_sub(free)
    }

    pub(crate) fn is_tight_now(&self) -> bool {
        self.pressure.load(Ordering::Relaxed) > TIGHT
    }

    /// Notes the part of what is left that is reserved, in thousandths.
    pub(crate) fn note_pressure(&self, pressure: u64) {
        if self.pressure.load(Ordering::Relaxed) != pressure {
            self.pressure.store(pressure, Ordering::Relaxed);
        }
    }

    /// The reserved part of the metadata that can be reserved, in thousandths, where that is more
    /// than half. Nothing, unless metadata is counted closely, and no chunk can be added or a
    /// commit waits for dirty data. Nothing ever by the published rule of reservations: its
    /// baseline writes nothing ahead.
    #[must_use]
    pub fn pressure(&self) -> Option<u64> {
        let pressure = self.pressure.load(Ordering::Relaxed);
        let counts = pressure > TIGHT && !self.policy.is_levels();
        let is_last =
            || self.devices.lock().available(self.kind_flags(SpaceKind::Metadata)) < CHUNK_MIN;
        (counts && (self.inode_reserves.are_awaited() || is_last())).then_some(pressure)
    }

    /// Whether operations may not fit beside a frozen transaction, by what is known of it. Assumes
    /// that the next becomes like it before its commit is done.
    pub(crate) fn is_crowded(&self, frozen: &Transaction) -> bool {
        let account = self.space.account(SpaceKind::Metadata);
        let next = self.paths(u64::MAX, account.used).max(self.need_of(frozen));
        let left = self.frozen_need.load(Ordering::Relaxed);
        let taken = left + next + account.global_reserve + account.may_use;
        let to_come = self.devices.lock().reservable(self.kind_flags(SpaceKind::Metadata));
        taken > account.free() + to_come
    }

    /// Has reservations count with a subvolume's height from now on, too. A subvolume without work
    /// since the mount may be taller than the trees that are always known, and share nodes with
    /// others.
    ///
    /// # Errors
    ///
    /// When the root tree is damaged.
    pub fn know_height(&self, view: &View, tree: TreeId) -> Result<()> {
        let item = view.committed_root_item(tree)?;
        let Some(item) = item else { return Ok(()) };
        self.height.fetch_max(item.level, Ordering::Relaxed);
        if item.last_snapshot.0 > 0 {
            self.note_shared(view);
        }
        Ok(())
    }

    /// Nodes that changing one item may dirty: a path, and a split.
    pub(crate) fn levels(&self) -> u64 {
        u64::from(self.height.load(Ordering::Relaxed)) + 2
    }

    /// Returns the metadata that the frozen transaction may still allocate.
    pub fn frozen_left(&self) -> u64 {
        let need = self.frozen_need.load(Ordering::Acquire);
        need.saturating_sub(self.frozen_taken.load(Ordering::Acquire))
    }

    /// The account of metadata, and what the frozen transaction may still allocate of it. Bytes
    /// that its commit takes or gives back meanwhile count twice rather than not at all. The
    /// account takes them before they leave this figure, and gives them up after they came back to
    /// it.
    pub fn account_and_frozen(&self) -> (Account, u64) {
        let before = self.frozen_left();
        let account = self.space.account(SpaceKind::Metadata);
        (account, before.max(self.frozen_left()))
    }

    /// Whether chunks to come can back `excess` bytes more than the metadata groups have: a commit
    /// adds them as it needs them. Half of what the devices have left is given this way, and kept
    /// from data as long as it is reserved (F2). An operation that fills leaves what is for copies
    /// of nodes; one that frees space has all that is left.
    pub(crate) fn overcommit(&self, excess: u64, urgency: Urgency) -> bool {
        let mut devices = self.devices.lock();
        let kind = self.kind_flags(SpaceKind::Metadata);
        if !devices.may_reserve(kind, excess, urgency.frees()) {
            return false;
        }
        devices.keep_for_metadata(excess);
        true
    }

    /// Bytes of metadata that a commit of so much may allocate before it frees any, but for what
    /// trees share (`shared_need`).
    pub(crate) fn need(&self, items: u64, bytes: u64, used: u64) -> u64 {
        let nodesize = u64::from(self.store.geometry().nodesize);
        bound(items, bytes, used + 16 * nodesize, self.levels() * nodesize) + 24 * nodesize
    }

    /// Returns the part of that need which is for paths. It is bounded, however long a transaction
    /// is.
    pub(crate) fn paths(&self, items: u64, used: u64) -> u64 {
        self.need(items, 0, used)
    }

    /// Bytes that reservations take by themselves, by the rule that was chosen; none where all of
    /// them count together.
    pub(crate) fn reserved_apart(&self, reserved: Costs) -> u64 {
        self.policy.alone(reserved, u64::from(self.store.geometry().nodesize))
    }

    /// Bytes of metadata that a transaction needs, by the crude bound.
    pub(crate) fn need_of(&self, transaction: &Transaction) -> u64 {
        let used = self.space.account(SpaceKind::Metadata).used;
        self.crude_need(transaction, Costs::default(), used)
    }

    /// Whether a commit under way finds what it may still need, where this transaction is a younger
    /// one (`chunk_alloc::A1`): in groups that it may use, and in chunks of its own.
    pub fn leaves_frozen(&self, transaction: &Transaction, devices: &DeviceSpace) -> bool {
        let left = self.frozen_left();
        let kind = self.kind_flags(SpaceKind::Metadata);
        if left == 0 || devices.has(kind, left) {
            return true;
        }
        let view = self.view.load();
        let Some(frozen) =
            view.frozen().filter(|frozen| frozen.generation < transaction.generation)
        else {
            return true;
        };
        let groups = self.space.groups_of(SpaceKind::Metadata);
        let groups = groups.iter().filter(|group| group.birth() <= frozen.generation);
        let there = groups.map(|group| group.available()).sum();
        devices.has(kind, left.saturating_sub(there))
    }

    /// Whether the metadata that is reserved would fit twice without so many bytes: a group that is
    /// needed again at once is not worth removing.
    pub fn fits_without(&self, bytes: u64) -> bool {
        let account = self.space.account(SpaceKind::Metadata);
        let running = self.need_of(self.view.load().running());
        let kept = 2 * (running + account.global_reserve);
        account.free() >= bytes.saturating_add(kept)
            && self.may_reserve(Cost::of(64, 65536), Urgency::Normal)
    }
}

/// Bytes of nodes that so many items of so many bytes may dirty. Each may dirty a path of so many,
/// and all cannot dirty more than there is. What they fill comes on top of either: checksums of one
/// large extent are few items, and many leaves, and a leaf may be left half full.
fn bound(items: u64, bytes: u64, used: u64, path: u64) -> u64 {
    let fills = bytes.saturating_mul(2);
    items.saturating_mul(path).min(used).saturating_add(fills)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: u64 = 16 << 10;
    const PATH: u64 = 4 * NODE;

    /// Many small changes cost a path each, until that is more than there is.
    #[test]
    fn the_smaller_of_paths_and_volume_counts() {
        let small = |items| bound(items, items * 100, 64 << 20, PATH);
        assert_eq!(small(10), 10 * PATH + 2000);
        assert_eq!(small(100_000), (64 << 20) + 20_000_000);
    }

    /// Whatever items they are counted as: checksums of 32 bytes for 128 MiB fill 64 leaves, or
    /// twice as many that are half full.
    #[test]
    fn filled_bytes_are_reserved() {
        let sums = (128 << 20) / 4096 * 32;
        assert!(bound(8, sums, 64 << 20, PATH) >= 2 * sums);
        assert!(bound(8, sums, 0, PATH) >= 2 * sums);
    }
}
