//! Computes from the root items how much room copies may need (`copies::Y1`, `copies::Y2`). This
//! file has the known facts about trees, the sums of these facts, and the rules.

use std::collections::BTreeMap;

use buttress_base::sync::{Mutex, MutexGuard};
use buttress_format::{Generation, Key, Kind, RootFlags, RootItem, TreeId};

/// Up to 1/32 of the devices may be kept for copies, whatever the size of the trees. ZFS withholds
/// the same part from writers.
const PART_OF_DEVICES: u64 = 32;
/// Room is kept for at most this many copies of all subvolume nodes; `PART_OF_DEVICES` may allow
/// more.
const COPIES_MAX: u128 = 2;
/// Divisors of the bytes that all copies may take. Records of the copies take at most 1/32 of these
/// bytes, and the global reserve grows by 1/8 of these bytes.
const RECORDS: u64 = 32;
const RESERVE: u64 = 8;
/// Metadata in use that no root item counts: `ROOT_BYTES` of the root tree for each root item, and
/// `BESIDE` nodes for everything else.
const ROOT_BYTES: u64 = 1024;
const BESIDE: u64 = 16;

/// The facts of a root item that matter here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeFacts {
    bytes: u64,
    /// Whether the tree can be changed: it is not deleted and not read-only.
    is_writable: bool,
    /// Whether a snapshot was taken of the subvolume, or the subvolume is a snapshot.
    is_cut: bool,
}

impl TreeFacts {
    /// The facts in a root item.
    pub fn of(item: &RootItem) -> Self {
        Self {
            bytes: item.bytes_used,
            is_writable: item.refs > 0 && item.flags & RootFlags::READONLY == 0,
            is_cut: item.last_snapshot > Generation(0),
        }
    }
}

/// Sums over all trees that the root tree names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    pub(crate) trees: u128,
    /// Number of subvolumes that are snapshots or of which snapshots were taken.
    pub(crate) cut: u128,
    /// Bytes of all subvolumes, and of the writable subvolumes.
    pub(crate) all: u128,
    pub(crate) writable: u128,
    /// Bytes of all trees that are not subvolumes, and bytes of the extent tree alone.
    pub(crate) others: u128,
    pub(crate) extents: u64,
}

/// The other figures from which the need for copies is computed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    /// Bytes of metadata in use; `None` in mixed groups, where the account includes data.
    pub(crate) used: Option<u64>,
    /// Bytes of the largest subvolume. All subvolumes together take at least as much, so `largest`
    /// replaces a `used` of `None`.
    pub(crate) largest: u64,
    /// Bytes of the devices, divided by the number of copies that the metadata profile makes.
    pub(crate) devices: u64,
    pub(crate) nodesize: u64,
    /// The most leaves of the extent tree that the first change of a shared leaf may change.
    pub(crate) each: u64,
}

/// All trees that the root tree names, and their sums.
#[derive(Debug, Default)]
pub(crate) struct TreesFacts {
    of: BTreeMap<Key, TreeFacts>,
    sums: Sums,
}

/// The known facts about the trees, and the room that is kept.
#[derive(Debug, Default)]
pub(crate) struct KnownTrees {
    pub(crate) is_known: bool,
    pub(crate) trees: TreesFacts,
    /// The number of bytes that are kept.
    pub(crate) kept: u64,
    /// Bytes kept for copies on behalf of transactions that are not published yet, with the
    /// generation of each.
    pub(crate) coming: Vec<(Generation, u64)>,
}

/// The state of `copies`.
#[derive(Debug, Default)]
pub(crate) struct SnapshotHeadroom(
    /// Unranked: taken after the lock of the devices.
    Mutex<KnownTrees>,
);

impl SnapshotHeadroom {
    pub(crate) fn lock(&self) -> MutexGuard<'_, KnownTrees> {
        self.0.lock()
    }
}

/// Whether a root item names a tree with nodes to count. Trees that a balance of Linux made do not
/// count, because their nodes also belong to other trees.
pub(crate) fn counts(key: &Key) -> bool {
    key.kind == Kind::ROOT_ITEM && key.objectid != TreeId::TREE_RELOC.0
}

impl Sums {
    /// Adds a tree, or removes one.
    fn change(&mut self, key: &Key, tree: &TreeFacts, adds: bool) {
        let change = |sum: &mut u128, by: u128| if adds { *sum += by } else { *sum -= by };
        let bytes = u128::from(tree.bytes);
        change(&mut self.trees, 1);
        if !TreeId(key.objectid).is_fs_tree() {
            change(&mut self.others, bytes);
            if adds && key.objectid == TreeId::EXTENT.0 {
                self.extents = tree.bytes;
            }
            return;
        }
        change(&mut self.cut, tree.is_cut.into());
        change(&mut self.all, bytes);
        change(&mut self.writable, if tree.is_writable { bytes } else { 0 });
    }

    /// The most bytes that copies may take, with the growth that they cause (`copies::Y1`).
    pub(crate) fn need(&self, room: Room) -> u64 {
        if self.cut == 0 {
            return 0;
        }
        let beside = self.trees * u128::from(ROOT_BYTES) + u128::from(BESIDE * room.nodesize);
        let there = match room.used {
            Some(used) => u128::from(used).saturating_sub(self.others),
            None => room.largest.into(),
        };
        let twice = self.all.saturating_sub(there) + beside;
        let most = (COPIES_MAX * there).max((room.devices / PART_OF_DEVICES).into());
        let nodes = self.writable.min(twice).min(most);
        let nodes = u64::try_from(nodes).unwrap_or(u64::MAX);
        // One more reference may split a full leaf of the extent tree. So each leaf counts once
        // more. The global reserve grows by four thirds of these leaves, because deletes use only
        // three quarters of the reserve (`shared_reserve`).
        let references = self.extents.min(nodes.saturating_mul(room.each));
        let references = references.saturating_mul(7) / 3;
        let others = nodes / RECORDS + nodes / RESERVE;
        nodes.saturating_add(others).saturating_add(references)
    }
}

