//! One open volume: its trees, its space, its running transaction.
//!
//! # Invariants
//!
//! - **E1** The view that readers get is swapped in two places only: at the freeze (a new running
//!   transaction, the old one frozen) and at publication (new roots, nothing frozen). The commit
//!   lock is held at both places (`txn::T2`).
//! - **E2** After a failed commit the engine writes no more. It checks the latch before every
//!   reservation and before every write of a commit.
//! - **E3** Freed space is handed out again only when every view that could reach it is gone
//!   (`txn::T6`).
//!
//! # Locks
//!
//! Outermost first: commit, gate, then short locks (reservations, pinned list, device space).

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use arc_swap::ArcSwap;
use buttress_base::CachePadded;
use buttress_base::sync::Mutex;
use buttress_format::{CompatRo, Extent, Generation, Incompat, Ino, Key, Kind, Logical, TreeId};
use buttress_space::{NocowWriter, ReadOnlyHold, Space, SpaceKind};
use buttress_tree::Store;
use buttress_volume::{DeviceSpace, Volume};

use buttress_transaction::csums::{self, Csums};
use buttress_transaction::stamps::{Stamp, Stamps};

use crate::{
    Error, Result, View,
    commit_state::{CommitState, Commits},
    counters::Counters,
    delayed_ref::DataRef,
    extent_tree,
    flushers::Flushers,
    found_log::FoundLog,
    gate::{Gate, Inside},
    group_notes::GroupNotes,
    health::Health,
    learning::LazyGroups,
    loading::Loading,
    log_space::LogSpace,
    numbers::Numbers,
    options::EngineOptions,
    pinned::Pinned,
    quota_limits::QuotaLimits,
    reserve::{EngineParts, Reservations},
    scrub_hold::ScrubHold,
    transaction::Transaction,
    unreferenced::Unreferenced,
    unwritten::UnwrittenCount,
    window::Windows,
};

/// An open volume, below files and names. It is shared by reference; many threads may call every
/// method. Fields that every operation changes have cache lines of their own. These lines are also
/// separate from the counts that `Arc` keeps in front of the engine.
#[repr(align(128))]
pub struct Engine {
    pub(crate) volume: Arc<Volume>,
    pub(crate) store: Arc<Store>,
    pub(crate) space: Arc<Space>,
    pub(crate) options: EngineOptions,
    pub(crate) health: Health,
    pub(crate) view: Arc<ArcSwap<View>>,
    pub(crate) reservations: Arc<Reservations>,
    pub(crate) gate: Gate,
    pub(crate) commit: Commits,
    /// The number of threads that put extents before the data of these extents is written.
    pub(crate) unwritten: UnwrittenCount,
    /// Extents allocated and not yet referenced. The first reference of an extent makes the
    /// extent's item.
    pub(crate) unreferenced: Unreferenced,
    pub(crate) windows: Windows,
    pub(crate) scrub_hold: ScrubHold,
    /// The stamps that show whether a result about users of extents still holds.
    pub(crate) stamps: Stamps,
    pub(crate) flushers: Flushers,
    pub(crate) pinned: Pinned,
    /// Unranked: a discard may run while this lock is held.
    pub(crate) devices: Arc<Mutex<DeviceSpace>>,
    pub(crate) groups: GroupNotes,
    pub(crate) loading: Loading,
    pub(crate) learning: LazyGroups,
    pub(crate) counters: CachePadded<Counters>,
    pub(crate) log_space: LogSpace,
    /// An fsync log that was found and has to be replayed.
    pub(crate) found_log: FoundLog,
    pub(crate) quota_limits: Arc<QuotaLimits>,
    numbers: Numbers,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("published", &self.commit.published())
            .field("read_only", &self.health.read_only())
            .finish_non_exhaustive()
    }
}

/// The results of `boot`, from which an engine is made.
pub(crate) struct Parts {
    pub(crate) volume: Arc<Volume>,
    pub(crate) store: Arc<Store>,
    pub(crate) space: Arc<Space>,
    pub(crate) options: EngineOptions,
    pub(crate) read_only: Option<String>,
    pub(crate) commit: CommitState,
    pub(crate) devices: DeviceSpace,
    pub(crate) learning: LazyGroups,
    pub(crate) height: u8,
    /// The generation of the first transaction.
    pub(crate) first: Generation,
}

