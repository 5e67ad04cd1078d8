//! [`Writeback`] lists the inodes with dirty data, runs the threads that write them back, and
//! limits the speed of writers.
//!
//! # Invariants
//!
//! - **G1** An inode with dirty data is in the dirty list, or a thread that took it puts it back.
//!   The list keeps the inode's cell alive. An inode that is gone leaves the list, and its dirty
//!   data is not written.
//! - **G2** A thread that drains the list also waits for the batches that other threads took. It
//!   then writes the inodes that these threads put back. Such an inode had more data than one call
//!   writes, or data that a third thread was writing.
//! - **G3** Spare threads write in two cases only. The first is that writeback waits for devices
//!   and much data is dirty. The second is that preemptive flushing needs several parts of the data
//!   in writeback at once. Otherwise spare threads would take processors from writers.
//! - **G4** The list has at most as many entries as the limit of dirty data has sectors, plus a few
//!   batches. A listed inode may be clean or gone, and still takes memory. If the list is too long,
//!   each writer takes the oldest batch off the list.
//!
//! # Locks
//!
//! `in_flight` is held for long. Each thread that writes a batch holds this lock shared.
//! [`Writeback::write_all`] takes it exclusively for a moment, to wait for all batches (G2). The
//! list has its own lock, which is held for short times and taken under `in_flight`.
//!
//! # Failure
//!
//! The file keeps the error of its data, for the next sync of the file or of the volume.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use buttress_base::activity::{self, Cause};
use buttress_base::sync::RwLock;
use buttress_base::{clock, interrupt};
use buttress_data::{Files, Written};
use buttress_format::TreeId;
use buttress_txn::Engine;

use crate::aside::aside;
use crate::cell::InodeCell;
use crate::throttle::Throttle;

use self::dirty_list::{BATCH_INODES, DirtyList};

mod dirty_list;
mod rounds;
mod threads;

/// The most bytes of one batch.
pub(crate) const BATCH_BYTES: u64 = 16 << 20;

/// The smallest amount of dirty data that a file can have: one sector.
const SECTOR: u64 = 4096;

/// The list may always have this many inodes, even if the limit of dirty data is smaller.
const LISTED_MIN: usize = 4 * BATCH_INODES;

/// Limits of writeback, from the mount options.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Amount of dirty data in bytes above which the writer itself writes back.
    pub(crate) dirty_bytes_max: u64,
    /// The longest time between commits.
    pub(crate) commit_interval: Duration,
}

/// Counts of the work to make room since the mount.
#[derive(Debug, Default)]
struct Figures {
    /// Bytes that were written back to make room.
    flushed: AtomicU64,
    /// Rounds of preemptive flushing.
    rounds: AtomicU64,
}

/// The dirty inodes of a mount, and their writeback.
pub(crate) struct Writeback {
    engine: Arc<Engine>,
    files: Arc<Files>,
    limits: Limits,
    list: DirtyList,
    /// Unranked: held for long, across writes to devices.
    in_flight: RwLock<()>,
    throttle: Throttle,
    figures: Figures,
}

impl Writeback {
    pub(crate) fn new(engine: Arc<Engine>, files: Arc<Files>, limits: Limits) -> Self {
        Self {
            engine,
            files,
            limits,
            list: DirtyList::default(),
            in_flight: RwLock::new(()),
            throttle: Throttle::default(),
            figures: Figures::default(),
        }
    }

    /// Lists an inode that was made dirty.
    pub(crate) fn enlist(&self, cell: &Arc<InodeCell>) {
        self.list.enlist(cell);
    }

    /// Takes every inode out of the list without writing it back.
    pub(crate) fn forget_all(&self) {
        self.list.drain();
    }

    /// Forgets the dirty data of a deleted subvolume.
    pub(crate) fn forget_tree(&self, tree: TreeId) {
        self.list.forget_tree(&self.files, tree);
    }

    /// Tells the threads to end.
    pub(crate) fn stop(&self) {
        self.list.stop();
    }

    /// Bytes that were written back to make room since the mount.
    pub(crate) fn flushed(&self) -> u64 {
        self.figures.flushed.load(Ordering::Relaxed)
    }

    /// Rounds of preemptive flushing since the mount.
    pub(crate) fn rounds(&self) -> u64 {
        self.figures.rounds.load(Ordering::Relaxed)
    }

    /// Measured speed of writeback, in bytes a second. Zero before the first measurement.
    pub(crate) fn rate(&self) -> u64 {
        self.throttle.rate()
    }

    /// Whether spare threads should help (G3).
    fn is_crowded(&self) -> bool {
        self.files.counters().dirty_bytes() > self.limits.dirty_bytes_max / 8 * 5
            && self.throttle.waits_for_devices()
    }

    /// Writes the oldest dirty inodes back. Returns whether there was a batch.
    fn write_batch(&self, older_than: Option<Instant>) -> bool {
        let _in_flight = activity::read(&self.in_flight, Cause::Writeback);
        let batch = self.list.take_batch(older_than, BATCH_BYTES);
        if batch.is_empty() {
            return false;
        }
        let written = self.write_cells(&batch);
        if written.files == 0
            && let Some(busy) = batch.iter().find(|cell| !cell.is_gone())
        {
            // Other threads already write all of these files. Wait for one of these threads,
            // because a retry at once would spin.
            self.files.writeback().wait_idle(&busy.file);
        }
        self.enlist_again(&batch);
        true
    }

