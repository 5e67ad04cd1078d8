//! Locking several inodes at once, in one order.
//!
//! # Invariants
//!
//! - **L1** Inodes are locked by tree and number, each once; there is no other way to hold two.

use std::sync::Arc;

use buttress_base::sync::RwLockWriteGuard;

use crate::cell::InodeCell;

/// Proof that up to four inodes are locked exclusive.
#[must_use = "unlocked when dropped"]
pub(crate) struct LockSet<'a> {
    _guards: [Option<RwLockWriteGuard<'a, ()>>; 4],
}

impl<'a> LockSet<'a> {
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
