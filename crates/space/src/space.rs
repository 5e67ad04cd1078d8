//! All groups and accounts of one volume: the interface of the crate.
//!
//! # Place
//!
//! All users of space share one [`Space`]. `txn` adds the volume's groups and moves extents from
//! state to state. This module does not call upper layers.
//!
//! # Invariants
//!
//! - **S1** The states of an extent are, in order: free, reserved, used, pinned, free. An extent
//!   that is freed in the transaction that allocated it becomes free at once.
//! - **S2** An extent lies inside one group.
//!
//! ```text
//!         allocate            commit_used          pin               unpin
//! free ─────────────▶ reserved ─────────▶ used ─────────▶ pinned ─────────────▶ free
//!   ▲                    │ free             │ free
//!   └────────────────────┴──────────────────┘
//! ```
//!
//! # Locks
//!
//! A change of the directory takes [`Rank::BlockGroups`]; a read takes no lock. A user of a group
//! checks under the group's lock whether the group was removed.
//!
//! # Failure
//!
//! A change with input from a disk succeeds as a whole, or fails and changes nothing.

use std::collections::BTreeSet;
use std::sync::Arc;

use arc_swap::ArcSwap;
use buttress_base::shard::{SHARDS, shard};
use buttress_base::{CachePadded, Rank, Ranked};
use buttress_format::{BlockGroupFlags, Extent, Logical};

use crate::account::{Account, Counts, SharedAccount};
#[cfg(feature = "baselines")]
use crate::by_map::{Finder, GroupMap};
use crate::data_queue::DataQueue;
use crate::directory::Directory;
use crate::goals::Goals;
use crate::group::{Group, GroupInit};
use crate::group_state::State;
use crate::guard::Writers;
use crate::index::{Index, Plane, SLOTS_MAX, order_holding};
use crate::request::{AllocCounters, AllocOutcome, AllocStats};
use crate::ticket::Queue;
use crate::unreserved::InPlaceBytes;
use crate::{AllocPolicy, Error, LookupPolicy, SpaceKind};

/// All groups and accounts of one volume.
#[derive(Debug)]
pub struct Space {
    sectorsize: u32,
    nodesize: u32,
    /// Whether data and metadata share their groups, and so share the account of metadata.
    mixed: bool,
    accounts: [CachePadded<SharedAccount>; 3],
    directory: ArcSwap<Directory>,
    /// The groups of each kind by their largest free run.
    indexes: [Arc<Index>; 3],
    goals: Goals,
    policy: AllocPolicy,
    lookup: LookupPolicy,
    /// The map of the published baselines, which replaces the directory.
    #[cfg(feature = "baselines")]
    map: Option<GroupMap>,
    /// Writers in place.
    in_place: Writers,
    /// Dirty bytes that will be written in place.
    unreserved: CachePadded<InPlaceBytes>,
    /// Counters, by the shard of the allocating thread.
    alloc_counters: [CachePadded<AllocCounters>; SHARDS],
    /// Requests that wait for data space.
    data_queue: CachePadded<DataQueue>,
    /// Slots that removed groups left. The lock is held while a new directory is made, so that no
    /// change is lost.
    free_slots: Ranked<[BTreeSet<usize>; 3]>,
}

impl Space {
    /// Creates the space of a volume, without groups.
    ///
    /// # Panics
    ///
    /// When a size is no power of two: superblocks are checked before this call.
    #[must_use]
    pub fn new(sectorsize: u32, nodesize: u32) -> Self {
        assert!(sectorsize.is_power_of_two(), "a sector of {sectorsize} bytes");
        assert!(nodesize.is_power_of_two(), "a node of {nodesize} bytes");
        assert!(nodesize >= sectorsize, "nodes are made of whole sectors");
        Self {
            sectorsize,
            nodesize,
            mixed: false,
            accounts: SpaceKind::ALL.map(|kind| CachePadded::new(SharedAccount::new(kind))),
            directory: ArcSwap::from_pointee(Directory::default()),
            indexes: std::array::from_fn(|_| Arc::default()),
            goals: Goals::new(buttress_base::thread::parallelism()),
            policy: AllocPolicy::default(),
            lookup: LookupPolicy::default(),
            #[cfg(feature = "baselines")]
            map: None,
            in_place: Writers::default(),
            unreserved: CachePadded::new(InPlaceBytes::new()),
            alloc_counters: Default::default(),
            data_queue: CachePadded::new(DataQueue::new()),
            free_slots: Ranked::new(Rank::BlockGroups, Default::default()),
        }
    }

