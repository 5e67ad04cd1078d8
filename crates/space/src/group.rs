//! One block group: its bytes by state, and a summary that can be read without its lock.
//!
//! # Place
//!
//! [`Space`](crate::Space) finds groups and moves bytes between states; a group knows the addresses
//! of these bytes. The figures of a group include the latest changes. `txn` itself computes the
//! figures of the transaction that is being committed, because the next transaction is already
//! allocating.
//!
//! # Invariants
//!
//! - **G1** Every byte is in one state: free, reserved, used, pinned, or under a superblock.
//! - **G2** A loaded group knows all its free extents. Before loading, nothing is allocated in it.
//! - **G3** Whenever the lock is free, the summary agrees with the state.
//! - **G4** In a group with rows, an allocation takes rows in which nothing is reserved, used or
//!   pinned. Only extents of one batch of writes share a row (`rows`). Free bytes of a row that is
//!   in use count as read-only. Before loading, all free bytes of such a group count as read-only.
//! - **D2** A group of the directory has one slot among the slots of its kind.
//! - **Q1** A group is read-only while at least one hold on it lives; several holds may live at
//!   once.
//!
//! # Locks
//!
//! A group's lock has [`Rank::BlockGroup`], and the account's lock is taken inside it. Searches
//! read the summary without the lock, so they may see an old summary.

#[cfg(feature = "baselines")]
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use buttress_base::sync::Condvar;
use buttress_base::{Rank, Ranked, RankedGuard};
use buttress_format::{BlockGroupFlags, Extent, Generation, Logical};

use crate::account::{Counts, SharedAccount};
use crate::extent_set::ExtentSet;
use crate::free_space::FreeSpace;
use crate::group_state::State;
use crate::index::{Index, Plane, order_of};
use crate::size_class::SizeClass;
use crate::{Error, SpaceKind};

/// The lowest bits of the summary. The length of the largest free run is in the other bits: its low
/// bits are zero, since runs are whole sectors.
const LOADED: u64 = 1;
const CLASS_SHIFT: u32 = 1;
const FLAGS: u64 = 0xfff;

/// The properties of a block group that is added.
#[derive(Clone, Debug)]
pub struct GroupInit {
    /// The group's addresses.
    pub range: Extent,
    /// The group's kind and profile.
    pub flags: BlockGroupFlags,
    /// Bytes in use, according to the group's item.
    pub used: u64,
    /// The transaction that made the group; zero for a group that was read from the volume.
    ///
    /// A group with a birth and no used bytes is known to be free, so it needs no loading.
    pub birth: Generation,
    /// Whether nothing may be allocated in the group.
    pub read_only: bool,
    /// Logical ranges under superblock mirrors, which are never allocated. They may overlap each
    /// other and reach past the group's ends.
    pub superblock_stripes: Vec<Extent>,
    /// With parity, the length of a row: the bytes that share parity. Rows begin at the group's
    /// start. A row in use gets no new extents until all of it is free again. Only extents of one
    /// batch of writes share a row (`rows`).
    pub row: Option<u64>,
}

/// The bytes of one group by state, as they were at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupUsage {
    /// Bytes of recorded extents.
    pub used: u64,
    /// Bytes that are allocated and not recorded yet.
    pub reserved: u64,
    /// Bytes that are freed, but still reachable from the last commit.
    pub pinned: u64,
    /// Bytes under superblocks.
    pub super_bytes: u64,
    /// All other bytes of the group.
    pub free: u64,
}

