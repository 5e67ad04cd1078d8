//! Reservations for the dirty data of one inode, and the bound on the nodes that all this data can
//! dirty.
//!
//! # Place
//!
//! If each item counted as a path, a few thousand dirty blocks of one file would reserve more
//! metadata than the volume has. But these blocks dirty only the leaves with the extents of the
//! inode (`count::N5`). So where nodes are counted, its reservations count as no more than these
//! leaves.
//!
//! # Invariants
//!
//! - **I1** The spared items are the items reserved beyond the bound of their inode, summed over
//!   all inodes. A count leaves out the spared items. The sum grows after a reservation was
//!   counted, and shrinks before a reservation is given back. So the sum never exceeds the number
//!   of reserved items.
//! - **I2** A bound is valid for the committed trees on which a count was made, and for the commit
//!   then under way. It is used only with a count on these trees. Bounds change only under the lock
//!   of `Outstanding`.
//! - **I3** A slightly old bound may still be used. Fewer leaves were dirty when the bound was
//!   made, and dirty leaves are subtracted (`ledger::span::D2`). So a new bound would be no
//!   larger, except for bytes added since.
//! - **I4** Each transaction that finishes a part of an inode's ordered extents dirties the same
//!   leaves again. The bounds rely on the nodes of one such transaction becoming free. The next
//!   transaction replaces these nodes, and no reader needs the older trees any more. A transaction
//!   about to freeze may leave too little room for ordered extents that would finish after it. In
//!   this case the commit waits until these ordered extents finish (`finishing`). Within this one
//!   transaction the bound is enough.
//! - **I5** Bytes added to an inode's leaves after its bound was made need no new bound. All bytes
//!   are reserved twice: once for the leaf that they fill, and once for changing that leaf again.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use buttress_base::sync::Mutex;
use buttress_format::{Generation, Ino, TreeId};

/// No bound: each item counts as a path.
const UNBOUND: u64 = u64::MAX;

/// Reservations for the dirty data of one inode.
#[derive(Debug)]
pub struct InodeReserve {
    /// The subvolume.
    pub tree: TreeId,
    /// The inode.
    pub ino: Ino,
    /// Unranked: taken under the lock of `Outstanding`; no lock is taken under it.
    held: Mutex<Held>,
    all: Arc<InodeReserves>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Held {
    /// Items reserved for the inode, in trees that operations change.
    items: u64,
    /// The bound: at most this many items count. `None` if no bound was computed since the inode
    /// last had nothing reserved.
    bound: Option<u64>,
}

/// The state for which bounds were computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BoundEpoch {
    /// The committed trees.
    pub roots: Generation,
    /// The bytes that the commit under way needed; 0 without such a commit.
    pub below: u64,
    /// How many leaves were dirty, and the bytes put into them.
    pub leaves: u64,
    pub added: u64,
    /// Whether no commit was under way, or its transaction was counted completely.
    pub is_sure: bool,
}

impl BoundEpoch {
    /// Whether bounds for this state are still good enough now (I3).
    fn is_near(self, now: Self) -> bool {
        let some_more = |then: u64, most: u64| then + then / 8 + most;
        (self.roots, self.below, self.is_sure) == (now.roots, now.below, now.is_sure)
            && now.leaves <= some_more(self.leaves, 16)
            && now.added <= some_more(self.added, 64 << 10)
    }
}

impl Held {
    fn spared(self) -> u64 {
        self.items.saturating_sub(self.bound.unwrap_or(UNBOUND))
    }
}

impl InodeReserve {
    /// Adds items of a reservation that is already counted in `Outstanding`.
    pub(crate) fn add(&self, items: u64) {
        let is_known = self.change(|held| {
            held.items += items;
            held.bound.is_some()
        });
        if !is_known {
            self.all.fresh.store(true, Ordering::Relaxed);
        }
        self.all.items.fetch_add(items, Ordering::Relaxed);
    }

    /// Subtracts items that are about to be given back.
    pub(crate) fn take(&self, items: u64) {
        self.all.items.fetch_sub(items, Ordering::Relaxed);
        self.change(|held| held.items -= items);
    }

    /// Whether nothing is reserved. Then the bound is forgotten, and computed again once something
    /// is reserved.
    fn is_idle(&self) -> bool {
        let mut held = self.held.lock();
        let is_idle = held.items == 0;
        if is_idle {
            held.bound = None;
        }
        is_idle
    }