    /// Makes data and metadata share their groups and their account.
    #[must_use]
    pub fn mixed(mut self) -> Self {
        self.mixed = true;
        self
    }

    /// Sets the policy by which groups are chosen.
    #[must_use]
    pub fn choosing(mut self, policy: AllocPolicy) -> Self {
        self.policy = policy;
        self
    }

    /// Sets the policy by which groups are found.
    #[must_use]
    pub fn looking_up(mut self, policy: LookupPolicy) -> Self {
        self.lookup = policy;
        #[cfg(feature = "baselines")]
        {
            self.map = (policy != LookupPolicy::Lockfree).then(GroupMap::default);
        }
        self
    }

    /// Keeps up to `processors` streams of allocations apart. The default is the number of the
    /// machine's processors.
    #[must_use]
    pub fn for_processors(mut self, processors: usize) -> Self {
        self.goals = Goals::new(processors);
        self
    }

    /// Returns whether data and metadata share their groups.
    #[must_use]
    pub fn is_mixed(&self) -> bool {
        self.mixed
    }

    /// The kind that has the groups and the account for `kind`.
    pub(crate) fn home(&self, kind: SpaceKind) -> SpaceKind {
        if self.mixed && kind == SpaceKind::Data { SpaceKind::Metadata } else { kind }
    }

    /// Returns the unit of start and length of allocations of `kind`, in bytes.
    #[must_use]
    pub fn unit(&self, kind: SpaceKind) -> u64 {
        match kind {
            SpaceKind::Data => u64::from(self.sectorsize),
            SpaceKind::Metadata | SpaceKind::System => u64::from(self.nodesize),
        }
    }

    /// Adds one group.
    ///
    /// # Errors
    ///
    /// When the group is invalid, or overlaps another. Nothing is then added.
    pub fn add_group(&self, init: GroupInit) -> Result<(), Error> {
        self.add_groups(vec![init])
    }

    /// Adds many groups in one change of the directory.
    ///
    /// # Errors
    ///
    /// When a group is invalid, or overlaps another. No group is then added.
    pub fn add_groups(&self, inits: Vec<GroupInit>) -> Result<(), Error> {
        let mut added = inits
            .into_iter()
            .map(|init| Group::new(init, self.sectorsize, self.nodesize).map(Arc::new))
            .collect::<Result<Vec<_>, Error>>()?;
        let both = BlockGroupFlags::DATA.with(BlockGroupFlags::METADATA);
        let odd = |group: &&Arc<Group>| {
            group.kind() != SpaceKind::System && (group.flags().kind() == both) != self.mixed
        };
        if let Some(odd) = added.iter().find(odd) {
            return Err(Error::Kind { start: odd.start(), flags: odd.flags() });
        }
        added.sort_by_key(|group| group.start());
        let mut free_slots = self.free_slots.lock();
        let directory = self.directory.load();
        directory.overlap(&added)?;
        let mut fresh = SpaceKind::ALL.map(|kind| directory.of(kind).len());
        for group in &added {
            let kind = group.kind().index();
            let slot = free_slots[kind].pop_first().unwrap_or_else(|| {
                fresh[kind] += 1;
                fresh[kind] - 1
            });
            assert!(slot < SLOTS_MAX, "more block groups than an address space of chunks has");
            group.assign_slot(&self.indexes[kind], slot);
        }
        self.publish(directory.with(&added));
        for group in &added {
            group.open(self.shared_account(group.kind()));
        }
        drop(free_slots);
        self.serve_freed();
        Ok(())
    }

    /// As [`Group::load`], for groups with and without rows.
    ///
    /// # Errors
    ///
    /// As [`Group::load`].
    pub fn load(&self, group: &Group, free: impl Iterator<Item = Extent>) -> Result<(), Error> {
        group.load_into(Some(self.shared_account(group.kind())), free)?;
        self.serve_freed();
        Ok(())
    }

