//! The owner of writeback: the inodes with dirty data, the threads that write them back, and how
//! fast writers may be.
//!
//! # Invariants
//!
//! - **G1** An inode with dirty data is in the dirty list, or a thread that took it puts it back.
//!   The list keeps its cell alive. An inode that goes leaves the list, and its dirty data is not
//!   written.
//! - **G2** A thread that drains the list also waits for the batches that other threads took. It
//!   then writes what those put back: data beyond one round, or data that yet another thread was
//!   writing.
//! - **G3** Spare threads write only while writeback waits for devices and much is dirty, or for
//!   the clamp, which wants several parts on their way. Otherwise they would take processors from
//!   writers.
//!
//! # Locks
//!
//! `in_flight` is long. Each thread that writes a batch holds it shared. [`Writeback::write_all`]
//! takes it exclusive for an instant, to wait for all batches (G2). The list has a short lock
//! inside.
//!
//! # Failure
//!
//! The file keeps what its data met, for the next sync of the file or of the volume.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use buttress_base::sync::RwLock;
use buttress_base::{clock, interrupt};
use buttress_data::{Files, Written};
use buttress_format::TreeId;
use buttress_txn::Engine;

use crate::cell::InodeCell;
use crate::throttle::Throttle;

use self::dirty_list::{BATCH_INODES, DirtyList};

mod dirty_list;
mod rounds;
mod threads;

/// Most bytes of one batch.
pub(crate) const BATCH_BYTES: u64 = 16 << 20;

/// What the mount options say about writeback.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Dirty bytes beyond which a writer writes back itself.
    pub(crate) dirty_bytes_max: u64,
    /// The longest time between commits.
    pub(crate) commit_interval: Duration,
}

/// What was done to make room, ever.
#[derive(Debug, Default)]
struct Figures {
    /// Bytes written back for it.
    flushed: AtomicU64,
    /// Rounds made ahead of waits.
    rounds: AtomicU64,
}

/// See the module.
pub(crate) struct Writeback {
    engine: Arc<Engine>,
    files: Arc<Files>,
    limits: Limits,
    list: DirtyList,
    /// Unranked: long, held across writes to devices.
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

    /// Takes every inode out of the list, and writes nothing.
    pub(crate) fn forget_all(&self) {
        self.list.drain();
    }

    /// Forgets the dirty data of a deleted subvolume.
    pub(crate) fn forget_tree(&self, tree: TreeId) {
        self.list.forget_tree(&self.files, tree);
    }

    /// Lets the threads end.
    pub(crate) fn stop(&self) {
        self.list.stop();
    }

    /// Bytes that were written back to make room, ever.
    pub(crate) fn flushed(&self) -> u64 {
        self.figures.flushed.load(Ordering::Relaxed)
    }

    /// Rounds that made room ahead, ever.
    pub(crate) fn rounds(&self) -> u64 {
        self.figures.rounds.load(Ordering::Relaxed)
    }

    /// Bytes a second that writeback was seen to manage. Zero before it was measured.
    pub(crate) fn rate(&self) -> u64 {
        self.throttle.rate()
    }

    /// Whether spare threads help (G3).
    fn is_crowded(&self) -> bool {
        self.files.counters().dirty_bytes() > self.limits.dirty_bytes_max / 8 * 5
            && self.throttle.waits_for_devices()
    }

    /// Writes the oldest dirty inodes back. Returns whether there were any.
    fn write_batch(&self, older_than: Option<Instant>) -> bool {
        let _in_flight = self.in_flight.read();
        let batch = self.list.take_batch(older_than, BATCH_BYTES);
        if batch.is_empty() {
            return false;
        }
        let written = self.write_cells(&batch);
        if written.files == 0
            && let Some(busy) = batch.iter().find(|cell| !cell.is_gone())
        {
            // Other threads write all of these already. Asking again at once would spin.
            self.files.writeback().wait_idle(&busy.file);
        }
        self.enlist_again(&batch);
        true
    }

    /// As [`write_batch`](Self::write_batch), without any wait for other threads. Returns how many
    /// bytes it wrote.
    pub(crate) fn write_free_batch(&self, bytes: u64) -> u64 {
        let _in_flight = self.in_flight.read();
        let batch = self.list.take_batch(None, bytes.min(BATCH_BYTES));
        let written = self.write_cells(&batch);
        self.enlist_again(&batch);
        written.bytes
    }

