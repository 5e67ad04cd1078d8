//! Writeback: the list of inodes with dirty data, the threads that write them back, and how fast writers may be.
//!
//! # Invariants
//!
//! - **G1** An inode with dirty data is in the dirty list, or on its way back from it, and its cell keeps
//!   itself alive while it is in it; one that goes leaves the list, and its dirty data is never written.
//! - **G2** Whoever drains the list also waits for the batches that others took from it, and writes back what they put
//!   back: what was too much for one round, and what somebody else was writing.
//! - **G3** Spare threads write only while the devices are what is waited for, and much is dirty, or for the clamp, which
//!   wants several parts on their way at once: elsewhere they would take the processors from the writers.
//!
//! # Locks
//!
//! The list has a short lock; no cell is dropped under it that was not going. `in_flight` is long: shared by whoever
//! writes a batch, taken exclusive for an instant to wait for all of those (G2).
//!
//! # Failure
//!
//! What a thread meets is kept for whoever syncs the inode concerned, or everything, next.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use buttress_base::sync::{Condvar, Mutex, RwLock};
use buttress_base::{clock, interrupt};
use buttress_data::{Files, Written};
use buttress_format::TreeId;
use buttress_txn::Round;

use crate::cell::InodeCell;
use crate::shared::Shared;
use crate::throttle::Throttle;

/// Most inodes and bytes that one batch of writeback takes.
const BATCH_INODES: usize = 128;
pub(crate) const BATCH_BYTES: u64 = 16 << 20;

/// Most threads that write back. Each takes a batch of files of its own. Half of the processors have one: writers need
/// the others, and stand behind a thread that computes for a whole slice of the scheduler's. The rest are spare (G3).
const FLUSHERS_MAX: usize = 4;

/// Places in [`DirtyList::resting`].
const USUAL: usize = 0;
const SPARE: usize = 1;

/// How often a flusher looks when nobody calls it, and how old dirty data grows at least.
const FLUSH_PERIOD: Duration = Duration::from_millis(500);
const DIRTY_AGE: Duration = Duration::from_secs(5);

#[derive(Default)]
struct DirtyList {
    cells: VecDeque<(Weak<InodeCell>, Instant)>,
    kicked: bool,
    /// Spare threads are wanted.
    crowded: bool,
    /// Rounds of the clamp that idle threads are to make.
    asked: Vec<Round>,
    /// Idle threads that are not spare, and those that are.
    resting: [usize; 2],
    stop: bool,
}

#[derive(Default)]
pub(crate) struct Flush {
    dirty: Mutex<DirtyList>,
    wanted: Condvar,
    spare_wanted: Condvar,
    in_flight: RwLock<()>,
    pub(crate) throttle: Throttle,
}

impl Flush {
    /// Lists an inode that was made dirty.
    pub(crate) fn enlist(&self, cell: &Arc<InodeCell>) {
        {
            let mut kept = cell.kept.lock();
            if kept.is_some() || cell.is_gone() {
                return;
            }
            *kept = Some(Arc::clone(cell));
        }
        self.dirty.lock().cells.push_back((Arc::downgrade(cell), clock::now()));
    }

    /// Has an idle thread make a round, a spare one if there is one; says whether there is any.
    pub(crate) fn ask_idle(&self, round: Round) -> bool {
        let mut list = self.dirty.lock();
        let [usual, spare] = list.resting;
        // Who was asked and has not woken yet rests still.
        if list.asked.len() >= usual + spare {
            return false;
        }
        list.asked.push(round);
        let is_for_spare = list.asked.len() <= spare;
        drop(list);
        if is_for_spare { &self.spare_wanted } else { &self.wanted }.notify_one();
        true
    }

    /// The cells in the list.
    fn listed(&self) -> Vec<Arc<InodeCell>> {
        self.dirty.lock().cells.iter().filter_map(|(cell, _)| cell.upgrade()).collect()
    }

    /// Takes every cell out of the list of dirty ones.
    pub(crate) fn drain(&self) -> Vec<Arc<InodeCell>> {
        let listed = std::mem::take(&mut self.dirty.lock().cells);
        let cells: Vec<_> = listed.iter().filter_map(|(cell, _)| cell.upgrade()).collect();
        for cell in &cells {
            let kept = cell.kept.lock().take();
            drop(kept);
        }
        cells
    }

    /// Forgets what waits to be written to a subvolume that was deleted.
    pub(crate) fn forget_tree(&self, files: &Files, tree: TreeId) {
        let mine: Vec<_> = self.listed().into_iter().filter(|cell| cell.tree() == tree).collect();
        for cell in &mine {
            files.forget_waiting(&cell.file);
            let kept = cell.kept.lock().take();
            drop(kept);
        }
    }

