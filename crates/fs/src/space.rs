//! [`Space`] reserves metadata for operations. Two of its threads make room.
//!
//! # Invariants
//!
//! - **V1** Dirty data has metadata reserved for the worst case of its writeback, and so have times
//!   that were set. Before an operation is refused because of such reservations, the data is
//!   written back and the times are put. That shows how much metadata they really need.
//! - **V2** A caller of [`Space::reserve`] holds no file's writeback claim, because the call may
//!   write files back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use buttress_data::Files;
use buttress_format::{InodeItem, TreeId};
use buttress_items::Result;
use buttress_txn::{Cost, Engine, MetaReservation, ReserveClass};

use crate::cell::InodeCell;
use crate::cleaner::Cleaner;
use crate::times::Times;
use crate::writeback::Writeback;

mod preempt;
mod reclaimer;

/// Counts of the work to make room since the volume was mounted.
#[derive(Debug, Default)]
struct Figures {
    /// Runs of the flush states that made room for waiting callers, or refused a caller.
    runs: AtomicU64,
    /// The number of these runs that were for metadata. The clamp depends on this number.
    runs_for_metadata: AtomicU64,
    /// The number of bits by which the clamp lowers the threshold of preemptive flushing.
    clamp_bits: AtomicU32,
}

/// Reserves metadata for operations, and makes room for it.
pub(crate) struct Space {
    engine: Arc<Engine>,
    files: Arc<Files>,
    cleaner: Arc<Cleaner>,
    writeback: Arc<Writeback>,
    times: Arc<Times>,
    figures: Figures,
}

impl Space {
    pub(crate) fn new(
        engine: Arc<Engine>,
        files: Arc<Files>,
        cleaner: Arc<Cleaner>,
        writeback: Arc<Writeback>,
        times: Arc<Times>,
    ) -> Self {
        Self { engine, files, cleaner, writeback, times, figures: Figures::default() }
    }

    /// Runs of the flush states that made room for waiting callers, or refused a caller.
    pub(crate) fn runs(&self) -> u64 {
        self.figures.runs.load(Ordering::Relaxed)
    }

    /// The number of bits by which the clamp lowers the threshold of preemptive flushing.
    pub(crate) fn clamp_bits(&self) -> u32 {
        self.figures.clamp_bits.load(Ordering::Relaxed)
    }

    /// Reserves metadata for an operation (V1, V2).
    pub(crate) fn reserve(&self, cost: Cost, class: ReserveClass) -> Result<MetaReservation> {
        if let Some(reservation) = self.engine.reserve_at_once(cost, class)? {
            return Ok(reservation);
        }
        // Without a flusher, this thread writes back itself. Writeback gives reservations back. An
        // operation that frees space need not write back, because unused reservations never make it
        // fail (`reserve::P4`).
        if class == ReserveClass::Normal && !self.engine.flushers().any() {
            self.engine.check_cancelled()?;
            self.writeback.write_all();
            self.times.put_set();
        }
        match self.engine.reserve_in_queue(cost, class) {
            Err(buttress_txn::Error::NoSpace(_)) if class.frees() => {
                self.cleaner.clean_all();
                self.writeback.write_all();
                self.times.put_set();
                Ok(self.engine.reserve(cost, class)?)
            }
            other => Ok(other?),
        }
    }

    /// Returns an error if the limit of a quota group leaves a subvolume no bytes for new names.
    /// The caller holds no lock.
    pub(crate) fn expect_quota(&self, tree: TreeId) -> Result<()> {
        match self.engine.expect_quota(tree) {
            Err(buttress_txn::Error::Quota) => {
                self.show_quota(tree)?;
                Ok(self.engine.expect_quota(tree)?)
            }
            other => Ok(other?),
        }
    }

    /// Writes back and commits once, so that the quota groups of a subvolume show its real use. The
    /// caller was refused, holds no lock, and tries again in any case: a commit of another thread
    /// may have freed bytes since the refusal.
    ///
    /// # Errors
    ///
    /// As [`free_all_possible`](Self::free_all_possible).
    pub(crate) fn show_quota(&self, tree: TreeId) -> Result<()> {
        self.engine.check_cancelled()?;
        // Deleted files count until they are cleaned.
        self.cleaner.clean_all();
        if !self.engine.commit_may_free_quota(tree) {
            return Ok(());
        }
        self.engine.check_cancelled()?;
        self.writeback.write_all();
        self.times.put_set();
        self.engine.commit_while_wanted()?;
        Ok(())
    }

    /// Frees all possible space: cleans, writes back and commits. The caller has found too little
    /// space, and holds no lock.
    ///
    /// # Errors
    ///
    /// The errors of a commit. `Interrupted` if the caller is cancelled before the next step.
    pub(crate) fn free_all_possible(&self) -> Result<()> {
        self.engine.check_cancelled()?;
        self.cleaner.clean_all();
        self.engine.check_cancelled()?;
        self.writeback.write_all();
        self.times.put_set();
        self.engine.commit_while_wanted()?;
        Ok(())
    }

    /// Changes the times of a cell in memory. A later put contains them: that of a commit, of a
    /// sync or of dirty data. The space for it is reserved here (`pending_times::A1`).
    pub(crate) fn set_times(
        &self,
        cell: &Arc<InodeCell>,
        change: impl FnOnce(&mut InodeItem),
    ) -> Result<()> {
        let room = self.reserve(Times::cost(), ReserveClass::Normal)?;
        // A thread that puts the cell takes its place in the list first, and then looks at the
        // times. So the times change before the place is looked at.
        cell.file.touch(change);
        self.times.note_set(cell, room);
        Ok(())
    }

    /// Changes the inode item of a cell, and puts only this item.
    pub(crate) fn put_item(
        &self,
        cell: &InodeCell,
        class: ReserveClass,
        change: impl FnOnce(&mut InodeItem),
    ) -> Result<()> {
        let cost = Cost::of(1, 160);
        let handle = self.engine.begin(self.reserve(cost, class)?);
        cell.file.update(&handle, change);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
