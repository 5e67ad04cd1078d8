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

use std::sync::Arc;

use arc_swap::ArcSwap;
use buttress_base::sync::Mutex;
use buttress_base::{CachePadded, clock};
use buttress_format::{Extent, Generation, Logical, TreeId};
use buttress_space::{NocowWriter, ReadOnlyHold, Space, SpaceKind};
use buttress_tree::Store;
use buttress_volume::{DeviceSpace, Volume};

use buttress_transaction::csums::{self, Csums};

use crate::{
    Error, MetaReservation, QuotaCharge, Result, StatfsFigures, Stats, Usage, View,
    allocation::Allocation,
    commits::{CommitState, Commits},
    counters::Counters,
    counters::refusal::{Refusal, Refused},
    counters::steps::{Before, Gain},
    delayed_ref::DataRef,
    extent_tree,
    flushers::Flushers,
    handle::Handle,
    learning::LazyGroups,
    options::EngineOptions,
    queues::Queues,
    quotas::Quotas,
    reserve::{EngineParts, QuotaLimits, Reservations},
    storage::Storage,
    transaction::Transaction,
};

/// An open volume, below files and names. It is shared by reference; many threads may call every
/// method. Fields that every operation changes have cache lines of their own. These lines are also
/// separate from the counts that `Arc` keeps in front of the engine.
#[repr(align(128))]
pub struct Engine {
    storage: Storage,
    allocation: Allocation,
    commits: Commits,
    reservations: Arc<Reservations>,
    quota_limits: Arc<QuotaLimits>,
    flushers: Flushers,
    counters: CachePadded<Counters>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("published", &self.commits.published())
            .field("read_only", &self.commits.health().read_only())
            .finish_non_exhaustive()
    }
}

