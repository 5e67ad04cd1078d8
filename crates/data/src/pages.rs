//! The page cache: clean data in memory, by its address on the volume.
//!
//! # Place
//!
//! An address holds one content for as long as an extent lies there. So files, their clones and
//! their snapshots share cached data. The first reader that misses data claims a *run*, and reads
//! it in one request. The run covers all data that this reader is going to read. A reader that
//! needs the same data meanwhile waits for the run, or claims the data after it. So the device sees
//! long requests however many threads read.
//!
//! # Invariants
//!
//! - **P1** The cache never returns a byte that is not on the device. A writer to an address calls
//!   [`Pages::forget`] after the write, and before any thread learns of the write. A run that was
//!   being read meanwhile goes to its reader, which has an older view, and is not kept.
//! - **P2** Kept runs do not overlap, and none crosses a boundary of [`REGION`].
//! - **P3** Every claim ends: its holder publishes or drops it, and either step wakes the waiting
//!   threads.
//! - **P4** The cache keeps at most its budget. It may exceed the budget by the run that was kept
//!   last, and while entries are swept ([`queues`]).
//!
//! # Order of eviction
//!
//! New runs enter a short queue. A run leaves memory from the end of this queue, unless its start
//! was read once more. In that case the run moves to a long queue, which checks its runs in turns
//! ([`queues`]). A file that one thread reads once, from end to end, evicts only itself. A run that
//! was read ahead, and not read yet, passes the short queue twice.
//!
//! # Locks
//!
//! A thread holds the lock of one region or the lock of the queues, never both. A thread holds
//! neither lock while it reads or frees memory.

#[path = "pages/queues.rs"]
mod queues;

use std::collections::BTreeMap;

use buttress_base::AlignedBuf;
use buttress_base::activity::{self, Cause};
use buttress_format::{Extent, Logical};

use crate::sync::{Arc, AtomicU64, Condvar, Ordering, Rank, Ranked};
use queues::{PROBATION, Queued, Queues, Verdict};

/// Longest run, in bytes. No run crosses a multiple of this length.
pub(crate) const REGION: u64 = 2 << 20;

/// Number of locks. Several regions share each lock.
const SHARDS: usize = 64;

/// The maximum number of buffers that are kept for the next runs, in addition to the budget.
const SPARE: usize = 8;

/// A buffer of at least this many bytes is made a power of two long, so that it can be used again.
/// Faulting in new memory costs more than reading data into it.
const ROUND_MIN: u64 = 128 << 10;

/// How much a reader claims at once. `One` and `Sixteen` are baselines. Linux read like `One`
/// before 2012, and like `Sixteen` after it began to read in batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadBatch {
    /// A sector at a time.
    #[cfg(feature = "baselines")]
    One,
    /// 64 KiB at a time: sixteen pages.
    #[cfg(feature = "baselines")]
    Sixteen,
    /// As much as the reader is going to read, up to 2 MiB.
    #[default]
    Run,
}

impl ReadBatch {
    pub(crate) fn bytes(self, sector: u64) -> u64 {
        let _ = sector;
        match self {
            #[cfg(feature = "baselines")]
            Self::One => sector,
            #[cfg(feature = "baselines")]
            Self::Sixteen => 64 << 10,
            Self::Run => REGION,
        }
    }
}

#[derive(Debug)]
enum State {
    /// A thread reads the run. If `is_doomed`, the run is not to be kept (P1). If `is_awaited`,
    /// other threads wait for it.
    Loading {
        is_doomed: bool,
        is_awaited: bool,
    },
    Ready {
        bytes: Arc<AlignedBuf>,
        read: Heat,
    },
}

/// The state of a run when its claim begins.
const LOADING: State = State::Loading { is_doomed: false, is_awaited: false };

/// How a run was read. Only reads of the run's start count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Heat {
    /// Read ahead, and not used by a reader yet.
    Ahead,
    /// As `Ahead`, but the run was evicted recently. The next read of the run's start makes it
    /// `Again`.
    Returned,
    /// As `Ahead`, and spared once from eviction.
    Spared,
    Once,
    Again,
}

