//! Changes to the reference counts of data extents, summed until the commit (`transaction::T5`).
//!
//! # Invariants
//!
//! - **D1** Operations never touch the extent tree. They add their changes here, in the transaction
//!   to which they belong (`transaction::T11`).
//! - **D2** If the references of an extent born in this transaction sum up to zero, no entry of the
//!   extent is left here.
//!
//! # Locks
//!
//! Each shard has a lock, which is held briefly.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering},
};

use buttress_base::CachePadded;
use buttress_base::sync::Mutex;
use buttress_format::{BackRef, Extent, Ino, Logical, TreeId};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::unread::{Change, Unread};

/// A user of a data extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DataRef {
    /// The subvolume.
    pub root: TreeId,
    /// The file.
    pub ino: Ino,
    /// File offset of the extent's first byte: the key offset of the file extent item minus the
    /// item's offset within the extent. The difference wraps.
    pub offset: u64,
}

/// The holder of a reference, in the four ways that the format knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum User {
    /// A file, wherever the leaf with its file extent item lies.
    File(DataRef),
    /// One leaf, by its address.
    Leaf(Logical),
    /// A tree that reaches the referenced node, on any path.
    Tree(TreeId),
    /// One inner node, by its address.
    Node(Logical),
}

impl User {
    /// The user in an entry of an extent item. `None` for an owner entry: it only records which
    /// subvolume made the extent.
    #[must_use]
    pub fn of(entry: &BackRef) -> Option<Self> {
        Some(match *entry {
            BackRef::TreeBlock { root } => Self::Tree(root),
            BackRef::SharedBlock { parent } => Self::Node(parent),
            BackRef::Data { root, ino, offset, .. } => Self::File(DataRef { root, ino, offset }),
            BackRef::SharedData { parent, .. } => Self::Leaf(parent),
            BackRef::Owner { .. } => return None,
        })
    }

    /// The entry for `count` references of this user.
    #[must_use]
    pub fn with_count(self, count: u32) -> BackRef {
        match self {
            Self::Tree(root) => BackRef::TreeBlock { root },
            Self::Node(parent) => BackRef::SharedBlock { parent },
            Self::File(DataRef { root, ino, offset }) => BackRef::Data { root, ino, offset, count },
            Self::Leaf(parent) => BackRef::SharedData { parent, count },
        }
    }

    /// Most references that one entry can count. The number is 1 for users of tree nodes, since
    /// entries of such users have no count.
    #[must_use]
    pub fn count_max(self) -> u32 {
        match self {
            Self::Tree(_) | Self::Node(_) => 1,
            Self::File(_) | Self::Leaf(_) => u32::MAX,
        }
    }
}

/// Largest size to which an extent item grows by inline references. Further references get items of
/// their own. A leaf must have room for several items. Otherwise a split could not halve the leaf.
pub fn inline_max(nodesize: u32) -> usize {
    (nodesize as usize - buttress_format::header::HEADER_LEN) / 16
        - buttress_format::header::ITEM_LEN
}

/// References gained and lost, summed by user. A user with the sum zero is not kept. Most extents
/// have one user, which needs no allocation. Adding costs O(log n) in the number of users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deltas {
    /// A few users, searched linearly.
    Few(SmallVec<[(User, i64); 1]>),
    /// Many users, in an ordered map.
    Many(Box<Many>),
}

/// Sums of many users, with their total and the number of users with gains.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Many {
    users: BTreeMap<User, i64>,
    sum: i64,
    gains: u64,
}

impl Many {
    fn add(&mut self, user: User, delta: i64) {
        let before = self.users.get(&user).copied().unwrap_or(0);
        let after = before + delta;
        match after {
            0 => drop(self.users.remove(&user)),
            _ => drop(self.users.insert(user, after)),
        }
        self.sum += delta;
        self.gains = self.gains + u64::from(after > 0) - u64::from(before > 0);
    }
}

/// Most users that [`Deltas::Few`] holds, because [`Deltas::Few`] is searched linearly.
const FEW_MAX: usize = 8;

impl Default for Deltas {
    fn default() -> Self {
        Self::Few(SmallVec::new())
    }
}

impl Deltas {
    /// Adds `delta` to the references of a user.
    pub fn add(&mut self, user: User, delta: i64) {
        let few = match self {
            Self::Many(many) => return many.add(user, delta),
            Self::Few(few) => few,
        };
        match few.iter_mut().position(|(known, _)| *known == user) {
            Some(index) => {
                few[index].1 += delta;
                if few[index].1 == 0 {
                    few.swap_remove(index);
                }
            }
            None if delta == 0 => {}
            None if few.len() < FEW_MAX => few.push((user, delta)),
            None => {
                let mut many = Box::<Many>::default();
                few.iter().for_each(|(user, delta)| many.add(*user, *delta));
                many.add(user, delta);
                *self = Self::Many(many);
            }
        }
    }

    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn len(&self) -> usize {
        match self {
            Self::Few(few) => few.len(),
            Self::Many(many) => many.users.len(),
        }
    }

