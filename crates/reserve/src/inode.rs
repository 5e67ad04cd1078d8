//! What is reserved for the dirty data of one inode, and how many nodes all of it can dirty.
//!
//! # Place
//!
//! Dirty data changes the item of its inode and those of its extents, which lie between two keys
//! of one tree. Counted by paths, a few thousand blocks of one file reserve more than the volume
//! has; they cannot dirty more than the leaves between these keys. Where nodes are counted
//! (`count`), what is reserved for an inode counts as no more than that.
//!
//! # Invariants
//!
//! - **I1** What is spared is the sum over the inodes of the items that are reserved for each
//!   beyond its bound. It grows after a reservation was counted, and shrinks before one is given
//!   back, so it is part of what is reserved at any time.
//! - **I2** Bounds are of the trees that a count was held against, and of the commit under way on
//!   these. They are used with such a count alone, and change under the lock of the sum of
//!   reservations.
//! - **I3** A bound that is a little old is no smaller than one of now would be, but for what
//!   came to the leaves since: less of them was dirty (D2 of `ledger::span`).
//! - **I4** A transaction gives back what it made anew once readers of older trees have left, and
//!   bounds count on it: each further transaction that finishes a part of the ordered extents
//!   dirties the same leaves. Where one that is about to freeze leaves no room for those that are
//!   to be finished behind it, they are finished before: in this one the bound is enough.
//! - **I5** What comes to an inode's leaves until bounds are looked up again is reserved twice,
//!   as all bytes are: once for the leaf that it fills, and once for that leaf when it is dirty
//!   again.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use buttress_base::sync::Mutex;
use buttress_format::{Generation, Ino, TreeId};

/// No bound: every item counts as a path.
const UNBOUND: u64 = u64::MAX;

/// What is reserved for one inode's dirty data.
#[derive(Debug)]
pub struct InodeReserve {
    /// The subvolume.
    pub tree: TreeId,
    /// The inode.
    pub ino: Ino,
    /// Unranked: taken inside the lock of the sum of reservations; nothing is taken inside.
    held: Mutex<Held>,
    all: Arc<InodeReserves>,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    /// Items of trees that operations change, in live tokens.
    items: u64,
    /// The maximum number of these items that count.
    bound: u64,
    /// Whether the bound was looked up.
    is_known: bool,
}

/// When bounds were looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    /// The trees.
    pub roots: Generation,
    /// What a commit under way needed, in bytes.
    pub below: u64,
    /// How many leaves were dirty, and bytes that came to them.
    pub leaves: u64,
    pub added: u64,
    /// Whether the commit under way was counted, or no commit is under way.
    pub is_sure: bool,
}

impl Moment {
    /// Whether bounds of that moment are nearly as good as new ones (I3).
    fn is_near(self, now: Self) -> bool {
        let some_more = |then: u64, most: u64| then + then / 8 + most;
        (self.roots, self.below, self.is_sure) == (now.roots, now.below, now.is_sure)
            && now.leaves <= some_more(self.leaves, 16)
            && now.added <= some_more(self.added, 64 << 10)
    }
}

impl Held {
    fn spared(self) -> u64 {
        self.items.saturating_sub(self.bound)
    }
}

impl InodeReserve {
    /// Adds items that were reserved and are counted.
    pub(crate) fn add(&self, items: u64) {
        let mut is_known = true;
        self.change(|held| {
            held.items += items;
            is_known = held.is_known;
        });
        if !is_known {
            self.all.fresh.store(true, Ordering::Relaxed);
        }
        self.all.items.fetch_add(items, Ordering::Relaxed);
    }

    /// Takes off items that are about to be given back.
    pub(crate) fn take(&self, items: u64) {
        self.all.items.fetch_sub(items, Ordering::Relaxed);
        self.change(|held| held.items -= items);
    }

    fn set_bound(&self, bound: Option<u64>) {
        self.change(|held| (held.bound, held.is_known) = (bound.unwrap_or(UNBOUND), true));
    }

    /// Whether nothing is reserved; then no count looks its bound up, until something is.
    fn is_idle(&self) -> bool {
        let mut is_idle = false;
        self.change(|held| {
            is_idle = held.items == 0;
            if is_idle {
                (held.bound, held.is_known) = (UNBOUND, false);
            }
        });
        is_idle
    }

    fn change(&self, change: impl FnOnce(&mut Held)) {
        let mut held = self.held.lock();
        let before = held.spared();
        change(&mut held);
        let after = held.spared();
        if after > before {
            self.all.spared.fetch_add(after - before, Ordering::Relaxed);
        } else if after < before {
            self.all.spared.fetch_sub(before - after, Ordering::Relaxed);
        }
    }
}

impl Drop for InodeReserve {
    fn drop(&mut self) {
        debug_assert_eq!(self.held.lock().items, 0, "I1: reservations of {}", self.ino.0);
    }
}

