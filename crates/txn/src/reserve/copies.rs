//! Room for copies of the nodes that trees share, so that a delete always succeeds.
//!
//! # Place
//!
//! Who removes a file that a snapshot has, too, changes nodes that both use: he has copies of his own from then on, and nothing comes
//! free. One node after the other, that may come to as much as all of them take. On a volume that is full of metadata it would be refused where the global
//! reserve ends. So whoever fills the volume leaves room for the copies, and those who free space have it.
//!
//! How many there may be is in the root items. Each says how many nodes its tree has; all together, less the nodes that there are, is what trees would take if
//! they shared nothing. Of a subvolume nobody can write to there are no copies.
//!
//! # Invariants
//!
//! - **Y1** There is room for a copy of every node that a writable tree shares, and for as much as the references of copies may have the extent tree and
//!   the global reserve grow. No snapshot is taken, and none made writable, that there is no such room for. But: no more room than twice what all nodes of
//!   subvolumes take, or a thirty-second part of the devices, whichever is more; so the hundredth writable snapshot of one subvolume asks
//!   for nothing more, and not all of them can be emptied file by file.
//! - **Y2** A volume that came with less has what is left and not needed at once: half of it, or all but twice what is lacking. It shrinks by what
//!   those who free space take of it, and not by what others take.
//! - **Y3** What lies in chunks to come is kept of the devices, from data and from promises; only the rest is part of the global reserve. So
//!   nobody pays for it who has room.
//! - **Y4** What the root items say is the last published commit's. It bounds nothing that a commit takes (that is `shared`): a volume whose items say
//!   something else keeps too much, or too little.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::Arc;

use buttress_base::sync::Mutex;
use buttress_format::{Generation, Key, Kind, RootFlags, RootItem, TreeId};
use buttress_space::{Account, SpaceKind};
use buttress_tree::{Cursor, Roots, Store};

use super::{Urgency, shared::EXTENT_ITEM};
use crate::{Cost, Engine, Result, device_space::DeviceSpace};

/// The part of the devices that copies may be kept of, whatever the trees take. ZFS keeps as much for the same.
const PART_OF_DEVICES: u64 = 32;
/// Copies of all nodes that are kept for at most, whatever the devices have.
const COPIES_MAX: u128 = 2;
/// Part of the nodes that records of the copies themselves take, at most, and that the global reserve grows by.
const RECORDS: u64 = 32;
const RESERVE: u64 = 8;
/// Bytes of the root tree for each of its items about trees, and nodes beside: they are in use, and in no root item.
const ROOT_BYTES: u64 = 1024;
const BESIDE: u64 = 16;
/// Bytes of items that are asked for beside what was counted, without a thought.
const UNCOUNTED_MAX: u64 = 256 << 10;
/// What one promise asks for at most: what it lacks is kept as far as it is there.
const ASKED_MAX: u64 = 1 << 32;

/// What so many bytes for copies are promised as: two bytes of metadata for each of a cost.
#[must_use]
pub fn cost_of_copies(bytes: u64) -> Cost {
    Cost::of(0, u32::try_from(bytes / 2).unwrap_or(u32::MAX / 2))
}

/// Whether room is kept for copies of nodes that trees share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeleteRoom {
    /// A delete always succeeds; who fills the volume is refused earlier.
    #[default]
    Keep,
    /// As in Linux: the global reserve is all there is.
    Off,
}

impl FromStr for DeleteRoom {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text {
            "keep" => Ok(Self::Keep),
            "off" => Ok(Self::Off),
            _ => Err("is keep or off".to_owned()),
        }
    }
}

/// What a root item says that matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tree {
    bytes: u64,
    /// It is a subvolume's, and not read-only.
    is_writable: bool,
    /// A snapshot was cut from it, or it is one.
    is_cut: bool,
}

impl Tree {
    pub(crate) fn of(item: &RootItem) -> Self {
        Self {
            bytes: item.bytes_used,
            is_writable: item.refs > 0 && item.flags & RootFlags::READONLY == 0,
            is_cut: item.last_snapshot > Generation(0),
        }
    }
}

/// Sums over all trees that the root tree names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sums {
    trees: u64,
    /// Subvolumes that a snapshot was cut from, and snapshots.
    cut: u64,
    /// Bytes of all subvolumes, and of those that can be changed.
    all: u128,
    writable: u128,
    /// Bytes of all others, and of the extent tree.
    others: u128,
    extents: u64,
}