/// How much of `need` to keep if `left` bytes are left and `before` bytes were kept so far
/// (`copies::Y2`).
pub(crate) fn kept(need: u64, left: u64, before: u64) -> u64 {
    let fresh = match left.checked_sub(need) {
        Some(_) => need,
        None => (left / 2).max(left.saturating_sub(need - left)),
    };
    need.min(before.min(left).max(fresh))
}

impl TreesFacts {
    pub(crate) fn set(&mut self, key: Key, tree: Option<TreeFacts>) {
        if let Some(old) = self.of.remove(&key) {
            self.sums.change(&key, &old, false);
        }
        if let Some(new) = tree {
            self.sums.change(&key, &new, true);
            self.of.insert(key, new);
        }
    }

    pub(crate) fn sums(&self) -> Sums {
        self.sums
    }

    /// Bytes of the largest subvolume.
    pub(crate) fn largest(&self) -> u64 {
        let subvolumes = self.of.iter().filter(|(key, _)| TreeId(key.objectid).is_fs_tree());
        subvolumes.map(|(_, tree)| tree.bytes).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const NODE: u64 = 16 << 10;

    fn sums(trees: &[(TreeId, u64, bool)]) -> Sums {
        let mut known = TreesFacts::default();
        for (tree, mib, is_writable) in trees {
            let key = Key::new(tree.0, Kind::ROOT_ITEM, 0);
            let is_writable = *is_writable;
            known.set(
                key,
                Some(TreeFacts { bytes: mib * MIB, is_writable, is_cut: tree.is_fs_tree() }),
            );
        }
        known.sums
    }

    fn room(used: u64, devices: u64) -> Room {
        let (used, devices) = (Some(used * MIB), devices * MIB);
        Room { used, largest: 0, devices, nodesize: NODE, each: 200 }
    }

    /// The need in MiB for the nodes alone, without their records, references and the growth of the
    /// global reserve.
    fn need(trees: &[(TreeId, u64, bool)], used: u64, devices: u64) -> u64 {
        let all = sums(trees).need(room(used, devices)) / MIB;
        let references = sums(trees).extents / MIB * 7 / 3;
        (all - references.min(all)) * 32 / 37
    }

    const WRITABLE: TreeId = TreeId::FS;
    const SNAPSHOTS: [TreeId; 3] = [TreeId(256), TreeId(257), TreeId(258)];

    /// Y1: a copy counts for each shared node of each tree that can be changed, up to the bound.
    #[test]
    fn nodes_that_trees_share_are_counted_by_sums() {
        let extents = (TreeId::EXTENT, 0, true);
        let one = (WRITABLE, 100, true);
        let [a, b, c] = SNAPSHOTS;
        assert_eq!(need(&[extents, one, (a, 100, false)], 100, 0), 99, "all of it");
        assert_eq!(need(&[extents, one, (a, 100, false)], 160, 0), 39, "some were changed");
        assert_eq!(need(&[extents, one, (a, 100, false)], 200, 0), 0, "all were");
        let many = [extents, one, (a, 100, false), (b, 100, false), (c, 100, false)];
        assert_eq!(need(&many, 100, 0), 99, "no snapshot is changed");
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

    /// The sums equal the sums over the current trees, whatever trees were known before.
    #[test]
    fn sums_follow_their_trees() {
        let mut rng = buttress_base::Rng::new(7);
        let mut known = TreesFacts::default();
        for _ in 0..1000 {
            let id = *rng.choose(&[2, 5, 7, 256, 257, 258]).expect("one");
            let tree = TreeFacts {
                bytes: rng.next_u64(),
                is_writable: rng.chance(1, 2),
                is_cut: rng.chance(1, 2),
            };
            known.set(Key::new(id, Kind::ROOT_ITEM, 0), rng.chance(2, 3).then_some(tree));
            let mut anew = Sums::default();
            known.of.iter().for_each(|(key, tree)| anew.change(key, tree, true));
            let has_extents = known.of.keys().any(|key| key.objectid == 2);
            let extents = if has_extents { anew.extents } else { known.sums.extents };
            assert_eq!(known.sums, Sums { extents, ..anew });
        }
    }

    /// Y2: with enough room, all of the need is kept. With less room, a part is kept, and ordinary
    /// writers cannot use this part.
    #[test]
    fn headroom_keeps_a_part_where_space_is_short() {
        assert_eq!(kept(100, 100, 0), 100);
        assert_eq!(kept(100, 5000, 100), 100);
        assert_eq!(kept(100, 90, 0), 80);
        assert_eq!(kept(100, 50, 0), 25);
        assert_eq!(kept(100, 10, 0), 5);
        // Kept bytes stay kept until operations that free space use them.
        assert_eq!(kept(100, 90, 100), 90);
        assert_eq!(kept(100, 20, 90), 20);
        assert_eq!(kept(100, 30, 20), 20);
        assert_eq!(kept(100, 70, 20), 40);
        assert_eq!((kept(0, 50, 100), kept(100, 0, 100)), (0, 0));
    }
}
