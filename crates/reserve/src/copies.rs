//! Room for copies of the nodes that trees share, so that a delete always succeeds.
//!
//! # Place
//!
//! A file may also be in a snapshot. Deleting the file changes nodes that both trees use, so the
//! tree of the deleted file gets copies of these nodes. The snapshot still uses the old nodes, so
//! no space becomes free. In the worst case deletes copy every shared node. On a volume with full
//! metadata, deletes would fail once the global reserve is used up. So ordinary writers leave room
//! for the copies, and operations that free space may use this room.
//!
//! Root items tell how many copies there may be. Each root item has the bytes of its tree's nodes.
//! The sum over all trees is the space that the trees would take if they shared nothing. This sum,
//! less the bytes in use, bounds the space for copies. A read-only subvolume needs no copies.
//!
//! # Invariants
//!
//! - **Y1** Room is kept for a copy of every node that a writable tree shares. Copies add
//!   references, which make the extent tree and the global reserve grow. Room is kept for this
//!   growth, too. A snapshot reserves this room before it is taken, up to `ASKED_MAX`. A read-only
//!   snapshot reserves this room before it becomes writable. The copies have an upper bound: twice
//!   the space of all subvolume nodes, or 1/32 of the devices, whichever is more. At that bound,
//!   further writable snapshots reserve no more room. In that case not all snapshots can be emptied
//!   file by file.
//! - **Y2** A volume may have too little space for this room when it is mounted. Then a part of
//!   this room is kept. Let M be the bytes by which the need exceeds the space left. The part is
//!   the space left minus M, but at least half of the space left. Operations that free space use up
//!   this part; other operations do not.
//! - **Y3** The room is kept first in chunks that are not allocated yet. This part is withheld from
//!   data and from reservations of ordinary writers. Only the rest is kept in block groups, where
//!   it enlarges the global reserve. So a volume with enough unallocated space keeps nothing in
//!   block groups.
//! - **Y4** The root items come from the last published commit. They do not bound the space that a
//!   commit takes; `shared` has that bound. If root items are wrong, the volume only keeps too much
//!   or too little room.

use std::collections::BTreeMap;

use buttress_format::{Generation, Key, RootItem, TreeId};
use buttress_space::{Account, SpaceKind};
use buttress_tree::{Cursor, Roots, Store};
use buttress_volume::DeviceSpace;

use crate::copies_need::{Room, Sums, TreeFacts, TreesFacts, counts, kept};
use crate::reservations::Reservations;
use crate::{Cost, Result};

/// The most bytes that one snapshot must reserve. If its copies may need more, the additional room
/// is kept only as far as space is left, and the snapshot is not refused.
const ASKED_MAX: u64 = 1 << 32;

/// The cost of a reservation for `bytes` of copies. Each byte of a cost reserves two bytes of
/// metadata, so the cost has half of `bytes`.
#[must_use]
pub fn cost_of_copies(bytes: u64) -> Cost {
    Cost { bytes: bytes / 2, ..Cost::default() }
}

impl Reservations {
    /// Reads all root items, if this has not been done yet. Called before the first reservation.
    ///
    /// # Errors
    ///
    /// When the root tree is damaged.
    pub fn look_at_trees(&self, store: &Store, roots: &Roots) -> Result<()> {
        let mut known = self.copies.lock();
        if known.is_known || !self.parts.delete_room {
            return Ok(());
        }
        let tree = TreeId::ROOT;
        let root = roots.find(tree).ok_or(buttress_tree::Error::NoTree(tree))?;
        let mut cursor = Cursor::seek(store, tree, root, &Key::MIN)?;
        while let Some((key, item)) = cursor.key().zip(cursor.item()) {
            // A root item that does not parse is skipped here; other code reports the error.
            if counts(&key)
                && let Ok(item) = RootItem::parse(item)
            {
                known.trees.set(key, Some(TreeFacts::of(&item)));
            }
            cursor.advance()?;
        }
        known.is_known = true;
        Ok(())
    }

    /// Records the root items that a published commit changed (Y4), and drops the room that
    /// `keep_until_published` kept for this commit.
    pub(crate) fn note_trees(&self, changes: BTreeMap<Key, Option<TreeFacts>>, by: Generation) {
        let mut known = self.copies.lock();
        known.coming.retain(|(generation, _)| *generation > by);
        if known.is_known {
            let changes = changes.into_iter().filter(|(key, _)| counts(key));
            changes.for_each(|(key, tree)| known.trees.set(key, tree));
        }
    }

