//! [`Atimes`] lists changed times of access, and puts them when they are due (`access`).

use std::sync::Arc;

use buttress_data::File;
use buttress_format::{InodeItem, TreeId};
use buttress_txn::{Cost, Engine, ReserveClass};

use crate::access::AccessTimes;
use crate::cell::InodeCell;
use crate::status::Status;

/// The most times of access that are put with one handle.
const ACCESS_BATCH: usize = 64;

/// The list of inodes with changed times of access.
pub(crate) struct Atimes {
    engine: Arc<Engine>,
    status: Arc<Status>,
    lazytime: bool,
    list: AccessTimes<InodeCell>,
}

impl Atimes {
    pub(crate) fn new(engine: Arc<Engine>, status: Arc<Status>, lazytime: bool) -> Self {
        Self { engine, status, lazytime, list: AccessTimes::default() }
    }

    /// Lists an inode after its time of access was changed in memory.
    pub(crate) fn enlist(&self, cell: &Arc<InodeCell>) {
        self.list.enlist(cell);
    }

    /// Whether the listed times are to be put without waiting for a commit.
    pub(crate) fn is_due(&self) -> bool {
        self.list.is_due()
    }

    /// Takes every inode out of the list without putting its time.
    pub(crate) fn forget_all(&self) {
        self.list.drain();
    }

    /// Forgets the inodes of a deleted subvolume.
    pub(crate) fn forget_tree(&self, tree: TreeId) {
        self.list.forget(|cell| cell.tree() == tree);
    }

    /// Puts the times of access that the next commit must contain (`access::A3`).
    pub(crate) fn put_for_commit(&self) {
        if !self.lazytime || self.is_due() {
            self.put_all();
        }
    }

    /// Puts all times of access that changed since they were put last. Does not wait for space.
    pub(crate) fn put_all(&self) {
        let cells = self.list.drain();
        for batch in cells.chunks(ACCESS_BATCH) {
            self.put_of(batch);
        }
    }

    /// Puts the changed times of access of these inodes. Does not wait for space.
    pub(crate) fn put_of(&self, cells: &[Arc<InodeCell>]) {
        let waits = |cell: &&Arc<InodeCell>| {
            cell.file.has_unsaved_access()
                && cell.nlink() > 0
                && cell.expect_writable(&self.status).is_ok()
        };
        let waiting: Vec<&File> = cells.iter().filter(waits).map(|cell| &cell.file).collect();
        if waiting.is_empty() {
            return;
        }
        let count = waiting.len() as u32;
        let cost = Cost::of(count, InodeItem::LEN as u32 * count);
        match self.engine.reserve_at_once(cost, ReserveClass::Normal) {
            Ok(Some(reservation)) => {
                let handle = self.engine.begin(reservation);
                for file in waiting {
                    file.put_access(&handle);
                }
            }
            Ok(None) => tracing::debug!(count, "no room for times of access"),
            Err(error) => tracing::debug!(count, %error, "times of access are lost"),
        }
    }
}
