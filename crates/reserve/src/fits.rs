//! Bounds the need of the running transaction and all reservations, and decides whether a request
//! fits (`reserve::P1`).
//!
//! # Invariants
//!
//! - **F1** A bound is never below the space that a commit takes. A closer bound replaces the crude
//!   bound only where the closer bound is proven (`count`).
//! - **F2** A grant may rely on chunks that are not allocated yet. One lock covers two steps:
//!   deciding that the request fits, and withholding the space of these chunks from data.

use buttress_format::TreeId;
use buttress_space::{Account, SpaceKind};
use buttress_volume::DeviceSpace;

use crate::class::ReserveClass;
use crate::reservations::Reservations;
use crate::{Cost, Result, View, transaction::Transaction};

/// With less unallocated space than this, no chunk can be made.
const CHUNK_MIN: u64 = 1 << 20;

impl Reservations {
    /// The need of a transaction and of reservations together, by the crude bound.
    pub(crate) fn crude_need(&self, running: &Transaction, to_come: Cost, used: u64) -> u64 {
        let mut items = running.items() + to_come.all_items();
        if self.parts.has_stripe_tree {
            // A changed extent has a run of items in the stripe tree. The run dirties at most two
            // paths. Its bytes are counted already.
            items *= 3;
        }
        let alone = self.need(items, running.bytes() + to_come.bytes, used);
        alone + self.shared_need(running.shared_leaf_changes_max() + to_come.items, used)
    }

    /// Recomputes the bytes that the running transaction and reservations need beyond the block
    /// groups, and withholds them from data. This is one step under the lock, so data cannot take
    /// the space in between.
    pub(crate) fn keep_anew(&self) {
        let outstanding = self.outstanding.lock();
        let excess = self.excess(outstanding.sum(), ReserveClass::Normal, true);
        let mut devices = self.parts.devices.lock();
        let most = devices.available(self.metadata_flags());
        devices.keep_exactly(excess.min(most));
    }

    /// Whether the running transaction and `to_come` fit (`reserve::P1`). Chunks not allocated yet
    /// can back bytes beyond the metadata groups. Their space is withheld from data as long as it
    /// is reserved (F2), and a commit adds them as it needs them.
    pub(crate) fn fits(&self, to_come: Cost, class: ReserveClass, by_inodes: bool) -> bool {
        let excess = self.excess(to_come, class, by_inodes);
        if excess == 0 {
            return true;
        }
        let mut devices = self.parts.devices.lock();
        let fits = devices.may_reserve(self.metadata_flags(), excess, class.frees());
        if fits {
            devices.keep_for_metadata(excess);
        }
        fits
    }

