//! What was promised for the dirty data of one inode, and how many nodes all of it can dirty.
//!
//! # Place
//!
//! Dirty data changes the item of its inode and those of its extents, which lie between two keys of one tree. By
//! the path, a few thousand blocks of one file are promised more than the volume has; they cannot dirty more than the leaves
//! between these keys. Where nodes are counted (`count`), what an inode was promised counts as no more than that.
//!
//! # Invariants
//!
//! - **I1** What is spared is the sum over the inodes of the items that were promised to each beyond its bound. It grows
//!   after a promise was counted, and shrinks before one is given back, so it is part of what is promised at any time.
//! - **I2** Bounds are of the trees that a count was held against, and of the commit under way on these. They are used
//!   with such a count alone, and change under the lock of the sum of promises.
//! - **I3** What commits add to an inode's leaves before the rest of its data lands was promised twice, as all bytes are: once
//!   for the leaf that it fills, and once for that leaf when it is dirty again.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use buttress_base::sync::Mutex;
use buttress_format::{Generation, Ino, TreeId};

/// No bound: every item a path.
const UNBOUND: u64 = u64::MAX;

/// What was promised for one inode's dirty data.
#[derive(Debug)]
pub struct InodeReserve {
    pub(crate) tree: TreeId,
    pub(crate) ino: Ino,
    held: Mutex<Held>,
    all: Arc<InodeReserves>,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    /// Items of trees that operations change, in live tokens.
    items: u64,
    /// So many of them count at most.
    bound: u64,
}

impl Held {
    fn spared(self) -> u64 {
        self.items.saturating_sub(self.bound)
    }
}

impl InodeReserve {
    /// More was promised, and is counted.
    pub(super) fn add(&self, items: u64) {
        self.change(|held| held.items += items);
        self.all.items.fetch_add(items, Ordering::Relaxed);
    }

    /// Some of it is about to be given back.
    pub(super) fn take(&self, items: u64) {
        self.all.items.fetch_sub(items, Ordering::Relaxed);
        self.change(|held| held.items -= items);
    }

    fn set_bound(&self, bound: Option<u64>) {
        self.change(|held| held.bound = bound.unwrap_or(UNBOUND));
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
        debug_assert_eq!(self.held.lock().items, 0, "I1: promises of {}", self.ino.0);
    }
}

/// The same of all inodes that much was promised for.
#[derive(Debug, Default)]
pub(crate) struct InodeReserves {
    /// Items that were promised to any of them, and those of them that count for nothing (I1).
    items: AtomicU64,
    spared: AtomicU64,
    /// The trees that the bounds are of (I2); zero while there are none.
    roots: AtomicU64,
    /// One came since they were looked up.
    fresh: AtomicBool,
    known: Mutex<Vec<Weak<InodeReserve>>>,
}

impl InodeReserves {
    /// Makes one for an inode, without a bound as yet.
    pub(crate) fn enter(self: &Arc<Self>, tree: TreeId, ino: Ino) -> Arc<InodeReserve> {
        let held = Mutex::new(Held { items: 0, bound: UNBOUND });
        let new = Arc::new(InodeReserve { tree, ino, held, all: Arc::clone(self) });
        self.known.lock().push(Arc::downgrade(&new));
        self.fresh.store(true, Ordering::Relaxed);
        new
    }

    /// Whether there is one whose bound was not looked up.
    pub(crate) fn are_fresh(&self) -> bool {
        self.fresh.load(Ordering::Relaxed)
    }

    /// All of them, whose bounds are about to be looked up.
    pub(crate) fn list(&self) -> Vec<Arc<InodeReserve>> {
        self.fresh.store(false, Ordering::Relaxed);
        let mut known = self.known.lock();
        known.retain(|inode| inode.strong_count() > 0);
        known.iter().filter_map(Weak::upgrade).collect()
    }

    /// Sets bounds, in items, of these trees; the caller holds the lock of the sum of promises (I2).
    pub(crate) fn set(&self, roots: Generation, bounds: &[(Arc<InodeReserve>, Option<u64>)]) {
        for (inode, bound) in bounds {
            inode.set_bound(*bound);
        }
        self.roots.store(roots.0, Ordering::Relaxed);
    }

    /// Items promised that count for nothing beside what was counted on these trees.
    pub(crate) fn spared(&self, roots: Generation) -> u64 {
        match self.roots.load(Ordering::Relaxed) == roots.0 {
            true => self.spared.load(Ordering::Relaxed),
            false => 0,
        }
    }

    /// All items promised to inodes.
    pub(crate) fn items(&self) -> u64 {
        self.items.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOTS: Generation = Generation(7);

    /// I1, I2: what is beyond the bounds, of the trees that they are of.
    #[test]
    fn what_is_beyond_the_bounds_is_spared() {
        let all = Arc::new(InodeReserves::default());
        let one = all.enter(TreeId::FS, Ino(257));
        let other = all.enter(TreeId::FS, Ino(258));
        one.add(100);
        other.add(5);
        assert_eq!(all.spared(ROOTS), 0);
        assert!(all.are_fresh());
        let bounds: Vec<_> = all.list().into_iter().map(|inode| (inode, Some(10))).collect();
        all.set(ROOTS, &bounds);
        assert!(!all.are_fresh());
        assert_eq!((all.spared(ROOTS), all.spared(Generation(8))), (90, 0));
        other.add(10);
        assert_eq!(all.spared(ROOTS), 95);
        one.take(95);
        assert_eq!(all.spared(ROOTS), 5);
        all.set(Generation(8), &[(Arc::clone(&other), None)]);
        assert_eq!((all.spared(ROOTS), all.spared(Generation(8))), (0, 0));
        one.take(5);
        other.take(15);
        drop((one, bounds));
        assert_eq!(all.list().len(), 1);
    }
}