    /// Lets the threads end.
    pub(crate) fn stop(&self) {
        self.dirty.lock().stop = true;
        self.wanted.notify_all();
        self.spare_wanted.notify_all();
    }

    /// Has a thread look at once, and the spare ones too.
    fn kick(&self, crowded: bool) {
        let mut list = self.dirty.lock();
        let calls = !list.kicked;
        let calls_spare = crowded && !list.crowded;
        (list.kicked, list.crowded) = (true, list.crowded || crowded);
        drop(list);
        if calls {
            self.wanted.notify_one();
        }
        if calls_spare {
            self.spare_wanted.notify_all();
        }
    }

    /// The oldest cells of the list, as many as make a batch of so many bytes.
    fn take_batch(&self, older_than: Option<Instant>, limit: u64) -> Vec<Arc<InodeCell>> {
        let mut batch = Vec::new();
        let mut bytes = 0;
        let mut list = self.dirty.lock();
        while batch.len() < BATCH_INODES && bytes < limit {
            let Some((_, since)) = list.cells.front() else { break };
            if older_than.is_some_and(|limit| *since > limit) {
                break;
            }
            let Some((cell, _)) = list.cells.pop_front() else { break };
            let Some(cell) = cell.upgrade() else { continue };
            let kept = cell.kept.lock().take();
            drop(kept);
            bytes += cell.file.dirty_bytes();
            batch.push(cell);
        }
        batch
    }
}

/// How many of the threads are not spare.
fn usual() -> usize {
    (buttress_base::thread::parallelism() / 2).clamp(1, FLUSHERS_MAX)
}

impl Shared {
    /// The threads that write back, by name.
    pub(crate) fn flushers() -> impl Iterator<Item = (&'static str, fn(&Arc<Self>))> {
        let usual = usual();
        (0..FLUSHERS_MAX).map(move |index| {
            let work: fn(&Arc<Self>) =
                if index < usual { Self::flusher } else { Self::spare_flusher };
            ("flush", work)
        })
    }

    fn flusher(self: &Arc<Self>) {
        loop {
            {
                let mut list = self.background.flush.dirty.lock();
                if !list.kicked && list.asked.is_empty() && !list.stop {
                    list.resting[USUAL] += 1;
                    self.background.flush.wanted.wait_for(&mut list, FLUSH_PERIOD);
                    list.resting[USUAL] -= 1;
                }
                if list.stop {
                    return;
                }
                if let Some(round) = list.asked.pop() {
                    drop(list);
                    self.clamp_round(&round);
                    continue;
                }
                list.kicked = false;
            }
            while self.files.dirty_bytes() > self.flush_above() && self.write_batch(None) {}
            let age = self.options.commit_interval.min(DIRTY_AGE);
            if let Some(limit) = clock::now().checked_sub(age) {
                while self.write_batch(Some(limit)) {}
            }
            if self.files.dirty_bytes() == 0 {
                self.files.trim();
            }
        }
    }

    /// As much may be dirty and wait to grow old.
    fn flush_above(&self) -> u64 {
        if self.engine.is_tight() { 0 } else { self.options.dirty_bytes_max / 8 }
    }

    /// While one thread lands what was written the devices would have nothing to do.
    fn spare_flusher(self: &Arc<Self>) {
        loop {
            {
                let mut list = self.background.flush.dirty.lock();
                if !list.crowded && list.asked.is_empty() && !list.stop {
                    list.resting[SPARE] += 1;
                    self.background.flush.spare_wanted.wait(&mut list);
                    list.resting[SPARE] -= 1;
                }
                if list.stop {
                    return;
                }
                if let Some(round) = list.asked.pop() {
                    drop(list);
                    self.clamp_round(&round);
                    continue;
                }
            }
            while self.is_crowded() && self.write_batch(None) {}
            self.background.flush.dirty.lock().crowded = false;
        }
    }

    /// Whether spare threads help (G3).
    fn is_crowded(&self) -> bool {
        self.files.dirty_bytes() > self.options.dirty_bytes_max / 8 * 5
            && self.background.flush.throttle.waits_for_devices()
    }

    /// Writes the oldest dirty inodes back; says whether there were any.
    fn write_batch(&self, older_than: Option<Instant>) -> bool {
        let _in_flight = self.background.flush.in_flight.read();
        let batch = self.background.flush.take_batch(older_than, BATCH_BYTES);
        if batch.is_empty() {
            return false;
        }
        let written = self.write_cells(&batch);
        if written.files == 0
            && let Some(busy) = batch.iter().find(|cell| !cell.is_gone())
        {
            // Everything here is on its way already: asking again at once would be to spin.
            self.files.wait_idle(&busy.file);
        }
        self.enlist_again(&batch);
        true
    }