impl Heat {
    fn more(self) -> Self {
        match self {
            Self::Ahead | Self::Spared => Self::Once,
            Self::Returned | Self::Once | Self::Again => Self::Again,
        }
    }
}

/// The kind of reader that a run is read for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A reader takes the run now.
    Now,
    /// A reader will probably ask for the run later.
    Later,
}

#[derive(Debug)]
struct Slot {
    len: u64,
    /// Distinguishes successive runs at one address.
    number: u64,
    state: State,
}

#[derive(Debug)]
struct Shard {
    runs: Ranked<BTreeMap<u64, Slot>>,
    changed: Condvar,
    /// Lookups of readers that found data, and those that did not.
    hits: AtomicU64,
    misses: AtomicU64,
}

/// The present content of a page cache, and how often readers found data in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageStats {
    /// Bytes in the cache.
    pub bytes: u64,
    /// Lookups that found data.
    pub hits: u64,
    /// Lookups that found no data, so that the reader had to read the devices.
    pub misses: u64,
}

/// The page cache of a volume.
#[derive(Debug)]
pub(crate) struct Pages {
    shards: Vec<Shard>,
    queues: Ranked<Queues>,
    budget: u64,
    /// Long buffers that are not in use. Faulting in new memory costs more than reading data into
    /// it.
    spare: Ranked<Vec<AlignedBuf>>,
    next_number: AtomicU64,
}

/// The state of an address in the cache.
#[derive(Debug)]
pub(crate) enum PageLookup<'p> {
    /// The bytes of a run, and the position of the address in them.
    Ready { bytes: Arc<AlignedBuf>, from: usize },
    /// Not cached: the caller reads the run for all threads that wait.
    Claimed(RunClaim<'p>),
    /// Another thread reads the run, which ends at `end`.
    Loading { end: Logical },
}

/// The task to read a run (P3).
#[derive(Debug)]
#[must_use = "others wait for it"]
pub(crate) struct RunClaim<'p> {
    pages: &'p Pages,
    extent: Extent,
    number: u64,
}

impl Pages {
    /// A cache of up to `budget` bytes. With a budget of zero, the cache never has any data.
    pub(crate) fn new(budget: u64) -> Self {
        let shard = || Shard {
            runs: Ranked::new(Rank::Leaf, BTreeMap::new()),
            changed: Condvar::new(),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        };
        Self {
            shards: (0..SHARDS).map(|_| shard()).collect(),
            queues: Ranked::new(Rank::Leaf, Queues::new(budget)),
            budget,
            spare: Ranked::new(Rank::Leaf, Vec::new()),
            next_number: AtomicU64::new(0),
        }
    }

    /// Whether the cache has a budget, and so can find anything.
    pub(crate) fn is_on(&self) -> bool {
        self.budget > 0
    }

    /// The figures of the cache.
    pub(crate) fn stats(&self) -> PageStats {
        let bytes = self.queues.lock().kept_bytes();
        let mut stats = PageStats { bytes, ..PageStats::default() };
        for shard in &self.shards {
            stats.hits += shard.hits.load(Ordering::Relaxed);
            stats.misses += shard.misses.load(Ordering::Relaxed);
        }
        stats
    }

    fn shard(&self, at: u64) -> &Shard {
        // Neighbouring regions use different shards, and so do regions at equal offsets in
        // different chunks.
        let region = at / REGION;
        &self.shards[(region ^ (region >> 7)) as usize % SHARDS]
    }

    /// Checks P2 and P4 while no thread uses the pages. Returns the number of kept bytes.
    #[cfg(test)]
    pub(crate) fn audit(&self) -> u64 {
        let mut all = BTreeMap::new();
        for shard in &self.shards {
            all.extend(shard.runs.lock().iter().map(|(start, slot)| (*start, slot.len)));
        }
        let entered = self.queues.lock().audit();
        let room: u64 = all.values().map(|len| room(*len)).sum();
        assert!(entered >= room, "pages::queues::Q1: {room} bytes are kept, {entered} in queues");
        let mut last = 0;
        for (start, len) in &all {
            assert!(start / REGION == (start + len - 1) / REGION, "P2: crosses a boundary");
            assert!(*start >= last, "P2: overlaps");
            last = start + len;
        }
        let kept = all.values().sum();
        let longest = all.values().copied().max().unwrap_or(0);
        assert!(kept <= self.budget.max(longest), "P4: {kept} bytes are kept");
        kept
    }

