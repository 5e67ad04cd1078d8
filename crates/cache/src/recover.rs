//! Finds the committed versions of a cache on disk, and opens the cache.
//!
//! # Place
//!
//! [`scan`] serves both the opening of a cache and the tools that only read a cache.
//!
//! # Invariants
//!
//! - **V1** A version is valid only if its epoch is below the superblock's epoch. Of several such
//!   versions of one block, only the newest is valid.
//! - **V2** Invalid versions are erased durably before the first commit, because that commit would
//!   make them valid.
//!
//! # Failure
//!
//! Opening writes nothing until it has read and checked everything.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::time::Instant;

use buttress_base::sync::Mutex;
use buttress_base::{CachePadded, Latch, Rank, Ranked};
use buttress_block::Device;

use crate::core::{Core, PendingSlots, WorkSignals};
use crate::error::Error;
use crate::gate::Gate;
use crate::identity;
use crate::index::{Index, State, Version};
use crate::layout::{Cut, ENTRY_LEN, HEADER_LEN, RawEntry, SECTOR, Stamp, Superblock};
use crate::medium::CacheRegion;
use crate::options::CacheOptions;
use crate::slots::Slots;
use crate::status::Counters;
use crate::sweep::Sweep;
use crate::table::Table;
use crate::units::{Epoch, OriginBlock, Slot};

/// Entries read at a time.
const CHUNK: u64 = 65536;

/// The classification of one entry of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The slot is free.
    Free,
    /// The entry has the newest committed version of its block.
    Kept,
    /// The entry was written after the last commit.
    Uncommitted,
    /// A newer version of its block is committed.
    Superseded,
    /// The entry names a sector past the origin's end.
    PastOrigin,
}

/// All entries of a cache, classified.
#[derive(Debug)]
pub struct Scan {
    /// The superblock.
    pub superblock: Superblock,
    /// Every slot's entry and its fate.
    pub entries: Vec<(RawEntry, Fate)>,
    /// Faults of entries. A faulty entry is not kept. Of two entries with the same block and epoch,
    /// the first is kept.
    pub faults: Vec<Error>,
}

/// Reads and classifies all entries (V1). `origin` is the name and the length of the origin, if it
/// is known.
pub(crate) fn scan(medium: &CacheRegion, origin: Option<(&str, u64)>) -> Result<Scan, Error> {
    let superblock = medium.superblock()?;
    let geometry = superblock.geometry;
    let mut entries = Vec::with_capacity(geometry.slots() as usize);
    let mut faults = Vec::new();
    let mut newest: HashMap<u64, Slot> = HashMap::new();
    let total = u64::from(geometry.slots());
    let mut at = 0;
    while at < total {
        let count = CHUNK.min(total - at);
        let mut bytes = vec![0; count as usize * ENTRY_LEN];
        medium.read_at(HEADER_LEN as u64 + at * ENTRY_LEN as u64, &mut bytes)?;
        for raw in bytes.chunks_exact(ENTRY_LEN) {
            let entry = RawEntry::parse(raw.try_into().expect("chunks of this length"));
            let slot = Slot(u32::try_from(entries.len()).expect("as many as slots"));
            let fate = classify(&superblock, entry, slot, origin, &mut faults);
            entries.push((entry, fate));
            if fate != Fate::Kept {
                continue;
            }
            let Some(&other) = newest.get(&entry.sector) else {
                newest.insert(entry.sector, slot);
                continue;
            };
            let found = entries[other.0 as usize].0.epoch;
            if found == entry.epoch {
                let (sector, epoch) = (entry.sector, entry.epoch);
                faults.push(Error::EqualSequence { first: other, second: slot, sector, epoch });
            }
            let loser = if found < entry.epoch { other } else { slot };
            if loser == other {
                newest.insert(entry.sector, slot);
            }
            entries[loser.0 as usize].1 = Fate::Superseded;
        }
        at += count;
    }
    Ok(Scan { superblock, entries, faults })
}

fn classify(
    superblock: &Superblock,
    entry: RawEntry,
    slot: Slot,
    origin: Option<(&str, u64)>,
    faults: &mut Vec<Error>,
) -> Fate {
    if entry.epoch == Epoch::FREE {
        return Fate::Free;
    }
    if entry.epoch >= superblock.epoch {
        return Fate::Uncommitted;
    }
    let sector = entry.sector;
    if !sector.is_multiple_of(superblock.geometry.block_size() / SECTOR) {
        faults.push(Error::Misaligned { slot, sector });
        return Fate::Uncommitted;
    }
    if let Some((name, len)) = origin
        && sector.checked_mul(SECTOR).is_none_or(|start| start >= len)
    {
        faults.push(Error::PastOrigin { slot, sector, origin: name.to_owned(), len });
        return Fate::PastOrigin;
    }
    Fate::Kept
}

