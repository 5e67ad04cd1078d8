//! Write-back: blocks go from the cache to the origin, in sweeps over the origin's addresses.
//!
//! # Invariants
//!
//! - **B1** Only committed versions are written back, and only the oldest version of a block
//!   (`index::I3`).
//! - **B2** An entry is marked free only after its block was written to the origin and the origin
//!   was flushed. After a failure no entry is marked free.
//! - **B3** A batch has a limited number of blocks. A shard is locked for at most [`RUNS_MAX`] runs
//!   and [`LOOK_MAX`] blocks at a time.
//! - **B4** Within one sweep, the written addresses of the origin only grow.
//! - **B5** With `consistent_origin`, a sweep writes exactly the versions from before one epoch,
//!   the cut. Nothing else writes to the origin. The superblock says `Towards` before the first
//!   write of the sweep, and `Whole` after the flush that follows the last write.
//!
//! # Failure
//!
//! After a failure of the origin, the versions of the batch stay in the cache, ready to be written
//! again. The caller gets the error once. An error of background work goes to the next call that
//! flushes everything or closes the cache.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering;
use std::time::Instant;

use buttress_base::AlignedBuf;
use buttress_base::sync::MutexGuard;

use crate::core::Core;
use crate::error::Error;
use crate::index::{Index, State, region_end};
use crate::layout::Cut;
use crate::options::Writeback;
use crate::sweep::{RUNS_MAX, Sweep};
use crate::units::{Epoch, OriginBlock, Slot};

/// Blocks looked at under one lock.
const LOOK_MAX: usize = 128;
/// Bytes of a batch: read from the cache, then written to the origin.
const BATCH_BYTES: u64 = 8 << 20;
/// Bytes of one request to the origin.
const RUN_BYTES: u64 = 4 << 20;
/// Limits for the number of bytes that are written before the origin is flushed.
const FINISH_BYTES: std::ops::RangeInclusive<u64> = 64 << 20..=1 << 30;
/// The origin is flushed after this share of the cache's size was written, within `FINISH_BYTES`.
/// Each flush frees entries that may be spread over the whole table, and so may rewrite most of the
/// table. Smaller shares would rewrite the table more often.
const FINISH_SHARE: u64 = 32;
/// The most blocks of one run, as in Linux.
const LRU_RUN: usize = 256;
/// Threads that read a batch from the cache.
const READERS: usize = 4;
/// With fewer separate reads than this, one thread reads the batch, because that is faster.
const READERS_FROM: usize = 64;

/// The exclusive right to sweep.
struct Sweeping<'a> {
    index: &'a Index,
    sweep: MutexGuard<'a, Sweep>,
}

impl Deref for Sweeping<'_> {
    type Target = Sweep;

    fn deref(&self) -> &Sweep {
        &self.sweep
    }
}

impl DerefMut for Sweeping<'_> {
    fn deref_mut(&mut self) -> &mut Sweep {
        &mut self.sweep
    }
}

impl Drop for Sweeping<'_> {
    fn drop(&mut self) {
        self.index.end_sweep();
    }
}

/// One version to write back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ChosenVersion {
    block: OriginBlock,
    slot: Slot,
}

/// The order in which versions are picked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// By address. Blocks that are adjacent on the origin are joined.
    Sorted,
    /// By address. Blocks are joined only if their slots are adjacent as well.
    SortedAdjacent,
    /// By age. A run goes on while blocks and slots are both adjacent.
    Oldest,
}