/// What else the room for copies depends on.
#[derive(Clone, Copy, Debug)]
struct Room {
    /// Bytes of all nodes; nothing in mixed groups, where nobody knows.
    used: Option<u64>,
    /// Then all subvolumes take at least what the largest one does.
    largest: u64,
    /// Bytes of the devices, one copy counted.
    devices: u64,
    nodesize: u64,
    /// Leaves of the extent tree that the first change of a leaf may change.
    each: u64,
}

/// What is known of the trees.
#[derive(Debug, Default)]
struct Known {
    is_known: bool,
    trees: BTreeMap<Key, Tree>,
    sums: Sums,
    /// Bytes that are kept.
    kept: u64,
    /// Bytes more that are needed once a transaction is published, and which.
    coming: Vec<(Generation, u64)>,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Copies(Mutex<Known>);

/// Whether a root item is about nodes that count: those of a balance of Linux are of another tree as well.
fn counts(key: &Key) -> bool {
    key.kind == Kind::ROOT_ITEM && key.objectid != TreeId::TREE_RELOC.0
}

impl Sums {
    fn add(&mut self, key: &Key, tree: &Tree) {
        let bytes = u128::from(tree.bytes);
        self.trees += 1;
        if !TreeId(key.objectid).is_fs_tree() {
            self.others += bytes;
            if key.objectid == TreeId::EXTENT.0 {
                self.extents = tree.bytes;
            }
            return;
        }
        self.cut += u64::from(tree.is_cut);
        self.all += bytes;
        self.writable += if tree.is_writable { bytes } else { 0 };
    }

    fn remove(&mut self, key: &Key, tree: &Tree) {
        let bytes = u128::from(tree.bytes);
        self.trees -= 1;
        if !TreeId(key.objectid).is_fs_tree() {
            self.others -= bytes;
            return;
        }
        self.cut -= u64::from(tree.is_cut);
        self.all -= bytes;
        self.writable -= if tree.is_writable { bytes } else { 0 };
    }

    /// Bytes that copies may come to take (Y1).
    fn need(&self, room: Room) -> u64 {
        if self.cut == 0 {
            return 0;
        }
        let beside = self.trees * ROOT_BYTES + BESIDE * room.nodesize;
        let there = match room.used {
            Some(used) => u128::from(used).saturating_sub(self.others),
            None => room.largest.into(),
        };
        let twice = self.all.saturating_sub(there) + u128::from(beside);
        let most = (COPIES_MAX * there).max((room.devices / PART_OF_DEVICES).into());
        let nodes = self.writable.min(twice).min(most);
        let nodes = u64::try_from(nodes).unwrap_or(u64::MAX);
        // A full leaf with one reference more is two; and the global reserve holds four thirds of them.
        let references = self.extents.min(nodes.saturating_mul(room.each));
        let references = references.saturating_mul(7) / 3;
        let others = nodes / RECORDS + nodes / RESERVE;
        nodes.saturating_add(others).saturating_add(references)
    }
}

/// What of `need` is kept where so much is left, and so much was kept before (Y2).
fn kept(need: u64, left: u64, before: u64) -> u64 {
    let fresh = match left.checked_sub(need) {
        Some(_) => need,
        None => (left / 2).max(left.saturating_sub(need - left)),
    };
    need.min(before.min(left).max(fresh))
}

impl Known {
    fn set(&mut self, key: Key, tree: Option<Tree>) {
        if let Some(old) = self.trees.remove(&key) {
            self.sums.remove(&key, &old);
        }
        if let Some(new) = tree {
            self.sums.add(&key, &new);
            self.trees.insert(key, new);
        }
    }
}

impl Engine {
    /// Looks at all trees that the root tree names, unless it was done: before anybody is promised anything.
    ///
    /// # Errors
    ///
    /// When the root tree is damaged.
    pub(crate) fn look_at_trees(&self, store: &Store, roots: &Roots) -> Result<()> {
        let mut known = self.copies.0.lock();
        if known.is_known || self.options.delete_room == DeleteRoom::Off {
            return Ok(());
        }
        let tree = TreeId::ROOT;
        let root = roots.find(tree).ok_or(buttress_tree::Error::NoTree(tree))?;
        let mut cursor = Cursor::seek(store, tree, root, &Key::MIN)?;
        while let Some((key, item)) = cursor.key().zip(cursor.item()) {
            // One that says nothing is somebody else's to complain of.
            if counts(&key)
                && let Ok(item) = RootItem::parse(item)
            {
                known.set(key, Some(Tree::of(&item)));
            }
            cursor.advance()?;
        }
        known.is_known = true;
        Ok(())
    }

    /// A published commit made these of root items (Y4).
    pub(crate) fn note_trees(&self, changes: BTreeMap<Key, Option<Tree>>, by: Generation) {
        let mut known = self.copies.0.lock();
        known.coming.retain(|(generation, _)| *generation > by);
        if known.is_known {
            let changes = changes.into_iter().filter(|(key, _)| counts(key));
            changes.for_each(|(key, tree)| known.set(key, tree));
        }
    }