    /// A buffer for a run, with arbitrary content.
    pub(crate) fn buffer(&self, len: u64) -> AlignedBuf {
        let room = room(len) as usize;
        let old = {
            let mut spare = self.spare.lock();
            let index = spare.iter().rposition(|bytes| bytes.capacity() == room);
            index.map(|index| spare.remove(index))
        };
        match old {
            Some(mut bytes) => {
                bytes.set_len(len as usize);
                bytes
            }
            None => AlignedBuf::with_capacity(len as usize, room),
        }
    }

    /// Keeps the buffer of a run that leaves the cache, for later runs.
    fn reuse(&self, slot: Slot) {
        let State::Ready { bytes, .. } = slot.state else { return };
        if slot.len < ROUND_MIN {
            return;
        }
        let Ok(bytes) = Arc::try_unwrap(bytes) else { return };
        let mut spare = self.spare.lock();
        // Drop the oldest buffer. Perhaps no run will need a buffer of this length again.
        let gone = if spare.len() == SPARE { Some(spare.remove(0)) } else { None };
        spare.push(bytes);
        drop(spare);
        drop(gone);
    }

    /// Looks up an address without a claim. Returns the bytes and the position of the address in
    /// them. Otherwise returns the address up to which the cache has nothing.
    pub(crate) fn peek(&self, at: Logical) -> Result<(Arc<AlignedBuf>, usize), Logical> {
        let shard = self.shard(at.0);
        let mut runs = shard.runs.lock();
        let end = Logical(region_end(at.0));
        match covering(&mut runs, at.0) {
            Ok((start, slot)) => match &mut slot.state {
                State::Ready { bytes, read } => {
                    shard.hits.fetch_add(1, Ordering::Relaxed);
                    *read = if start == at.0 { read.more() } else { *read };
                    Ok((Arc::clone(bytes), (at.0 - start) as usize))
                }
                State::Loading { .. } => Err(Logical(start + slot.len)),
            },
            Err(next) => {
                shard.misses.fetch_add(1, Ordering::Relaxed);
                Err(next.map_or(end, |next| end.min(Logical(next))))
            }
        }
    }

    /// Returns whether the cache has an address, or a reader is loading it. This does not count as
    /// a use, so a scan that looks ahead does not mark the runs that it passes as used.
    pub(crate) fn holds(&self, at: Logical) -> bool {
        covering(&mut self.shard(at.0).runs.lock(), at.0).is_ok()
    }

