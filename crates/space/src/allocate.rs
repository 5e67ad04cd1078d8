//! Choosing where: a group, and an extent in it.
//!
//! # Place
//!
//! Called by writeback for data and by the commit for nodes. Looks at summaries without a lock and
//! takes one group's lock to try it.
//!
//! # Invariants
//!
//! - **L1** No group born after the request's limit is used: a commit never rests on a chunk that
//!   only the next one records.
//! - **L2** A request fails only if no group had what it asks for: the first pass skips groups that
//!   somebody holds, and the second waits for them.
//! - **L3** What is handed out begins and ends at whole units.
//!
//! The order of choice: `want` bytes from a loaded group, nearest first from the goal onwards; then
//! the loading of a group that may have them; then the largest extent of any loaded group; then the
//! loading of one that may have at least `min`. A group is read once in a session, and fragments
//! stay for good.
//!
//! # Locks
//!
//! One group's at a time, with the account inside.

use std::sync::Arc;

use buttress_format::{Extent, Generation, Logical};

use crate::directory::Sorted;
use crate::{DataReservation, Group, Space, SpaceKind};

/// What an allocation asks for.
#[derive(Clone, Copy, Debug)]
pub struct AllocRequest {
    /// Which kind of space.
    pub kind: SpaceKind,
    /// Contiguous bytes wished for; more is never returned.
    pub want: u64,
    /// Contiguous bytes below which there is no use.
    pub min: u64,
    /// What the extent must be a multiple of: the sector size for data, the node size for nodes.
    pub align: u64,
    /// Where it would be best; without one, after the stream's last allocation.
    pub goal: Option<Logical>,
    /// The transaction the extent is for (L1).
    pub limit: Generation,
    /// Who allocates: allocations of one stream are kept together.
    pub stream: u64,
}

/// What became of an allocation.
#[derive(Clone, Debug)]
#[must_use = "an extent nobody frees or records is lost until the next mount"]
pub enum Outcome {
    /// This extent is the caller's: reserved, until recorded or freed.
    Got(Extent),
    /// Load this group and ask again.
    NeedsLoading(Arc<Group>),
    /// No group has it.
    Full {
        /// The most contiguous bytes that a smaller request could get.
        largest: u64,
    },
}

impl Space {
    /// Allocates between `min` and `want` contiguous bytes, as many as there are. No promise is
    /// kept by it: metadata is reserved in advance, and given back when the commit is done.
    ///
    /// # Panics
    ///
    /// When the request is no multiple of what its kind is allocated in: a bug of the caller.
    pub fn allocate(&self, request: AllocRequest) -> Outcome {
        self.search(request, false)
    }

    /// As [`Space::allocate`], for data that was promised: what is allocated is taken from
    /// `reservation`, and `want` is cut to it.
    ///
    /// # Panics
    ///
    /// When the request is not for data, the reservation is another volume's, or holds less than
    /// `min`: bugs of the caller.
    pub fn allocate_data(
        &self,
        reservation: &mut DataReservation,
        request: AllocRequest,
    ) -> Outcome {
        assert_eq!(request.kind, SpaceKind::Data, "a data reservation is for data");
        assert!(reservation.is_of(self), "R1: a promise of another volume");
        let promised = reservation.bytes() & !(self.unit(SpaceKind::Data) - 1);
        let want = request.want.min(promised);
        assert!(request.min <= want, "R1: {} bytes of a promise of {promised}", request.min);
        let outcome = self.search(AllocRequest { want, ..request }, true);
        if let Outcome::Got(extent) = &outcome {
            reservation.take(extent.len);
        }
        outcome
    }

