//! Times of access: kept in memory, and put into a transaction many at a time.
//!
//! # Invariants
//!
//! - **A1** A read begins no transaction and waits for no space. It notes the time in memory and
//!   lists the inode. Any later put of the inode takes the time along.
//! - **A2** An inode whose time of access is newer than the one last put is listed, and its cell
//!   keeps itself alive while it is listed. An inode that goes leaves the list, and so does
//!   everything of a subvolume that is deleted.
//! - **A3** What is listed is put before a commit: any commit, or with `lazytime` one that a caller
//!   asks for. It is also put when [`LISTED_MAX`] inodes are listed, when the oldest waits for a
//!   day, and before a snapshot.
//!
//! # Locks
//!
//! The list has a short lock. No cell is dropped under it.
//!
//! # Failure
//!
//! A time of access may be lost. Where a volume has no room it is not put, and no caller is told.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use buttress_base::clock;
use buttress_base::sync::Mutex;
use buttress_data::File;
use buttress_format::{InodeFlags, InodeItem, Timespec, TreeId};
use buttress_txn::{Cost, Urgency};

use crate::attr::FileKind;
use crate::cell::InodeCell;
use crate::clock::now;
use crate::inode::Inode;
use crate::options::Atime;
use crate::shared::Shared;

/// How old a time of access may grow in relative mode, in seconds: a day.
const AGE_MAX: i64 = 86_400;

/// How long a time of access may wait to be put with `lazytime`.
const LISTED_FOR_MAX: Duration = Duration::from_secs(86_400);

/// So many inodes may be listed before they are put.
const LISTED_MAX: usize = 4096;

/// So many inodes are put in one transaction handle.
const BATCH: usize = 64;

/// Bytes of one inode item.
const ITEM_LEN: u32 = InodeItem::LEN as u32;

/// The inodes whose time of access is newer than the one last put.
#[derive(Default)]
pub(crate) struct AccessTimes {
    listed: Mutex<Listed>,
    /// How many are listed, for threads that only look.
    count: AtomicUsize,
}

#[derive(Default)]
struct Listed {
    cells: Vec<Weak<InodeCell>>,
    /// When the oldest of them came.
    since: Option<Instant>,
}

impl AccessTimes {
    /// Lists an inode (A2).
    fn enlist(&self, cell: &Arc<InodeCell>) {
        {
            let mut kept = cell.accessed.lock();
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
    pub(crate) fn drain(&self) -> Vec<Arc<InodeCell>> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return Vec::new();
        }
        let listed = {
            let mut listed = self.listed.lock();
            self.count.store(0, Ordering::Relaxed);
            std::mem::take(&mut *listed)
        };
        let cells: Vec<_> = listed.cells.iter().filter_map(Weak::upgrade).collect();
        for cell in &cells {
            let kept = cell.accessed.lock().take();
            drop(kept);
        }
        cells
    }

    /// Forgets what is listed of a subvolume that is deleted.
    pub(crate) fn forget_tree(&self, tree: TreeId) {
        let listed: Vec<_> = self.listed.lock().cells.iter().filter_map(Weak::upgrade).collect();
        for cell in listed.iter().filter(|cell| cell.tree() == tree) {
            let kept = cell.accessed.lock().take();
            drop(kept);
        }
    }

    /// Whether what is listed is to be put without a commit.
    fn is_due(&self) -> bool {
        let count = self.count.load(Ordering::Relaxed);
        let is_old = |since| clock::since(since) >= LISTED_FOR_MAX;
        count >= LISTED_MAX || count > 0 && self.listed.lock().since.is_some_and(is_old)
    }
}

impl Inode {
    /// Notes that a program has read the content, the target or the names, if the mount wants it.
    ///
    /// Returns whether the time of access changed.
    pub fn note_access(&self) -> bool {
        let (cell, shared) = (&self.cell, self.shared());
        let options = &shared.options;
        let is_off =
            options.atime == Atime::No || options.nodiratime && cell.kind == FileKind::Directory;
        if is_off {
            return false;
        }
        let stamp = now();
        let is_stale = cell.file.with_item(|item| is_stale(item, stamp, options.atime));
        if !is_stale || cell.nlink() == 0 || cell.expect_writable().is_err() {
            return false;
        }
        cell.file.touch(|item| item.atime = stamp);
        shared.access.enlist(cell);
        if !options.background && shared.access.is_due() {
            shared.put_access_times();
        }
        true
    }
}

/// Whether a read now changes the time of access, as Linux decides it.
fn is_stale(item: &InodeItem, stamp: Timespec, how: Atime) -> bool {
    if item.flags & InodeFlags::NOATIME != 0 || item.atime == stamp {
        return false;
    }
    let is_older = |time: Timespec| (item.atime.sec, item.atime.nsec) <= (time.sec, time.nsec);
    match how {
        Atime::No => false,
        Atime::Strict => true,
        Atime::Relative => {
            let is_old = stamp.sec.saturating_sub(item.atime.sec) >= AGE_MAX;
            is_older(item.mtime) || is_older(item.ctime) || is_old
        }
    }
}

impl Shared {
    /// Puts the times of access that are to be part of any commit (A3).
    pub(crate) fn put_access_times_for_commit(&self) {
        if !self.options.lazytime || self.access.is_due() {
            self.put_access_times();
        }
    }

    /// Puts the times of access if there are many, or one is old (A3).
    pub(crate) fn put_access_times_in_time(&self) {
        if self.access.is_due() {
            self.put_access_times();
        }
    }

    /// Puts all times of access that are newer than those last put. It waits for no space.
    pub(crate) fn put_access_times(&self) {
        let cells = self.access.drain();
        for batch in cells.chunks(BATCH) {
            self.put_access_of(batch);
        }
    }

    /// As [`Shared::put_access_times`], of these inodes alone.
    pub(crate) fn put_access_of(&self, cells: &[Arc<InodeCell>]) {
        let waits = |cell: &&Arc<InodeCell>| {
            cell.file.access_waits() && cell.nlink() > 0 && cell.expect_writable().is_ok()
        };
        let waiting: Vec<&File> = cells.iter().filter(waits).map(|cell| &cell.file).collect();
        if waiting.is_empty() {
            return;
        }
        let count = waiting.len() as u32;
        match self.engine.reserve_at_once(Cost::of(count, ITEM_LEN * count), Urgency::Normal) {
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
