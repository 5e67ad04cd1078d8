//! Making an epoch durable, and writing metadata.
//!
//! # Invariants
//!
//! - **M1** A commit has this order: wait until no writer of the epoch is left; write entries;
//!   flush; write the superblock; flush. The data was written before the commit, so the first flush
//!   covers the data as well.
//! - **M2** A slot is given to another block only after the free mark of the slot was flushed.
//! - **M3** A superseded version is marked free only after the newer version is committed.
//!
//! # Failure
//!
//! A failure of the cache device during a commit stops the cache. Everything written since the last
//! flush is in doubt, and another flush would prove nothing. Earlier commits are on the device.

use std::sync::atomic::Ordering;
use std::time::Instant;

use crate::core::Core;
use crate::error::Error;
use crate::index::{Emptied, State};
use crate::layout::{Cut, Superblock};
use crate::table::PAGE;
use crate::units::{Epoch, OriginBlock};

/// Bytes of metadata written in one request.
const RUN_MAX: u64 = 1 << 20;
/// The most commits for which the time is kept.
const AGES_MAX: usize = 64;

impl Core {
    /// Makes everything durable that was acknowledged before the call, on both devices.
    pub(crate) fn sync(&self) -> Result<(), Error> {
        {
            // One thread at a time flushes the origin. Otherwise a second caller could find the
            // flag cleared while the first caller's flush still runs, and return too early.
            let _one = self.origin_sync.lock();
            // Writes that bypassed the cache may still be in the origin's volatile memory (test W6
            // in `known`).
            if self.origin_dirty.swap(false, Ordering::SeqCst)
                && let Err(error) = self.origin.flush()
            {
                self.origin_dirty.store(true, Ordering::SeqCst);
                return Err(error.into());
            }
        }
        self.commit()
    }

    /// Commits all writes before the call. Returns at once if another thread has just committed
    /// them.
    pub(crate) fn commit(&self) -> Result<(), Error> {
        self.check()?;
        let wanted = self.writers.turn();
        let _one = self.commit.lock();
        // A commit that began after this call includes everything written before the call.
        if self.committed().0 > wanted {
            return Ok(());
        }
        self.check()?;
        let turn = self.writers.turn();
        if !self.has_uncommitted[(turn & 1) as usize].load(Ordering::SeqCst) {
            return Ok(());
        }
        let turn = self.writers.advance();
        self.has_uncommitted[(turn & 1) as usize].store(false, Ordering::SeqCst);
        self.uncommitted.store(0, Ordering::SeqCst);
        self.flush_table()?;
        let epoch = Epoch(turn).next();
        self.write_header(|superblock| superblock.epoch = epoch)?;
        self.committed.store(epoch.0, Ordering::SeqCst);
        self.remember_age(epoch);
        self.mark_superseded_dying();
        Ok(())
    }

    fn remember_age(&self, epoch: Epoch) {
        let now = Instant::now();
        let mut ages = self.ages.lock();
        let step = self.options.max_age.unwrap_or_default() / 16;
        if ages.back().is_none_or(|&(_, last)| now.duration_since(last) >= step) {
            ages.push_back((epoch, now));
        }
        if ages.len() > AGES_MAX {
            ages.pop_front();
        }
    }

    /// Writes the changed pages of the table, flushes, and removes dying versions from the index
    /// (M2).
    pub(crate) fn flush_table(&self) -> Result<(), Error> {
        let header = self.header.lock();
        self.check()?;
        // Take the dying versions before the pages, so that their free marks are in these pages.
        let mut dead = std::mem::take(&mut *self.dying.lock());
        let bytes = header.to_bytes();
        let write = || {
            for run in self.table.take_dirty(RUN_MAX) {
                let page = self.table.render(run.clone(), &bytes);
                self.medium.write_at(run.start, &page)?;
            }
            self.medium.flush()
        };
        write().map_err(|error| self.stop(error))?;
        drop(header);
        self.remove_marked(&dead);
        // During a sweep, the emptied list is kept as the next `dying` list, so that its memory is
        // not allocated again.
        if self.index.emptied() == Emptied::Keep {
            dead.clear();
            let mut dying = self.dying.lock();
            if dying.is_empty() {
                *dying = dead;
            }
        }
        Ok(())
    }

    /// Changes the superblock durably. Writes one page, however large the table is.
    pub(crate) fn write_header(&self, change: impl FnOnce(&mut Superblock)) -> Result<(), Error> {
        let mut header = self.header.lock();
        self.check()?;
        let mut changed = *header;
        change(&mut changed);
        let end = PAGE.min(self.geometry.data_start());
        let page = self.table.render(0..end, &changed.to_bytes());
        let written = self.medium.write_at(0, &page).and_then(|()| self.medium.flush());
        written.map_err(|error| self.stop(error))?;
        *header = changed;
        Ok(())
    }

    /// Marks each version free for which a newer version of the block is committed (M3).
    fn mark_superseded_dying(&self) {
        let committed = self.committed();
        let keep_below = self.cut_target();
        let blocks = std::mem::take(&mut *self.superseded.lock());
        let mut later = Vec::new();
        for block in blocks {
            let mut shard = self.index.shard(block);
            let Some(versions) = shard.find_mut(block) else { continue };
            let versions = versions.as_mut_slice();
            let newest = versions.iter().rposition(|version| version.epoch < committed);
            if versions.last().is_some_and(|version| version.epoch >= committed) {
                later.push(block);
            }
            let Some(newest) = newest else { continue };
            for index in 0..newest {
                // A sweep towards a cut still needs the newest version from before the cut.
                let is_for_cut = keep_below.is_some_and(|target| {
                    versions[index].epoch < target && versions[index + 1].epoch >= target
                });
                let version = &mut versions[index];
                if version.state == State::Ready && !is_for_cut {
                    version.state = State::Dying;
                    self.mark_dying(block, version.slot);
                }
            }
        }
        self.superseded.lock().extend(later);
    }

    /// With `consistent_origin`, the cut that the running sweep will reach.
    pub(crate) fn cut_target(&self) -> Option<Epoch> {
        if !self.options.consistent_origin {
            return None;
        }
        match self.header.lock().stamp.map(|stamp| stamp.cut) {
            Some(Cut::Towards(epoch)) => Some(epoch),
            _ => None,
        }
    }

    /// Notes blocks that have more than one version.
    pub(crate) fn note_superseded(&self, blocks: impl IntoIterator<Item = OriginBlock>) {
        self.superseded.lock().extend(blocks);
    }
}