    /// Says anew how much is kept, where the global reserve is so large without: bytes of chunks to come, and those beside that.
    pub(crate) fn keep_for_copies(
        &self,
        account: &Account,
        reserve: u64,
        devices: &DeviceSpace,
    ) -> (u64, u64) {
        let mut known = self.copies.0.lock();
        if known.sums.cut == 0 && known.coming.is_empty() {
            known.kept = 0;
            return (0, 0);
        }
        let need = known.sums.need(self.room_of(account, &known, devices));
        let coming = known.coming.iter().map(|(_, bytes)| bytes).sum::<u64>();
        let need = need.saturating_add(coming);
        // What was freed comes back, and what a commit has chosen is in use or not.
        let there =
            account.total.saturating_sub(account.used + account.read_only + account.super_bytes);
        let lacks = reserve.saturating_sub(there);
        let kind = self.kind_flags(SpaceKind::Metadata);
        let to_come = devices.could_keep(kind, need.saturating_add(lacks));
        let left = (there + to_come).saturating_sub(reserve);
        known.kept = kept(need, left, known.kept);
        // Chunks of mixed groups are data's as well: what is promised keeps it out.
        let most = if self.space.is_mixed() { 0 } else { to_come.saturating_sub(lacks) };
        let of_devices = known.kept.min(most);
        (of_devices, known.kept - of_devices)
    }

    /// Commits where a snapshot would be refused for what is not counted yet: root items are of the last commit. Called without the locks of
    /// the snapshot.
    ///
    /// # Errors
    ///
    /// Those of a commit; when the root tree is damaged.
    pub fn prepare_snapshot(self: &Arc<Self>, source: TreeId, read_only: bool) -> Result<()> {
        if self.view.load().running().bytes() <= UNCOUNTED_MAX {
            return Ok(());
        }
        let asked = cost_of_copies(self.room_for_snapshot(source, read_only)?);
        if asked != Cost::default() && !self.may_reserve(asked, Urgency::Normal) {
            self.commit()?;
        }
        Ok(())
    }

    /// Bytes of metadata that a snapshot of a subvolume is to be promised, so that they are there when what it shares is changed (Y1).
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

    /// The same for a snapshot that could not be changed, and can be from now on.
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
        // What is not committed may all be of that tree, in leaves that are half full.
        let transactions = view.frozen().into_iter().chain([view.running()]);
        let uncounted = transactions.map(|transaction| 2 * transaction.bytes()).sum::<u64>();
        let bytes = u128::from(item.bytes_used) + u128::from(uncounted);
        let account = self.space.account(SpaceKind::Metadata);
        let devices = self.devices.lock();
        let known = self.copies.0.lock();
        if !known.is_known {
            return Ok(0);
        }
        let room = self.room_of(&account, &known, &devices);
        let mut then = known.sums;
        change(&mut then, bytes);
        let largest = room.largest.max(u64::try_from(bytes).unwrap_or(u64::MAX));
        let more = then.need(Room { largest, ..room });
        Ok(more.saturating_sub(known.sums.need(room)).min(ASKED_MAX))
    }

    /// Keeps room for what a transaction shares from now on, which the caller was promised: until root items say so.
    pub fn keep_until_published(&self, bytes: u64, by: Generation) {
        if bytes > 0 {
            self.copies.0.lock().coming.push((by, bytes));
            self.size_global_reserve();
        }
    }

