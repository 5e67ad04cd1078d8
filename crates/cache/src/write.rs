//! Writing: into free slots, never over committed data.
//!
//! # Invariants
//!
//! - **X1** A committed slot is never written to. A block that is written again in the same epoch
//!   is overwritten in place. In a later epoch it gets another slot. The format does not demand X1:
//!   Linux overwrites committed slots of an SSD in place. With X1, a crash leaves all of an epoch's
//!   writes or none.
//! - **X2** A write may bypass the cache, and go straight to the origin, only for a block of which
//!   the index has no version. A version that is marked free counts as a version until its mark is
//!   durable (`index::I2`). Otherwise a crash could bring that version back in place of the write.
//! - **X3** No thread waits for a slot inside the writers' gate. A commit waits for the gate, and
//!   write-back may have to wait for a commit.
//! - **X4** While a write bypasses the cache, no version of its blocks is added. For this, a list
//!   has these blocks from the index lookup until the write has ended. Lookup and listing happen
//!   under the block's shard lock. A thread that would add a version of a listed block waits.
//!   Otherwise a partial write into the cache could copy the origin's old content. Reads and
//!   write-back would use that copy in place of acknowledged data.
//!
//! # Failure
//!
//! A block never enters the table if its first write fails. A failed overwrite in place leaves any
//! mixture of old and new data, as on a disk.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::Duration;

use buttress_base::activity::{self, Cause};
use buttress_block::Class;

use crate::core::Core;
use crate::error::Error;
use crate::gate::Inside;
use crate::index::{State, Version, region_end};
use crate::options::{Mode, Writeback};
use crate::units::{Epoch, OriginBlock, Slot};

/// Blocks in one step.
const PIECE: u64 = 256;
/// How long a writer waits for a slot before it checks again.
const WAIT: Duration = Duration::from_millis(5);

/// One block of a piece, and its slot.
#[derive(Clone, Copy, Debug)]
struct Step {
    block: OriginBlock,
    slot: Slot,
    /// Whether the slot was just taken and holds no data yet.
    is_fresh: bool,
}

/// Why the work on a piece stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// The whole piece is done.
    Done,
    /// The next block needs a slot; it has a version in the cache.
    NeedsSlot,
    /// The next block has no version, and either there is no slot for it, or it must not be cached.
    Bypass,
    /// The next block has a version of a later epoch, another thread fills it, or a write to it
    /// bypasses the cache.
    Again,
}

/// A running write that bypasses the cache (X4). When this value is dropped, the write is taken off
/// the list.
struct Bypass<'a> {
    core: &'a Core,
    blocks: Range<OriginBlock>,
}

impl Drop for Bypass<'_> {
    fn drop(&mut self) {
        let first = self.blocks.start;
        {
            let _shard = self.core.index.shard(first);
            let mut bypassing = self.core.bypassing.lock();
            let place = bypassing.iter().position(|blocks| *blocks == self.blocks);
            bypassing.swap_remove(place.expect("X4: it was listed"));
            self.core.bypassing_writes.fetch_sub(1, Ordering::Relaxed);
        }
        self.core.index.signal(first).notify_all();
    }
}