    /// Writes back all files that no other thread writes back. Failures stay with the inodes.
    pub(crate) fn write_what_is_free(&self) {
        let _in_flight = self.in_flight.read();
        let cells = self.list.drain();
        for batch in cells.chunks(BATCH_INODES) {
            self.write_cells(batch);
        }
        self.enlist_again(&cells);
    }

    fn write_cells(&self, cells: &[Arc<InodeCell>]) -> Written {
        let mut files = Vec::with_capacity(cells.len());
        for cell in cells {
            // The data of an inode that goes is never read again.
            if !cell.is_gone() {
                files.push(&cell.file);
            }
        }
        self.noting(|| self.files.writeback().write_back_many(&files))
    }

    /// Measures a write for the throttle.
    fn noting(&self, write: impl FnOnce() -> Written) -> Written {
        let begun = clock::now();
        let written = write();
        if written.files > 0 {
            let more_waits = self.files.counters().dirty_bytes() > self.limits.dirty_bytes_max / 8;
            self.throttle.note_written(&written, clock::since(begun), more_waits);
        }
        written
    }

    /// Lists those again that another thread was writing, or that were dirtied meanwhile (G1).
    fn enlist_again(&self, cells: &[Arc<InodeCell>]) {
        for cell in cells {
            if cell.file.is_dirty() {
                self.enlist(cell);
            }
        }
    }

    /// Delays a writer that has just made `bytes` dirty, so that neither memory nor metadata runs
    /// out. If more is dirty than may be, the writer writes back its own file and a few batches.
    /// The caller holds no lock.
    pub(crate) fn pace(&self, cell: &Arc<InodeCell>, bytes: u64) {
        let limit = self.limits.dirty_bytes_max;
        let dirty = self.files.counters().dirty_bytes();
        let pressure = self.engine.reservations().pressure();
        if dirty > limit / 4 || pressure.is_some() {
            self.list.kick(self.is_crowded());
        }
        if dirty <= limit {
            let hold = self.hold(bytes, dirty, pressure);
            if !hold.is_zero() {
                buttress_base::thread::sleep(hold);
            }
            return;
        }
        // The file keeps a failure for its next sync.
        self.noting(|| self.files.writeback().write_back_whole(&cell.file));
        for _ in 0..4 {
            // An interrupted writer does not write data of other files.
            let is_done =
                self.files.counters().dirty_bytes() <= limit || interrupt::is_interrupted();
            if is_done || !self.write_batch(None) {
                return;
            }
        }
    }

    /// How long a writer waits that has just made `bytes` dirty. Where no thread writes back, a
    /// wait would change nothing.
    fn hold(&self, bytes: u64, dirty: u64, pressure: Option<u64>) -> Duration {
        if bytes == 0 || !self.engine.has_flusher() {
            return Duration::ZERO;
        }
        // As much may be dirty as would use up the metadata, if that is less.
        let limit = self.limits.dirty_bytes_max;
        let room = pressure.map_or(limit, |part| dirty.saturating_mul(1000) / part);
        self.throttle.hold(bytes, dirty, limit.min(room))
    }

    /// Writes back all that is dirty now, and waits for it (G2). Failures stay with the inodes.
    pub(crate) fn write_all(&self) {
        {
            // A thread that calls this meanwhile finds an empty list, and waits for `in_flight`.
            let _in_flight = self.in_flight.read();
            let cells = self.list.drain();
            for batch in cells.chunks(BATCH_INODES) {
                self.write_cells(batch);
                self.enlist_again(batch);
            }
            self.write_whole(&cells);
        }
        let left = {
            let _nothing_in_flight = self.in_flight.write();
            self.list.listed()
        };
        // They stay listed, since a thread that comes now must find them. This runs without the
        // lock: a thread that writes one of these may have room only after another batch has ended.
        for batch in left.chunks(BATCH_INODES) {
            self.write_cells(batch);
        }
        self.write_whole(&left);
    }

    /// Writes back what is dirty of some inodes, and waits for threads that are writing them.
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