impl Engine {
    pub(crate) fn join(parts: Parts) -> Arc<Self> {
        let roots = Arc::new(parts.commit.roots.clone());
        let has_quotas = roots.find(TreeId::QUOTA).is_some();
        let quota_limits = QuotaLimits::new(has_quotas, roots.generation);
        let has_stripe_tree = roots.find(TreeId::RAID_STRIPE).is_some();
        let running = Transaction::new(parts.first);
        let view = View::new(Arc::clone(&parts.store), running, None, roots);
        let view = Arc::new(ArcSwap::from_pointee(view));
        let devices = Arc::new(Mutex::new(parts.devices));
        let reservations = Reservations::new(EngineParts {
            store: Arc::clone(&parts.store),
            space: Arc::clone(&parts.space),
            devices: Arc::clone(&devices),
            view: Arc::clone(&view),
            policy: parts.options.policy,
            delete_room: parts.options.delete_room,
            height: parts.height,
            has_stripe_tree,
        });
        Arc::new(Self {
            volume: parts.volume,
            store: parts.store,
            space: parts.space,
            options: parts.options,
            health: Health::new(parts.read_only),
            view,
            reservations,
            gate: Gate::default(),
            commit: Commits::new(parts.commit),
            unwritten: UnwrittenCount::default(),
            unreferenced: Unreferenced::default(),
            windows: Windows::default(),
            scrub_hold: ScrubHold::default(),
            stamps: Stamps::default(),
            flushers: Flushers::default(),
            pinned: Pinned::default(),
            devices,
            groups: GroupNotes::default(),
            loading: Loading::default(),
            learning: parts.learning,
            counters: CachePadded::default(),
            log_space: LogSpace::default(),
            found_log: FoundLog::default(),
            quota_limits,
            numbers: Numbers::default(),
        })
    }

    /// A consistent state to read. Take a new view for every operation, because an old view keeps
    /// freed space from being used again.
    #[must_use]
    pub fn view(&self) -> Arc<View> {
        self.view.load_full()
    }

    /// The reason why the volume cannot be written, if there is one.
    #[must_use]
    pub fn read_only(&self) -> Option<String> {
        match self.health.aborted() {
            Some(cause) => {
                let first: &dyn std::error::Error = &*cause;
                let chain = std::iter::successors(Some(first), |error| error.source());
                let words: Vec<String> = chain.map(ToString::to_string).collect();
                Some(format!("a commit failed: {}", words.join(": ")))
            }
            None => self.health.read_only().or(self.learning.unfit()).cloned(),
        }
    }

    /// The first failure of a commit, if there was one.
    #[must_use]
    pub fn aborted(&self) -> Option<Arc<Error>> {
        self.health.aborted()
    }

    /// Whether the volume has a stripe tree.
    #[must_use]
    pub fn has_stripe_tree(&self) -> bool {
        self.view.load().roots().find(TreeId::RAID_STRIPE).is_some()
    }

