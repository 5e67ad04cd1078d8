//! [`Times`] lists inodes with changed times, and puts them when they are due (`pending_times`).

use std::sync::Arc;

use buttress_base::sync::Mutex;
use buttress_format::{InodeItem, TreeId};
use buttress_txn::{Cost, Engine, MetaReservation, ReserveClass};

use crate::cell::InodeCell;
use crate::pending_times::{Listable, ListedInode, PendingTimes};
use crate::status::Status;

/// The most inodes that are put with one handle.
const BATCH: usize = 64;

/// The list of inodes with changed times.
pub(crate) struct Times {
    engine: Arc<Engine>,
    status: Arc<Status>,
    lazytime: bool,
    list: PendingTimes<InodeCell>,
    /// Held while inodes with set times are taken out of the list and put. So a thread that then
    /// finds an inode out of the list knows that the trees have these times. Unranked: the holder
    /// begins handles, and a thread with a handle never waits for it.
    putting: Mutex<()>,
}

impl Times {
    pub(crate) fn new(engine: Arc<Engine>, status: Arc<Status>, lazytime: bool) -> Self {
        Self { engine, status, lazytime, list: PendingTimes::default(), putting: Mutex::new(()) }
    }

    /// The cost to put an inode with its times.
    pub(crate) fn cost() -> Cost {
        Cost::of(1, InodeItem::LEN as u32)
    }

    /// Lists an inode after its time of access was changed in memory.
    pub(crate) fn note_access(&self, cell: &Arc<InodeCell>) {
        drop(self.list.enlist(cell, None));
    }

    /// Lists an inode after a caller has set its times in memory. `room` is the space to put it.
    pub(crate) fn note_set(&self, cell: &Arc<InodeCell>, room: MetaReservation) {
        drop(self.list.enlist(cell, Some(room)));
    }

    /// Whether the listed times are to be put without waiting for a commit.
    pub(crate) fn is_due(&self) -> bool {
        self.list.is_due()
    }

    /// Takes every inode out of the list without putting its times.
    pub(crate) fn forget_all(&self) {
        self.list.drain();
    }

    /// Forgets the inodes of a deleted subvolume.
    pub(crate) fn forget_tree(&self, tree: TreeId) {
        self.list.forget(|cell| cell.tree() == tree);
    }

    /// Puts the times that the next commit must contain (`pending_times::A3`).
    pub(crate) fn put_for_commit(&self) {
        if !self.lazytime || self.is_due() {
            self.put_all();
        } else {
            self.put_set();
        }
    }

    /// Puts all times that changed since they were put last. Does not wait for space.
    pub(crate) fn put_all(&self) {
        self.put(|| self.list.drain());
    }

    /// Puts the times that callers have set. The reservations that the list has kept for them are
    /// free then. Does not wait for space.
    pub(crate) fn put_set(&self) {
        self.put(|| self.list.drain_set());
    }

    /// Puts the times of one inode that changed since they were put last. If `only_set`, puts them
    /// only if a caller has set them. Does not wait for space.
    pub(crate) fn put_of(&self, cell: &Arc<InodeCell>, only_set: bool) {
        if cell.file.has_unsaved_times() {
            let take = || if only_set { cell.place().take_set() } else { cell.place().take() };
            self.put(|| take().into_iter().collect());
        }
    }

    fn put(&self, take: impl FnOnce() -> Vec<ListedInode<InodeCell>>) {
        let putting = self.putting.lock();
        let all = take();
        let (wanted, others): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|inode| self.is_wanted(inode));
        let (mut set, mut read): (Vec<_>, Vec<_>) =
            wanted.into_iter().partition(|inode| inode.room.is_some());
        for batch in set.chunks_mut(BATCH) {
            let rooms = batch.iter_mut().filter_map(|inode| inode.room.take());
            let room = rooms.reduce(|mut all, room| {
                all.merge(room);
                all
            });
            self.put_with(batch, room);
        }
        // Times of reads may be lost, and their reservation may wait for a commit.
        drop(putting);
        for batch in read.chunks_mut(BATCH) {
            let count = batch.len() as u32;
            let cost = Cost::of(count, InodeItem::LEN as u32 * count);
            match self.engine.reserve_at_once(cost, ReserveClass::Normal) {
                Ok(room) => self.put_with(batch, room),
                Err(error) => tracing::debug!(count, %error, "times of access are lost"),
            }
        }
        // The last references to inodes may drop here, and unused reservations.
        drop((set, read, others));
    }

    /// Whether the times of a listed inode are to be put. Times that were set before the volume
    /// became read-only are put, but not those of a read.
    fn is_wanted(&self, inode: &ListedInode<InodeCell>) -> bool {
        let cell = &inode.cell;
        let is_kept = !cell.home.is_dead() && !cell.home.is_read_only() && cell.nlink() > 0;
        let is_allowed = match inode.room {
            Some(_) => self.engine.commits().aborted().is_none(),
            None => cell.expect_writable(&self.status).is_ok(),
        };
        is_kept && is_allowed && cell.file.has_unsaved_times()
    }

    /// Puts inodes with the space that is reserved for them.
    fn put_with(&self, inodes: &[ListedInode<InodeCell>], room: Option<MetaReservation>) {
        let Some(room) = room else {
            tracing::debug!(count = inodes.len(), "no room for times of access");
            return;
        };
        let handle = self.engine.begin(room);
        for inode in inodes {
            inode.cell.file.put_times(&handle);
        }
    }
}