/// A block group: the space of one chunk.
#[derive(Debug)]
pub struct Group {
    pub(crate) range: Extent,
    flags: BlockGroupFlags,
    pub(crate) kind: SpaceKind,
    birth: Generation,
    pub(crate) sectorsize: u64,
    /// Unit of allocations, in bytes.
    pub(crate) unit: u64,
    pub(crate) row: Option<u64>,
    pub(crate) superblocks: ExtentSet,
    /// The largest free run, whether the group is loaded, and the size class, in one word for
    /// searches.
    summary: AtomicU64,
    used: AtomicU64,
    place: OnceLock<Place>,
    /// Whether the group is read-only or removed, for writers in place.
    pub(crate) stopped: AtomicBool,
    /// Writers in place, counted here by the published baselines only.
    #[cfg(feature = "baselines")]
    pub(crate) writers: AtomicUsize,
    /// Signalled when a read-only group has no reserved bytes any more, or no writers.
    pub(crate) drained: Condvar,
    pub(crate) state: Ranked<State>,
}

/// The slot of a group in the directory, and the index of the group's kind.
#[derive(Debug)]
struct Place {
    index: Arc<Index>,
    slot: usize,
}

impl Group {
    pub(crate) fn new(init: GroupInit, sectorsize: u32, nodesize: u32) -> Result<Self, Error> {
        let GroupInit { range: Extent { start, len }, flags, used, birth, read_only, .. } = init;
        let kind = SpaceKind::from_flags(flags).ok_or(Error::Kind { start, flags })?;
        let sectorsize = u64::from(sectorsize);
        let whole = |bytes: u64| bytes.is_multiple_of(sectorsize);
        if len == 0 || !whole(start.0) || !whole(len) || start.checked_add(len).is_none() {
            return Err(Error::Range { start, len });
        }
        if init.row.is_some_and(|row| row == 0 || !whole(row)) {
            return Err(Error::Range { start, len });
        }
        let superblocks = clip_superblocks(init.range, &init.superblock_stripes);
        let room = len - superblocks.bytes();
        if used > room {
            return Err(Error::Used { start, used, room });
        }
        let unit = if kind == SpaceKind::Data { sectorsize } else { u64::from(nodesize) };
        let state = State {
            free: None,
            reserved: ExtentSet::default(),
            pinned: ExtentSet::default(),
            freed_unloaded: ExtentSet::default(),
            used,
            read_only: u32::from(read_only),
            class: SizeClass::Unset,
            entry: None,
            counted: false,
            removed: false,
        };
        let group = Self {
            range: init.range,
            flags,
            kind,
            birth,
            sectorsize,
            unit,
            row: init.row,
            superblocks,
            summary: AtomicU64::new(0),
            used: AtomicU64::new(used),
            place: OnceLock::new(),
            stopped: AtomicBool::new(read_only),
            #[cfg(feature = "baselines")]
            writers: AtomicUsize::new(0),
            drained: Condvar::new(),
            state: Ranked::new(Rank::BlockGroup, state),
        };
        if birth.0 > 0 && used == 0 {
            group.load_into(None, [init.range].into_iter())?;
        } else {
            group.summarise(&mut group.state.lock());
        }
        Ok(group)
    }

    /// Returns the first address.
    #[must_use]
    pub fn start(&self) -> Logical {
        self.range.start
    }

    /// Returns the length in bytes, which is never zero.
    #[expect(clippy::len_without_is_empty, reason = "a length in bytes; no group is empty of them")]
    #[must_use]
    pub fn len(&self) -> u64 {
        self.range.len
    }

    /// Returns the addresses.
    #[must_use]
    pub fn range(&self) -> Extent {
        self.range
    }

    /// Returns the length of a row, the bytes that share parity. `None` without parity.
    #[must_use]
    pub fn row(&self) -> Option<u64> {
        self.row
    }

    /// The first row that begins at or behind an address.
    pub(crate) fn row_behind(&self, at: u64) -> u64 {
        let Some(row) = self.row else { return at };
        self.start().0 + (at - self.start().0).next_multiple_of(row)
    }

    /// Returns kind and profile, as on disk.
    #[must_use]
    pub fn flags(&self) -> BlockGroupFlags {
        self.flags
    }

    /// Returns the kind of space.
    #[must_use]
    pub fn kind(&self) -> SpaceKind {
        self.kind
    }