impl Core {
    /// Writes bytes that lie within the origin. `class` is used only with the option
    /// `metadata_only`.
    pub(crate) fn write(&self, offset: u64, buf: &[u8], class: Class) -> Result<(), Error> {
        self.counters.writes.add(1);
        // With `consistent_origin`, all writes go through the cache.
        let admits = self.options.consistent_origin
            || (!self.cleaner.load(Ordering::Relaxed)
                && (class == Class::Metadata || !self.options.metadata_only));
        let mut at = offset;
        let end = offset + buf.len() as u64;
        let mut waited = false;
        // The waits of one piece are one wait, however often this thread looks.
        let mut waiting = None;
        while at < end {
            self.check()?;
            let block = OriginBlock(at >> self.geometry.block_shift());
            let stop = OriginBlock((block.0 + PIECE).min(region_end(block).0));
            let piece_end = self.block_offset(stop).min(end);
            let piece = &buf[(at - offset) as usize..(piece_end - offset) as usize];
            let (done, why) = self.write_piece(at, piece, admits)?;
            at += done;
            if done > 0 {
                waiting = None;
            }
            match why {
                Stop::Done => {}
                Stop::Again => {
                    waiting.get_or_insert_with(|| activity::wait(Cause::Cache));
                    self.wait_for_filler(OriginBlock(at >> self.geometry.block_shift()));
                }
                Stop::Bypass if self.may_bypass(admits) => {
                    let piece = &buf[(at - offset) as usize..(piece_end - offset) as usize];
                    at += self.write_uncached(at, piece)?;
                }
                Stop::Bypass | Stop::NeedsSlot => {
                    if !waited {
                        self.counters.writes_blocked.add(1);
                        waited = true;
                    }
                    waiting.get_or_insert_with(|| activity::wait(Cause::Cache));
                    self.make_room()?;
                }
            }
        }
        self.after_write()
    }

    /// Whether a block without a version may be written to the origin directly if there is no slot.
    /// With persistent memory, Linux waits instead. With `consistent_origin`, only sweeps write to
    /// the origin.
    fn may_bypass(&self, admits: bool) -> bool {
        !self.options.consistent_origin && (!admits || self.options.mode == Mode::Ssd)
    }

    /// Writes as many blocks as possible; returns the number of written bytes, and why the work
    /// stopped.
    fn write_piece(&self, offset: u64, buf: &[u8], admits: bool) -> Result<(u64, Stop), Error> {
        let shift = self.geometry.block_shift();
        let end = offset + buf.len() as u64;
        let first = offset >> shift;
        let blocks = first..((end - 1) >> shift) + 1;
        let mut slots = Vec::new();
        // A block that is overwritten in place may be discarded meanwhile. Being inside the
        // readers' gate keeps its slot from going to another block.
        let _pinned = self.readers.enter();
        let inside = self.writers.enter();
        let epoch = Epoch(inside.turn());
        let mut steps = Vec::with_capacity((blocks.end - blocks.start) as usize);
        let why = self.plan(blocks, epoch, admits, &mut slots, &mut steps);
        let planned_end = steps.last().map_or(offset, |step: &Step| {
            self.block_offset(OriginBlock(step.block.0 + 1)).min(end)
        });
        self.slots.give(&slots);
        if steps.is_empty() {
            return Ok((0, why));
        }
        let written = self.write_steps(&steps, offset, &buf[..(planned_end - offset) as usize]);
        match written {
            Ok(()) => self.publish(&steps, &inside),
            Err(error) => {
                self.note_uncommitted(epoch.0);
                self.withdraw(&steps);
                return Err(error);
            }
        }
        Ok((planned_end - offset, why))
    }

    /// Decides which slot each block goes to, and adds the new versions to the index as `Filling`.
    fn plan(
        &self,
        blocks: Range<u64>,
        epoch: Epoch,
        admits: bool,
        slots: &mut Vec<Slot>,
        steps: &mut Vec<Step>,
    ) -> Stop {
        let end = blocks.end;
        let mut is_supplied = false;
        let mut shard = self.index.shard(OriginBlock(blocks.start));
        for number in blocks {
            let block = OriginBlock(number);
            let newest = shard.find(block).map(|versions| *versions.newest());
            match newest {
                Some(version) if version.epoch > epoch || version.state == State::Filling => {
                    return Stop::Again;
                }
                Some(version) if version.epoch == epoch && version.state == State::Ready => {
                    self.counters.hits_uncommitted.add(1);
                    steps.push(Step { block, slot: version.slot, is_fresh: false });
                    continue;
                }
                Some(_) => {}
                None if !admits => return Stop::Bypass,
                None if self.is_around(block) => return Stop::Again,
                None => {}
            }
            if slots.is_empty() && !is_supplied {
                // Takes slots for the rest of the piece at once, so that neighbouring blocks get
                // adjacent slots. Some of these slots may not be needed. Taking does not wait (X3).
                *slots = self.slots.take((end - number) as usize);
                slots.reverse();
                is_supplied = true;
            }
            let Some(slot) = slots.pop() else {
                return if newest.is_some() { Stop::NeedsSlot } else { Stop::Bypass };
            };
            let counter = match newest {
                Some(_) => &self.counters.hits_committed,
                None => &self.counters.writes_allocated,
            };
            counter.add(1);
            shard.push(block, Version { epoch, slot, state: State::Filling });
            steps.push(Step { block, slot, is_fresh: true });
        }
        Stop::Done
    }