/// The same of all inodes with a large reservation.
#[derive(Debug, Default)]
pub(crate) struct InodeReserves {
    /// Items that are reserved for any of them, and those of them that count for nothing (I1).
    items: AtomicU64,
    spared: AtomicU64,
    /// A commit waits until an ordered extent finishes (I4).
    awaited: AtomicBool,
    /// Unranked: nothing is taken inside.
    looked: Mutex<Option<Moment>>,
    /// An inode came since bounds were looked up, or was idle then.
    fresh: AtomicBool,
    /// Unranked: nothing is taken inside.
    known: Mutex<Vec<Weak<InodeReserve>>>,
}

impl InodeReserves {
    /// Makes one for an inode, without a bound as yet.
    pub(crate) fn enter(self: &Arc<Self>, tree: TreeId, ino: Ino) -> Arc<InodeReserve> {
        let held = Mutex::new(Held { items: 0, bound: UNBOUND, is_known: false });
        let new = Arc::new(InodeReserve { tree, ino, held, all: Arc::clone(self) });
        let mut known = self.known.lock();
        if known.len().is_power_of_two() {
            known.retain(|inode| inode.strong_count() > 0);
        }
        known.push(Arc::downgrade(&new));
        new
    }

    /// Whether there is one with a bound that was not looked up, or not found because a commit
    /// under way was not counted.
    pub(crate) fn are_fresh(&self) -> bool {
        self.fresh.load(Ordering::Relaxed)
            || (self.items() > 0 && self.looked.lock().is_some_and(|looked| !looked.is_sure))
    }

    /// The inodes with bounds that are to be looked up, and the moment of these bounds: all inodes,
    /// or those that came since. Nothing where the bounds are good as they are.
    pub(crate) fn due(&self, now: Moment) -> Option<(Vec<Arc<InodeReserve>>, Moment)> {
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
            due.retain(|inode| !inode.held.lock().is_known);
        }
        due.retain(|inode| !inode.is_idle());
        Some((due, near.unwrap_or(now)))
    }

    /// Sets bounds, in items; the caller holds the lock of the sum of reservations (I2).
    pub(crate) fn set(&self, moment: Moment, bounds: &[(Arc<InodeReserve>, Option<u64>)]) {
        for (inode, bound) in bounds {
            inode.set_bound(*bound);
        }
        *self.looked.lock() = Some(moment);
    }

    /// Items reserved that count for nothing beside what was counted on these trees (I2).
    pub(crate) fn spared(&self, roots: Generation) -> u64 {
        let are_of_these = self.looked.lock().is_some_and(|looked| looked.roots == roots);
        if are_of_these { self.spared.load(Ordering::Relaxed) } else { 0 }
    }

    /// Whether a commit waits for dirty data. That data is then written back at once, also where a
    /// chunk might be made. Reservations count only half of what the devices have left; a commit
    /// that has waited in vain may take the rest.
    pub(crate) fn are_awaited(&self) -> bool {
        self.awaited.load(Ordering::Relaxed)
    }

    /// Whether any item counts for nothing, on whichever trees.
    pub(crate) fn has_spared(&self) -> bool {
        self.spared.load(Ordering::Relaxed) > 0
    }

    /// Sets whether a commit waits for dirty data.
    pub(crate) fn set_awaited(&self, awaited: bool) {
        self.awaited.store(awaited, Ordering::Relaxed);
    }

    /// All items reserved for inodes.
    pub(crate) fn items(&self) -> u64 {
        self.items.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(roots: u64, leaves: u64) -> Moment {
        Moment { roots: Generation(roots), below: 0, leaves, added: 0, is_sure: true }
    }

    /// I1, I2: what is beyond the bounds, of the trees that they are of.
    #[test]
    fn inodes_spare_items_beyond_their_bounds() {
        let all = Arc::new(InodeReserves::default());
        let spared = |roots| all.spared(Generation(roots));
        let one = all.enter(TreeId::FS, Ino(257));
        let other = all.enter(TreeId::FS, Ino(258));
        one.add(100);
        other.add(5);
        assert_eq!((spared(7), all.are_fresh()), (0, true));
        let (due, moment) = all.due(at(7, 0)).expect("some are due");
        let bounds: Vec<_> = due.into_iter().map(|inode| (inode, Some(10))).collect();
        all.set(moment, &bounds);
        assert_eq!((spared(7), spared(8), all.are_fresh()), (90, 0, false));
        other.add(10);
        assert_eq!(spared(7), 95);
        one.take(95);
        assert_eq!(spared(7), 5);
        all.set(at(8, 0), &[(Arc::clone(&other), None)]);
        assert_eq!((spared(7), spared(8), all.items()), (0, 0, 20));
        one.take(5);
        other.take(15);
    }

    /// Bounds of all inodes are looked up on other trees, or with many leaves or bytes more. Else
    /// only those of inodes that came since or had nothing reserved then.
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
        assert_eq!(look(Moment { added: 100 << 10, ..at(8, 40) }), 2);
        assert_eq!(look(Moment { is_sure: false, ..at(8, 40) }), 2);
        assert!(all.are_fresh());
        one.take(5);
        assert_eq!(look(at(9, 40)), 1);
        one.add(5);
        assert_eq!(look(at(9, 40)), 1, "it was idle");
        one.take(5);
        other.take(5);
    }
}
