//! The table of the inodes in memory.
//!
//! The table is generic over the cells. So a cell can hold the table, and notify it when the cell
//! drops.
//!
//! # Invariants
//!
//! - **M1** A cell may have an item that was read from a view. The table enters such a cell only if
//!   no cell of its shard dropped since the read. A dropped cell may have changed the item after
//!   the read.
//! - **M2** While an inode is kept out it has no cell, and the table enters no cell for it.
//!
//! # Locks
//!
//! One short lock for each shard. No tree is read under it, and no cell drops under it. The
//! entrance is taken before these locks. A thread that keeps inodes out holds the entrance, and
//! waits for no other thread meanwhile.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};

use buttress_base::sync::{RwLock, RwLockWriteGuard};
use buttress_base::{Rank, Ranked};
use buttress_items::InodeId;

const SHARDS: usize = 64;

/// A cell that a table can hold.
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
    /// Inodes that are kept out (M2).
    out: HashSet<InodeId>,
}

#[derive(Debug)]
pub(crate) struct InodeTable<C> {
    shards: Vec<Ranked<Shard<C>>>,
    /// Unranked: held while inodes are kept out, across reads of trees.
    entrance: RwLock<()>,
}

/// The state of a shard before an inode was read (M1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen(u64);

/// The result of offering a cell.
pub(crate) enum Entered<C> {
    /// The cell of that inode: the offered cell, or the cell that was already in the table.
    Cell(Arc<C>),
    /// The item may be stale: read it again.
    Stale,
    /// The inode is kept out: call [`InodeTable::wait`], and read it again.
    KeptOut,
}

/// Keeps inodes out until this value drops (M2).
#[must_use = "inodes may enter when it drops"]
pub(crate) struct KeptOut<'t, C: Entry> {
    table: &'t InodeTable<C>,
    inodes: Vec<InodeId>,
    _entrance: RwLockWriteGuard<'t, ()>,
}

impl<C: Entry> Drop for KeptOut<'_, C> {
    fn drop(&mut self) {
        for id in &self.inodes {
            self.table.shard(*id).lock().out.remove(id);
        }
    }
}

impl<C: Entry> InodeTable<C> {
    pub(crate) fn new() -> Self {
        let shard = || {
            let (cells, out) = (HashMap::new(), HashSet::new());
            Ranked::new(Rank::InodeTable, Shard { cells, gone: 0, out })
        };
        Self { shards: (0..SHARDS).map(|_| shard()).collect(), entrance: RwLock::new(()) }
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
        if shard.out.contains(&cell.id()) {
            drop(shard);
            return Entered::KeptOut;
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

    /// Enters the cell of an inode that is being made. No other thread can know the inode's number.
    pub(crate) fn enter_new(&self, cell: C) -> Arc<C> {
        let cell = Arc::new(cell);
        cell.note_entered();
        self.shard(cell.id()).lock().cells.insert(cell.id(), Arc::downgrade(&cell));
        cell
    }

    /// Keeps inodes without a cell out; returns `None` if one of them has a cell. Until the guard
    /// drops, the caller must wait for no other thread, because the other thread may be waiting for
    /// such an inode.
    pub(crate) fn keep_out(
        &self,
        inodes: impl IntoIterator<Item = InodeId>,
    ) -> Option<KeptOut<'_, C>> {
        let _entrance = self.entrance.write();
        let mut kept = KeptOut { table: self, inodes: Vec::new(), _entrance };
        for id in inodes {
            let mut shard = self.shard(id).lock();
            if shard.cells.get(&id).is_some_and(|cell| cell.strong_count() > 0) {
                drop(shard);
                return None;
            }
            shard.out.insert(id);
            drop(shard);
            kept.inodes.push(id);
        }
        Some(kept)
    }

    /// Waits until no inode is kept out.
    pub(crate) fn wait(&self) {
        drop(self.entrance.read());
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use buttress_format::{Ino, TreeId};

    use super::*;

    #[derive(Debug)]
    struct Cell(InodeId);

    impl Entry for Cell {
        fn id(&self) -> InodeId {
            self.0
        }

        fn note_entered(&self) {}
    }

    /// M2: an inode without a cell enters after the guard is gone, and an inode with a cell is not
    /// kept out.
    #[test]
    fn inode_enters_after_it_was_kept_out() {
        let table = InodeTable::new();
        let [one, two] = [300, 301].map(|ino| InodeId { tree: TreeId::FS, ino: Ino(ino) });
        let cell = table.enter_new(Cell(two));
        assert!(table.keep_out([one, two]).is_none());
        let seen = table.find(one).expect_err("it has no cell");
        assert!(matches!(table.enter(Cell(one), seen), Entered::Cell(_)), "nothing is kept out");
        let kept = table.keep_out([one]).expect("it has no cell any more");
        let seen = table.find(one).expect_err("it has no cell");
        assert!(matches!(table.enter(Cell(one), seen), Entered::KeptOut));
        let was_let_in = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                table.wait();
                assert!(was_let_in.load(Ordering::SeqCst));
                assert!(matches!(table.enter(Cell(one), seen), Entered::Cell(_)));
            });
            std::thread::sleep(std::time::Duration::from_millis(20));
            was_let_in.store(true, Ordering::SeqCst);
            drop(kept);
        });
        drop(cell);
    }
}