    /// Makes a new directory visible to all threads.
    fn publish(&self, directory: Directory) {
        for kind in SpaceKind::ALL {
            self.goals.resize(kind, directory.of(self.home(kind)).groups());
        }
        #[cfg(feature = "baselines")]
        if let Some(map) = &self.map {
            map.replace(directory.iter());
        }
        self.directory.store(Arc::new(directory));
    }

    /// Removes the empty group that starts at `start`, and returns it.
    ///
    /// # Errors
    ///
    /// When there is no such group, when it is not empty, or when reservations need its space. The
    /// group then stays.
    pub fn remove_group(&self, start: Logical) -> Result<Arc<Group>, Error> {
        let mut free_slots = self.free_slots.lock();
        let directory = self.directory.load();
        let group = Arc::clone(directory.starting(start)?);
        group.retire(self.shared_account(group.kind()))?;
        self.publish(directory.without(&group));
        free_slots[group.kind().index()].insert(group.slot());
        Ok(group)
    }

    /// Returns the group that holds `at`. Takes no lock.
    #[must_use]
    pub fn group_at(&self, at: Logical) -> Option<Arc<Group>> {
        #[cfg(feature = "baselines")]
        if let Some(map) = &self.map {
            return map.group_at(at);
        }
        self.directory.load().find(at).cloned()
    }

    /// Whether two addresses lie in one group. Takes no lock.
    #[must_use]
    pub fn are_together(&self, one: Logical, other: Logical) -> bool {
        self.directory.load().find(one).is_some_and(|group| group.range().contains(other))
    }

    /// Returns all groups, in ascending order. Takes no lock.
    #[must_use]
    pub fn groups(&self) -> Vec<Arc<Group>> {
        self.directory.load().iter().cloned().collect()
    }

    /// Returns the groups of one kind, in ascending order. Takes no lock.
    #[must_use]
    pub fn groups_of(&self, kind: SpaceKind) -> Vec<Arc<Group>> {
        let home = self.home(kind);
        self.directory.load().iter().filter(|group| group.kind() == home).cloned().collect()
    }

    /// Returns how many groups there are. Takes no lock.
    #[must_use]
    pub fn count(&self) -> usize {
        self.directory.load().len()
    }

    /// Returns how many groups of one kind there are. Takes no lock.
    #[must_use]
    pub fn count_of(&self, kind: SpaceKind) -> usize {
        self.directory.load().of(self.home(kind)).groups()
    }

    /// Returns the counts of allocations so far.
    #[must_use]
    pub fn alloc_stats(&self) -> AllocStats {
        self.alloc_counters.iter().fold(AllocStats::default(), |sum, part| part.add_to(sum))
    }

    /// Whether some group that is not loaded may have a free run of `bytes`.
    #[must_use]
    pub fn may_load_run(&self, kind: SpaceKind, bytes: u64) -> bool {
        let index = self.index(self.home(kind));
        order_holding(bytes).is_none_or(|order| index.any(Plane::Unloaded, order))
    }

    /// The group at an address, if it is not loaded and may have `bytes` free bytes.
    #[must_use]
    pub fn unloaded_at(&self, at: Logical, bytes: u64) -> Option<Arc<Group>> {
        let directory = self.directory.load();
        let group = directory.find(at)?;
        (!group.is_loaded() && group.largest_free() >= bytes).then(|| Arc::clone(group))
    }

    /// The next few groups of the same kind that are not loaded and have free bytes.
    #[must_use]
    pub fn unloaded_behind(&self, group: &Group, most: usize) -> Vec<Arc<Group>> {
        let directory = self.directory.load();
        let (slots, index) = (directory.of(group.kind()), self.index(group.kind()));
        let mut found = Vec::with_capacity(most);
        let mut from = group.slot() + 1;
        while let Some(slot) = index.next(Plane::Unloaded, 0, from).filter(|_| found.len() < most) {
            found.extend(slots.get(slot).filter(|group| !group.is_loaded()).cloned());
            from = slot + 1;
        }
        found
    }

