//! Promises of metadata space, made before an operation starts.
//!
//! What a commit needs is bounded from two sides, and the smaller bound counts: every changed item
//! dirties at most one path and one split; and all of them together dirty at most every node there
//! is, plus what the new bytes fill. So a long transaction of small operations does not promise
//! more than the volume has.
//!
//! # Invariants
//!
//! - **P1** need(running + promised) + need(frozen) fits in free metadata less the global reserve,
//!   and in half of what the devices have unallocated, which data cannot take meanwhile.
//! - **P2** Whoever asks holds no handle: asking may commit.

use std::sync::atomic::Ordering;

use buttress_space::SpaceKind;

use crate::{Engine, Error, Result, transaction::Transaction};

/// What an operation may put, at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Items set or deleted; a data reference counts as three.
    pub items: u32,
    /// Bytes of their payloads, and of checksums.
    pub bytes: u32,
}

/// Who is asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// An operation that fills the volume.
    Normal,
    /// One that empties it in the end, such as unlink and truncate: it may use the global reserve.
    Frees,
}

/// Operations that were promised space and have not ended.
#[derive(Debug, Default)]
pub(crate) struct Outstanding {
    items: u64,
    bytes: u64,
}

/// A promise. What was not put when it is dropped was not needed.
#[must_use = "a reservation that is dropped promises nothing"]
pub struct MetaReservation {
    engine: std::sync::Weak<Engine>,
    /// Items and bytes, as in [`Cost`]; many operations' worth may be held as one.
    items: u64,
    bytes: u64,
}

impl MetaReservation {
    fn new(engine: &std::sync::Arc<Engine>, cost: Cost) -> Self {
        let (items, bytes) = (u64::from(cost.items), u64::from(cost.bytes));
        Self { engine: std::sync::Arc::downgrade(engine), items, bytes }
    }

    /// Adds another promise of the same volume.
    ///
    /// # Panics
    ///
    /// When it is another volume's: a bug of the caller.
    pub fn merge(&mut self, mut other: Self) {
        assert!(self.engine.ptr_eq(&other.engine), "promises of two volumes");
        self.items += std::mem::take(&mut other.items);
        self.bytes += std::mem::take(&mut other.bytes);
    }

    /// Cuts off `part` of `whole`, rounded up: the share of some of the things it was made for.
    pub fn split(&mut self, part: usize, whole: usize) -> Self {
        let share = |of: u64| of.min((of * part as u64).div_ceil(whole.max(1) as u64));
        self.cut(share(self.items), share(self.bytes))
    }

    /// Cuts off what of `cost` there is, and says what is missing.
    pub fn split_cost(&mut self, cost: Cost) -> (Self, Cost) {
        let items = u64::from(cost.items).min(self.items);
        let bytes = u64::from(cost.bytes).min(self.bytes);
        let short = Cost { items: cost.items - items as u32, bytes: cost.bytes - bytes as u32 };
        (self.cut(items, bytes), short)
    }

    fn cut(&mut self, items: u64, bytes: u64) -> Self {
        self.items -= items;
        self.bytes -= bytes;
        Self { engine: self.engine.clone(), items, bytes }
    }
}

impl Drop for MetaReservation {
    fn drop(&mut self) {
        if (self.items > 0 || self.bytes > 0)
            && let Some(engine) = self.engine.upgrade()
        {
            let mut outstanding = engine.outstanding.lock();
            outstanding.items -= self.items;
            outstanding.bytes -= self.bytes;
        }
    }
}

impl std::fmt::Debug for MetaReservation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { items, bytes, .. } = self;
        write!(f, "MetaReservation({items} items, {bytes} bytes)")
    }
}

/// Rounds of making space before giving up.
const ROUNDS_MAX: u32 = 4;

impl Engine {
    /// Promises metadata space for one operation if it is there, without making any.
    ///
    /// # Errors
    ///
    /// [`Error::ReadOnly`], [`Error::Aborted`]; not [`Error::NoSpace`], which is `None`.
    pub fn reserve_at_once(
        self: &std::sync::Arc<Self>,
        cost: Cost,
        urgency: Urgency,
    ) -> Result<Option<MetaReservation>> {
        self.check_writable()?;
        self.pace()?;
        Ok(self.try_reserve(cost, urgency).then(|| MetaReservation::new(self, cost)))
    }

    /// Promises metadata space for one operation. May allocate a chunk, or wait for a commit.
    ///
    /// # Errors
    ///
    /// [`Error::NoSpace`] when all that did not help; [`Error::ReadOnly`], [`Error::Aborted`].
    pub fn reserve(
        self: &std::sync::Arc<Self>,
        cost: Cost,
        urgency: Urgency,
    ) -> Result<MetaReservation> {
        self.check_writable()?;
        self.pace()?;
        for round in 0..=ROUNDS_MAX {
            if self.try_reserve(cost, urgency) {
                return Ok(MetaReservation::new(self, cost));
            }
            self.release_pinned();
            if self.try_reserve(cost, urgency) {
                return Ok(MetaReservation::new(self, cost));
            }
            // A long transaction promises more than it will use: a commit shows how much. Only where
            // the trees themselves are what fills the groups is a new chunk the first answer.
            let account = self.space.account(SpaceKind::Metadata);
            let crowded = account.used > account.total / 10 * 7;
            if (crowded || round > 0) && self.add_chunk(SpaceKind::Metadata)? {
                continue;
            }
            if round == ROUNDS_MAX {
                break;
            }
            self.commit()?;
            self.wait_for_unpin(|| self.may_reserve(cost, urgency));
        }
        tracing::debug!(account = %self.space.account(SpaceKind::Metadata), "no metadata space");
        Err(Error::NoSpace("metadata"))
    }