    /// The devices and chunks of the volume.
    #[must_use]
    pub fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }

    /// The tree nodes of the volume.
    #[must_use]
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// The last durable transaction.
    #[must_use]
    pub fn published(&self) -> Generation {
        self.commit.published()
    }

    /// Whether this session's first commit is durable.
    #[must_use]
    pub fn has_committed(&self) -> bool {
        self.commit.has_committed()
    }

    /// Whether the background commit should run soon.
    #[must_use]
    pub fn wants_commit(&self) -> bool {
        self.commit.is_wanted()
    }

    /// Records an incompat feature that the volume needs from the next commit on. Call this method
    /// before you begin the handle that puts items of that feature.
    pub fn need_feature(&self, feature: Incompat) {
        self.commit.need_feature(feature);
    }

    /// As [`need_feature`](Self::need_feature), for a feature that other programs must know only to
    /// write the volume.
    pub fn need_feature_ro(&self, feature: CompatRo) {
        self.commit.need_feature_ro(feature);
    }

    /// Whether anything was changed since the last commit.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        !self.view.load().running().is_empty()
    }

    /// Every change passes this check first (`learn::K1`).
    pub fn check_writable(&self) -> Result<()> {
        self.check_unlatched()?;
        self.know_groups()?;
        match self.learning.unfit() {
            Some(why) => Err(Error::ReadOnly(why.clone())),
            None => Ok(()),
        }
    }

    /// As `check_writable`, but without reading the block groups. A commit without changes needs
    /// only this check.
    pub(crate) fn check_unlatched(&self) -> Result<()> {
        self.health.expect_no_failure()?;
        if self.found_log.is_pending() {
            return Err(Error::ReadOnly("its fsync log is not replayed yet".into()));
        }
        self.health.expect_opened_for_writing()
    }

    /// The running transaction. It cannot freeze while the returned guard lives.
    pub(crate) fn enter(&self) -> (Inside<'_>, Arc<Transaction>) {
        self.gate.enter(|| Arc::clone(self.view.load().running()))
    }

    /// Number of data extents that became free as soon as they lost their last reference, because
    /// the same transaction had allocated them. No view keeps their space from reuse. A reader that
    /// did not hold the file's extents may therefore have read another file's data. The count rises
    /// before the space is free.
    #[must_use]
    pub fn freed_at_once(&self) -> u64 {
        self.stamps.freed_at_once()
    }

    pub(crate) fn note_freed_at_once(&self) {
        self.stamps.note_freed_at_once();
    }

    /// Whether `user`, which holds one reference or more, is the only user of an extent
    /// (`txn::T10`).
    ///
    /// # Errors
    ///
    /// When the extent tree cannot be read or does not know the extent.
    pub fn extent_is_exclusive(&self, view: &View, extent: Extent, user: DataRef) -> Result<bool> {
        let running = view.running().tracked.is_anothers(extent.start, user);
        let frozen = view.frozen().is_some_and(|f| f.tracked.is_anothers(extent.start, user));
        // An extent that cannot be written in place is never exclusive.
        let may = !self.volume.is_never_rewritten(extent.start) && !running && !frozen;
        Ok(may && extent_tree::is_exclusive(view, extent, user)?)
    }

    /// The right to write in place into an extent or a part of it. Returns `None` while the
    /// extent's block group is being emptied or examined as a whole. Take the right before you look
    /// at the data to overwrite. Keep the right until the written data is visible.
    #[must_use]
    pub fn begin_nocow(&self, part: Extent) -> Option<NocowWriter> {
        self.know_groups().ok()?;
        self.space.begin_nocow(part)
    }

    /// Prevents allocations and writes in place in a block group as long as the returned hold
    /// lives.
    ///
    /// # Errors
    ///
    /// Fails when no group starts at `group`. [`Error::NoSpace`] when data has reserved the group's
    /// free space and there is no space for another chunk.
    pub fn hold_read_only(&self, group: Logical) -> Result<ReadOnlyHold> {
        self.know_groups()?;
        loop {
            match self.space.hold_read_only(group) {
                Err(buttress_space::Error::Reserved { .. }) => {}
                held => return Ok(held?),
            }
            if !self.close_windows() && !self.add_chunk(SpaceKind::Data)? {
                return Err(Error::NoSpace("what data was reserved, in another block group"));
            }
        }
    }

    /// The stamp of the extent that begins at `at`. Take the stamp before you take the view in
    /// which you look at the extent. Take the stamp again before you rely on the result.
    #[must_use]
    pub fn stamp(&self, at: Logical) -> Stamp {
        self.stamps.stamp(at)
    }

    /// The checksums of a range of data, sector by sector.
    ///
    /// # Errors
    ///
    /// When the checksum tree is damaged.
    pub fn read_csums(&self, view: &View, range: Extent) -> Result<Csums> {
        csums::read(view, range)
    }

    /// A number for a new inode of a subvolume.
    ///
    /// # Errors
    ///
    /// When the tree cannot be read, or all numbers were used.
    pub fn next_ino(&self, tree: TreeId) -> Result<Ino> {
        let ino = self.inos_of(tree)?.fetch_add(1, Ordering::Relaxed);
        if ino > Ino::LAST_FREE.0 {
            return Err(Error::NoSpace("inode numbers"));
        }
        Ok(Ino(ino))
    }

    /// The counter of a tree's inode numbers. It begins after the highest number in use at the
    /// first request.
    pub(crate) fn inos_of(&self, tree: TreeId) -> Result<Arc<AtomicU64>> {
        if let Some(counter) = self.numbers.find(tree) {
            return Ok(counter);
        }
        let low = Key::new(Ino::FIRST_FREE.0, Kind(0), 0);
        let high = Key::new(Ino::LAST_FREE.0, Kind(u8::MAX), u64::MAX);
        let highest = self.view().at_or_before(tree, &low, &high)?;
        // In a subvolume, the lowest number belongs to the top directory. In the root tree, which
        // numbers subvolumes, the lowest number is free.
        let none = Ino::FIRST_FREE.0 - u64::from(tree == TreeId::ROOT);
        let last = highest.map_or(none, |(key, _)| key.objectid);
        Ok(self.numbers.begin(tree, last + 1))
    }

    /// Frees the pinned space of earlier commits that no view can reach any more (E3), and the
    /// space that windows hold. The space of the oldest commit is freed first: a view that keeps
    /// one commit's space pinned also pins the space of every later commit. Returns whether any
    /// space was freed.
    pub fn release_pinned(&self) -> bool {
        let had_windows = self.close_windows();
        let nodesize = u64::from(self.store.geometry().nodesize);
        let released = self.pinned.release(|extent| {
            // No thread reads such a node any more, and in the cache it would displace other nodes.
            // If the extent is data of the same length, it is not in the cache, and the call does
            // nothing.
            if extent.len == nodesize {
                self.store.forget(extent.start);
            }
            // Discard before the space can be allocated: a later discard would destroy new data.
            if self.options.discard
                // Discard is a hint: its failure loses nothing.
                && let Err(error) = self.volume.discard(extent)
            {
                tracing::debug!(%extent, %error, "discard failed");
            }
            self.space.unpin(extent);
            self.note_freed(extent.start);
        });
        had_windows | released
    }

    /// Commits the remaining changes. The engine can still be read afterwards.
    ///
    /// # Errors
    ///
    /// As [`commit`](Self::commit).
    pub fn shutdown(&self) -> Result<()> {
        if self.read_only().is_some() && self.health.aborted().is_none() {
            return Ok(());
        }
        self.commit()?;
        if self.has_committed() { self.settle_superblocks() } else { Ok(()) }
    }
}
