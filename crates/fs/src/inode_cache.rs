//! Which inodes are in memory.
//!
//! # Invariants
//!
//! - **M1** An inode that was read from a view is entered only if no cell of its shard went since: one that
//!   went may have changed the item after it was read.
//!
//! # Locks
//!
//! One short lock a shard; no tree is read under it, and no cell is dropped.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use buttress_base::{Rank, Ranked};

use crate::attr::InodeId;
use crate::cell::InodeCell;

const SHARDS: usize = 64;

#[derive(Debug, Default)]
struct Shard {
    cells: HashMap<InodeId, Weak<InodeCell>>,
    /// How many cells went.
    gone: u64,
}

#[derive(Debug)]
pub(crate) struct InodeCache {
    shards: Vec<Ranked<Shard>>,
}

/// What a shard looked like before an inode was read (M1).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen(u64);

/// What became of a cell that was offered.
pub(crate) enum Entered {
    /// Somebody's cell of that inode, perhaps the offered one.
    Cell(Arc<InodeCell>),
    /// The item may be stale: read it again.
    Stale,
}

impl InodeCache {
    pub(crate) fn new() -> Self {
        let shard = || Ranked::new(Rank::InodeTable, Shard::default());
        Self { shards: (0..SHARDS).map(|_| shard()).collect() }
    }

    fn shard(&self, id: InodeId) -> &Ranked<Shard> {
        let hash = (id.ino.0 ^ id.tree.0.rotate_left(32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        &self.shards[(hash >> 58) as usize % SHARDS]
    }

    /// The cell of an inode, or what to remember while it is read.
    pub(crate) fn find(&self, id: InodeId) -> Result<Arc<InodeCell>, Seen> {
        let shard = self.shard(id).lock();
        shard.cells.get(&id).and_then(Weak::upgrade).ok_or(Seen(shard.gone))
    }

    /// Enters a cell that was read after `seen`.
    pub(crate) fn enter(&self, cell: InodeCell, seen: Seen) -> Entered {
        // Dropped behind the lock, whichever of the two it is.
        let cell = Arc::new(cell);
        let mut shard = self.shard(cell.id).lock();
        if let Some(there) = shard.cells.get(&cell.id).and_then(Weak::upgrade) {
            drop(shard);
            return Entered::Cell(there);
        }
        if shard.gone != seen.0 {
            drop(shard);
            return Entered::Stale;
        }
        cell.entered.store(true, Ordering::Relaxed);
        shard.cells.insert(cell.id, Arc::downgrade(&cell));
        drop(shard);
        Entered::Cell(cell)
    }

    /// Enters a cell of an inode that is being made: nobody can know its number.
    pub(crate) fn enter_new(&self, cell: InodeCell) -> Arc<InodeCell> {
        let cell = Arc::new(cell);
        cell.entered.store(true, Ordering::Relaxed);
        self.shard(cell.id).lock().cells.insert(cell.id, Arc::downgrade(&cell));
        cell
    }

    /// Says that a cell went. Another one may be in its place already.
    pub(crate) fn forget(&self, id: InodeId) {
        let mut shard = self.shard(id).lock();
        shard.gone += 1;
        if shard.cells.get(&id).is_some_and(|cell| cell.strong_count() == 0) {
            shard.cells.remove(&id);
        }
    }
}