    /// Computes how many bytes are kept for copies. `reserve` is the global reserve without these
    /// bytes. Returns two numbers of kept bytes: in chunks not allocated yet, and in block groups.
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
        // Pinned space is not subtracted, because it becomes free again. Space that a commit has
        // just allocated is not subtracted either: it later counts as used, or becomes free.
        let there =
            account.total.saturating_sub(account.used + account.read_only + account.super_bytes);
        let lacks = reserve.saturating_sub(there);
        let kind = self.metadata_flags();
        let to_come = devices.could_keep(kind, need.saturating_add(lacks));
        let left = (there + to_come).saturating_sub(reserve);
        known.kept = kept(need, left, known.kept);
        // In mixed groups data would use new chunks as well, so nothing is kept in chunks to come.
        // Only the global reserve withholds space from data.
        let most = if self.parts.space.is_mixed() { 0 } else { to_come.saturating_sub(lacks) };
        let of_devices = known.kept.min(most);
        (of_devices, known.kept - of_devices)
    }

    /// Bytes of metadata that a snapshot of `source` must reserve, so that later changes of the
    /// shared nodes find room for copies (Y1).
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

    /// Bytes of metadata that a read-only snapshot must reserve before it becomes writable (Y1).
    ///
    /// # Errors
    ///
    /// When the root tree is damaged.
    pub fn room_to_change(&self, tree: TreeId) -> Result<u64> {
        self.room_to(tree, |sums, bytes| sums.writable += bytes)
    }

    fn room_to(&self, tree: TreeId, change: impl FnOnce(&mut Sums, u128)) -> Result<u64> {
        let view = self.parts.view.load_full();
        let Some(item) = view.committed_root_item(tree)? else { return Ok(0) };
        // All uncommitted changes may belong to this tree, and may lie in leaves that are half
        // full.
        let transactions = view.frozen().into_iter().chain([view.running()]);
        let uncounted = transactions.map(|transaction| 2 * transaction.bytes()).sum::<u64>();
        let bytes = u128::from(item.bytes_used) + u128::from(uncounted);
        let account = self.parts.space.account(SpaceKind::Metadata);
        let devices = self.parts.devices.lock();
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

    /// Keeps `bytes` for copies of the nodes that transaction `by` shares or makes writable, until
    /// its commit is published. From then on, the root items account for these copies. The caller
    /// has reserved these bytes.
    pub fn keep_until_published(&self, bytes: u64, by: Generation) {
        if bytes > 0 {
            self.copies.lock().coming.push((by, bytes));
            self.size_global_reserve();
        }
    }

    /// Sets the size of the global reserve. It is an eighth of the trees' bytes, between 4 MiB and
    /// 128 MiB, and at most a quarter of all metadata. If trees share nodes, the reserve may be up
    /// to half of all metadata. This is for deletes that are the first to change many nodes
    /// (`shared::S2`). The bytes kept for copies come on top (`reserve::copies`).
    pub fn size_global_reserve(&self) {
        // The lock of the devices serializes these computations, and no chunk is allocated
        // meanwhile.
        let mut devices = self.parts.devices.lock();
        let account = self.parts.space.account(SpaceKind::Metadata);
        // In mixed groups most of the used space is data.
        let trees = if self.parts.space.is_mixed() { account.used / 4 } else { account.used };
        let reserve = (trees / 8).clamp(4 << 20, 128 << 20).min(account.total / 4);
        let shared = self.shared_reserve(trees).map_or(0, |bytes| bytes.min(account.total / 2));
        let reserve = reserve.max(shared);
        let (of_devices, for_copies) = self.keep_for_copies(&account, reserve, &devices);
        devices.keep_for_copies(of_devices);
        self.parts.space.set_global_reserve(reserve + for_copies, for_copies);
    }

    fn room_of(&self, account: &Account, trees: &TreesFacts, devices: &DeviceSpace) -> Room {
        let is_mixed = self.parts.space.is_mixed();
        let kind = self.metadata_flags();
        Room {
            used: (!is_mixed).then_some(account.used),
            largest: if is_mixed { trees.largest() } else { 0 },
            devices: devices.total() / u64::from(devices.profile_of(kind).flags().copies()).max(1),
            nodesize: self.nodesize(),
            each: self.extents_of_leaf(),
        }
    }
}