    /// Returns the transaction that made the group; zero if it was read from the volume.
    #[must_use]
    pub fn birth(&self) -> Generation {
        self.birth
    }

    /// Returns the bytes in use now. The group's item differs from this figure while the next
    /// transaction runs, because a commit writes only its own changes.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Whether the group's free extents are known.
    #[must_use]
    pub fn is_loaded(&self) -> bool {
        self.summary.load(Ordering::Acquire) & LOADED != 0
    }

    /// Returns the most bytes that one allocation can get in this group. For a group that is not
    /// loaded, this is an upper bound.
    #[must_use]
    pub fn largest_free(&self) -> u64 {
        self.summary.load(Ordering::Acquire) & !FLAGS
    }

    /// The plane of the index in which a loaded group is entered.
    pub(crate) fn plane(&self) -> Plane {
        let summary = self.summary.load(Ordering::Relaxed);
        if summary & LOADED == 0 {
            return Plane::Unloaded;
        }
        SizeClass::ALL[((summary & FLAGS) >> CLASS_SHIFT) as usize].plane()
    }

    /// Gives the group a slot among the groups of its kind, before the group is in the directory.
    pub(crate) fn assign_slot(&self, index: &Arc<Index>, slot: usize) {
        let place = Place { index: Arc::clone(index), slot };
        assert!(self.place.set(place).is_ok(), "D2: a group is added once");
    }

    /// Enters the group in the index and then in the account, once the directory has the group. So
    /// its space can be found before it can be reserved.
    pub(crate) fn open(&self, account: &SharedAccount) {
        let mut state = self.state.lock();
        state.counted = true;
        self.summarise(&mut state);
        account.grow(self.len(), self.super_bytes(), self.counts(&state));
    }

    /// The group's slot among the groups of its kind.
    pub(crate) fn slot(&self) -> usize {
        self.place.get().expect("D2: a group of the directory has a slot").slot
    }

    /// Returns the group's bytes by state.
    #[must_use]
    pub fn usage(&self) -> GroupUsage {
        let state = self.state.lock();
        GroupUsage {
            used: state.used,
            reserved: state.reserved.bytes(),
            pinned: state.pinned.bytes(),
            super_bytes: self.super_bytes(),
            free: self.free_bytes(&state),
        }
    }

    /// Returns the bytes that can still be allocated in the group: none while it is read-only.
    #[must_use]
    pub fn available(&self) -> u64 {
        let state = self.state.lock();
        self.free_bytes(&state) - self.counts(&state).read_only
    }

