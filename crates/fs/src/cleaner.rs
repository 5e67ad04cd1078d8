//! The cleaner: removes inodes without names, and drops deleted subvolumes.
//!
//! # Invariants
//!
//! - **N2** An inode that has a user is not removed.
//! - **N3** While an extent is replaced by its copy, no inode is removed: the replacement and the
//!   removal both hold `removing`.
//!
//! # Failure
//!
//! The engine latches failures that end a transaction. Other failures are logged here, since no
//! caller waits for them; the next mount tries again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use buttress_base::sync::{Mutex, MutexGuard};
use buttress_base::{activity, interrupt};
use buttress_data::{File, Files};
use buttress_format::TreeId;
use buttress_items::{InodeId, Result, orphan};
use buttress_maintenance::Maintenance;
use buttress_txn::{Cost, Engine, Handle, ReserveClass};

use crate::clean_queue::ToClean;
use crate::inodes::{Inodes, read_item};

/// Removes inodes that have no name and no user, and drops deleted subvolumes.
pub(crate) struct Cleaner {
    engine: Arc<Engine>,
    files: Arc<Files>,
    maintenance: Arc<Maintenance>,
    inodes: Arc<Inodes>,
    /// Held while an inode is removed, or an extent is replaced by its copy (N3). Unranked: held
    /// for long, and threads wait for space under it.
    removing: Mutex<()>,
    /// Whether a thread of the cleaner runs.
    has_thread: AtomicBool,
    /// The callbacks that get the deleted subvolumes with users. Unranked: a callback only gives
    /// work to another thread.
    told: Mutex<Vec<Told>>,
}

/// A callback that gets the deleted subvolumes that still have users. The callback returns whether
/// to call it again.
pub(crate) type Told = Box<dyn Fn(&[TreeId]) -> bool + Send + Sync>;

impl Cleaner {
    pub(crate) fn new(
        engine: Arc<Engine>,
        files: Arc<Files>,
        maintenance: Arc<Maintenance>,
        inodes: Arc<Inodes>,
    ) -> Self {
        let (removing, has_thread) = (Mutex::new(()), AtomicBool::new(false));
        let told = Mutex::default();
        Self { engine, files, maintenance, inodes, removing, has_thread, told }
    }

    /// From now on, calls `told` twice a second with the deleted subvolumes that still have users.
    pub(crate) fn tell_of_waiting(&self, told: Told) {
        self.told.lock().push(told);
    }

    /// Sets whether a thread of the cleaner runs.
    pub(crate) fn set_thread(&self, has_thread: bool) {
        self.has_thread.store(has_thread, Ordering::Release);
    }

    /// Keeps inodes from being removed while the guard lives (N3).
    pub(crate) fn hold_removals(&self) -> MutexGuard<'_, ()> {
        self.removing.lock()
    }

    /// Cleans until the queue stops.
    pub(crate) fn run(&self) {
        while let Some(work) = self.inodes.cleaning().next(|tree| self.is_used(tree)) {
            let _busy = activity::busy();
            self.clean(work);
        }
    }

    /// Waits until the thread has no inode left to remove, and for a limited time for inodes that
    /// will soon enter its queue. Returns whether there were such inodes.
    pub(crate) fn clean_all(&self) -> bool {
        self.has_thread.load(Ordering::Acquire) && self.inodes.cleaning().wait_for_inodes()
    }

    /// Cleans all inodes and subvolumes without users in the calling thread. Mounts without threads
    /// call this.
    pub(crate) fn clean_here(&self) {
        while let Some(work) = self.inodes.cleaning().take(|tree| self.is_used(tree)) {
            self.clean(work);
        }
    }

    fn is_used(&self, tree: TreeId) -> bool {
        self.inodes.trees().is_used(tree)
    }

    fn clean(&self, work: ToClean) {
        // A caller that gives up must not leave the inode to the next mount.
        let _suspended = interrupt::suspend_cancel();
        match work {
            ToClean::Inode(id) => {
                if let Err(error) = self.clean_inode(id) {
                    tracing::warn!(tree = %id.tree, ino = %id.ino, %error, "cannot remove an inode");
                }
            }
            ToClean::Trees(trees) => self.drop_trees(&trees),
        }
    }

    /// Does one step of dropping deleted subvolumes. A subvolume with a file that has a user is
    /// left for later.
    fn drop_trees(&self, trees: &[TreeId]) {
        let (used, free): (Vec<TreeId>, Vec<TreeId>) =
            trees.iter().partition(|tree| self.is_used(**tree));
        if !used.is_empty() {
            self.told.lock().retain(|told| told(&used));
        }
        self.inodes.cleaning().end_step(&self.maintenance.drop_each(&free), &used);
    }

    /// Removes an inode that has neither names nor users. If the inode has names, its orphan item
    /// comes from a truncate that an old kernel did not finish, or from an unfinished Merkle tree.
    /// Then only the item is removed, with the rest of that truncate or tree.
    fn clean_inode(&self, id: InodeId) -> Result<()> {
        if self.inodes.table().find(id).is_ok() {
            // The inode has a user again. Its last user will queue it again (N2).
            return Ok(());
        }
        // A deleted subvolume is removed with its inodes, so this inode may not exist any more.
        if self.inodes.tree_info(&self.engine.view(), id.tree).is_err() {
            return Ok(());
        }
        self.remove(id)
    }

    /// As [`clean_inode`](Self::clean_inode), for an inode that cannot get a user.
    pub(crate) fn remove(&self, id: InodeId) -> Result<()> {
        // A view that is held while space is reserved would pin space that earlier commits freed.
        let found = read_item(&self.engine.view(), id)?;
        let item = match found {
            Some(item) if item.nlink == 0 => item,
            found => {
                let _removing = self.removing.lock();
                if self.inodes.table().find(id).is_ok() {
                    // The inode got a user since, which may be making a Merkle tree
                    // (`ops::verity::FV4`).
                    return Ok(());
                }
                // A user that is gone again may have finished a tree since the item was read.
                if let Some(item) = found.and(read_item(&self.engine.view(), id)?) {
                    let file = File::new(id.tree, id.ino, item);
                    let had_parts = !file.has_verity() && self.files.remove_verity(&file)?;
                    // A user could write to the file from now on. So a file with an orphan item for
                    // its tree is not cut.
                    if !had_parts && !file.has_verity() {
                        self.files.cut_leftovers(&file)?;
                    }
                }
                let cost = Cost::of(1, 0);
                let handle = self.engine.begin(self.engine.reserve(cost, ReserveClass::Free)?);
                handle.delete(id.tree, orphan::key(id.ino));
                return Ok(());
            }
        };
        let file = File::new(id.tree, id.ino, item);
        loop {
            let _removing = self.removing.lock();
            let last = |handle: &Handle<'_>| handle.delete(id.tree, orphan::key(id.ino));
            if self.files.remove_step(&file, last)?.is_break() {
                return Ok(());
            }
        }
    }
}