    fn change<T>(&self, change: impl FnOnce(&mut Held) -> T) -> T {
        let mut held = self.held.lock();
        let before = held.spared();
        let result = change(&mut held);
        let after = held.spared();
        if after > before {
            self.all.spared.fetch_add(after - before, Ordering::Relaxed);
        } else if after < before {
            self.all.spared.fetch_sub(before - after, Ordering::Relaxed);
        }
        result
    }
}

impl Drop for InodeReserve {
    fn drop(&mut self) {
        debug_assert_eq!(self.held.lock().items, 0, "I1: reservations of {}", self.ino.0);
    }
}

/// All inodes with a large reservation.
#[derive(Debug, Default)]
pub(crate) struct InodeReserves {
    /// Items reserved for all these inodes, and the spared items among them (I1).
    items: AtomicU64,
    spared: AtomicU64,
    /// Whether a commit waits until ordered extents finish (I4). Writeback then starts at once,
    /// even if a chunk could still be allocated. Reservations may use only half of the unallocated
    /// space. If the commit waited in vain, the commit may use the other half.
    awaited: AtomicBool,
    /// Unranked: nothing is taken inside.
    looked: Mutex<Option<BoundEpoch>>,
    /// Whether an inode was added, or stopped being idle, since bounds were computed.
    fresh: AtomicBool,
    /// Unranked: nothing is taken inside.
    known: Mutex<Vec<Weak<InodeReserve>>>,
}

impl InodeReserves {
    /// Adds an inode, with no bound yet.
    pub(crate) fn enter(self: &Arc<Self>, tree: TreeId, ino: Ino) -> Arc<InodeReserve> {
        let (held, all) = (Mutex::default(), Arc::clone(self));
        let new = Arc::new(InodeReserve { tree, ino, held, all });
        let mut known = self.known.lock();
        if known.len().is_power_of_two() {
            known.retain(|inode| inode.strong_count() > 0);
        }
        known.push(Arc::downgrade(&new));
        new
    }

    /// Whether bounds are missing for the committed trees `roots`. Either a bound was not computed
    /// yet, the bounds belong to older trees, or the commit under way was not counted completely. A
    /// count made while nothing was reserved leaves bounds of older trees in place.
    pub(crate) fn are_missing(&self, roots: Generation) -> bool {
        let are_good = |looked: BoundEpoch| looked.is_sure && looked.roots == roots;
        self.fresh.load(Ordering::Relaxed)
            || (self.items() > 0 && !self.looked.lock().is_some_and(are_good))
    }

    /// The inodes for which bounds are due, and the state to compute them for. These are all
    /// inodes, or only new ones if the other bounds are still good. `None` if no bound is due.
    pub(crate) fn due(&self, now: BoundEpoch) -> Option<(Vec<Arc<InodeReserve>>, BoundEpoch)> {
        let near = self.looked.lock().filter(|looked| looked.is_near(now));
        let has_fresh = self.fresh.swap(false, Ordering::Relaxed);
        if near.is_some() && !has_fresh {
            return None;
        }
        let mut known = self.known.lock();
        known.retain(|inode| inode.strong_count() > 0);
        let mut due: Vec<_> = known.iter().filter_map(Weak::upgrade).collect();
        drop(known);
        if near.is_some() {
            due.retain(|inode| inode.held.lock().bound.is_none());
        }
        due.retain(|inode| !inode.is_idle());
        Some((due, near.unwrap_or(now)))
    }

    /// Sets bounds, in items; the caller holds the lock of `Outstanding` (I2).
    pub(crate) fn set(&self, moment: BoundEpoch, bounds: &[(Arc<InodeReserve>, Option<u64>)]) {
        for (inode, bound) in bounds {
            inode.change(|held| held.bound = Some(bound.unwrap_or(UNBOUND)));
        }
        *self.looked.lock() = Some(moment);
    }

    /// The spared items (I1), if the bounds were made for the committed trees `roots` (I2);
    /// otherwise 0.
    pub(crate) fn spared(&self, roots: Generation) -> u64 {
        let are_of_these = self.looked.lock().is_some_and(|looked| looked.roots == roots);
        if are_of_these { self.spared.load(Ordering::Relaxed) } else { 0 }
    }

