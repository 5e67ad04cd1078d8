//! Lists the inodes that have times newer than the times in the trees.
//!
//! # Invariants
//!
//! - **A1** A read begins no transaction and waits for no space. It notes the access time in memory
//!   and lists the inode. So does a call that sets times alone, but that call reserves the space to
//!   put the inode. The list keeps this reservation. Any later put of the inode includes the times.
//! - **A2** An inode with times newer than the last put is listed, and stays in memory while it is
//!   listed. A removed inode leaves the list. All inodes of a deleted subvolume leave it, too.
//! - **A3** Listed inodes are put before a commit that the mount begins, and before a snapshot.
//!   With `lazytime`, access times are put only before a commit that a caller requests. All inodes
//!   are put when [`LISTED_MAX`] are listed, and when the oldest has waited for a day. Times that
//!   were set are put, too, when the space of their reservations is needed.
//!
//! # Locks
//!
//! The list and each inode's place in the list have short locks. No inode and no reservation is
//! dropped under these locks.
//!
//! # Failure
//!
//! An access time may be lost. If the volume is full, the time is not put, and no caller gets an
//! error. A time that was set is not lost: it has its reservation.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use buttress_base::{Rank, Ranked, clock};
use buttress_txn::MetaReservation;

/// With `lazytime`, the longest time that a listed access time waits to be put.
const LISTED_FOR_MAX: Duration = Duration::from_secs(86_400);

/// The number of listed inodes at which all of them are put without a commit.
const LISTED_MAX: usize = 4096;

/// A listed inode. Its place in the list keeps it in memory (A2).
pub(crate) struct ListedInode<C> {
    pub(crate) cell: Arc<C>,
    /// The space to put the inode, if a caller has set its times (A1).
    pub(crate) room: Option<MetaReservation>,
}

/// The place of an inode in the list.
pub(crate) struct Place<C>(Ranked<Option<ListedInode<C>>>);

impl<C> Default for Place<C> {
    fn default() -> Self {
        Self(Ranked::new(Rank::Leaf, None))
    }
}

impl<C> Place<C> {
    /// Takes the inode out of the list, and returns what kept it in memory.
    pub(crate) fn take(&self) -> Option<ListedInode<C>> {
        self.0.lock().take()
    }

    /// Takes the inode out of the list, if a caller has set its times.
    pub(crate) fn take_set(&self) -> Option<ListedInode<C>> {
        self.0.lock().take_if(|inode| inode.room.is_some())
    }

    fn is_listed(&self) -> bool {
        self.0.lock().is_some()
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

/// The inodes with times newer than the times that were last put.
pub(crate) struct PendingTimes<C> {
    listed: Ranked<Listed<C>>,
    /// How many inodes are listed, for threads that do not hold the lock.
    count: AtomicUsize,
}

struct Listed<C> {
    cells: Vec<Weak<C>>,
    /// When the oldest listed inode was listed.
    since: Option<Instant>,
}

impl<C> Default for PendingTimes<C> {
    fn default() -> Self {
        let listed = Listed { cells: Vec::new(), since: None };
        Self { listed: Ranked::new(Rank::Leaf, listed), count: AtomicUsize::new(0) }
    }
}

impl<C: Listable> PendingTimes<C> {
    /// Lists an inode after its times changed in memory (A2). `room` is the space to put it, if a
    /// caller has set the times. Returns the reservation if the list does not need it.
    pub(crate) fn enlist(
        &self,
        cell: &Arc<C>,
        room: Option<MetaReservation>,
    ) -> Option<MetaReservation> {
        {
            let mut place = cell.place().0.lock();
            match &mut *place {
                _ if cell.is_gone() => return room,
                Some(inode) if inode.room.is_some() => return room,
                // The thread that notes a read may not have added the inode to the list yet. So it
                // is added here as well, and the place gives it out once.
                Some(inode) => inode.room = room,
                none => *none = Some(ListedInode { cell: Arc::clone(cell), room }),
            }
        }
        let mut listed = self.listed.lock();
        listed.since.get_or_insert_with(clock::now);
        listed.cells.push(Arc::downgrade(cell));
        self.count.store(listed.cells.len(), Ordering::Relaxed);
        None
    }

    /// Takes all inodes out of the list.
    pub(crate) fn drain(&self) -> Vec<ListedInode<C>> {
        self.drain_by(Place::take)
    }

    /// Takes the inodes out of the list of which a caller has set the times.
    pub(crate) fn drain_set(&self) -> Vec<ListedInode<C>> {
        self.drain_by(Place::take_set)
    }

    fn drain_by(&self, take: impl Fn(&Place<C>) -> Option<ListedInode<C>>) -> Vec<ListedInode<C>> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return Vec::new();
        }
        let (cells, since) = {
            let mut listed = self.listed.lock();
            self.count.store(0, Ordering::Relaxed);
            (std::mem::take(&mut listed.cells), listed.since.take())
        };
        let cells: Vec<_> = cells.iter().filter_map(Weak::upgrade).collect();
        let taken = cells.iter().filter_map(|cell| take(cell.place())).collect();
        let left = cells.iter().filter(|cell| cell.place().is_listed());
        let left: Vec<_> = left.map(Arc::downgrade).collect();
        if !left.is_empty() {
            let mut listed = self.listed.lock();
            listed.since = since;
            listed.cells.extend(left);
            self.count.store(listed.cells.len(), Ordering::Relaxed);
        }
        taken
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
