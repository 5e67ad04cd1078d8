//! Lists the inodes that have an access time newer than the access time in the trees.
//!
//! # Invariants
//!
//! - **A1** A read begins no transaction and waits for no space. It notes the access time in memory
//!   and lists the inode. Any later put of the inode includes the time.
//! - **A2** An inode with an access time newer than the last put is listed, and stays in memory
//!   while it is listed. A removed inode leaves the list. All inodes of a deleted subvolume leave
//!   the list, too.
//! - **A3** Listed inodes are put before a commit. With `lazytime`, they are put only before a
//!   commit that a caller requests. They are also put when [`LISTED_MAX`] inodes are listed, when
//!   the oldest listed inode has waited for a day, and before a snapshot.
//!
//! # Locks
//!
//! The list and each inode's place in the list have short locks. No inode is dropped under these
//! locks.
//!
//! # Failure
//!
//! An access time may be lost. If the volume is full, the time is not put, and no caller gets an
//! error.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use buttress_base::{Rank, Ranked, clock};

/// With `lazytime`, the longest time that a listed access time waits to be put.
const LISTED_FOR_MAX: Duration = Duration::from_secs(86_400);

/// The number of listed inodes at which all of them are put without a commit.
const LISTED_MAX: usize = 4096;

/// The place of an inode in the list. The place keeps the inode in memory while the inode is listed
/// (A2).
pub(crate) struct Place<C>(Ranked<Option<Arc<C>>>);

impl<C> Default for Place<C> {
    fn default() -> Self {
        Self(Ranked::new(Rank::Leaf, None))
    }
}

impl<C> Place<C> {
    /// Takes the inode out of the list, and returns the reference that kept it in memory.
    pub(crate) fn take(&self) -> Option<Arc<C>> {
        self.0.lock().take()
    }
}

/// A type that can be listed.
pub(crate) trait Listable {
    /// The inode's place in the list.
    fn place(&self) -> &Place<Self>
    where
        Self: Sized;

    /// Whether the inode has no name and no user.
    fn is_gone(&self) -> bool;
}

/// The inodes with an access time newer than the access time that was last put.
pub(crate) struct AccessTimes<C> {
    listed: Ranked<Listed<C>>,
    /// How many inodes are listed, for threads that do not hold the lock.
    count: AtomicUsize,
}

struct Listed<C> {
    cells: Vec<Weak<C>>,
    /// When the oldest listed inode was listed.
    since: Option<Instant>,
}

impl<C> Default for AccessTimes<C> {
    fn default() -> Self {
        let listed = Listed { cells: Vec::new(), since: None };
        Self { listed: Ranked::new(Rank::Leaf, listed), count: AtomicUsize::new(0) }
    }
}

impl<C: Listable> AccessTimes<C> {
    /// Lists an inode (A2).
    pub(crate) fn enlist(&self, cell: &Arc<C>) {
        {
            let mut kept = cell.place().0.lock();
            if kept.is_some() || cell.is_gone() {
                return;
            }
            *kept = Some(Arc::clone(cell));
        }
        let mut listed = self.listed.lock();
        listed.since.get_or_insert_with(clock::now);
        listed.cells.push(Arc::downgrade(cell));
        self.count.store(listed.cells.len(), Ordering::Relaxed);
    }

    /// Takes all inodes out of the list.
    pub(crate) fn drain(&self) -> Vec<Arc<C>> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return Vec::new();
        }
        let cells = {
            let mut listed = self.listed.lock();
            self.count.store(0, Ordering::Relaxed);
            listed.since = None;
            std::mem::take(&mut listed.cells)
        };
        let cells: Vec<_> = cells.iter().filter_map(Weak::upgrade).collect();
        for cell in &cells {
            drop(cell.place().take());
        }
        cells
    }

    /// Forgets the inodes that match, such as the inodes of a subvolume that is deleted.
    pub(crate) fn forget(&self, matches: impl Fn(&C) -> bool) {
        let listed: Vec<_> = self.listed.lock().cells.iter().filter_map(Weak::upgrade).collect();
        for cell in listed.iter().filter(|cell| matches(cell)) {
            drop(cell.place().take());
        }
    }

    /// Whether the listed inodes must be put without a commit.
    pub(crate) fn is_due(&self) -> bool {
        let count = self.count.load(Ordering::Relaxed);
        let is_old = |since| clock::since(since) >= LISTED_FOR_MAX;
        count >= LISTED_MAX || count > 0 && self.listed.lock().since.is_some_and(is_old)
    }
}
