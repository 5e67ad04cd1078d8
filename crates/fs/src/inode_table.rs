//! The table of the inodes in memory.
//!
//! The table knows no details of the cells that it holds. So a cell can notify the table when it
//! drops.
//!
//! # Invariants
//!
//! - **M1** A cell may have an item that was read from a view. The table enters such a cell only if
//!   no cell of its shard dropped since the read. A dropped cell may have changed the item after
//!   the read.
//!
//! # Locks
//!
//! One short lock for each shard. No tree is read under it, and no cell drops under it.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use buttress_base::{Rank, Ranked};

use crate::attr::InodeId;

const SHARDS: usize = 64;

/// What a table holds.
pub(crate) trait Entry {
    fn id(&self) -> InodeId;
    /// Notes that the cell is in the table, and must notify the table when it drops.
    fn note_entered(&self);
}

#[derive(Debug)]
struct Shard<C> {
    cells: HashMap<InodeId, Weak<C>>,
    /// How many cells have dropped.
    gone: u64,
}

#[derive(Debug)]
pub(crate) struct InodeTable<C> {
    shards: Vec<Ranked<Shard<C>>>,
}

/// The state of a shard before an inode was read (M1).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen(u64);

/// The result of offering a cell.
pub(crate) enum Entered<C> {
    /// The cell of that inode: the offered one, or one that was there already.
    Cell(Arc<C>),
    /// The item may be stale: read it again.
    Stale,
}

impl<C: Entry> InodeTable<C> {
    pub(crate) fn new() -> Self {
        let shard = || Ranked::new(Rank::InodeTable, Shard { cells: HashMap::new(), gone: 0 });
        Self { shards: (0..SHARDS).map(|_| shard()).collect() }
    }

    fn shard(&self, id: InodeId) -> &Ranked<Shard<C>> {
        let hash = (id.ino.0 ^ id.tree.0.rotate_left(32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        &self.shards[(hash >> 58) as usize % SHARDS]
    }

    /// Returns the cell of an inode, or the state of the shard before its item is read.
    pub(crate) fn find(&self, id: InodeId) -> Result<Arc<C>, Seen> {
        let shard = self.shard(id).lock();
        shard.cells.get(&id).and_then(Weak::upgrade).ok_or(Seen(shard.gone))
    }

    /// Enters a cell. Its item was read after `seen`.
    pub(crate) fn enter(&self, cell: C, seen: Seen) -> Entered<C> {
        // Declared before the lock is taken: a cell that is not entered drops after the lock is
        // released.
        let cell = Arc::new(cell);
        let mut shard = self.shard(cell.id()).lock();
        if let Some(there) = shard.cells.get(&cell.id()).and_then(Weak::upgrade) {
            drop(shard);
            return Entered::Cell(there);
        }
        if shard.gone != seen.0 {
            drop(shard);
            return Entered::Stale;
        }
        cell.note_entered();
        shard.cells.insert(cell.id(), Arc::downgrade(&cell));
        drop(shard);
        Entered::Cell(cell)
    }

    /// Enters the cell of an inode that is being made. No other thread can know its number.
    pub(crate) fn enter_new(&self, cell: C) -> Arc<C> {
        let cell = Arc::new(cell);
        cell.note_entered();
        self.shard(cell.id()).lock().cells.insert(cell.id(), Arc::downgrade(&cell));
        cell
    }

    /// Notes that a cell drops. Another cell of the same inode may already be in the table.
    pub(crate) fn forget(&self, id: InodeId) {
        let mut shard = self.shard(id).lock();
        shard.gone += 1;
        if shard.cells.get(&id).is_some_and(|cell| cell.strong_count() == 0) {
            shard.cells.remove(&id);
        }
    }
}
