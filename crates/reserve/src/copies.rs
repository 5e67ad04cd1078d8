//! Room for copies of the nodes that trees share, so that a delete always succeeds.
//!
//! # Place
//!
//! A delete of a file that a snapshot has, too, changes nodes that both trees use. The deleting
//! tree then has copies of its own, and nothing comes free. Node after node, that may come to as
//! much as all of them take. On a volume that is full of metadata the delete would be refused where
//! the global reserve ends. So writers that fill the volume leave room for the copies, and
//! operations that free space may use it.
//!
//! How many there may be is in the root items. Each says how many nodes its tree has. All together,
//! less the nodes that there are, is what trees would take if they shared nothing. A read-only
//! subvolume needs no copies.
//!
//! # Invariants
//!
//! - **Y1** There is room for a copy of every node that a writable tree shares. There is room for
//!   as much as the references of copies may have the extent tree and the global reserve grow. No
//!   snapshot is taken, and none made writable, without such room. The room has a bound: twice what
//!   all nodes of subvolumes take, or a thirty-second part of the devices, whichever is more. So
//!   the hundredth writable snapshot of one subvolume asks for nothing more, and not all of them
//!   can be emptied file by file.
//! - **Y2** A volume that came with less has what is left and not needed at once: half of it, or
//!   all but twice what is lacking. It shrinks by what operations that free space take of it, and
//!   not by what others take.
//! - **Y3** What lies in chunks to come is kept of the devices, from data and from reservations.
//!   Only the rest is part of the global reserve. So a volume that has room loses nothing by it.
//! - **Y4** What the root items say is the last published commit's. It bounds nothing that a commit
//!   takes (that is `shared`): a volume with items that say something else keeps too much, or too
//!   little.

use std::collections::BTreeMap;

use buttress_format::{Generation, Key, RootItem, TreeId};
use buttress_space::{Account, SpaceKind};
use buttress_tree::{Cursor, Roots, Store};
use buttress_volume::DeviceSpace;

use crate::copies_need::{Room, Sums, Trees, counts, kept};
use crate::policy::DeleteRoom;
use crate::reservations::Reservations;
use crate::shares::EXTENT_ITEM;
use crate::{Cost, Result};

pub use crate::copies_need::Tree;

/// What one reservation asks for at most: what it lacks is kept as far as it is there.
const ASKED_MAX: u64 = 1 << 32;

/// The cost that reserves so many bytes for copies: two bytes of metadata for each byte of a cost.
#[must_use]
pub fn cost_of_copies(bytes: u64) -> Cost {
    Cost::of(0, u32::try_from(bytes / 2).unwrap_or(u32::MAX / 2))
}

impl Reservations {
    /// Looks at all trees that the root tree names, unless that was done. Called before the first
    /// reservation.
    ///
    /// # Errors
    ///
    /// When the root tree is damaged.
    pub fn look_at_trees(&self, store: &Store, roots: &Roots) -> Result<()> {
        let mut known = self.copies.lock();
        if known.is_known || self.delete_room == DeleteRoom::Off {
            return Ok(());
        }
        let tree = TreeId::ROOT;
        let root = roots.find(tree).ok_or(buttress_tree::Error::NoTree(tree))?;
        let mut cursor = Cursor::seek(store, tree, root, &Key::MIN)?;
        while let Some((key, item)) = cursor.key().zip(cursor.item()) {
            // A tree without a root item is an error that other code reports.
            if counts(&key)
                && let Ok(item) = RootItem::parse(item)
            {
                known.trees.set(key, Some(Tree::of(&item)));
            }
            cursor.advance()?;
        }
        known.is_known = true;
        Ok(())
    }

    /// Notes what a published commit made of root items (Y4).
    pub(crate) fn note_trees(&self, changes: BTreeMap<Key, Option<Tree>>, by: Generation) {
        let mut known = self.copies.lock();
        known.coming.retain(|(generation, _)| *generation > by);
        if known.is_known {
            let changes = changes.into_iter().filter(|(key, _)| counts(key));
            changes.for_each(|(key, tree)| known.trees.set(key, tree));
        }
    }

