//! The owner of space: operations reserve metadata here, and two threads make room.
//!
//! # Invariants
//!
//! - **V1** Dirty data has metadata reserved for the worst that its writeback may need. Before that
//!   is a reason to refuse an operation, the data is written back, which shows what it does need.
//! - **V2** A caller of [`Space::reserve`] holds no file's writeback claim: it may write back
//!   itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use buttress_data::Files;
use buttress_format::InodeItem;
use buttress_txn::{Cost, Engine, MetaReservation, Urgency};

use crate::cell::InodeCell;
use crate::cleaner::Cleaner;
use crate::error::Result;
use crate::writeback::Writeback;

mod preempt;
mod reclaimer;

/// What was done about space since the volume was mounted.
#[derive(Debug, Default)]
struct Figures {
    /// Runs of the flush states that made room for waiting callers, or refused one.
    runs: AtomicU64,
    /// Those of them for metadata, which the clamp is about.
    runs_for_metadata: AtomicU64,
    /// By how many bits the clamp lowers its threshold.
    clamp_bits: AtomicU32,
}

/// See the module.
pub(crate) struct Space {
    engine: Arc<Engine>,
    files: Arc<Files>,
    cleaner: Arc<Cleaner>,
    writeback: Arc<Writeback>,
    figures: Figures,
}

impl Space {
    pub(crate) fn new(
        engine: Arc<Engine>,
        files: Arc<Files>,
        cleaner: Arc<Cleaner>,
        writeback: Arc<Writeback>,
    ) -> Self {
        Self { engine, files, cleaner, writeback, figures: Figures::default() }
    }

    /// Runs of the flush states that made room for waiting callers, or refused one.
    pub(crate) fn runs(&self) -> u64 {
        self.figures.runs.load(Ordering::Relaxed)
    }

    /// By how many bits the clamp lowers its threshold.
    pub(crate) fn clamp_bits(&self) -> u32 {
        self.figures.clamp_bits.load(Ordering::Relaxed)
    }

    /// Reserves metadata for an operation (V1, V2).
    pub(crate) fn reserve(&self, cost: Cost, urgency: Urgency) -> Result<MetaReservation> {
        if let Some(reservation) = self.engine.reserve_at_once(cost, urgency)? {
            return Ok(reservation);
        }
        // An operation that frees space may also use what dirty data has reserved.
        if urgency == Urgency::Normal && !self.engine.has_flusher() {
            self.engine.expect_wanted()?;
            self.writeback.write_all();
        }
        match self.engine.reserve_in_line(cost, urgency) {
            Err(buttress_txn::Error::NoSpace(_)) if urgency.frees() => {
                self.cleaner.clean_all();
                self.writeback.write_all();
                Ok(self.engine.reserve(cost, urgency)?)
            }
            other => Ok(other?),
        }
    }

    /// Frees all that can be freed: cleans, writes back, commits. The caller found no room, and
    /// holds no lock.
    ///
    /// # Errors
    ///
    /// Those of a commit. `Interrupted` when the caller no longer waits for the next step.
    pub(crate) fn give_all_back(&self) -> Result<()> {
        self.engine.expect_wanted()?;
        self.cleaner.clean_all();
        self.engine.expect_wanted()?;
        self.writeback.write_all();
        self.engine.commit_while_wanted()?;
        Ok(())
    }

    /// Changes the inode item of a cell, and puts it alone.
    pub(crate) fn put_item(
        &self,
        cell: &InodeCell,
        urgency: Urgency,
        change: impl FnOnce(&mut InodeItem),
    ) -> Result<()> {
        let cost = Cost::of(1, 160);
        let handle = self.engine.begin(self.reserve(cost, urgency)?);
        cell.file.update(&handle, change);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