    fn room_of(&self, account: &Account, known: &Known, devices: &DeviceSpace) -> Room {
        let geometry = self.store.geometry();
        let is_mixed = self.space.is_mixed();
        let subvolumes = known.trees.iter().filter(|(key, _)| TreeId(key.objectid).is_fs_tree());
        let largest = || subvolumes.map(|(_, tree)| tree.bytes).max().unwrap_or(0);
        let kind = self.kind_flags(SpaceKind::Metadata);
        Room {
            used: (!is_mixed).then_some(account.used),
            largest: if is_mixed { largest() } else { 0 },
            devices: devices.total() / u64::from(devices.profile_of(kind).flags().copies()).max(1),
            nodesize: geometry.nodesize.into(),
            each: geometry.leaf_room() as u64 / EXTENT_ITEM,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const NODE: u64 = 16 << 10;

    fn sums(trees: &[(TreeId, u64, bool)]) -> Sums {
        let mut known = Known::default();
        for (tree, mib, is_writable) in trees {
            let key = Key::new(tree.0, Kind::ROOT_ITEM, 0);
            let is_writable = *is_writable;
            known.set(key, Some(Tree { bytes: mib * MIB, is_writable, is_cut: tree.is_fs_tree() }));
        }
        known.sums
    }

    fn room(used: u64, devices: u64) -> Room {
        let (used, devices) = (Some(used * MIB), devices * MIB);
        Room { used, largest: 0, devices, nodesize: NODE, each: 200 }
    }

    /// In MiB: nodes alone, without what their records take, and what lies beside.
    fn need(trees: &[(TreeId, u64, bool)], used: u64, devices: u64) -> u64 {
        let all = sums(trees).need(room(used, devices)) / MIB;
        let references = sums(trees).extents / MIB * 7 / 3;
        (all - references.min(all)) * 32 / 37
    }

    const WRITABLE: TreeId = TreeId::FS;
    const SNAPSHOTS: [TreeId; 3] = [TreeId(256), TreeId(257), TreeId(258)];

    /// Y1: a copy for each node that is shared, as many as there are trees that can be changed.
    #[test]
    fn nodes_that_trees_share_are_counted_by_sums() {
        let extents = (TreeId::EXTENT, 0, true);
        let one = (WRITABLE, 100, true);
        let [a, b, c] = SNAPSHOTS;
        assert_eq!(need(&[extents, one, (a, 100, false)], 100, 0), 99, "all of it");
        assert_eq!(need(&[extents, one, (a, 100, false)], 160, 0), 39, "some were changed");
        assert_eq!(need(&[extents, one, (a, 100, false)], 200, 0), 0, "all were");
        let many = [extents, one, (a, 100, false), (b, 100, false), (c, 100, false)];
        assert_eq!(need(&many, 100, 0), 99, "nobody changes snapshots");
        let two = [extents, one, (a, 100, false), (b, 100, true)];
        assert_eq!(need(&two, 100, 0), 199, "both of those that are changed");
        let writable = [extents, one, (a, 100, true), (b, 100, true), (c, 100, true)];
        assert_eq!(need(&writable, 100, 0), 199, "no more than twice what there is");
        assert_eq!(need(&writable, 100, 8000), 249, "or a part of the devices");
        assert_eq!(need(&writable, 100, 64_000), 300, "all copies");
        let with_extents = [(TreeId::EXTENT, 60, true), one, (a, 100, false)];
        let all = sums(&with_extents).need(room(160, 0)) / MIB;
        assert_eq!(all, 115 + 140, "and their references");
        let nothing = Sums { cut: 0, ..sums(&many) };
        assert_eq!(nothing.need(room(100, 64_000)), 0);
        let mixed = Room { used: None, largest: 100 * MIB, ..room(0, 0) };
        assert_eq!(sums(&[extents, one]).need(mixed) / MIB, 0, "in mixed groups");
        assert_eq!(sums(&[extents, one, (a, 100, false)]).need(mixed) / MIB, 115);
    }

    /// Sums are those of what is there now, whatever was there before.
    #[test]
    fn sums_follow_their_trees() {
        let mut rng = buttress_base::Rng::new(7);
        let mut known = Known::default();
        for _ in 0..1000 {
            let id = *rng.choose(&[2, 5, 7, 256, 257, 258]).expect("one");
            let tree = Tree {
                bytes: rng.next_u64(),
                is_writable: rng.chance(1, 2),
                is_cut: rng.chance(1, 2),
            };
            known.set(Key::new(id, Kind::ROOT_ITEM, 0), rng.chance(2, 3).then_some(tree));
            let mut anew = Sums::default();
            known.trees.iter().for_each(|(key, tree)| anew.add(key, tree));
            let has_extents = known.trees.keys().any(|key| key.objectid == 2);
            let extents = if has_extents { anew.extents } else { known.sums.extents };
            assert_eq!(known.sums, Sums { extents, ..anew });
        }
    }

    /// Y2: all of it where there is room; of what is less a part, which those who fill do not get back.
    #[test]
    fn what_is_kept_is_what_is_there() {
        assert_eq!(kept(100, 100, 0), 100);
        assert_eq!(kept(100, 5000, 100), 100);
        assert_eq!(kept(100, 90, 0), 80);
        assert_eq!(kept(100, 50, 0), 25);
        assert_eq!(kept(100, 10, 0), 5);
        // What was kept stays, as far as who frees space has left it.
        assert_eq!(kept(100, 90, 100), 90);
        assert_eq!(kept(100, 20, 90), 20);
        assert_eq!(kept(100, 30, 20), 20);
        assert_eq!(kept(100, 70, 20), 40);
        assert_eq!((kept(0, 50, 100), kept(100, 0, 100)), (0, 0));
    }
}