    /// Sets how much is kept, for a global reserve of this size without it. Returns bytes of chunks
    /// to come, and bytes beside those.
    pub(crate) fn keep_for_copies(
        &self,
        account: &Account,
        reserve: u64,
        devices: &DeviceSpace,
    ) -> (u64, u64) {
        let mut known = self.copies.lock();
        if known.trees.sums().cut == 0 && known.coming.is_empty() {
            known.kept = 0;
            return (0, 0);
        }
        let need = known.trees.sums().need(self.room_of(account, &known.trees, devices));
        let coming = known.coming.iter().map(|(_, bytes)| bytes).sum::<u64>();
        let need = need.saturating_add(coming);
        // Neither pinned nor reserved space is subtracted: what was freed comes back, and what a
        // commit has chosen becomes used or not.
        let there =
            account.total.saturating_sub(account.used + account.read_only + account.super_bytes);
        let lacks = reserve.saturating_sub(there);
        let kind = self.kind_flags(SpaceKind::Metadata);
        let to_come = devices.could_keep(kind, need.saturating_add(lacks));
        let left = (there + to_come).saturating_sub(reserve);
        known.kept = kept(need, left, known.kept);
        // Data uses chunks of mixed groups as well: what is reserved keeps it out.
        let most = if self.space.is_mixed() { 0 } else { to_come.saturating_sub(lacks) };
        let of_devices = known.kept.min(most);
        (of_devices, known.kept - of_devices)
    }

    /// Bytes of metadata that a snapshot of a subvolume has to reserve, so that they are there when
    /// what it shares is changed (Y1).
    ///
    /// # Errors
    ///
    /// When the root tree is damaged.
    pub fn room_for_snapshot(&self, source: TreeId, read_only: bool) -> Result<u64> {
        self.room_to(source, |sums, bytes| {
            sums.cut += 1;
            sums.all += bytes;
            sums.writable += if read_only { 0 } else { bytes };
        })
    }

    /// The same for a snapshot that was read-only and becomes writable.
    ///
    /// # Errors
    ///
    /// When the root tree is damaged.
    pub fn room_to_change(&self, tree: TreeId) -> Result<u64> {
        self.room_to(tree, |sums, bytes| sums.writable += bytes)
    }

    fn room_to(&self, tree: TreeId, change: impl FnOnce(&mut Sums, u128)) -> Result<u64> {
        let view = self.view.load_full();
        let Some(item) = view.committed_root_item(tree)? else { return Ok(0) };
        // All changes that are not committed may be of that tree, in leaves that are half full.
        let transactions = view.frozen().into_iter().chain([view.running()]);
        let uncounted = transactions.map(|transaction| 2 * transaction.bytes()).sum::<u64>();
        let bytes = u128::from(item.bytes_used) + u128::from(uncounted);
        let account = self.space.account(SpaceKind::Metadata);
        let devices = self.devices.lock();
        let known = self.copies.lock();
        if !known.is_known {
            return Ok(0);
        }
        let room = self.room_of(&account, &known.trees, &devices);
        let mut then = known.trees.sums();
        change(&mut then, bytes);
        let largest = room.largest.max(u64::try_from(bytes).unwrap_or(u64::MAX));
        let more = then.need(Room { largest, ..room });
        Ok(more.saturating_sub(known.trees.sums().need(room)).min(ASKED_MAX))
    }

    /// Keeps room for what a transaction shares from now on, until root items say so. The caller
    /// has reserved it.
    pub fn keep_until_published(&self, bytes: u64, by: Generation) {
        if bytes > 0 {
            self.copies.lock().coming.push((by, bytes));
            self.size_global_reserve();
        }
    }

    /// The global reserve grows with the trees, and is never more than a small volume can spare:
    /// half of it where trees share nodes, for deletes that change many of them first (S2 of
    /// `reserve::shared`). What is kept for copies comes on top (`reserve::copies`).
    pub fn size_global_reserve(&self) {
        // One at a time, and no chunk is made meanwhile.
        let mut devices = self.devices.lock();
        let account = self.space.account(SpaceKind::Metadata);
        // What is in use in mixed groups is data, mostly.
        let trees = if self.space.is_mixed() { account.used / 4 } else { account.used };
        let reserve = (trees / 8).clamp(4 << 20, 128 << 20).min(account.total / 4);
        let shared = self.shared_reserve(trees).map_or(0, |bytes| bytes.min(account.total / 2));
        let reserve = reserve.max(shared);
        let (of_devices, for_copies) = self.keep_for_copies(&account, reserve, &devices);
        devices.keep_for_copies(of_devices);
        self.space.set_global_reserve(reserve + for_copies, for_copies);
    }

    fn room_of(&self, account: &Account, trees: &Trees, devices: &DeviceSpace) -> Room {
        let geometry = self.store.geometry();
        let is_mixed = self.space.is_mixed();
        let kind = self.kind_flags(SpaceKind::Metadata);
        Room {
            used: (!is_mixed).then_some(account.used),
            largest: if is_mixed { trees.largest() } else { 0 },
            devices: devices.total() / u64::from(devices.profile_of(kind).flags().copies()).max(1),
            nodesize: geometry.nodesize.into(),
            each: geometry.leaf_room() as u64 / EXTENT_ITEM,
        }
    }
}