    /// Whether the only change is one more reference of this user.
    fn is_just(&self, user: User) -> bool {
        self.len() == 1 && self.iter().next() == Some((user, 1))
    }

    /// Whether no other user gains or loses a reference.
    pub fn is_only_of(&self, user: User) -> bool {
        self.len() < 2 && self.iter().all(|(of, _)| of == user)
    }

    /// The change of the extent's whole reference count.
    pub fn sum(&self) -> i64 {
        match self {
            Self::Few(few) => few.iter().map(|(_, delta)| delta).sum(),
            Self::Many(many) => many.sum,
        }
    }

    /// Number of users that gain references.
    fn gains(&self) -> u64 {
        match self {
            Self::Few(few) => few.iter().filter(|(_, delta)| *delta > 0).count() as u64,
            Self::Many(many) => many.gains,
        }
    }

    /// The references that each user gains or loses.
    pub fn iter(&self) -> impl Iterator<Item = (User, i64)> + '_ {
        let (few, many) = match self {
            Self::Few(few) => (Some(few.iter().copied()), None),
            Self::Many(many) => (None, Some(many.users.iter().map(|(user, n)| (*user, *n)))),
        };
        few.into_iter().flatten().chain(many.into_iter().flatten())
    }

    /// The deltas in ascending order, losses first. So the inline entry that a loss removes makes
    /// room for a gain. The order does not depend on the order of the changes, so a test with the
    /// same seed makes the same volume.
    pub fn in_order(&self) -> impl Iterator<Item = (User, i64)> + use<> {
        let mut all: SmallVec<[(User, i64); 1]> = self.iter().collect();
        all.sort_unstable_by_key(|(user, n)| (*n, *user));
        all.into_iter()
    }
}

/// The effect of a transaction on one extent.
#[derive(Clone, Debug)]
pub struct ExtentChange {
    /// The extent.
    pub extent: Extent,
    /// Allocated in this transaction: there is no extent item yet.
    pub born: bool,
    /// The subvolume that made a born extent. A simple quota charges the extent to it until the
    /// extent is freed.
    pub owner: Option<TreeId>,
    /// The references that its users gain and lose.
    pub deltas: Deltas,
}

/// `BORN_BYTES` is the size of the item of a new extent with its first user inline. `USER_BYTES` is
/// the size of one more user, which may need an item of its own.
const BORN_BYTES: u64 = 88;
const USER_BYTES: u64 = 56;

impl ExtentChange {
    /// The most bytes that this change adds to the extent tree.
    pub fn bytes_max(&self) -> u64 {
        let users = self.deltas.gains();
        match self.born {
            true if users > 0 => BORN_BYTES + (users - 1) * USER_BYTES,
            _ => users * USER_BYTES,
        }
    }

    /// Returns the whole change of the record, as if `take_changes` had returned no part of it
    /// before.
    fn as_unread(&self) -> RecordChange {
        let Self { extent, .. } = *self;
        RecordChange {
            extent,
            before: 0,
            bytes_max: self.bytes_max(),
            loses_users: self.loses_users(),
        }
    }

    /// Whether the extent is older than this transaction and a user of it loses references.
    pub fn loses_users(&self) -> bool {
        !self.born && self.deltas.gains() < self.deltas.len() as u64
    }
}

const SHARDS: usize = 16;

/// How the effect of a transaction on one extent's record changed since the last call of
/// [`DelayedRefs::take_changes`]. The ledger of reservations reads these changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordChange {
    /// The extent.
    pub extent: Extent,
    /// The most bytes that the transaction added to the extent tree for this record at the last
    /// call.
    pub before: u64,
    /// The most bytes that the transaction adds now.
    pub bytes_max: u64,
    /// Whether the extent may be freed now, together with its checksums, and could not be freed
    /// before.
    pub loses_users: bool,
}

impl Change for RecordChange {
    fn start(&self) -> Logical {
        self.extent.start
    }

    fn join(&mut self, later: Self) {
        let Self { before, loses_users, .. } = *self;
        *self = Self { before, loses_users: loses_users || later.loses_users, ..later };
    }

    fn is_nothing(&self) -> bool {
        (self.before, self.bytes_max, self.loses_users) == (0, 0, false)
    }
}

#[derive(Debug, Default)]
struct Shard {
    changes: FxHashMap<Logical, ExtentChange>,
    /// Changes since the last call of [`DelayedRefs::take_changes`]. `None` before the first call.
    unread: Option<Unread<RecordChange>>,
}

