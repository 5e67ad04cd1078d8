//! Discarding and zeroing: the cache drops blocks, and the origin discards or zeroes them.
//!
//! # Invariants
//!
//! - **Z1** Zeroes that go to the origin are durable there before the cache drops the blocks of the
//!   range. So after a crash, the range reads as zeroes or as its last content, never as older
//!   content.
//!
//! # Failure
//!
//! The content of a discarded range is undefined: after a crash, a block may have its last content
//! or an older version. A block that is being written back is not dropped.

use std::sync::atomic::Ordering;

use buttress_block::{Class, Space};

use crate::core::Core;
use crate::error::Error;
use crate::identity;
use crate::index::{State, Versions, region_end};
use crate::units::{Epoch, OriginBlock};

/// Blocks looked at under one lock.
const STEP: usize = 64;
/// Zeroes up to this length are written like other data: such a write costs less than a flush of
/// the origin.
const ZEROES_CACHED: u64 = 1 << 20;

impl Core {
    /// Drops the blocks that lie wholly in a range. The cost depends on the number of cached blocks
    /// in the range, not on its length.
    pub(crate) fn discard(&self, offset: u64, len: u64) -> Result<(), Error> {
        self.counters.discards.add(1);
        self.check()?;
        let size = self.geometry.block_size();
        let first = OriginBlock(offset.div_ceil(size));
        let last = match offset + len {
            // If the range ends at the end of the origin, the last block counts as whole even if it
            // is shorter.
            end if end == self.origin.len() => OriginBlock(end.div_ceil(size)),
            end => OriginBlock(end / size),
        };
        let keep_below = self.cut_target();
        // The gate is entered first, so that no commit includes only half of the discard.
        let inside = self.writers.enter();
        let mut is_any = false;
        for shard in self.index.shards() {
            let mut from = first;
            while from < last {
                let mut shard = shard.lock();
                let mut next = last;
                for (index, (block, versions)) in shard.range_mut(from, last).enumerate() {
                    if index == STEP {
                        next = block;
                        break;
                    }
                    for version in versions.as_mut_slice() {
                        let is_for_cut = keep_below.is_some_and(|cut| version.epoch < cut);
                        if version.state != State::Ready || is_for_cut {
                            continue;
                        }
                        version.state = State::Dying;
                        self.mark_dying(block, version.slot);
                        is_any = true;
                        if version.epoch == Epoch(inside.turn()) {
                            let one_less = |count: u64| Some(count.saturating_sub(1));
                            let order = Ordering::SeqCst;
                            // The closure always returns `Some`, so `fetch_update` cannot fail.
                            let _ = self.uncommitted.fetch_update(order, order, one_less);
                        }
                    }
                }
                from = next;
            }
        }
        if is_any {
            // The next flush writes the free marks of the dropped versions.
            self.note_uncommitted(inside.turn());
        }
        drop(inside);
        if !self.options.consistent_origin {
            self.discard_origin(offset, len)?;
            self.origin_dirty.store(true, Ordering::SeqCst);
        }
        Ok(())
    }

    /// Writes zeroes. A long range goes to the origin in one request. Blocks that cannot be zeroed
    /// on the origin safely are written through the cache.
    pub(crate) fn write_zeroes(&self, offset: u64, len: u64, space: Space) -> Result<(), Error> {
        let sweep = if len < ZEROES_CACHED || self.options.consistent_origin {
            None
        } else {
            // A running sweep could write an old version over the zeroes. This call does not wait
            // for the sweep; it writes through the cache instead.
            self.drain.try_lock().filter(|sweep| sweep.is_idle())
        };
        let Some(sweep) = sweep else { return self.write_each_zero(offset, len) };
        self.check()?;
        let size = self.geometry.block_size();
        let (first, last) = (offset.div_ceil(size), (offset + len) / size);
        let (from, to) = (first * size, last * size);
        if from < identity::WINDOW {
            self.record_zeroed_identity(from, to)?;
        }
        self.origin.write_zeroes(from, to - from, space)?;
        self.flush_origin()?;
        // Free marks of older versions must be durable first. Otherwise a crash could keep the
        // older version of a block and lose the newer one.
        self.flush_table()?;
        let mut others = Vec::new();
        self.each_in(OriginBlock(first), OriginBlock(last), |block, versions| {
            match versions.as_mut_slice() {
                [only] if only.state == State::Ready => {
                    only.state = State::Dying;
                    self.mark_dying(block, only.slot);
                }
                _ => others.push(block),
            }
        });
        self.flush_table()?;
        drop(sweep);
        self.write_each_zero(offset, from - offset)?;
        for block in others {
            self.write_each_zero(self.block_offset(block), self.block_len(block))?;
        }
        self.write_each_zero(to, offset + len - to)
    }

    fn write_each_zero(&self, offset: u64, len: u64) -> Result<(), Error> {
        let zeroes = vec![0; len.min(ZEROES_CACHED) as usize];
        let mut at = offset;
        while at < offset + len {
            let piece = (offset + len - at).min(zeroes.len() as u64);
            self.write(at, &zeroes[..piece as usize], Class::Data)?;
            at += piece;
        }
        Ok(())
    }

    /// Calls `look` for all cached blocks of a range, for a few at a time under the shard's lock.
    fn each_in(
        &self,
        first: OriginBlock,
        last: OriginBlock,
        mut look: impl FnMut(OriginBlock, &mut Versions),
    ) {
        let mut from = first;
        while let Some(next) = self.index.next(from).filter(|&next| next < last) {
            let end = region_end(next).min(last);
            let mut shard = self.index.shard(next);
            from = end;
            for (index, (block, versions)) in shard.range_mut(next, end).enumerate() {
                if index == STEP {
                    from = block;
                    break;
                }
                look(block, versions);
            }
        }
    }
}