    /// Memory is bounded (T4): a full overlay is committed in the background, and once it holds
    /// twice as much whoever wants to add waits for that commit.
    fn pace(&self) -> Result<()> {
        let held = self.view.load().running().bytes();
        let limit = self.options.overlay_max;
        if held > limit {
            self.commit_wanted.store(true, Ordering::Relaxed);
        }
        if held > 2 * limit {
            self.commit()?;
        }
        Ok(())
    }

    fn try_reserve(&self, cost: Cost, urgency: Urgency) -> bool {
        let mut outstanding = self.outstanding.lock();
        if !self.fits(&outstanding, cost, urgency) {
            return false;
        }
        outstanding.items += u64::from(cost.items);
        outstanding.bytes += u64::from(cost.bytes);
        true
    }

    pub(crate) fn may_reserve(&self, cost: Cost, urgency: Urgency) -> bool {
        self.fits(&self.outstanding.lock(), cost, urgency)
    }

    fn fits(&self, outstanding: &Outstanding, cost: Cost, urgency: Urgency) -> bool {
        let running = self.view.load();
        // What frees space does not stand behind promises to those who fill it: it is what they wait
        // for, and the global reserve is there for just this.
        let (promised_items, promised_bytes) = match urgency {
            Urgency::Normal => (outstanding.items, outstanding.bytes),
            Urgency::Frees => (0, 0),
        };
        let items = running.running().items() + promised_items + u64::from(cost.items);
        let bytes = running.running().bytes() + promised_bytes + u64::from(cost.bytes);
        let account = self.space.account(SpaceKind::Metadata);
        let kept = match urgency {
            Urgency::Normal => account.global_reserve,
            Urgency::Frees => account.global_reserve / 8,
        };
        let need = self.need(items, bytes, account.used);
        let taken = self.frozen_left() + kept;
        // What mixed groups have promised to data.
        let free = account.free().saturating_sub(account.may_use);
        // Half way there the commit begins in the background, so that nobody has to wait for it.
        if 2 * need + taken > free && items > 1000 {
            self.commit_wanted.store(true, Ordering::Relaxed);
        }
        need + taken <= free || self.overcommit(need + taken - free)
    }

    /// What the frozen transaction may still allocate.
    fn frozen_left(&self) -> u64 {
        let need = self.frozen_need.load(Ordering::Relaxed);
        need.saturating_sub(self.frozen_taken.load(Ordering::Relaxed))
    }

    /// Whether chunks to come can back `excess` bytes more than the metadata groups have: a commit
    /// adds them as it needs them. Half of what the devices have left is given this way, and kept
    /// from data as long as it is promised.
    fn overcommit(&self, excess: u64) -> bool {
        let mut devices = self.devices.lock();
        if excess > devices.available(self.kind_flags(SpaceKind::Metadata)) / 2 {
            return false;
        }
        devices.keep_for_metadata(excess);
        true
    }

    /// Bytes of metadata that a commit of so much may allocate before it frees any.
    fn need(&self, items: u64, bytes: u64, used: u64) -> u64 {
        let nodesize = u64::from(self.store.geometry().nodesize);
        let levels = u64::from(self.height.load(Ordering::Relaxed)) + 2;
        let by_paths = items.saturating_mul(levels * nodesize);
        let by_volume = used + bytes.saturating_mul(2) + 16 * nodesize;
        by_paths.min(by_volume) + 24 * nodesize
    }

    pub(crate) fn need_of(&self, transaction: &Transaction) -> u64 {
        let used = self.space.account(SpaceKind::Metadata).used;
        self.need(transaction.items(), transaction.bytes(), used)
    }

    /// Promises data space. May allocate a chunk, or wait for a commit.
    ///
    /// # Errors
    ///
    /// [`Error::NoSpace`] when all that did not help; [`Error::ReadOnly`], [`Error::Aborted`].
    pub fn reserve_data(&self, bytes: u64) -> Result<buttress_space::DataReservation> {
        self.check_writable()?;
        let mut committed = 0;
        loop {
            if let Some(reservation) = self.try_reserve_data(bytes) {
                return Ok(reservation);
            }
            self.release_pinned();
            if let Some(reservation) = self.try_reserve_data(bytes) {
                return Ok(reservation);
            }
            if self.add_chunk(SpaceKind::Data)? {
                continue;
            }
            // A commit helps only as far as something was freed since the last one.
            if committed == 2 || !self.commit_would_free_data() {
                break;
            }
            committed += 1;
            self.commit()?;
            self.wait_for_unpin(|| self.try_reserve_data(bytes).is_some());
        }
        tracing::debug!(account = %self.space.account(SpaceKind::Data), bytes, "no data space");
        Err(Error::NoSpace("data"))
    }

    fn try_reserve_data(&self, bytes: u64) -> Option<buttress_space::DataReservation> {
        let reservation = self.space.reserve_data(bytes).ok()?;
        // In mixed groups data must leave what metadata was promised.
        let fits = !self.space.is_mixed() || self.may_reserve(Cost::default(), Urgency::Normal);
        fits.then_some(reservation)
    }

    fn commit_would_free_data(&self) -> bool {
        let view = self.view.load();
        view.frozen().is_some()
            || !view.running().refs.is_empty()
            || self.space.account(SpaceKind::Data).pinned > 0
    }

    /// Readers hold back freed space only for the length of an operation: waits a little for them.
    fn wait_for_unpin(&self, enough: impl Fn() -> bool) {
        for _ in 0..100 {
            self.release_pinned();
            if self.pinned.lock().is_empty() || enough() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
}