impl Core {
    /// Waits until no other sweep runs, and begins a sweep.
    fn sweep(&self) -> Sweeping<'_> {
        let sweep = self.drain.lock();
        self.index.begin_sweep();
        Sweeping { index: &self.index, sweep }
    }

    /// Writes back everything that was acknowledged before the call. Calls `progress` with the
    /// number of blocks of each batch.
    pub(crate) fn drain_all(&self, progress: &mut dyn FnMut(u64)) -> Result<u64, Error> {
        self.commit()?;
        let mut sweep = self.sweep();
        let order = match self.options.writeback {
            Writeback::Sorted => Order::Sorted,
            Writeback::Lru => Order::SortedAdjacent,
            Writeback::FifoUnsorted => Order::Oldest,
        };
        let mut total = 0;
        // Finishes a cut that has begun. After that, one more cut includes everything.
        if let Some(target) = self.cut_target() {
            total += self.drain_below(&mut sweep, target, order, progress)?;
            self.end_cut(target)?;
        }
        let limit = self.begin_cut()?;
        total += self.drain_below(&mut sweep, limit, order, progress)?;
        self.end_cut(limit)?;
        sweep.rest();
        Ok(total)
    }

    /// Writes back all versions from before `limit`.
    fn drain_below(
        &self,
        sweep: &mut Sweep,
        limit: Epoch,
        order: Order,
        progress: &mut dyn FnMut(u64),
    ) -> Result<u64, Error> {
        let mut total = 0;
        loop {
            sweep.cursor = OriginBlock(0);
            sweep.missed = false;
            loop {
                let written = self.drain_batch(sweep, limit, order)?;
                if written == 0 {
                    break;
                }
                total += written;
                progress(written);
            }
            self.finish(sweep)?;
            if !sweep.missed && order != Order::Oldest {
                return Ok(total);
            }
            // The sweep missed blocks with an oldest version that is not `Ready`: a writer fills
            // that version, or its free mark is not durable. The commit and the flush of the table
            // below make most of these versions ready or remove them.
            if order == Order::Oldest {
                // The list of ages may have lost a version that had to wait, so the remaining
                // versions are written back by address.
                return Ok(total + self.drain_below(sweep, limit, Order::SortedAdjacent, progress)?);
            }
            self.commit()?;
            self.flush_table()?;
        }
    }

    /// Writes back until the low watermark is reached. With `consistent_origin`, writes back one
    /// whole cut. Without that option, ends early if `stop` returns true.
    pub(crate) fn drain_to_low(&self, stop: &dyn Fn() -> bool) -> Result<u64, Error> {
        self.commit()?;
        let mut sweep = self.sweep();
        if self.options.consistent_origin {
            let limit = self.begin_cut()?;
            let total = self.drain_below(&mut sweep, limit, Order::Sorted, &mut |_| {})?;
            self.end_cut(limit)?;
            return Ok(total);
        }
        let low = self.percent(self.options.low_watermark);
        let limit = self.begin_cut()?;
        let order = self.usual_order();
        let (mut total, mut empty) = (0, 0);
        while self.used() > low && empty < 2 && !stop() {
            let written = self.drain_batch(&mut sweep, limit, order)?;
            total += written;
            empty = if written == 0 { empty + 1 } else { 0 };
            if written == 0 {
                // The sweep starts again from the front of the origin.
                sweep.cursor = OriginBlock(0);
                self.finish(&mut sweep)?;
            }
        }
        self.finish(&mut sweep)?;
        sweep.rest();
        Ok(total)
    }

    /// Writes back one batch, without regard to the watermarks, and frees its slots.
    pub(crate) fn drain_step(&self) -> Result<u64, Error> {
        self.commit()?;
        let mut sweep = self.sweep();
        let limit = self.begin_cut()?;
        let mut written = self.drain_batch(&mut sweep, limit, self.usual_order())?;
        if written == 0 {
            self.finish(&mut sweep)?;
            sweep.cursor = OriginBlock(0);
            written = self.drain_batch(&mut sweep, limit, self.usual_order())?;
        }
        self.finish(&mut sweep)?;
        Ok(written)
    }

    /// Writes back the versions that were committed before `limit`, because of their age.
    pub(crate) fn drain_aged(&self, limit: Epoch) -> Result<u64, Error> {
        if self.options.consistent_origin {
            return self.drain_to_low(&|| false);
        }
        let mut sweep = self.sweep();
        self.begin_cut()?;
        self.drain_below(&mut sweep, limit, Order::Sorted, &mut |_| {})
    }

    /// Writes back until there is a free slot, or until a whole sweep finds nothing more to write.
    pub(crate) fn drain_for_room(&self) -> Result<(), Error> {
        self.commit()?;
        let mut sweep = self.sweep();
        let limit = match self.cut_target() {
            Some(target) => target,
            None => self.begin_cut()?,
        };
        let mut is_second_round = false;
        while self.slots.free() == 0 {
            let written = self.drain_batch(&mut sweep, limit, self.usual_order())?;
            self.finish(&mut sweep)?;
            if written == 0 {
                if is_second_round {
                    // A whole sweep found no version from before the limit. The caller commits, and
                    // tries again.
                    if !sweep.missed {
                        self.end_cut(limit)?;
                    }
                    sweep.cursor = OriginBlock(0);
                    return Ok(());
                }
                is_second_round = true;
                sweep.missed = false;
                sweep.cursor = OriginBlock(0);
            }
        }
        Ok(())
    }

    fn usual_order(&self) -> Order {
        match self.options.writeback {
            Writeback::Sorted => Order::Sorted,
            Writeback::Lru | Writeback::FifoUnsorted => Order::Oldest,
        }
    }

    /// Chooses the limit of a sweep that includes all committed versions. Takes the commit lock, so
    /// no commit runs meanwhile.
    fn begin_cut(&self) -> Result<Epoch, Error> {
        let _one = self.commit.lock();
        let limit = self.committed();
        let cut = self.header.lock().stamp.map(|stamp| stamp.cut);
        if self.options.consistent_origin {
            if let Some(Cut::Towards(target)) = cut {
                return Ok(target);
            }
            // With nothing to write, the origin is whole. The superblock is written only if it does
            // not say `Whole(limit)` yet.
            if self.index.len() > 0 {
                self.write_cut(Cut::Towards(limit))?;
            } else if cut != Some(Cut::Whole(limit)) {
                self.write_cut(Cut::Whole(limit))?;
            }
        } else if cut.is_some_and(|cut| cut != Cut::None) {
            self.write_cut(Cut::None)?;
        }
        Ok(limit)
    }

    /// Records that the origin is whole (B5). The caller has flushed the pending versions.
    fn end_cut(&self, target: Epoch) -> Result<(), Error> {
        let cut = self.header.lock().stamp.map(|stamp| stamp.cut);
        if self.options.consistent_origin && cut == Some(Cut::Towards(target)) {
            self.write_cut(Cut::Whole(target))?;
        }
        Ok(())
    }

    fn write_cut(&self, cut: Cut) -> Result<(), Error> {
        self.write_header(|superblock| {
            if let Some(stamp) = &mut superblock.stamp {
                stamp.cut = cut;
            }
        })
    }

    /// Writes one batch; returns the number of its blocks, which is zero at the end of the sweep.
    fn drain_batch(&self, sweep: &mut Sweep, limit: Epoch, order: Order) -> Result<u64, Error> {
        let bytes =
            BATCH_BYTES.min(u64::from(self.options.writeback_jobs) << self.geometry.block_shift());
        let max = (bytes >> self.geometry.block_shift()).max(1) as usize;
        let picks = match order {
            Order::Oldest => self.pick_oldest(limit, max),
            Order::Sorted | Order::SortedAdjacent => self.pick_sorted(sweep, limit, max),
        };
        if picks.is_empty() {
            return Ok(0);
        }
        self.in_flight.fetch_add(picks.len() as u64, Ordering::Relaxed);
        sweep.pending.extend(picks.iter().map(|pick| (pick.block, pick.slot)));
        let copied = self.copy(&picks, order, &mut sweep.buf);
        copied.map_err(|error| self.put_back(sweep, error))?;
        let share =
            (u64::from(self.geometry.slots()) / FINISH_SHARE) << self.geometry.block_shift();
        let finish = share.clamp(*FINISH_BYTES.start(), *FINISH_BYTES.end());
        let pending = (sweep.pending.len() as u64) << self.geometry.block_shift();
        if self.options.fua || pending >= finish || self.slots.free() == 0 {
            self.finish(sweep)?;
        }
        Ok(picks.len() as u64)
    }

    /// Picks versions by address from the cursor on (B1, B3, B4).
    fn pick_sorted(&self, sweep: &mut Sweep, limit: Epoch, max: usize) -> Vec<ChosenVersion> {
        let mut picks: Vec<ChosenVersion> = Vec::new();
        while picks.len() < max {
            let Some(next) = self.index.next(sweep.cursor) else { break };
            let end = region_end(next);
            sweep.cursor = next;
            while sweep.cursor < end && picks.len() < max {
                let (mut runs, mut looked) = (0, 0);
                let mut shard = self.index.shard_after(next);
                let mut cursor = end;
                for (block, versions) in shard.range_mut(sweep.cursor, end) {
                    let follows = picks.last().is_some_and(|pick| pick.block.0 + 1 == block.0);
                    if picks.len() == max || looked == LOOK_MAX || (runs == RUNS_MAX && !follows) {
                        cursor = block;
                        break;
                    }
                    looked += 1;
                    let is_below = versions.as_slice().iter().any(|found| found.epoch < limit);
                    let oldest = versions.oldest_mut();
                    if oldest.state == State::Ready && oldest.epoch < limit {
                        oldest.state = State::Draining;
                        runs += usize::from(!follows);
                        picks.push(ChosenVersion { block, slot: oldest.slot });
                    } else if is_below && oldest.state != State::Draining {
                        sweep.missed = true;
                    }
                }
                sweep.cursor = cursor;
            }
        }
        picks
    }

    /// Picks the oldest versions, each with the blocks that follow it on the origin and in the
    /// cache.
    fn pick_oldest(&self, limit: Epoch, max: usize) -> Vec<ChosenVersion> {
        let mut picks: Vec<ChosenVersion> = Vec::new();
        let mut later = Vec::new();
        while picks.len() < max.min(RUNS_MAX) {
            let Some((first, slot)) = self.oldest.lock().pop_front() else { break };
            let mut shard = self.index.shard(first);
            let state = shard.find_mut(first).map(|versions| {
                let found = versions.as_slice().iter().any(|version| version.slot == slot);
                let oldest = versions.oldest_mut();
                let is_next = oldest.slot == slot && oldest.state == State::Ready;
                if is_next && oldest.epoch < limit {
                    oldest.state = State::Draining;
                }
                (found, is_next && oldest.epoch < limit)
            });
            match state {
                Some((true, true)) => {}
                Some((true, false)) => {
                    drop(shard);
                    later.push((first, slot));
                    if later.len() > RUNS_MAX {
                        break;
                    }
                    continue;
                }
                // The version was superseded or discarded since.
                _ => continue,
            }
            picks.push(ChosenVersion { block: first, slot });
            let end = region_end(first).min(OriginBlock(first.0 + LRU_RUN as u64));
            let mut last = ChosenVersion { block: first, slot };
            for (block, versions) in shard.range_mut(OriginBlock(first.0 + 1), end) {
                let oldest = versions.oldest_mut();
                let is_next = block.0 == last.block.0 + 1 && oldest.slot.0 == last.slot.0 + 1;
                if !is_next || oldest.state != State::Ready || oldest.epoch >= limit {
                    break;
                }
                oldest.state = State::Draining;
                last = ChosenVersion { block, slot: oldest.slot };
                picks.push(last);
            }
        }
        // These versions go back to the end of the list: either an older version must be written
        // first, or their epoch is not committed yet.
        self.oldest.lock().extend(later);
        picks
    }

    /// Copies a batch to the origin: reads its slots into one buffer, then writes joined runs.
    fn copy(
        &self,
        picks: &[ChosenVersion],
        order: Order,
        buf: &mut AlignedBuf,
    ) -> Result<(), Error> {
        let size = self.geometry.block_size();
        let len = picks.len() * size as usize;
        if buf.len() < len {
            *buf = AlignedBuf::zeroed(len);
        }
        self.gather(picks, &mut buf[..len])?;
        let run_max = match order {
            Order::Sorted => (RUN_BYTES / size) as usize,
            Order::SortedAdjacent | Order::Oldest => LRU_RUN,
        };
        let mut index = 0;
        while index < picks.len() {
            let first = picks[index];
            let follows = |count: &usize| {
                let (next, last) = (picks[index + count], picks[index + count - 1]);
                next.block.0 == last.block.0 + 1
                    && (order == Order::Sorted || next.slot.0 == last.slot.0 + 1)
            };
            let count = (1..(picks.len() - index).min(run_max)).take_while(follows).count() + 1;
            let last = picks[index + count - 1].block;
            let len = (count as u64 - 1) * size + self.block_len(last);
            let start = index * size as usize;
            let bytes = &buf[start..start + len as usize];
            self.write_origin(self.block_offset(first.block), bytes)?;
            index += count;
        }
        Ok(())
    }

    /// Reads a batch from the cache. One request reads adjacent slots; several threads read at the
    /// same time.
    fn gather(&self, picks: &[ChosenVersion], buf: &mut [u8]) -> Result<(), Error> {
        let size = self.geometry.block_size() as usize;
        let adjacent = |pair: &[ChosenVersion]| pair[1].slot.0 == pair[0].slot.0.wrapping_add(1);
        let reads = 1 + picks.windows(2).filter(|pair| !adjacent(pair)).count();
        let read = |picks: &[ChosenVersion], buf: &mut [u8]| -> Result<(), Error> {
            let mut index = 0;
            while index < picks.len() {
                let count = 1 + picks[index..].windows(2).take_while(|pair| adjacent(pair)).count();
                let into = &mut buf[index * size..(index + count) * size];
                self.medium.read_at(self.geometry.slot_offset(picks[index].slot), into)?;
                index += count;
            }
            Ok(())
        };
        if reads < READERS_FROM || !self.options.background {
            return read(picks, buf);
        }
        let each = picks.len().div_ceil(READERS);
        std::thread::scope(|scope| {
            let parts = picks.chunks(each).zip(buf.chunks_mut(each * size));
            let threads: Vec<_> =
                parts.map(|(picks, buf)| scope.spawn(|| read(picks, buf))).collect();
            let ends = threads.into_iter().map(|thread| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            });
            // All threads are joined before the first failure is returned.
            ends.collect::<Vec<_>>().into_iter().collect()
        })
    }

    /// Makes the written versions durable on the origin, then frees them (B2).
    fn finish(&self, sweep: &mut Sweep) -> Result<(), Error> {
        if sweep.pending.is_empty() {
            if !self.dying.lock().is_empty() {
                self.flush_table()?;
            }
            return Ok(());
        }
        self.flush_origin().map_err(|error| self.put_back(sweep, error))?;
        let mut pending = std::mem::take(&mut sweep.pending);
        for region in pending.chunk_by(|one, next| region_end(one.0) == region_end(next.0)) {
            for chunk in region.chunks(RUNS_MAX) {
                let mut shard = self.index.shard_after(chunk[0].0);
                let are_found = shard.each_mut(chunk, |version| {
                    assert_eq!(version.state, State::Draining, "B2");
                    version.state = State::Dying;
                    self.table.free(version.slot);
                });
                assert!(are_found, "index::I2: of {chunk:?} one is not marked free");
            }
        }
        // Adds all versions at once, after the shards' locks were released. In the state `Dying`,
        // no other thread frees them.
        self.dying.lock().extend_from_slice(&pending);
        let count = pending.len() as u64;
        pending.clear();
        sweep.pending = pending;
        self.in_flight.fetch_sub(count, Ordering::Relaxed);
        self.is_stalled.store(false, Ordering::SeqCst);
        self.drain_error.lock().take();
        self.flush_table()
    }

    /// After a failure, makes all pending versions ready again: any of them may be missing on the
    /// origin.
    fn put_back(&self, sweep: &mut Sweep, error: Error) -> Error {
        let is_lru = self.options.writeback != Writeback::Sorted;
        let pending = std::mem::take(&mut sweep.pending);
        for &(block, slot) in &pending {
            let mut shard = self.index.shard(block);
            let version = shard.find_mut(block).and_then(|versions| {
                versions.as_mut_slice().iter_mut().find(|version| version.slot == slot)
            });
            let version = version.expect("index::I2: it is not marked free");
            version.state = State::Ready;
        }
        if is_lru {
            let mut oldest = self.oldest.lock();
            for &(block, slot) in pending.iter().rev() {
                oldest.push_front((block, slot));
            }
        }
        self.in_flight.fetch_sub(pending.len() as u64, Ordering::Relaxed);
        sweep.cursor = OriginBlock(0);
        self.is_stalled.store(true, Ordering::SeqCst);
        error
    }

    /// The newest epoch such that all versions before it have been committed for `max_age` or
    /// longer.
    pub(crate) fn aged(&self, now: Instant) -> Option<Epoch> {
        let max_age = self.options.max_age?;
        let ages = self.ages.lock();
        let old = ages.iter().rev().find(|(_, at)| now.duration_since(*at) >= max_age);
        old.map(|&(epoch, _)| epoch)
    }
}
