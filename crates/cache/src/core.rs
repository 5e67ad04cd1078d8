//! The state of an open cache, on which the other files work.
//!
//! # Locks
//!
//! Long locks, held across I/O, in this order:
//!
//! - `drain`: one sweep at a time.
//! - `origin_sync`: one flush of the origin at a time for the callers that wait for it.
//! - `commit`: one commit at a time.
//! - `header`: one write of metadata at a time.
//!
//! Short locks come after the long locks: the shards of the index, then leaves. Foreground reads
//! and writes take only short locks. A flush is a commit, so it takes long locks.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use buttress_base::sync::{Condvar, Mutex};
use buttress_base::{CachePadded, Latch, Rank, Ranked};
use buttress_block::Device;

use crate::error::Error;
use crate::gate::Gate;
use crate::index::{Index, State, region_end};
use crate::layout::{Cut, Geometry, Superblock};
use crate::medium::CacheRegion;
use crate::options::CacheOptions;
use crate::slots::Slots;
use crate::status::{Counters, Moment, Status};
use crate::sweep::{RUNS_MAX, Sweep};
use crate::table::Table;
use crate::units::{Epoch, OriginBlock, Slot};

#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) origin: Arc<dyn Device>,
    pub(crate) medium: CacheRegion,
    pub(crate) geometry: Geometry,
    pub(crate) options: CacheOptions,
    pub(crate) cleaner: AtomicBool,
    pub(crate) flush_on_suspend: AtomicBool,

    pub(crate) index: Index,
    pub(crate) table: Table,
    pub(crate) slots: Slots,
    /// Writers, by the epoch they write in.
    pub(crate) writers: Gate,
    /// Readers of slots.
    pub(crate) readers: Gate,

    /// The epoch in the superblock on the device: lower epochs are committed.
    pub(crate) committed: AtomicU64,
    /// For epochs of even and of odd number: whether the epoch has writes that are not committed.
    pub(crate) has_uncommitted: [AtomicBool; 2],
    /// Blocks published since the last commit.
    pub(crate) uncommitted: CachePadded<AtomicU64>,
    /// Whether a write bypassed the cache since the last flush of the origin.
    pub(crate) origin_dirty: AtomicBool,
    /// The time at which a write last bypassed the cache, in milliseconds since `started`; 0 if no
    /// write did.
    pub(crate) bypassed_at: AtomicU64,
    /// Blocks of current writes that bypass the cache (`write::X4`), and the number of such writes.
    pub(crate) bypassing: Ranked<Vec<Range<OriginBlock>>>,
    pub(crate) bypassing_writes: AtomicUsize,
    /// Versions that are being written back.
    pub(crate) in_flight: AtomicU64,
    pub(crate) started: Instant,
    pub(crate) counters: Counters,
    pub(crate) broken: Latch<Error>,
    /// The last failure of the origin during write-back, until it is reported or the origin works
    /// again.
    pub(crate) drain_error: Ranked<Option<Error>>,
    /// Whether the last attempt to write back failed.
    pub(crate) is_stalled: AtomicBool,

    /// Blocks that got a second version since the last commit. The commit marks their older
    /// versions free.
    pub(crate) superseded: Ranked<Vec<OriginBlock>>,
    /// Versions that are marked free in memory only: the mark is not on the device yet
    /// (`index::I2`).
    pub(crate) dying: Ranked<Vec<(OriginBlock, Slot)>>,
    /// Slots that left the index and may still have readers.
    pub(crate) pending_slots: Ranked<PendingSlots>,
    /// All versions in the order of their first write, for the orders `lru` and `fifo-unsorted`.
    pub(crate) oldest: Ranked<VecDeque<(OriginBlock, Slot)>>,
    /// When epochs were committed, for `max_age`.
    pub(crate) ages: Ranked<VecDeque<(Epoch, Instant)>>,

    /// Unranked: held across I/O, in the order that the header says.
    pub(crate) drain: Mutex<Sweep>,
    /// Unranked: held across I/O, in the order that the header says.
    pub(crate) origin_sync: Mutex<()>,
    /// Unranked: held across I/O, in the order that the header says.
    pub(crate) commit: Mutex<()>,
    /// Unranked: held across I/O, in the order that the header says.
    pub(crate) header: Mutex<Superblock>,

    pub(crate) work: WorkSignals,
}

/// Slots that have left the index and are not in the free list yet.
#[derive(Debug, Default)]
pub(crate) struct PendingSlots {
    /// Slots that readers of the present turn and of earlier turns may use.
    pub(crate) fresh: Vec<Slot>,
    /// Slots that readers of `turn` and of earlier turns may use. Later readers cannot find them.
    pub(crate) waiting: Vec<Slot>,
    pub(crate) turn: u64,
}

/// Tells the background threads that there is work.
#[derive(Debug)]
pub(crate) struct WorkSignals {
    pub(crate) wanted: Ranked<Wanted>,
    pub(crate) drain: Condvar,
    pub(crate) commit: Condvar,
}

#[derive(Debug, Default)]
pub(crate) struct Wanted {
    pub(crate) stop: bool,
    pub(crate) drain: bool,
    pub(crate) commit: bool,
}