    /// As [`write_batch`](Self::write_batch), and waits for nobody; answers how many bytes it wrote.
    pub(crate) fn write_free_batch(&self, bytes: u64) -> u64 {
        let _in_flight = self.background.flush.in_flight.read();
        let batch = self.background.flush.take_batch(None, bytes.min(BATCH_BYTES));
        let written = self.write_cells(&batch);
        self.enlist_again(&batch);
        written.bytes
    }

    /// Writes everything back that nobody else is writing back. Failures stay with the inodes.
    pub(crate) fn write_what_is_free(&self) {
        let _in_flight = self.background.flush.in_flight.read();
        let cells = self.background.flush.drain();
        for batch in cells.chunks(BATCH_INODES) {
            self.write_cells(batch);
        }
        self.enlist_again(&cells);
    }

    fn write_cells(&self, cells: &[Arc<InodeCell>]) -> Written {
        let mut files = Vec::with_capacity(cells.len());
        for cell in cells {
            // Of one that is going nothing waits, and nobody will ever read it.
            if !cell.is_gone() {
                files.push(&cell.file);
            }
        }
        self.noting(|| self.files.writeback_many(&files))
    }

    /// How fast writeback is decides how fast writers may be.
    fn noting(&self, write: impl FnOnce() -> Written) -> Written {
        let begun = clock::now();
        let written = write();
        if written.files > 0 {
            let more_waits = self.files.dirty_bytes() > self.options.dirty_bytes_max / 8;
            let throttle = &self.background.flush.throttle;
            throttle.note_written(&written, clock::since(begun), more_waits);
        }
        written
    }

    /// Somebody else was writing them back, or dirtied them meanwhile (G1).
    fn enlist_again(&self, cells: &[Arc<InodeCell>]) {
        for cell in cells {
            if cell.file.is_dirty() {
                self.background.flush.enlist(cell);
            }
        }
    }

    /// Holds a writer up who has just made `bytes` dirty, by as much as keeps memory and metadata from running
    /// out; should more be dirty than may be all the same, he takes his part in writing back. Without any
    /// lock held.
    pub(crate) fn pace(&self, cell: &Arc<InodeCell>, bytes: u64) {
        let limit = self.options.dirty_bytes_max;
        let dirty = self.files.dirty_bytes();
        let pressure = self.engine.promise_pressure();
        if dirty > limit / 4 || pressure.is_some() {
            self.background.flush.kick(self.is_crowded());
        }
        if dirty <= limit {
            if bytes > 0 {
                // As much as may be dirty until metadata runs out, if that is first.
                let room = pressure.map_or(limit, |part| dirty.saturating_mul(1000) / part);
                let hold = self.background.flush.throttle.hold(bytes, dirty, limit.min(room));
                if !hold.is_zero() {
                    buttress_base::thread::sleep(hold);
                }
            }
            return;
        }
        // Kept by the file, and told when it is synced.
        self.noting(|| self.files.writeback_whole(&cell.file));
        for _ in 0..4 {
            // For whom nobody waits any more is not kept until others' data is written, too.
            let is_done = self.files.dirty_bytes() <= limit || interrupt::is_interrupted();
            if is_done || !self.write_batch(None) {
                return;
            }
        }
    }

    /// Writes everything back that is dirty now, and waits for it (G2). Failures stay with the inodes.
    pub(crate) fn write_all(&self) {
        {
            // Others who come meanwhile find an empty list, and wait for what was in it.
            let _in_flight = self.background.flush.in_flight.read();
            let cells = self.background.flush.drain();
            for batch in cells.chunks(BATCH_INODES) {
                self.write_cells(batch);
                self.enlist_again(batch);
            }
            self.write_whole(&cells);
        }
        let left = {
            let _nothing_in_flight = self.background.flush.in_flight.write();
            self.background.flush.listed()
        };
        // They stay listed: who comes now must find them. Without the lock, since a batch may have to end before somebody
        // who writes one of these has room for it.
        for batch in left.chunks(BATCH_INODES) {
            self.write_cells(batch);
        }
        self.write_whole(&left);
    }

    /// Writes back what of some inodes is dirty, and waits for who is writing them.
    fn write_whole(&self, cells: &[Arc<InodeCell>]) {
        for cell in cells {
            if !cell.is_gone() && cell.file.is_dirty() {
                let _ = self.files.writeback(&cell.file, 0..u64::MAX);
            }
        }
    }
}

#[cfg(test)]
mod tests;