/// Opens a cache: reads, checks, erases uncommitted versions (V2), and stamps the cache.
pub(crate) fn open(
    origin: Arc<dyn Device>,
    cache: Arc<dyn Device>,
    options: CacheOptions,
) -> Result<Core, Error> {
    options.check()?;
    let medium = CacheRegion::new(cache, options.start_sector)?;
    let scan = scan(&medium, Some((&origin.name(), origin.len())))?;
    let mut superblock = scan.superblock;
    let geometry = superblock.geometry;
    if let Some(asked) = options.block_size
        && u64::from(asked) != geometry.block_size()
    {
        return Err(Error::OtherBlockSize { found: geometry.block_size() as u32, asked });
    }
    let is_dropped = |fault: &Error| options.force && matches!(fault, Error::PastOrigin { .. });
    if let Some(fault) = scan.faults.iter().find(|fault| !is_dropped(fault)) {
        return Err(fault.clone());
    }
    let found = identity::of_device(&*origin)?;
    let other = superblock.stamp.filter(|stamp| found != stamp.origin && found != stamp.next);
    if let Some(Stamp { origin: expected, .. }) = other {
        let wrong = Error::WrongOrigin { origin: origin.name(), expected, found };
        if !options.force {
            return Err(wrong);
        }
        tracing::warn!(cache = %medium.name(), error = %wrong, "forced");
    }

    let mut table = Table::new(geometry);
    let slots = Slots::new(geometry.slots());
    let index = Index::new();
    let (mut free, mut kept, mut is_dirty) = (Vec::new(), Vec::new(), false);
    for (number, &(entry, fate)) in (0..).zip(&scan.entries) {
        let slot = Slot(number);
        match fate {
            Fate::Kept => {
                table.load(slot, entry);
                let block = OriginBlock(entry.sector / (geometry.block_size() / SECTOR));
                let version = Version { epoch: entry.epoch, slot, state: State::Ready };
                index.shard(block).push(block, version);
                kept.push((entry.epoch, block, slot));
            }
            Fate::Free => {
                table.load(slot, entry);
                free.push(slot);
            }
            _ => {
                table.load(slot, RawEntry::FREE);
                is_dirty = true;
                free.push(slot);
            }
        }
    }
    // The oldest versions come first, as far as the order is known.
    kept.sort_unstable();
    let is_lru = options.writeback != crate::options::Writeback::Sorted;
    let oldest: VecDeque<_> =
        kept.iter().filter(|_| is_lru).map(|&(_, block, slot)| (block, slot)).collect();

    let cut = match superblock.stamp.map_or(Cut::None, |stamp| stamp.cut) {
        // From now on write-back ignores cuts, so the origin is not consistent without its cache.
        _ if !options.consistent_origin => Cut::None,
        // The recorded cut belongs to another origin.
        _ if other.is_some() => Cut::None,
        // The scan has kept only the newest version of each block, so the old cut cannot be reached
        // any more. But all committed versions together make another cut.
        Cut::Towards(_) => Cut::Towards(superblock.epoch),
        cut => cut,
    };
    let stamp = Some(Stamp { origin: found, next: found, cut });
    let is_stamped = superblock.stamp == stamp;
    superblock.stamp = stamp;
    let epoch = superblock.epoch;
    let core = Core {
        cleaner: AtomicBool::new(options.cleaner),
        flush_on_suspend: AtomicBool::new(options.flush_on_suspend),
        origin,
        medium,
        geometry,
        index,
        table,
        slots,
        writers: Gate::new(epoch.0),
        readers: Gate::new(1),
        committed: AtomicU64::new(epoch.0),
        has_uncommitted: [AtomicBool::new(false), AtomicBool::new(false)],
        uncommitted: CachePadded::default(),
        origin_dirty: AtomicBool::new(false),
        bypassed_at: AtomicU64::new(0),
        bypassing: Ranked::new(Rank::Leaf, Vec::new()),
        bypassing_writes: AtomicUsize::new(0),
        in_flight: AtomicU64::new(0),
        started: Instant::now(),
        counters: Counters::default(),
        broken: Latch::new(),
        drain_error: Ranked::new(Rank::Leaf, None),
        is_stalled: AtomicBool::new(false),
        superseded: Ranked::new(Rank::Leaf, Vec::new()),
        dying: Ranked::new(Rank::Leaf, Vec::new()),
        pending_slots: Ranked::new(Rank::Leaf, PendingSlots::default()),
        oldest: Ranked::new(Rank::Leaf, oldest),
        ages: Ranked::new(Rank::Leaf, VecDeque::from([(epoch, Instant::now())])),
        drain: Mutex::new(Sweep::default()),
        origin_sync: Mutex::new(()),
        commit: Mutex::new(()),
        header: Mutex::new(superblock),
        work: WorkSignals::default(),
        options,
    };
    if core.medium.writable() && core.origin.writable() {
        if is_dirty {
            core.table.mark_all_dirty();
        }
        if is_dirty || !is_stamped {
            core.table.mark_header_dirty();
            core.flush_table()?;
        }
    }
    core.slots.give(&free);
    Ok(core)
}