/// Totals over all shards. Reservations read them at every operation if metadata is counted.
/// Without the totals, reservations would have to lock every shard.
#[derive(Debug, Default)]
struct Sums {
    len: AtomicU64,
    /// How many changes were added to the `unread` of a shard.
    noted: AtomicU64,
    /// Most bytes that all changes add to the extent tree.
    added: AtomicU64,
    /// Older extents that lose users, so that they may be freed.
    dropped: AtomicU64,
}

/// Adjusts a total when one summand changes from `before` to `after`.
fn alter(sum: &AtomicU64, before: u64, after: u64) {
    if before != after {
        // If the summand became smaller, this adds the negative difference modulo 2^64.
        sum.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
    }
}

/// The changes of one transaction.
#[derive(Debug)]
pub struct DelayedRefs {
    /// Unranked: while a shard is locked, `disputed` is locked too, and `look` runs code of the
    /// caller.
    shards: Vec<CachePadded<Mutex<Shard>>>,
    sums: CachePadded<Sums>,
    /// Unranked: it is taken while a shard is locked, and no other lock is taken under it.
    disputed: Mutex<Option<Logical>>,
}

impl Default for DelayedRefs {
    fn default() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| CachePadded::default()).collect(),
            sums: CachePadded::default(),
            disputed: Mutex::default(),
        }
    }
}

impl DelayedRefs {
    fn shard(&self, at: Logical) -> &Mutex<Shard> {
        let hash = (at.0 >> 12).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        &self.shards[(hash >> 60) as usize % SHARDS]
    }

    /// Adds `delta` to the references of one user. Returns true when the extent vanished: it was
    /// born in this transaction and has no users left.
    ///
    /// If two users give different lengths of the extent, the volume is damaged. Then this
    /// transaction must not be committed ([`disputed`](Self::disputed)).
    pub fn change(&self, extent: Extent, user: DataRef, delta: i64, born: bool) -> bool {
        let mut shard = self.shard(extent.start).lock();
        let Shard { changes, unread } = &mut *shard;
        let entry = changes.entry(extent.start).or_insert_with(|| {
            self.sums.len.fetch_add(1, Ordering::Relaxed);
            let owner = born.then_some(user.root);
            ExtentChange { extent, born, owner, deltas: Deltas::default() }
        });
        if entry.extent.len != extent.len {
            self.disputed.lock().get_or_insert(extent.start);
            return false;
        }
        let (before, dropped) = (entry.bytes_max(), entry.loses_users());
        entry.deltas.add(User::File(user), delta);
        let (bytes_max, loses_users) = (entry.bytes_max(), entry.loses_users());
        alter(&self.sums.added, before, bytes_max);
        alter(&self.sums.dropped, dropped.into(), loses_users.into());
        if let Some(unread) = unread
            && (before, dropped) != (bytes_max, loses_users)
        {
            self.sums.noted.fetch_add(1, Ordering::Relaxed);
            unread.push(RecordChange {
                extent,
                before,
                bytes_max,
                loses_users: loses_users && !dropped,
            });
        }
        let (is_empty, vanished) = (entry.deltas.is_empty(), entry.born && entry.deltas.is_empty());
        if is_empty {
            changes.remove(&extent.start);
            self.sums.len.fetch_sub(1, Ordering::Relaxed);
        }
        vanished
    }

    /// Extends an extent that was born in this transaction, if `user` has the only reference to it.
    /// Returns whether the extent was extended.
    pub fn extend(&self, extent: Extent, more: u64, user: DataRef) -> bool {
        let mut shard = self.shard(extent.start).lock();
        let Some(change) = shard.changes.get_mut(&extent.start) else { return false };
        let may = change.born && change.extent == extent && change.deltas.is_just(User::File(user));
        if may {
            change.extent.len += more;
        }
        may
    }

    /// Sets the subvolume that made an extent born in this transaction. Needed only if that
    /// subvolume is not the subvolume of the first user.
    pub fn set_owner(&self, at: Logical, owner: Option<TreeId>) {
        if let Some(change) = self.shard(at).lock().changes.get_mut(&at) {
            change.owner = owner;
        }
    }

    /// An extent for which two users gave different lengths: the volume is damaged.
    pub fn disputed(&self) -> Option<Logical> {
        *self.disputed.lock()
    }

    /// Calls `look` with the change of an extent, if this transaction changes it. `look` runs under
    /// the lock of a shard.
    pub fn look<T>(&self, at: Logical, look: impl FnOnce(&ExtentChange) -> T) -> Option<T> {
        self.shard(at).lock().changes.get(&at).map(look)
    }