    /// Stops allocations in a group because its free space could not be loaded.
    pub fn exclude_damaged(&self, group: &Group) {
        group.change(self.shared_account(group.kind()), |state| state.stop_writes());
    }

    /// Reserves exactly this extent, because the log of an fsync refers to it and the trees do not
    /// have it yet. Returns the extent, or the group to load before the next call.
    ///
    /// # Errors
    ///
    /// When the extent is in no group of this kind, or not free as a whole. Nothing is then
    /// changed.
    pub fn reserve_exact(&self, kind: SpaceKind, extent: Extent) -> Result<AllocOutcome, Error> {
        let directory = self.directory.load();
        let group = directory.find_whole(extent)?;
        let sector = u64::from(self.sectorsize);
        let whole = |bytes: u64| bytes.is_multiple_of(sector);
        let odd = extent.len == 0 || !whole(extent.len) || !whole(extent.start.0);
        if odd || group.kind() != self.home(kind) {
            return Err(Error::NotFree { extent });
        }
        if !group.is_loaded() {
            return Ok(AllocOutcome::NeedsLoading(Arc::clone(group)));
        }
        let got =
            group.change(self.shared_account(kind), |state| group.reserve_exact(state, extent));
        if got { Ok(AllocOutcome::Got(extent)) } else { Err(Error::NotFree { extent }) }
    }

    /// Records that a transaction references an allocated extent: reserved becomes used.
    ///
    /// # Panics
    ///
    /// When the extent was not allocated, or is recorded already: a bug of the caller (S1).
    pub fn commit_used(&self, extent: Extent) {
        self.change_own(extent, |_, state| state.commit_used(extent));
    }

    /// Makes an extent free at once. The caller ensures that no commit can reach the extent: it was
    /// allocated and freed in one transaction, or never referenced. Any other extent must be
    /// pinned.
    ///
    /// # Panics
    ///
    /// When the extent is free or pinned already: a bug of the caller (S1).
    pub fn free(&self, extent: Extent) {
        self.change_own(extent, |_, state| state.release(extent));
        self.serve_freed();
    }

    /// Moves a used extent to pinned, so that it is not allocated. The last commit still refers to
    /// the extent, so after a crash its content must be unchanged.
    ///
    /// # Errors
    ///
    /// When the extent is not in use: the extent tree and the groups disagree. Nothing is then
    /// changed.
    pub fn pin(&self, extent: Extent) -> Result<(), Error> {
        let directory = self.directory.load();
        let group = directory.find_whole(extent)?;
        group.change(self.shared_account(group.kind()), |state| group.pin(state, extent))
    }

    /// Makes a pinned extent free, because the commit that freed it is durable.
    ///
    /// # Panics
    ///
    /// When the extent is not pinned: a bug of the caller (S1).
    pub fn unpin(&self, extent: Extent) {
        self.change_own(extent, |_, state| state.unpin(extent));
        self.serve_freed();
    }

    /// Changes the state of an extent that this crate handed out or accepted before.
    fn change_own(&self, extent: Extent, act: impl FnOnce(&Group, &mut State)) {
        assert!(extent.len > 0, "S2: an extent of no bytes at {}", extent.start);
        let directory = self.directory.load();
        let group = directory.find_whole(extent).expect("S2: the extent came from a group");
        group.change(self.shared_account(group.kind()), |state| act(group, state));
    }

    /// Returns the account of one kind as it is now.
    #[must_use]
    pub fn account(&self, kind: SpaceKind) -> Account {
        self.shared_account(kind).snapshot()
    }

    /// Sets the metadata space that ordinary reservations cannot use, in bytes, and the part of it
    /// for copies of nodes that trees share.
    pub fn set_global_reserve(&self, bytes: u64, for_copies: u64) {
        self.shared_account(SpaceKind::Metadata).set_global_reserve(bytes, for_copies);
    }

    /// Enlarges the part of the global reserve for copies of nodes. A new block group is about to
    /// add the space that was kept for these copies.
    pub fn add_for_copies(&self, bytes: u64) {
        self.shared_account(SpaceKind::Metadata).add_for_copies(bytes);
    }

    /// The queue of requests that wait for data.
    #[must_use]
    pub fn data_queue(&self) -> &Queue<u64> {
        self.data_queue.queue()
    }