    /// The bytes that the running transaction and `to_come` need beyond the block groups; 0 if they
    /// fit. The smaller of the crude bound and a count applies. For `by_inodes` see
    /// [`need_by_count`](Self::need_by_count).
    pub(crate) fn excess(&self, to_come: Cost, class: ReserveClass, by_inodes: bool) -> u64 {
        let running = self.parts.view.load();
        // A request of an operation that frees space does not start writeback early.
        let note_pressure = |pressure| {
            if !class.frees() {
                self.pressure.note(pressure);
            }
        };
        let (account, frozen) = self.account_and_frozen();
        let firsts = running.running().shared_leaf_changes_max() + to_come.items;
        let reserve = account.global_reserve - account.for_copies;
        let kept = match class {
            // The first change of a shared leaf dirties leaves of the extent tree. A part of the
            // reserve is kept for these leaves. All operations share this part. The need already
            // includes the leaves for the known changes, so these leaves are subtracted from the
            // reserve here.
            ReserveClass::Normal => {
                account.for_copies + reserve.saturating_sub(self.shared_leaves(firsts, 0))
            }
            // If an ordered extent cannot be finished, its data is lost. So with shared nodes,
            // finishing may use more of the reserve than a delete.
            ReserveClass::Finish if self.is_shared() => reserve / 8,
            ReserveClass::Free if self.is_shared() => reserve / 4,
            ReserveClass::Finish => reserve / 4,
            ReserveClass::Free => reserve / 8,
            ReserveClass::DropTree => 0,
        };
        // Under the policy `Levels`, reservations are added to the transaction's own need.
        let apart = self.parts.policy.alone(to_come, self.nodesize());
        let mut need = self.crude_need(running.running(), to_come, account.used);
        if apart > 0 {
            need = need.max(self.need_of(running.running()) + apart);
        }
        // Both transactions may leave the rest of a row unused.
        let rows = if frozen > 0 { 2 } else { 1 };
        let taken = frozen + kept + self.frozen.row_rest() * rows;
        // In mixed groups, `may_use` has the reservations of data.
        let free = account.free().saturating_sub(account.may_use);
        if need + taken <= free {
            note_pressure(0);
            return 0;
        }
        // The need of the changes already put. The pressure excludes this need, because only unused
        // reservations are given back.
        let mut put = need;
        if let Some(by_now) = self.count_by_now(running.running()) {
            let of_put = self.need_by_count(&by_now, Cost::default(), false);
            let of_all = self.need_by_count(&by_now, to_come, by_inodes).max(of_put + apart);
            need = need.min(of_all);
            put = need.min(of_put);
            self.note_due(&by_now, free.saturating_sub(need + taken));
        }
        let left = free.saturating_sub(put + taken);
        note_pressure((need - put).saturating_mul(1000) / left.max(1));
        (need + taken).saturating_sub(free)
    }

    pub(crate) fn is_tight_now(&self) -> bool {
        self.pressure.tight().is_some()
    }

    /// The reserved part of the free metadata, in thousandths. `None` if this part is at most half.
    /// Also `None` while a chunk can be added and no commit waits for ordered extents. Always
    /// `None` under the policy `Levels`, because that baseline does not start writeback early.
    #[must_use]
    pub fn pressure(&self) -> Option<u64> {
        let pressure = self.pressure.tight().filter(|_| !self.parts.policy.is_levels());
        let is_last = || self.parts.devices.lock().available(self.metadata_flags()) < CHUNK_MIN;
        pressure.filter(|_| self.inode_reserves.are_awaited() || is_last())
    }

    /// Whether operations may lack space beside a frozen transaction. Assumes that the next
    /// transaction becomes as large as the frozen one before the commit is done.
    pub(crate) fn is_crowded(&self, frozen: &Transaction) -> bool {
        let account = self.parts.space.account(SpaceKind::Metadata);
        // However many items it has, the nodes that exist bound the next transaction, too.
        let next = self.need(u64::MAX, 0, account.used).max(self.need_of(frozen));
        let left = self.frozen.whole();
        let taken = left + next + account.global_reserve + account.may_use;
        let to_come = self.parts.devices.lock().reservable(self.metadata_flags());
        taken > account.free() + to_come
    }

    /// From now on, reservations take the height of subvolume `tree` into account. A subvolume not
    /// used since the mount may be taller than the known trees, and may share nodes.
    ///
    /// # Errors
    ///
    /// When the root tree is damaged.
    pub fn know_height(&self, view: &View, tree: TreeId) -> Result<()> {
        let item = view.committed_root_item(tree)?;
        let Some(item) = item else { return Ok(()) };
        self.shape.note_height(item.level);
        if item.last_snapshot.0 > 0 {
            self.note_shared(view);
        }
        Ok(())
    }

    /// The most nodes that changing one item may dirty: a path and a split.
    pub(crate) fn levels(&self) -> u64 {
        u64::from(self.shape.height()) + 2
    }

    /// The metadata account, and the bytes that the frozen transaction may still allocate. Bytes
    /// that its commit allocates or gives back meanwhile count twice rather than not at all. The
    /// commit adds bytes to the account first, and then to `frozen`. It subtracts bytes from
    /// `frozen` first, and then from the account.
    pub fn account_and_frozen(&self) -> (Account, u64) {
        let before = self.frozen.left();
        let account = self.parts.space.account(SpaceKind::Metadata);
        (account, before.max(self.frozen.left()))
    }