    /// Finds the run that holds an address, or claims a run that begins there and is at most `want`
    /// bytes long. If `continues`, the reader has read a part of this sector before: both reads
    /// count as one.
    pub(crate) fn find(&self, at: Logical, want: u64, continues: bool) -> PageLookup<'_> {
        let shard = self.shard(at.0);
        let mut runs = shard.runs.lock();
        let next = match covering(&mut runs, at.0) {
            Ok((start, slot)) => match &mut slot.state {
                State::Ready { bytes, read } => {
                    shard.hits.fetch_add(1, Ordering::Relaxed);
                    let comes = start == at.0 && !continues;
                    *read = if comes { read.more() } else { *read };
                    let (bytes, from) = (Arc::clone(bytes), (at.0 - start) as usize);
                    return PageLookup::Ready { bytes, from };
                }
                State::Loading { is_awaited, .. } => {
                    *is_awaited = true;
                    return PageLookup::Loading { end: Logical(start + slot.len) };
                }
            },
            Err(next) => next,
        };
        shard.misses.fetch_add(1, Ordering::Relaxed);
        PageLookup::Claimed(self.enter(&mut runs, at, next, want))
    }

    /// Claims a run to be read ahead. If a run that is cached or being read has the address,
    /// returns the end of that run.
    pub(crate) fn claim(&self, at: Logical, want: u64) -> Result<RunClaim<'_>, Logical> {
        let mut runs = self.shard(at.0).runs.lock();
        match covering(&mut runs, at.0) {
            Ok((start, slot)) => Err(Logical(start + slot.len)),
            Err(next) => Ok(self.enter(&mut runs, at, next, want)),
        }
    }

    fn enter(
        &self,
        runs: &mut BTreeMap<u64, Slot>,
        at: Logical,
        next: Option<u64>,
        want: u64,
    ) -> RunClaim<'_> {
        let end = region_end(at.0).min(next.unwrap_or(u64::MAX));
        let len = want.min(end - at.0);
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        runs.insert(at.0, Slot { len, number, state: LOADING });
        RunClaim { pages: self, extent: Extent::new(at, len), number }
    }

    /// The widest window for reading ahead, in bytes. The run in use and two windows ahead of it
    /// must fit into the queue of new runs. Otherwise the run would leave memory while its reader
    /// uses it. The window is a power of two, as buffers are; it may be less than a sector.
    pub(crate) fn widest_window(&self) -> u64 {
        let most = (self.budget / (4 * PROBATION)).min(REGION);
        most.checked_ilog2().map_or(0, |log| 1 << log)
    }

    /// Waits until no thread reads the run that holds an address. Returns early if the caller may
    /// abandon its wait.
    pub(crate) fn wait(&self, at: Logical) {
        let shard = self.shard(at.0);
        let _waiting = activity::wait(Cause::Reader);
        let mut runs = shard.runs.lock();
        while let Ok((_, slot)) = covering(&mut runs, at.0)
            && let State::Loading { is_awaited, .. } = &mut slot.state
        {
            *is_awaited = true;
            if runs.wait_a_while(&shard.changed) {
                return;
            }
        }
    }

    /// Drops cached data of an extent that was just written (P1).
    pub(crate) fn forget(&self, extent: Extent) {
        if self.budget == 0 {
            return;
        }
        let mut at = extent.start.0;
        while at < extent.end().0 {
            let stop = region_end(at).min(extent.end().0);
            let mut gone = Vec::new();
            let mut runs = self.shard(at).runs.lock();
            let first = covering(&mut runs, at).map_or(at, |(start, _)| start);
            for (start, slot) in runs.range_mut(first..stop) {
                match &mut slot.state {
                    State::Loading { is_doomed, .. } => *is_doomed = true,
                    State::Ready { .. } => gone.push(*start),
                }
            }
            let gone: Vec<_> = gone.into_iter().filter_map(|start| runs.remove(&start)).collect();
            drop(runs);
            if !gone.is_empty() {
                let bytes = gone.iter().map(|slot| room(slot.len)).sum();
                self.queues.lock().drop_litter(bytes);
            }
            // Free the memory without the lock.
            drop(gone);
            at = stop;
        }
    }

    /// Enters a new run into the queues, and drops runs beyond the budget (P4).
    fn queue(&self, new: Queued, purpose: Purpose) {
        let mut queues = self.queues.lock();
        queues.enter(new, purpose);
        while let Some(turn) = queues.next(self.budget.max(new.len)) {
            drop(queues);
            let verdict = self.verdict(turn.victim);
            queues = self.queues.lock();
            queues.settle(turn, verdict);
        }
        let Some(mut sweep) = queues.sweep() else { return };
        drop(queues);
        let gone = sweep.keep(|entry| {
            let runs = self.shard(entry.start).runs.lock();
            runs.get(&entry.start).is_some_and(|slot| slot.number == entry.number)
        });
        self.queues.lock().swept(sweep, gone);
    }

    /// Decides about a run at its turn. The run stays if it was read again since its last turn, or
    /// if its reader is still to come. Otherwise the run is dropped.
    fn verdict(&self, victim: Queued) -> Verdict {
        let mut runs = self.shard(victim.start).runs.lock();
        let slot = runs.get_mut(&victim.start).filter(|slot| slot.number == victim.number);
        let Some(slot) = slot else { return Verdict::WasGone };
        let mut verdict = Verdict::Evict;
        if let State::Ready { read, .. } = &mut slot.state {
            match *read {
                Heat::Again => {
                    *read = Heat::Once;
                    return Verdict::Keep;
                }
                Heat::Ahead | Heat::Returned => {
                    *read = Heat::Spared;
                    return Verdict::Spare;
                }
                Heat::Spared => verdict = Verdict::EvictUnread,
                Heat::Once => {}
            }
        }
        let gone = runs.remove(&victim.start);
        drop(runs);
        gone.into_iter().for_each(|slot| self.reuse(slot));
        verdict
    }
}