    /// Writes the data of all steps. Adjacent steps share one write.
    fn write_steps(&self, steps: &[Step], offset: u64, buf: &[u8]) -> Result<(), Error> {
        let end = offset + buf.len() as u64;
        let mut index = 0;
        while index < steps.len() {
            let step = steps[index];
            let start = self.block_offset(step.block).max(offset);
            let stop = self.block_offset(OriginBlock(step.block.0 + 1)).min(end);
            let bytes = &buf[(start - offset) as usize..(stop - offset) as usize];
            let place = self.geometry.slot_offset(step.slot);
            if !self.is_whole(step.block, bytes.len()) {
                if step.is_fresh {
                    let whole = self.compose(step.block, start, bytes)?;
                    self.medium.write_at(place, &whole)?;
                } else {
                    self.medium.write_at(place + (start - self.block_offset(step.block)), bytes)?;
                }
                index += 1;
                continue;
            }
            let whole = |count: usize| {
                let next = steps[index + count];
                let next_start = self.block_offset(next.block);
                let len = self.geometry.block_size().min(end - next_start);
                next.slot.0 == step.slot.0 + count as u32 && len == self.geometry.block_size()
            };
            let count = (1..steps.len() - index).take_while(|&count| whole(count)).count() + 1;
            let run_end = self.block_offset(OriginBlock(step.block.0 + count as u64)).min(end);
            let bytes = &buf[(start - offset) as usize..(run_end - offset) as usize];
            self.medium.write_at(place, bytes)?;
            index += count;
        }
        Ok(())
    }

    /// Whether `len` bytes are all that `block` covers.
    fn is_whole(&self, block: OriginBlock, len: usize) -> bool {
        len as u64 == self.geometry.block_size() || len as u64 == self.block_len(block)
    }

    /// Returns a whole block: its old content, with `bytes` written over it at `start`.
    fn compose(&self, block: OriginBlock, start: u64, bytes: &[u8]) -> Result<Vec<u8>, Error> {
        let mut whole = vec![0; self.geometry.block_size() as usize];
        let len = self.block_len(block) as usize;
        let block_start = self.block_offset(block);
        self.read_under(block, &mut whole[..len])?;
        let at = (start - block_start) as usize;
        whole[at..at + bytes.len()].copy_from_slice(bytes);
        Ok(whole)
    }

    /// Reads the content that a block had before the version that is being filled. No other thread
    /// writes the block meanwhile.
    fn read_under(&self, block: OriginBlock, buf: &mut [u8]) -> Result<(), Error> {
        let inside = self.readers.enter();
        let slot = self
            .index
            .shard(block)
            .find(block)
            .and_then(|versions| versions.readable().map(|version| version.slot));
        match slot {
            Some(slot) => self.medium.read_at(self.geometry.slot_offset(slot), buf)?,
            None => {
                drop(inside);
                self.origin.read_at(self.block_offset(block), buf)?;
            }
        }
        Ok(())
    }