impl Default for WorkSignals {
    fn default() -> Self {
        let wanted = Ranked::new(Rank::Leaf, Wanted::default());
        Self { wanted, drain: Condvar::new(), commit: Condvar::new() }
    }
}

impl Core {
    /// Fails if the cache has been stopped.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.broken.check()
    }

    /// Stops the cache. Returns the cause of the first stop.
    pub(crate) fn stop(&self, cause: buttress_block::Error) -> Error {
        tracing::error!(cache = %self.medium.name(), error = %cause, "the cache is stopped");
        self.broken.set(Error::Broken(Arc::new(cause)));
        self.broken.get().expect("it was set above")
    }

    /// Records that epoch `turn` has something to commit. The caller is inside the writers' gate
    /// with this turn, so no commit clears the record meanwhile.
    pub(crate) fn note_uncommitted(&self, turn: u64) {
        let has_uncommitted = &self.has_uncommitted[(turn & 1) as usize];
        if !has_uncommitted.load(Ordering::SeqCst) {
            has_uncommitted.store(true, Ordering::SeqCst);
        }
    }

    pub(crate) fn committed(&self) -> Epoch {
        Epoch(self.committed.load(Ordering::SeqCst))
    }

    /// The bytes of the origin that a block covers: a whole block, except at the origin's end.
    pub(crate) fn block_len(&self, block: OriginBlock) -> u64 {
        let start = block.0 << self.geometry.block_shift();
        self.geometry.block_size().min(self.origin.len().saturating_sub(start))
    }

    pub(crate) fn block_offset(&self, block: OriginBlock) -> u64 {
        block.0 << self.geometry.block_shift()
    }

    /// The number of used slots, without slots that are being written back. The watermarks are
    /// compared with this number.
    pub(crate) fn used(&self) -> u64 {
        let held = u64::from(self.geometry.slots()) - u64::from(self.slots.free());
        held.saturating_sub(self.in_flight.load(Ordering::Relaxed))
    }

    pub(crate) fn percent(&self, percent: u32) -> u64 {
        u64::from(self.geometry.slots()) * u64::from(percent) / 100
    }

    /// Marks a version free in memory. The version is removed later, when the mark is durable. The
    /// caller has set the state `Dying` and holds the lock of the block's shard.
    pub(crate) fn mark_dying(&self, block: OriginBlock, slot: Slot) {
        self.table.free(slot);
        self.dying.lock().push((block, slot));
    }

    /// Removes versions with a durable free mark from the index.
    pub(crate) fn remove_marked(&self, dead: &[(OriginBlock, Slot)]) {
        let emptied = self.index.emptied();
        for region in dead.chunk_by(|one, next| region_end(one.0) == region_end(next.0)) {
            for chunk in region.chunks(RUNS_MAX) {
                let mut shard = self.index.shard_after(chunk[0].0);
                let are_dying =
                    shard.remove_all(chunk, emptied, |version| version.state == State::Dying);
                assert!(are_dying, "index::I2: of {chunk:?} one leaves without dying");
            }
        }
        self.pending_slots.lock().fresh.extend(dead.iter().map(|&(_, slot)| slot));
        self.free_unread_slots();
    }

    /// Frees the slots that no reader can use any more.
    pub(crate) fn free_unread_slots(&self) {
        let freed = {
            let mut pending_slots = self.pending_slots.lock();
            let mut freed = Vec::new();
            // Two rounds: the first moves fresh slots to `waiting`, and the second may free these
            // slots at once.
            for _ in 0..2 {
                if !pending_slots.waiting.is_empty() {
                    if !self.readers.is_empty(pending_slots.turn) {
                        break;
                    }
                    freed.append(&mut pending_slots.waiting);
                }
                if !pending_slots.fresh.is_empty() {
                    // The turn can advance only if no reader of the turn before the present one is
                    // inside. The gate has one counter for even turns and one for odd turns. An
                    // earlier advance would count readers of two turns in one counter.
                    let last = self.readers.turn().wrapping_sub(1);
                    if !self.readers.is_empty(last) {
                        break;
                    }
                    pending_slots.waiting = std::mem::take(&mut pending_slots.fresh);
                    pending_slots.turn = self.readers.open_next();
                }
            }
            freed
        };
        self.slots.give(&freed);
    }

    pub(crate) fn want_drain(&self) {
        if self.options.background {
            self.work.wanted.lock().drain = true;
            self.work.drain.notify_one();
        }
    }

    pub(crate) fn want_commit(&self) {
        if self.options.background {
            self.work.wanted.lock().commit = true;
            self.work.commit.notify_one();
        }
    }

    /// Returns the current figures.
    pub(crate) fn status(&self) -> Status {
        let moment = Moment {
            is_failed: self.broken.is_set() || self.is_stalled.load(Ordering::Relaxed),
            blocks: u64::from(self.geometry.slots()),
            free: u64::from(self.slots.free()),
            writeback: self.in_flight.load(Ordering::Relaxed),
            committed: self.committed(),
            block_size: self.geometry.block_size(),
            cut: self.header.lock().stamp.map_or(Cut::None, |stamp| stamp.cut),
        };
        self.counters.status(moment)
    }
}