impl RunClaim<'_> {
    /// The extent to be read.
    pub(crate) fn extent(&self) -> Extent {
        self.extent
    }

    /// Gives the bytes, which were read and checked, to all waiting threads.
    pub(crate) fn publish(self, bytes: &Arc<AlignedBuf>, purpose: Purpose) {
        assert_eq!(bytes.len() as u64, self.extent.len, "P2: a run of another length");
        let shard = self.pages.shard(self.extent.start.0);
        let read = match purpose {
            Purpose::Now => Heat::Once,
            Purpose::Later if self.pages.queues.lock().recall(self.extent.start.0) => {
                Heat::Returned
            }
            Purpose::Later => Heat::Ahead,
        };
        let kept = {
            let mut runs = shard.runs.lock();
            let slot = runs.get_mut(&self.extent.start.0);
            slot.filter(|slot| matches!(slot.state, State::Loading { is_doomed: false, .. }))
                .map(|slot| {
                    let bytes = Arc::clone(bytes);
                    slot.state = State::Ready { bytes, read };
                })
                .is_some()
        };
        if kept {
            let Extent { start, len } = self.extent;
            let new = Queued { start: start.0, number: self.number, len: room(len) };
            self.pages.queue(new, purpose);
        }
        // Dropping the claim wakes the threads that wait, and takes out a run that is not kept.
    }

    /// Gives a copy of the bytes, which were read and checked, to waiting threads. If no thread
    /// waits, nothing is kept.
    pub(crate) fn publish_copy(self, bytes: &[u8]) {
        let is_wanted = {
            let runs = self.pages.shard(self.extent.start.0).runs.lock();
            let slot = runs.get(&self.extent.start.0);
            let is_wanted = |state: &State| {
                matches!(state, State::Loading { is_doomed: false, is_awaited: true })
            };
            slot.is_some_and(|slot| is_wanted(&slot.state))
        };
        if is_wanted {
            let mut copy = self.pages.buffer(self.extent.len);
            copy.copy_from_slice(bytes);
            self.publish(&Arc::new(copy), Purpose::Now);
        }
    }
}

impl Drop for RunClaim<'_> {
    fn drop(&mut self) {
        let shard = self.pages.shard(self.extent.start.0);
        let mut runs = shard.runs.lock();
        let start = self.extent.start.0;
        let is_open =
            |slot: &Slot| slot.number == self.number && matches!(slot.state, State::Loading { .. });
        if runs.get(&start).is_some_and(is_open) {
            runs.remove(&start);
        }
        drop(runs);
        shard.changed.notify_all();
    }
}

/// Bytes of memory that a run takes.
fn room(len: u64) -> u64 {
    if len < ROUND_MIN { len } else { len.next_power_of_two() }
}

fn region_end(at: u64) -> u64 {
    (at / REGION + 1).saturating_mul(REGION)
}

/// The run that holds an address. Otherwise the start of the next run in the same region, if there
/// is one.
fn covering(runs: &mut BTreeMap<u64, Slot>, at: u64) -> Result<(u64, &mut Slot), Option<u64>> {
    let next = runs.range(at + 1..region_end(at)).next().map(|(start, _)| *start);
    match runs.range_mut(..=at).next_back() {
        Some((start, slot)) if *start + slot.len > at => Ok((*start, slot)),
        _ => Err(next),
    }
}
