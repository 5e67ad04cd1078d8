//! Discarding: the cache forgets, then the origin is told.
//!
//! # Failure
//!
//! After a crash a discarded block may hold what it held before, or an older version: nobody may rely on
//! what a discarded range reads as. Blocks that are being written back keep their version until that ends.

use std::sync::atomic::Ordering;

use crate::core::Core;
use crate::error::Error;
use crate::index::State;
use crate::units::{Epoch, OriginBlock};

/// Blocks looked at under one lock.
const STEP: usize = 64;

impl Core {
    /// Forgets the whole blocks of a range. Costs what is cached of the range, not its length.
    pub(crate) fn discard(&self, offset: u64, len: u64) -> Result<(), Error> {
        self.counters.discards.fetch_add(1, Ordering::Relaxed);
        self.check()?;
        let size = self.geometry.block_size();
        let first = OriginBlock(offset.div_ceil(size));
        let last = match offset + len {
            // The last block is whole when the origin ends in it.
            end if end == self.origin.len() => OriginBlock(end.div_ceil(size)),
            end => OriginBlock(end / size),
        };
        let keep_below = self.cut_target();
        // Inside, so that no commit takes half of it.
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
                        self.bury(block, version.slot);
                        is_any = true;
                        if version.epoch == Epoch(inside.turn()) {
                            let one_less = |count: u64| Some(count.saturating_sub(1));
                            let order = Ordering::SeqCst;
                            // The closure always answers.
                            let _ = self.uncommitted.fetch_update(order, order, one_less);
                        }
                    }
                }
                from = next;
            }
        }
        if is_any {
            // The next flush writes the marks.
            self.touched[(inside.turn() & 1) as usize].store(true, Ordering::SeqCst);
        }
        drop(inside);
        if !self.options.consistent_origin {
            self.origin.discard(offset, len)?;
            self.origin_dirty.store(true, Ordering::SeqCst);
        }
        Ok(())
    }
}