/// The results of `boot`, from which an engine is made.
pub(crate) struct Parts {
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
        let storage =
            Storage::new(parts.store, parts.space, devices, parts.learning, parts.options);
        Arc::new(Self {
            storage,
            allocation: Allocation::default(),
            commits: Commits::new(parts.commit, view, parts.read_only),
            reservations,
            quota_limits,
            flushers: Flushers::default(),
            counters: CachePadded::default(),
        })
    }

    /// The devices, the tree nodes and the block groups.
    #[must_use]
    pub fn storage(&self) -> &Storage {
        &self.storage
    }

    /// Space that no commit has recorded yet.
    #[must_use]
    pub fn allocation(&self) -> &Allocation {
        &self.allocation
    }

    /// The transactions.
    #[must_use]
    pub fn commits(&self) -> &Commits {
        &self.commits
    }

    /// The rules for metadata reservations, for callers that use them directly.
    #[must_use]
    pub fn reservations(&self) -> &Reservations {
        &self.reservations
    }

    pub(crate) fn quota_limits(&self) -> &Arc<QuotaLimits> {
        &self.quota_limits
    }

    /// The threads that write dirty data back for tickets.
    #[must_use]
    pub fn flushers(&self) -> &Flushers {
        &self.flushers
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// A consistent state to read. Take a new view for every operation, because an old view keeps
    /// freed space from being used again.
    #[must_use]
    pub fn view(&self) -> Arc<View> {
        self.commits.view()
    }

    /// The reason why the volume cannot be written, if there is one.
    #[must_use]
    pub fn read_only(&self) -> Option<String> {
        self.commits.read_only(&self.storage)
    }

    /// Waits until the block groups are known, and reads them if no other thread does. A volume
    /// that was opened without its groups has empty accounts until then.
    ///
    /// # Errors
    ///
    /// As [`check_writable`](Self::check_writable).
    pub fn know_groups(&self) -> Result<()> {
        self.storage.know_groups(&self.commits, &self.reservations)
    }

    /// Every change passes this check first (`learn::K1`).
    pub fn check_writable(&self) -> Result<()> {
        self.storage.check_writable(&self.commits, &self.reservations)
    }

    /// Adds a chunk in the running transaction. False when the devices have no room.
    pub fn add_chunk(&self, kind: SpaceKind) -> Result<bool> {
        self.storage.add_chunk(&self.commits, &self.reservations, kind)
    }

    /// The queues of tickets that wait for space.
    #[must_use]
    pub fn queues(&self) -> Queues<'_> {
        Queues::new(&self.storage, &self.reservations)
    }

    /// Opens a handle on the running transaction. Never waits for I/O: before this call, the
    /// operation must read all tree nodes that it needs.
    pub fn begin(&self, reservation: MetaReservation) -> Handle<'_> {
        let owners = (&*self.reservations, &*self.quota_limits);
        Handle::open(&self.storage, &self.allocation, &self.commits, owners, reservation)
    }

    /// The start, used bytes and length of each group of data and metadata.
    #[must_use]
    pub fn group_fill(&self) -> Vec<(Logical, u64, u64)> {
        let _ = self.know_groups();
        self.storage.group_fill()
    }

    /// The figures for `statfs`, from the accounts alone. The cost does not grow with the number of
    /// block groups.
    #[must_use]
    pub fn statfs_figures(&self) -> StatfsFigures {
        // While the volume is being closed, only the groups that are known so far count.
        let _ = self.know_groups();
        self.storage.statfs_figures(&self.commits)
    }

    /// The used and available space, from a walk over all block groups.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let _ = self.know_groups();
        self.storage.usage(&self.commits)
    }

    /// Returns the status of quotas and all groups, in the order of their numbers, as the last
    /// commit left them. `None` if quotas are off.
    ///
    /// # Errors
    ///
    /// When the quota tree cannot be read, or an item makes no sense.
    pub fn quotas(&self) -> Result<Option<Quotas>> {
        self.storage.quotas_of(self.view().roots())
    }

    /// Asks for `bytes` of data that a subvolume is about to write. The charge counts until it is
    /// dropped or merged into a reservation. Zero bytes are always admitted.
    ///
    /// # Errors
    ///
    /// [`Error::Quota`] when the bytes exceed a limit; the errors of reading the quota tree.
    pub fn charge_quota(&self, tree: TreeId, bytes: u64) -> Result<QuotaCharge> {
        match bytes {
            0 => Ok(QuotaCharge::default()),
            _ => self.storage.ask_quota(&self.commits, &self.quota_limits, tree, bytes),
        }
    }

    /// Returns an error if the limits leave no bytes to a subvolume.
    ///
    /// # Errors
    ///
    /// As [`charge_quota`](Self::charge_quota).
    pub fn expect_quota(&self, tree: TreeId) -> Result<()> {
        self.storage.ask_quota(&self.commits, &self.quota_limits, tree, 0).map(drop)
    }

    /// Whether the next commit may show that a subvolume uses less than the present figures say.
    #[must_use]
    pub fn commit_may_free_quota(&self, tree: TreeId) -> bool {
        self.commits.may_free_quota(&self.quota_limits, tree)
    }

    /// Reports the forecast and the actual gain of a step.
    pub fn report_step(&self, before: &Before, gain: Gain) {
        self.counters.report_step(self.queues(), before, gain);
    }

    /// The last refusal of space, if there was one.
    #[must_use]
    pub fn last_refusal(&self) -> Option<Refusal> {
        self.counters.last_refused().map(|Refused { kind, bytes, at, accounts }| Refusal {
            kind,
            bytes,
            ago: clock::since(at),
            accounts,
        })
    }

    /// Statistics of the engine.
    #[must_use]
    pub fn statistics(&self) -> Stats {
        let (groups_loaded, groups_unreadable) = self.storage.loading().counts();
        Stats {
            overlay_bytes: self.commits.peek().running().bytes(),
            walked: self.storage.store().steps(),
            chunks: self.storage.volume().map_size().0 as u64,
            groups_known: self.storage.learning().is_known(),
            groups_loaded,
            groups_unreadable,
            ..self.counters.snapshot()
        }
    }

    /// Counts tree nodes that were written outside a commit.
    pub fn note_nodes_written(&self, nodes: u64) {
        self.counters.note_nodes(nodes);
    }

    /// The devices and chunks of the volume.
    #[must_use]
    pub fn volume(&self) -> &Arc<Volume> {
        self.storage.volume()
    }

    /// The tree nodes of the volume.
    #[must_use]
    pub fn store(&self) -> &Arc<Store> {
        self.storage.store()
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
        let may = !self.storage.volume().is_never_rewritten(extent.start) && !running && !frozen;
        Ok(may && extent_tree::is_exclusive(view, extent, user)?)
    }

    /// The right to write in place into an extent or a part of it. Returns `None` while the
    /// extent's block group is being emptied or examined as a whole. Take the right before you look
    /// at the data to overwrite. Keep the right until the written data is visible.
    #[must_use]
    pub fn begin_nocow(&self, part: Extent) -> Option<NocowWriter> {
        self.know_groups().ok()?;
        self.storage.space().begin_nocow(part)
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
            match self.storage.space().hold_read_only(group) {
                Err(buttress_space::Error::Reserved { .. }) => {}
                held => return Ok(held?),
            }
            if !self.allocation.close_windows() && !self.add_chunk(SpaceKind::Data)? {
                return Err(Error::NoSpace("what data was reserved, in another block group"));
            }
        }
    }

    /// The checksums of a range of data, sector by sector.
    ///
    /// # Errors
    ///
    /// When the checksum tree is damaged.
    pub fn read_csums(&self, view: &View, range: Extent) -> Result<Csums> {
        csums::read(view, range)
    }

    /// Commits the remaining changes. The engine can still be read afterwards.
    ///
    /// # Errors
    ///
    /// As [`commit`](Self::commit).
    pub fn shutdown(&self) -> Result<()> {
        if self.read_only().is_some() && self.commits.health().aborted().is_none() {
            return Ok(());
        }
        self.commit()?;
        if self.commits.has_committed() { self.settle_superblocks() } else { Ok(()) }
    }
}