    /// Returns the approximate memory of the record of free space, in bytes.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.state.lock().free.as_ref().map_or(0, FreeSpace::memory)
    }

    /// Returns the bytes under superblocks.
    #[must_use]
    pub fn super_bytes(&self) -> u64 {
        self.superblocks.bytes()
    }

    /// Free bytes. Their number is known even before loading, but their addresses are not (G1).
    pub(crate) fn free_bytes(&self, state: &State) -> u64 {
        let taken = state.used + state.reserved.bytes() + state.pinned.bytes() + self.super_bytes();
        self.len().checked_sub(taken).expect("G1: states are disjoint parts of the group")
    }

    /// The figures that the group contributes to its account.
    pub(crate) fn counts(&self, state: &State) -> Counts {
        Counts {
            used: state.used,
            reserved: state.reserved.bytes(),
            pinned: state.pinned.bytes(),
            read_only: match &state.free {
                _ if state.read_only > 0 => self.free_bytes(state),
                Some(free) if self.row.is_some() => free.cut_off(),
                None if self.row.is_some() => self.free_bytes(state),
                _ => 0,
            },
        }
    }

    /// Brings the summary and the index up to the state (G3).
    pub(crate) fn summarise(&self, state: &mut State) {
        if state.used == 0 && state.reserved.bytes() == 0 && state.pinned.bytes() == 0 {
            state.class = SizeClass::Unset;
        }
        let largest = match &state.free {
            _ if !state.gives_out() => 0,
            Some(free) => free.largest(),
            None => self.free_bytes(state) & !(self.unit - 1),
        };
        let (loaded, class) = (state.free.is_some(), state.class);
        let flags = (u64::from(loaded) * LOADED) | ((class as u64) << CLASS_SHIFT);
        let summary = largest | flags;
        let show = || {
            if summary != self.summary.load(Ordering::Relaxed) {
                self.summary.store(summary, Ordering::Release);
            }
        };
        if state.used != self.used.load(Ordering::Relaxed) {
            self.used.store(state.used, Ordering::Relaxed);
        }
        if let Some(place) = self.place.get() {
            let plane = if loaded { class.plane() } else { Plane::Unloaded };
            let entry = order_of(largest).map(|order| (plane, order));
            place.index.shift(place.slot, state.entry, entry, show);
            state.entry = entry;
        } else {
            show();
        }
    }

    pub(crate) fn lock(&self) -> RankedGuard<'_, State> {
        self.state.lock()
    }

    pub(crate) fn try_lock(&self) -> Option<RankedGuard<'_, State>> {
        self.state.try_lock()
    }

    /// Changes the state, and updates the summary and the account.
    pub(crate) fn change<R>(
        &self,
        account: &SharedAccount,
        act: impl FnOnce(&mut State) -> R,
    ) -> R {
        let mut state = self.state.lock();
        let before = self.counts(&state);
        let result = act(&mut state);
        self.summarise(&mut state);
        let after = self.counts(&state);
        // A removed group is in no account any more, but a hold on the group may still end.
        if state.is_counted() {
            account.apply_change(before, after, 0);
        }
        self.wake_drains(&state, before.reserved);
        result
    }

    /// Stops allocation in the group (Q1), if the account has enough space without the group.
    pub(crate) fn stop(&self, account: &SharedAccount) -> Result<(), Error> {
        let mut state = self.state.lock();
        let before = self.counts(&state);
        state.stop_writes();
        if state.is_counted()
            && let Err(short) = account.stop(before, self.counts(&state))
        {
            state.allow_writes();
            return Err(Error::Reserved { start: self.start(), missing: short.missing });
        }
        self.summarise(&mut state);
        Ok(())
    }

    /// Compares states, indexes and summary.
    pub(crate) fn verify(&self) -> Result<Counts, String> {
        let mut state = self.state.lock();
        let fault = |what: String| format!("group {}: {what}", self.start());
        if let Some(free) = &state.free {
            free.verify().map_err(fault)?;
            if free.bytes() != self.free_bytes(&state) {
                let expected = self.free_bytes(&state);
                return Err(fault(format!("G1: {} free, {expected} expected", free.bytes())));
            }
            for (start, end) in free.iter() {
                let elsewhere = state.reserved.overlaps(start, end)
                    || state.pinned.overlaps(start, end)
                    || self.superblocks.overlaps(start, end);
                if elsewhere || start < self.start().0 || end > self.range.end().0 {
                    return Err(fault(format!("G1: {start}..{end} is free and something else")));
                }
            }
        }
        let seen = (self.largest_free(), self.used(), self.plane(), state.entry);
        if let Some(place) = self.place.get() {
            place.index.verify(place.slot, state.entry).map_err(fault)?;
        }
        self.summarise(&mut state);
        if seen != (self.largest_free(), self.used(), self.plane(), state.entry) {
            return Err(fault(format!("G3: the summary said {seen:?}")));
        }
        Ok(self.counts(&state))
    }
}

/// The parts of superblocks inside the group. On several devices they may overlap.
fn clip_superblocks(group: Extent, stripes: &[Extent]) -> ExtentSet {
    let mut set = ExtentSet::default();
    for stripe in stripes {
        let start = stripe.start.max(group.start);
        let end = stripe.end().min(group.end());
        if start < end {
            set.insert_missing(start.0, end.0);
        }
    }
    set
}