    /// The most bytes of metadata that a commit of `items` items with `bytes` bytes may allocate
    /// before it frees any. The need of shared nodes is not included (`shared_need`).
    pub(crate) fn need(&self, items: u64, bytes: u64, used: u64) -> u64 {
        let nodesize = self.nodesize();
        bound(items, bytes, used + 16 * nodesize, self.levels() * nodesize) + 24 * nodesize
    }

    /// Bytes that all reservations take under the policy `Levels`; 0 under `Counted`, where they
    /// are bounded together.
    pub(crate) fn reserved_apart(&self) -> u64 {
        self.parts.policy.alone(self.outstanding.lock().sum(), self.nodesize())
    }

    /// The need of a transaction, in bytes of metadata, by the crude bound.
    pub(crate) fn need_of(&self, transaction: &Transaction) -> u64 {
        let used = self.parts.space.account(SpaceKind::Metadata).used;
        self.crude_need(transaction, Cost::default(), used)
    }

    /// Whether enough metadata is left for an older commit under way, if a chunk is allocated for
    /// `transaction` (`txn::chunk_alloc::A1`). That commit can use unallocated space, and groups
    /// that are not younger than its own transaction. True if no older commit is under way.
    pub fn leaves_frozen(&self, transaction: &Transaction, devices: &DeviceSpace) -> bool {
        let left = match self.frozen.left() {
            0 => return true,
            left => left + self.frozen.row_rest(),
        };
        let view = self.parts.view.load();
        let Some(frozen) =
            view.frozen().filter(|frozen| frozen.generation < transaction.generation)
        else {
            return true;
        };
        // Groups are looked at only where devices are nearly full: the caller holds their lock.
        if devices.has(self.metadata_flags(), left) {
            return true;
        }
        let groups = self.parts.space.groups_of(SpaceKind::Metadata);
        let groups = groups.iter().filter(|group| group.birth() <= frozen.generation);
        let there = groups.map(|group| group.available()).sum();
        devices.has(self.metadata_flags(), left.saturating_sub(there))
    }

    /// Whether metadata can do without a group of `bytes`. The running transaction's need and the
    /// global reserve must fit twice in the rest. Otherwise a group would soon be needed again.
    pub fn fits_without(&self, bytes: u64) -> bool {
        let account = self.parts.space.account(SpaceKind::Metadata);
        let running = self.need_of(self.parts.view.load().running());
        let kept = 2 * (running + account.global_reserve);
        account.free() >= bytes.saturating_add(kept)
            && self.may_reserve(Cost::of(64, 65536), ReserveClass::Normal)
    }
}

/// The most bytes of nodes that `items` items with `bytes` bytes may dirty. Each item dirties at
/// most a path, and all items together dirty at most the `used` bytes. Twice `bytes` is added to
/// the smaller number, because a leaf may stay half full. This addition matters for the checksums
/// of one large extent, which are few items but fill many leaves.
fn bound(items: u64, bytes: u64, used: u64, path: u64) -> u64 {
    let fills = bytes.saturating_mul(2);
    items.saturating_mul(path).min(used).saturating_add(fills)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: u64 = 16 << 10;
    const PATH: u64 = 4 * NODE;

    /// Many small changes cost a path each, up to the size of all existing nodes.
    #[test]
    fn the_smaller_of_paths_and_volume_counts() {
        let small = |items| bound(items, items * 100, 64 << 20, PATH);
        assert_eq!(small(10), 10 * PATH + 2000);
        assert_eq!(small(100_000), (64 << 20) + 20_000_000);
    }

    /// The number of items does not matter here. Checksums of 32 bytes for 128 MiB fill 64 leaves,
    /// or twice as many half-full ones.
    #[test]
    fn filled_bytes_are_reserved() {
        let sums = (128 << 20) / 4096 * 32;
        assert!(bound(8, sums, 64 << 20, PATH) >= 2 * sums);
        assert!(bound(8, sums, 0, PATH) >= 2 * sums);
    }
}
