//! Locking several inodes at once, in one order.
//!
//! # Invariants
//!
//! - **L1** A set locks inodes in the order of tree and number, and locks each inode once. A thread
//!   locks several inodes only through a set.

use std::sync::Arc;

use buttress_base::sync::RwLockWriteGuard;

use crate::cell::InodeCell;

/// A guard for exclusively locked inodes: up to four, or any number.
#[must_use = "unlocked when dropped"]
pub(crate) struct LockSet<G> {
    _guards: G,
}

type Guard<'a> = RwLockWriteGuard<'a, ()>;

impl<'a> LockSet<[Option<Guard<'a>>; 4]> {
    pub(crate) fn new(mut cells: [Option<&'a Arc<InodeCell>>; 4]) -> Self {
        cells.sort_by_key(|cell| cell.map(|cell| cell.id));
        let mut guards = [None, None, None, None];
        let mut last = None;
        for (guard, cell) in guards.iter_mut().zip(cells) {
            let Some(cell) = cell else { continue };
            if last.replace(cell.id) != Some(cell.id) {
                *guard = Some(cell.lock.write());
            }
        }
        Self { _guards: guards }
    }
}

impl<'a> LockSet<Vec<Guard<'a>>> {
    /// Locks any number of inodes. `cells` is sorted and has no duplicates.
    pub(crate) fn of_all(cells: &'a [Arc<InodeCell>]) -> Self {
        assert!(cells.is_sorted_by_key(|cell| cell.id), "L1: inodes are locked in order");
        Self { _guards: cells.iter().map(|cell| cell.lock.write()).collect() }
    }
}