    fn search(&self, request: AllocRequest, promised: bool) -> Outcome {
        let unit = self.unit(request.kind);
        let AllocRequest { kind, want, min, align, .. } = request;
        assert!(min > 0 && min <= want, "L3: between {min} and {want} bytes");
        assert!(want.is_multiple_of(unit) && min.is_multiple_of(unit), "L3: {want}, {min}");
        assert!(align > 0 && unit.is_multiple_of(align), "L3: {align} for {kind}");
        let directory = self.directory();
        let groups = directory.of(self.home(kind));
        let goal = request.goal.or_else(|| self.goals().last(kind, request.stream));
        let search = Search { space: self, request, promised, goal, groups };
        let outcome = search.run();
        if let Outcome::Got(extent) = &outcome {
            assert!(extent.start.0.is_multiple_of(unit), "L3: {extent:?}");
            assert!(extent.len >= min && extent.len <= want, "L3: {extent:?}");
            self.goals().remember(kind, request.stream, extent.end());
        }
        outcome
    }
}

/// One search, with what all its passes need.
struct Search<'a> {
    space: &'a Space,
    request: AllocRequest,
    promised: bool,
    goal: Option<Logical>,
    groups: &'a Sorted,
}

/// What a pass over the groups saw besides what it got.
#[derive(Default)]
struct Seen<'a> {
    /// A group that may have it was held by somebody.
    busy: bool,
    /// The nearest group that may have it, once loaded.
    unloaded: Option<&'a Arc<Group>>,
}

impl<'a> Search<'a> {
    fn run(&self) -> Outcome {
        let mut seen = Seen::default();
        let mut got = self.pass(false, &mut seen);
        if got.is_none() && seen.busy {
            got = self.pass(true, &mut seen);
        }
        if let Some(extent) = got {
            return Outcome::Got(extent);
        }
        if let Some(group) = seen.unloaded {
            return Outcome::NeedsLoading(Arc::clone(group));
        }
        self.settle_for_less()
    }

    /// Groups that may be used (L1), from the goal onwards.
    fn eligible(&self) -> impl Iterator<Item = &'a Arc<Group>> {
        let groups = self.groups.groups();
        let origin = self.goal.map_or(0, |goal| self.groups.index_near(goal));
        let (behind, ahead) = groups.split_at(origin.min(groups.len()));
        let limit = self.request.limit;
        ahead.iter().chain(behind).filter(move |group| group.birth() <= limit)
    }

    /// Tries every group that seems to have all of `want`.
    fn pass(&self, wait: bool, seen: &mut Seen<'a>) -> Option<Extent> {
        let want = self.request.want;
        for group in self.eligible().filter(|group| group.largest_free() >= want) {
            if !group.is_loaded() {
                seen.unloaded.get_or_insert(group);
                continue;
            }
            let state = if wait { Some(group.lock()) } else { group.try_lock() };
            let Some(mut state) = state else {
                seen.busy = true;
                continue;
            };
            let goal = self.goal.filter(|&at| group.range().contains(at)).map(|at| at.0);
            let ledger = self.space.ledger(self.request.kind);
            let got =
                group.allocate(&mut state, ledger, self.promised, |free| match self.request.kind {
                    SpaceKind::Data => free.take_fitting(goal, want),
                    SpaceKind::Metadata | SpaceKind::System => free.take_near(goal, want),
                });
            if got.is_some() {
                return got;
            }
        }
        None
    }

    /// No group has all of `want`: the largest extent of any that is loaded.
    fn settle_for_less(&self) -> Outcome {
        let AllocRequest { kind, want, min, .. } = self.request;
        loop {
            let largest = |group: &&Arc<Group>| group.largest_free();
            let loaded = self.eligible().filter(|group| group.is_loaded()).max_by_key(largest);
            let Some(group) = loaded.filter(|group| group.largest_free() >= min) else { break };
            let mut state = group.lock();
            let ledger = self.space.ledger(kind);
            let got = group
                .allocate(&mut state, ledger, self.promised, |free| free.take_largest(want, min));
            // Without success somebody else had it, and the summary says so now.
            if let Some(extent) = got {
                return Outcome::Got(extent);
            }
        }
        let mut best = 0;
        for group in self.eligible() {
            let largest = group.largest_free();
            if !group.is_loaded() && largest >= min {
                return Outcome::NeedsLoading(Arc::clone(group));
            }
            best = best.max(largest);
        }
        Outcome::Full { largest: best }
    }
}