    /// Every change, by address.
    pub fn sorted(&self) -> Vec<ExtentChange> {
        let mut all = Vec::with_capacity(self.len() as usize);
        for shard in &self.shards {
            all.extend(shard.lock().changes.values().cloned());
        }
        all.sort_unstable_by_key(|c| c.extent.start);
        all
    }

    /// The records that changed since the last call, by address. The first call, and each call with
    /// `anew`, returns all records. From the first call on, shards note changes. O(n log n) in the
    /// returned records.
    #[must_use]
    pub fn take_changes(&self, anew: bool) -> Vec<RecordChange> {
        let mut all = Unread::default();
        for shard in &self.shards {
            let mut shard = shard.lock();
            let unread = shard.unread.replace(Unread::default()).filter(|_| !anew);
            let held = || shard.changes.values().map(ExtentChange::as_unread).collect();
            all.append(unread.unwrap_or_else(held));
        }
        all.into_sorted()
    }

    /// How many changes were noted for the next call of [`take_changes`](Self::take_changes).
    pub fn noted(&self) -> u64 {
        self.sums.noted.load(Ordering::Relaxed)
    }

    /// Number of extents changed.
    pub fn len(&self) -> u64 {
        self.sums.len.load(Ordering::Relaxed)
    }

    /// Most bytes that all changes add to the extent tree. Bytes that they remove are not
    /// subtracted.
    pub fn added(&self) -> u64 {
        self.sums.added.load(Ordering::Relaxed)
    }

    /// Number of older extents that lose users, so that they may be freed.
    pub fn dropped(&self) -> u64 {
        self.sums.dropped.load(Ordering::Relaxed)
    }

    /// Whether no extent changed.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use buttress_base::Rng;

    use super::*;

    /// Whenever `take_changes` is called, the returned changes add up to the effect of the
    /// transaction on each record.
    #[test]
    fn changed_names_each_record_that_changed_since() {
        let refs = DelayedRefs::default();
        let extent = |at: u64| Extent { start: Logical(at << 12), len: 4096 };
        let user = |offset| DataRef { root: TreeId::FS, ino: Ino(257), offset };
        let record = |at, before, bytes_max, loses_users| RecordChange {
            extent: extent(at),
            before,
            bytes_max,
            loses_users,
        };
        refs.change(extent(7), user(0), 1, true);
        refs.change(extent(3), user(0), -1, false);
        assert_eq!(
            refs.take_changes(false),
            [record(3, 0, 0, true), record(7, 0, BORN_BYTES, false)]
        );
        assert_eq!((refs.take_changes(false), refs.noted()), (vec![], 0));
        refs.change(extent(7), user(1), 1, false);
        refs.change(extent(7), user(2), 1, false);
        let grown = BORN_BYTES + 2 * USER_BYTES;
        assert_eq!(
            (refs.take_changes(false), refs.noted()),
            (vec![record(7, BORN_BYTES, grown, false)], 2)
        );
        let vanished = [0, 1, 2].map(|offset| refs.change(extent(7), user(offset), -1, false));
        assert_eq!(vanished, [false, false, true]);
        assert_eq!(refs.take_changes(false), [record(7, grown, 0, false)]);
        assert_eq!(refs.take_changes(true), [record(3, 0, 0, true)]);
    }

    /// `Few` and `Many` have the same sums as a plain map, over random gains and losses.
    #[test]
    fn deltas_sum_up_like_a_map_however_many_users_there_are() {
        for seed in 0..50 {
            let mut rng = Rng::new(seed);
            let (mut deltas, mut model) = (Deltas::default(), BTreeMap::<User, i64>::new());
            let users = 1 + rng.below(20);
            for _ in 0..200 {
                let user = User::Leaf(Logical(rng.below(users)));
                let delta = rng.below(5) as i64 - 2;
                deltas.add(user, delta);
                *model.entry(user).or_default() += delta;
                model.retain(|_, delta| *delta != 0);
                assert_eq!(deltas.iter().collect::<BTreeMap<_, _>>(), model, "seed {seed}");
                assert_eq!(deltas.len(), model.len());
                assert_eq!(deltas.is_empty(), model.is_empty());
                assert_eq!(deltas.sum(), model.values().sum::<i64>());
                assert_eq!(deltas.gains(), model.values().filter(|n| **n > 0).count() as u64);
                let only = model.keys().all(|of| *of == user);
                assert_eq!(deltas.is_only_of(user), only, "seed {seed}");
                let ordered: Vec<_> = deltas.in_order().collect();
                assert!(
                    ordered.is_sorted_by_key(|(user, n)| (*n, *user))
                        && ordered.len() == model.len()
                );
            }
        }
    }
}