    /// As [`write_batch`](Self::write_batch), without any wait for other threads. Returns the
    /// number of written bytes.
    pub(crate) fn write_free_batch(&self, bytes: u64) -> u64 {
        let _in_flight = activity::read(&self.in_flight, Cause::Writeback);
        let batch = self.list.take_batch(None, bytes.min(BATCH_BYTES));
        let written = self.write_cells(&batch);
        self.enlist_again(&batch);
        written.bytes
    }

    /// Writes back all files that no other thread writes back. Failures stay with the inodes.
    pub(crate) fn write_what_is_free(&self) {
        let _in_flight = activity::read(&self.in_flight, Cause::Writeback);
        let cells = self.list.drain();
        for batch in cells.chunks(BATCH_INODES) {
            self.write_cells(batch);
        }
        self.enlist_again(&cells);
    }

    fn write_cells(&self, cells: &[Arc<InodeCell>]) -> Written {
        let mut files = Vec::with_capacity(cells.len());
        for cell in cells {
            // No thread will read the data of an inode that is gone.
            if !cell.is_gone() {
                files.push(&cell.file);
            }
        }
        self.noting(|| self.files.writeback().write_back_many(&files))
    }

    /// Runs a write and reports its speed to the throttle.
    fn noting(&self, write: impl FnOnce() -> Written) -> Written {
        let begun = clock::now();
        let written = write();
        if written.files > 0 {
            let more_waits = self.files.counters().dirty_bytes() > self.limits.dirty_bytes_max / 8;
            self.throttle.note_written(&written, clock::since(begun), more_waits);
        }
        written
    }

    /// Lists again the inodes that another thread was writing, or that became dirty meanwhile (G1).
    fn enlist_again(&self, cells: &[Arc<InodeCell>]) {
        for cell in cells {
            if cell.file.is_dirty() {
                self.enlist(cell);
            }
        }
    }

    /// Delays a writer that has just made `bytes` dirty, so that neither memory nor metadata runs
    /// out. If dirty data exceeds the limit, the writer writes back its own file and a few batches.
    /// The caller holds no lock.
    pub(crate) fn pace(self: &Arc<Self>, cell: &Arc<InodeCell>, bytes: u64) {
        let limit = self.limits.dirty_bytes_max;
        if self.list.len() > self.listed_max() && !interrupt::is_interrupted() {
            self.help(|this| this.write_batch(None));
        }
        let dirty = self.files.counters().dirty_bytes();
        let pressure = self.engine.reservations().pressure();
        if dirty > limit / 4 || pressure.is_some() {
            self.list.kick(self.is_crowded());
        }
        if dirty <= limit {
            let delay = self.delay(bytes, dirty, pressure);
            if !delay.is_zero() {
                let _waiting = activity::wait(Cause::Throttle);
                buttress_base::thread::sleep(delay);
            }
            return;
        }
        // The file keeps a failure for its next sync.
        let of = Arc::clone(cell);
        self.help(move |this| this.noting(|| this.files.writeback().write_back_whole(&of.file)));
        for _ in 0..4 {
            // An interrupted writer does not write data of other files.
            let is_done =
                self.files.counters().dirty_bytes() <= limit || interrupt::is_interrupted();
            if is_done || self.help(|this| this.write_batch(None)) != Some(true) {
                return;
            }
        }
    }

    /// Runs a part of the work of a writer that waits. A killed writer leaves this part to a thread
    /// of its own, and gets `None` (`aside::AS1`). Its write has succeeded all the same.
    fn help<R: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> R + Send + 'static,
    ) -> Option<R> {
        let this = Arc::clone(self);
        aside(&self.engine, move || Ok(work(&this)), drop).ok()
    }

    /// The most entries of the list (G4).
    fn listed_max(&self) -> usize {
        let most = self.limits.dirty_bytes_max / SECTOR;
        usize::try_from(most).unwrap_or(usize::MAX).max(LISTED_MIN)
    }

    /// The delay for a writer that has just made `bytes` dirty. Without threads that write back, a
    /// delay would be useless.
    fn delay(&self, bytes: u64, dirty: u64, pressure: Option<u64>) -> Duration {
        if bytes == 0 || !self.engine.flushers().any() {
            return Duration::ZERO;
        }
        // Limit dirty data to the amount that would use up the metadata, if this amount is less
        // than the limit of the option.
        let limit = self.limits.dirty_bytes_max;
        let room = pressure.map_or(limit, |part| dirty.saturating_mul(1000) / part);
        self.throttle.delay(bytes, dirty, limit.min(room))
    }

    /// Writes back all present dirty data and waits for it (G2). Failures stay with the inodes.
    pub(crate) fn write_all(&self) {
        {
            // A thread that calls `write_all` meanwhile finds an empty list, and waits for
            // `in_flight`.
            let _in_flight = activity::read(&self.in_flight, Cause::Writeback);
            let cells = self.list.drain();
            for batch in cells.chunks(BATCH_INODES) {
                self.write_cells(batch);
                self.enlist_again(batch);
            }
            self.write_whole(&cells);
        }
        let left = {
            let _nothing_in_flight = activity::write(&self.in_flight, Cause::Writeback);
            self.list.listed()
        };
        // The cells stay in the list, since other callers must find them. This part runs without
        // the lock: the writer of one of these files may get space only after another batch has
        // ended.
        for batch in left.chunks(BATCH_INODES) {
            self.write_cells(batch);
        }
        self.write_whole(&left);
    }

    /// Writes back the dirty data of these inodes, and waits for threads that are writing them.
    fn write_whole(&self, cells: &[Arc<InodeCell>]) {
        for cell in cells {
            if !cell.is_gone() && cell.file.is_dirty() {
                let _ = self.files.writeback().write_back(&cell.file, 0..u64::MAX);
            }
        }
    }
}

#[cfg(test)]
mod tests;