    pub(crate) fn data_requests(&self) -> &DataQueue {
        &self.data_queue
    }

    /// Offers data space that became free to the waiting requests. In mixed groups `txn` offers the
    /// space, because `txn` alone knows the demands of metadata.
    pub(crate) fn serve_freed(&self) {
        if !self.is_mixed() && self.data_queue.queue().is_waiting() {
            self.data_queue.serve(self.shared_account(SpaceKind::Data), || true);
        }
    }

    /// The part of [`audit`](Self::audit) that walks no groups: compares reservations with
    /// accounts.
    ///
    /// # Errors
    ///
    /// The first difference, in words.
    pub fn audit_tokens(&self) -> Result<(), String> {
        self.unreserved.audit()?;
        self.accounts.iter().try_for_each(|account| account.audit())
    }

    /// Compares reservations with tokens, and each account with its groups, while other threads use
    /// the volume. An account that changes meanwhile is compared again, up to a limit. Returns
    /// whether all accounts could be compared. The audit walks over all groups, so it is only for
    /// debug builds.
    ///
    /// # Errors
    ///
    /// The first difference, in words.
    pub fn audit(&self) -> Result<bool, String> {
        // With eight tries, one audit in a few hundred fails while all processors allocate.
        const TRIES: u32 = 64;
        // Under this lock a group is added to the directory and then to its account. In between,
        // directory and account differ.
        let _held = self.free_slots.lock();
        let directory = self.directory.load();
        let mut all = true;
        self.audit_tokens()?;
        for kind in SpaceKind::ALL {
            let account = &self.accounts[kind.index()];
            let mut compared = false;
            for _ in 0..TRIES {
                let before = account.changes();
                let sums = SharedAccount::new(kind);
                for group in directory.iter().filter(|group| group.kind() == kind) {
                    let counts = group.counts(&group.lock());
                    sums.grow(group.len(), group.super_bytes(), counts);
                }
                let outcome = account.verify(&sums.snapshot());
                if before == account.changes() {
                    outcome?;
                    compared = true;
                    break;
                }
            }
            all &= compared;
        }
        Ok(all)
    }

    pub(crate) fn shared_account(&self, kind: SpaceKind) -> &SharedAccount {
        &self.accounts[self.home(kind).index()]
    }

    pub(crate) fn directory(&self) -> arc_swap::Guard<Arc<Directory>> {
        self.directory.load()
    }

    pub(crate) fn unreserved_count(&self) -> &InPlaceBytes {
        &self.unreserved
    }

    pub(crate) fn goals(&self) -> &Goals {
        &self.goals
    }

    pub(crate) fn index(&self, home: SpaceKind) -> &Index {
        &self.indexes[home.index()]
    }

    pub(crate) fn lookup_policy(&self) -> LookupPolicy {
        self.lookup
    }

    pub(crate) fn writers_in_place(&self) -> &Writers {
        &self.in_place
    }

    /// A handle for a baseline writer that searches the map once more when the write ends. `None`
    /// without the map.
    #[cfg(feature = "baselines")]
    pub(crate) fn finder(&self) -> Option<Finder> {
        self.map.as_ref().map(GroupMap::finder)
    }

    pub(crate) fn policy(&self) -> AllocPolicy {
        self.policy
    }

    pub(crate) fn alloc_counters(&self) -> &AllocCounters {
        &self.alloc_counters[shard()]
    }

    /// Checks the figures of every group, and compares every account with its groups and
    /// reservations. The check walks over all groups, and is valid only while no other thread
    /// allocates, so it is only for tests.
    ///
    /// # Errors
    ///
    /// The first difference, in words.
    pub fn verify(&self) -> Result<(), String> {
        let directory = self.directory.load();
        directory.verify()?;
        for kind in SpaceKind::ALL {
            let sums = SharedAccount::new(kind);
            for group in directory.iter().filter(|group| group.kind() == kind) {
                let counts: Counts = group.verify()?;
                sums.grow(group.len(), group.super_bytes(), counts);
            }
            self.accounts[kind.index()].verify(&sums.snapshot())?;
        }
        Ok(())
    }
}