    /// Makes the written blocks visible to readers and the next commit.
    fn publish(&self, steps: &[Step], inside: &Inside<'_>) {
        let epoch = Epoch(inside.turn());
        self.note_uncommitted(epoch.0);
        let Some(first) = steps.iter().find(|step| step.is_fresh) else { return };
        let mut superseded = Vec::new();
        let mut count = 0;
        {
            let mut shard = self.index.shard(first.block);
            for step in steps.iter().filter(|step| step.is_fresh) {
                let versions = shard.find_mut(step.block).expect("it was announced");
                let is_first = versions.as_slice().len() == 1;
                let version = versions
                    .as_mut_slice()
                    .iter_mut()
                    .find(|version| version.slot == step.slot)
                    .expect("it was announced");
                self.table.set(step.slot, step.block, epoch);
                version.state = State::Ready;
                if !is_first {
                    superseded.push(step.block);
                }
                count += 1;
            }
        }
        self.index.signal(first.block).notify_all();
        if !superseded.is_empty() {
            self.note_superseded(superseded);
        }
        if self.options.writeback != Writeback::Sorted {
            let fresh = steps.iter().filter(|step| step.is_fresh);
            self.oldest.lock().extend(fresh.map(|step| (step.block, step.slot)));
        }
        self.uncommitted.fetch_add(count, Ordering::SeqCst);
    }

    /// Removes the versions with a failed write.
    fn withdraw(&self, steps: &[Step]) {
        let mut slots = Vec::new();
        for step in steps.iter().filter(|step| step.is_fresh) {
            let is_found = self.index.shard(step.block).remove(step.block, step.slot);
            assert!(is_found, "slots::A1: slot {} was announced", step.slot);
            slots.push(step.slot);
        }
        if let Some(step) = steps.first() {
            self.index.signal(step.block).notify_all();
        }
        // No reader saw these versions, and they never had an entry.
        self.slots.give(&slots);
    }

    /// Waits while another thread fills the block, or a write to it bypasses the cache.
    fn wait_for_filler(&self, block: OriginBlock) {
        let mut shard = self.index.shard(block);
        let is_filling =
            shard.find(block).is_some_and(|versions| versions.newest().state == State::Filling);
        if is_filling || self.is_around(block) {
            shard.wait_for(self.index.signal(block), WAIT);
        }
    }

    /// Writes straight to the origin, up to the first block that has a version (X2).
    fn write_uncached(&self, offset: u64, buf: &[u8]) -> Result<u64, Error> {
        let shift = self.geometry.block_shift();
        let end = offset + buf.len() as u64;
        let first = OriginBlock(offset >> shift);
        let last = OriginBlock(((end - 1) >> shift) + 1);
        let shard = self.index.shard(first);
        let cached = shard.range(first, last).next().map(|(block, _)| block);
        let stop = cached.map_or(end, |block| self.block_offset(block).min(end)).max(offset);
        let len = stop - offset;
        if len > 0 {
            let blocks = first..cached.unwrap_or(last);
            self.bypassing.lock().push(blocks.clone());
            self.bypassing_writes.fetch_add(1, Ordering::Relaxed);
            let _around = Bypass { core: self, blocks };
            drop(shard);
            self.write_around(offset, &buf[..len as usize])?;
        }
        Ok(len)
    }

    /// Whether a running write to the block bypasses the cache (X4). The caller holds the lock of
    /// the block's shard. Listing a block needs this lock, too.
    fn is_around(&self, block: OriginBlock) -> bool {
        self.bypassing_writes.load(Ordering::Relaxed) > 0
            && self.bypassing.lock().iter().any(|blocks| blocks.contains(&block))
    }

    /// Waits for a free slot. Writes back in this thread if there is no background thread.
    fn make_room(&self) -> Result<(), Error> {
        self.free_unread_slots();
        if self.slots.free() > 0 {
            return Ok(());
        }
        if !self.options.background || self.work.wanted.lock().stop {
            return self.drain_for_room();
        }
        // The writer waits while write-back makes progress. If write-back has failed, the writer
        // gets that error instead of waiting forever.
        if self.is_stalled.load(Ordering::SeqCst)
            && let Some(error) = self.drain_error.lock().clone()
        {
            return Err(error);
        }
        self.want_drain();
        self.slots.wait(WAIT);
        Ok(())
    }

    fn after_write(&self) -> Result<(), Error> {
        if self.uncommitted.load(Ordering::Relaxed) >= self.options.autocommit_blocks() {
            if self.options.background {
                self.want_commit();
            } else {
                self.commit()?;
            }
        }
        if self.options.background && self.used() > self.percent(self.options.high_watermark) {
            self.want_drain();
        }
        Ok(())
    }
}