    pub(crate) fn are_awaited(&self) -> bool {
        self.awaited.load(Ordering::Relaxed)
    }

    pub(crate) fn set_awaited(&self, awaited: bool) {
        self.awaited.store(awaited, Ordering::Relaxed);
    }

    /// Whether any item is spared, by bounds of any committed trees.
    pub(crate) fn has_spared(&self) -> bool {
        self.spared.load(Ordering::Relaxed) > 0
    }

    /// All items reserved for these inodes.
    pub(crate) fn items(&self) -> u64 {
        self.items.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(roots: u64, leaves: u64) -> BoundEpoch {
        BoundEpoch { roots: Generation(roots), below: 0, leaves, added: 0, is_sure: true }
    }

    /// I1, I2: items beyond the bounds are spared, but only on the trees of the bounds.
    #[test]
    fn inodes_spare_items_beyond_their_bounds() {
        let all = Arc::new(InodeReserves::default());
        let spared = |roots| all.spared(Generation(roots));
        let one = all.enter(TreeId::FS, Ino(257));
        let other = all.enter(TreeId::FS, Ino(258));
        one.add(100);
        other.add(5);
        assert_eq!((spared(7), all.are_missing(Generation(7))), (0, true));
        let (due, moment) = all.due(at(7, 0)).expect("some are due");
        let bounds: Vec<_> = due.into_iter().map(|inode| (inode, Some(10))).collect();
        all.set(moment, &bounds);
        assert_eq!((spared(7), spared(8)), (90, 0));
        assert_eq!([7, 8].map(|roots| all.are_missing(Generation(roots))), [false, true]);
        other.add(10);
        assert_eq!(spared(7), 95);
        one.take(95);
        assert_eq!(spared(7), 5);
        all.set(at(8, 0), &[(Arc::clone(&other), None)]);
        assert_eq!((spared(7), spared(8), all.items()), (0, 0, 20));
        one.take(5);
        other.take(15);
    }

    /// An inode finishes all its data, and reserves again after a commit. If a count in between had
    /// nothing to bound, the bounds count as missing for the new trees.
    #[test]
    fn bounds_of_older_trees_are_missing_for_newer_ones() {
        let all = Arc::new(InodeReserves::default());
        let one = all.enter(TreeId::FS, Ino(257));
        one.add(100);
        let (due, moment) = all.due(at(7, 0)).expect("one is due");
        let bounds: Vec<_> = due.into_iter().map(|inode| (inode, Some(10))).collect();
        all.set(moment, &bounds);
        one.take(100);
        assert!(!all.are_missing(Generation(8)), "nothing is reserved");
        one.add(100);
        assert!(all.are_missing(Generation(8)));
        assert_eq!(all.spared(Generation(8)), 0);
        one.take(100);
    }

    /// All bounds are computed again if the trees changed, or if there are many more leaves or
    /// bytes. Otherwise only the bounds of inodes that are new or were idle are computed.
    #[test]
    fn bounds_are_looked_up_when_they_are_old() {
        let all = Arc::new(InodeReserves::default());
        let look = |moment| {
            let Some((due, moment)) = all.due(moment) else { return 0 };
            let bounds: Vec<_> = due.into_iter().map(|inode| (inode, Some(1))).collect();
            all.set(moment, &bounds);
            bounds.len()
        };
        let one = all.enter(TreeId::FS, Ino(257));
        assert_eq!(look(at(7, 0)), 0, "nothing is reserved");
        one.add(5);
        assert_eq!((look(at(7, 0)), look(at(7, 16)), look(at(7, 17))), (1, 0, 1));
        let other = all.enter(TreeId::FS, Ino(258));
        other.add(5);
        assert_eq!((look(at(7, 18)), look(at(7, 40)), look(at(8, 40))), (1, 2, 2));
        assert_eq!(look(BoundEpoch { added: 100 << 10, ..at(8, 40) }), 2);
        assert_eq!(look(BoundEpoch { is_sure: false, ..at(8, 40) }), 2);
        assert!(all.are_missing(Generation(8)));
        one.take(5);
        assert_eq!(look(at(9, 40)), 1);
        one.add(5);
        assert_eq!(look(at(9, 40)), 1, "it was idle");
        one.take(5);
        other.take(5);
    }
}
