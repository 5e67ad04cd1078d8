//! Subvolumes in memory.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use buttress_base::activity::{self, Cause};
use buttress_base::sync::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use buttress_format::{Ino, RootFlags, TreeId};
use buttress_items::{NameError, Result, roots};
use buttress_txn::View;

/// The inode number of every stub, the empty directory in place of a missing subvolume.
pub(crate) const STUB: Ino = Ino(2);

/// A subvolume while the volume is mounted.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) root_dir: Ino,
    read_only: AtomicBool,
    /// Whether the subvolume was deleted. The inodes of a deleted subvolume cannot be changed, and
    /// can be found only if `held` is set.
    dead: AtomicBool,
    /// Whether files can be found in the deleted subvolume, as long as it is used.
    held: AtomicBool,
    /// Whether the cleaner does not know the subvolume's orphans yet.
    has_unlisted: AtomicBool,
    pub(crate) writes: WritesLock,
}

/// A change of a file's content holds this lock shared, a snapshot holds it exclusively. So a
/// snapshot has all earlier writes, in an order that a reader could have seen. This lock is taken
/// before any inode's lock. Unranked: held for long, across writeback.
#[derive(Debug, Default)]
pub(crate) struct WritesLock(RwLock<()>);

impl WritesLock {
    #[track_caller]
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, ()> {
        activity::read(&self.0, Cause::Snapshot)
    }

    #[track_caller]
    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, ()> {
        activity::write(&self.0, Cause::Snapshot)
    }
}

impl Tree {
    pub(crate) fn new(root_dir: Ino, read_only: bool) -> Self {
        let (read_only, dead) = (AtomicBool::new(read_only), AtomicBool::new(false));
        let (held, has_unlisted) = (AtomicBool::new(false), AtomicBool::new(true));
        Self { root_dir, read_only, dead, held, has_unlisted, writes: WritesLock::default() }
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only.load(Ordering::Relaxed)
    }

    pub(crate) fn set_read_only(&self, read_only: bool) {
        self.read_only.store(read_only, Ordering::Relaxed);
    }

    /// Runs `list` for the first user of the subvolume, which tells the cleaner of its orphans. If
    /// that fails, the next user does it.
    pub(crate) fn list_orphans_once(&self, list: impl FnOnce() -> Result<()>) -> Result<()> {
        if !self.has_unlisted.load(Ordering::Relaxed) {
            return Ok(());
        }
        if self.has_unlisted.swap(false, Ordering::Relaxed) {
            list().inspect_err(|_| self.has_unlisted.store(true, Ordering::Relaxed))?;
        }
        Ok(())
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Relaxed)
    }

    /// Allows files to be found in this subvolume after its deletion.
    pub(crate) fn hold(&self) {
        self.held.store(true, Ordering::Relaxed);
    }

    pub(crate) fn set_dead(&self, dead: bool) {
        self.dead.store(dead, Ordering::Relaxed);
    }
}

#[derive(Debug, Default)]
pub(crate) struct Trees {
    /// Unranked: no other lock is taken under it.
    known: RwLock<HashMap<TreeId, Arc<Tree>>>,
    /// Held while root items, the names of subvolumes or the default subvolume change. Unranked:
    /// held for long, across reads of trees and waits for space.
    pub(crate) changing: Mutex<()>,
}

impl Trees {
    /// The subvolume's state in memory.
    pub(crate) fn info(&self, view: &View, tree: TreeId) -> Result<Arc<Tree>> {
        if let Some(known) = self.known.read().get(&tree) {
            if known.is_dead() {
                return Err(NameError::NotFound.into());
            }
            return Ok(Arc::clone(known));
        }
        let item = roots::root_item(view, tree)?.ok_or(NameError::NotFound)?;
        let root_dir = if item.root_dirid.0 == 0 { Ino::ROOT_DIR } else { item.root_dirid };
        let fresh = Tree::new(root_dir, item.flags & RootFlags::READONLY != 0);
        let mut all = self.known.write();
        Ok(Arc::clone(all.entry(tree).or_insert_with(|| Arc::new(fresh))))
    }
}

impl Trees {
    /// The subvolume if it is deleted and files can still be found in it. Otherwise `None`.
    pub(crate) fn held(&self, tree: TreeId) -> Option<Arc<Tree>> {
        let known = self.known.read();
        known.get(&tree).filter(|known| known.held.load(Ordering::Relaxed)).cloned()
    }

    /// Whether an inode of a subvolume is in memory, or is about to be.
    pub(crate) fn is_used(&self, tree: TreeId) -> bool {
        self.known.read().get(&tree).is_some_and(|known| Arc::strong_count(known) > 1)
    }
}
