//! Choosing where: a group, and an extent in it.
//!
//! # Place
//!
//! Called by writeback for data and by the commit for nodes. [`Search`] names groups by their summaries, without
//! a lock; this takes one group's lock to try it.
//!
//! # Invariants
//!
//! - **L3** What is handed out begins and ends at whole units.
//! - **L6** One unit of data that is promised is always found. Free space is entered in the index, the arrival
//!   is counted, and only then can it be promised. So a search that saw no arrival looked, all the time, at
//!   everything that any promise used by then was made of: what is left of that is at least what the caller was promised,
//!   and it only became less meanwhile. A search that saw one begins again.
//! - L1, L2, L4 and L5 are the search's.
//!
//! A group is read once in a session, and fragments stay for good: all that is wanted from a group that must be
//! loaded first goes before less of it at once, unless the caller is in a hurry.
//!
//! # Locks
//!
//! One group's at a time, with the account inside.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use buttress_format::{Extent, Generation, Logical};

use crate::search::{Next, Search, Take};
use crate::{DataReservation, Group, Space, SpaceKind};

/// How often a search begins again that was overtaken, when nothing is promised: somebody may come and go for ever
/// with less than it needs.
const AGAIN_MAX: u32 = 64;

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
    /// Take less from what is loaded rather than load more.
    pub hurry: bool,
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
        /// Contiguous bytes that a smaller request could get; there may be up to twice as many.
        largest: u64,
    },
}

/// What searches came to, since the volume was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AllocStats {
    /// Extents handed out.
    pub allocations: u64,
    /// Groups looked at for them.
    pub probes: u64,
    /// Groups left because somebody held them.
    pub busy: u64,
    /// Requests that got less than they wanted.
    pub shortened: u64,
    /// Requests that nobody had.
    pub failed: u64,
}

/// The same, counted by many threads. Not exact: each count may miss what threads add at the same moment.
#[derive(Debug, Default)]
pub(crate) struct AllocCounters {
    allocations: AtomicU64,
    probes: AtomicU64,
    busy: AtomicU64,
    shortened: AtomicU64,
    failed: AtomicU64,
}

impl AllocCounters {
    pub(crate) fn add_to(&self, sum: AllocStats) -> AllocStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        AllocStats {
            allocations: sum.allocations + read(&self.allocations),
            probes: sum.probes + read(&self.probes),
            busy: sum.busy + read(&self.busy),
            shortened: sum.shortened + read(&self.shortened),
            failed: sum.failed + read(&self.failed),
        }
    }
}

impl Space {
    /// Allocates between `min` and `want` contiguous bytes, as many as there are. No promise is
    /// kept by it: metadata is reserved in advance, and given back when the commit is done.
    ///
    /// # Panics
    ///
    /// When the request is no multiple of what its kind is allocated in: a bug of the caller.
    pub fn allocate(&self, request: AllocRequest) -> Outcome {
        self.run(request, false)
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
        let outcome = self.run(AllocRequest { want, ..request }, true);
        if let Outcome::Got(extent) = &outcome {
            reservation.take(extent.len);
        }
        outcome
    }

    /// Runs `act` with a search for `request`. For [`Space::allocate`], and for whoever simulates the locks.
    ///
    /// # Panics
    ///
    /// As [`Space::allocate`].
    pub fn with_search<R>(
        &self,
        request: AllocRequest,
        act: impl FnOnce(&mut Search<'_>) -> R,
    ) -> R {
        let unit = self.unit(request.kind);
        let AllocRequest { kind, want, min, align, .. } = request;
        assert!(min > 0 && min <= want, "L3: between {min} and {want} bytes");
        assert!(want.is_multiple_of(unit) && min.is_multiple_of(unit), "L3: {want}, {min}");
        assert!(align > 0 && unit.is_multiple_of(align), "L3: {align} for {kind}");
        let policy = self.policy();
        let goal = request.goal.or_else(|| self.goals().last(kind, request.stream, policy));
        let home = self.home(kind);
        let index = self.index(home);
        // Before the directory: a group that comes in between is one that the search does not see.
        let begun = index.now();
        let directory = self.directory();
        let mut search = Search::new(&directory, index, begun, home, request, policy, goal);
        act(&mut search)
    }

    /// Takes what a search wants from the group that it named, after waiting for the group's lock. `promised`:
    /// a promise is kept by it.
    pub fn take_from(
        &self,
        search: &Search<'_>,
        group: &Group,
        take: Take,
        promised: bool,
    ) -> Option<Extent> {
        self.take_held(search, group, &mut group.lock(), take, promised)
    }

    /// The stream of `request` goes on behind `extent`.
    pub fn note_goal(&self, request: &AllocRequest, extent: Extent) {
        self.goals().remember(request.kind, request.stream, self.policy(), extent.end());
    }

    fn take_held(
        &self,
        search: &Search<'_>,
        group: &Group,
        state: &mut crate::group_state::State,
        take: Take,
        promised: bool,
    ) -> Option<Extent> {
        let AllocRequest { kind, want, min, .. } = *search.request();
        let goal = search.goal().filter(|&at| group.range().contains(at));
        let goal = goal.map(|at| group.row_behind(at.0));
        let ledger = self.ledger(kind);
        group.allocate(state, ledger, promised, want, |free| match (take, kind) {
            (Take::AtGoal, _) => free.take_at(goal?, want),
            (Take::Wanted, SpaceKind::Data) => free.take_fitting(goal, want),
            (Take::Wanted, _) => free.take_near(goal, want),
            (Take::Largest, _) => free.take_largest(want, min),
        })
    }

    fn run(&self, request: AllocRequest, promised: bool) -> Outcome {
        let counters = self.alloc_counters();
        let count = |counter: &AtomicU64, by: u64| {
            if by > 0 {
                counter.fetch_add(by, Ordering::Relaxed);
            }
        };
        let kept = promised && request.min == self.unit(request.kind);
        for again in 0.. {
            let (outcome, overtaken) = self.with_search(request, |search| {
                let mut busy = 0;
                let outcome = loop {
                    match search.step() {
                        Next::Group { group, wait, take } => {
                            let state = if wait { Some(group.lock()) } else { group.try_lock() };
                            let Some(mut state) = state else {
                                busy += 1;
                                search.was_busy();
                                continue;
                            };
                            let got = self.take_held(search, group, &mut state, take, promised);
                            if let Some(extent) = got {
                                break Outcome::Got(extent);
                            }
                        }
                        Next::Load(group) => break Outcome::NeedsLoading(Arc::clone(group)),
                        Next::Full { largest } => break Outcome::Full { largest },
                    }
                };
                count(&counters.probes, search.probes().into());
                count(&counters.busy, busy);
                (outcome, search.was_overtaken())
            });
            match &outcome {
                Outcome::Got(extent) => {
                    let unit = self.unit(request.kind);
                    assert!(extent.start.0.is_multiple_of(unit), "L3: {extent:?}");
                    let fits = extent.len >= request.min && extent.len <= request.want;
                    assert!(fits, "L3: {extent:?}");
                    self.note_goal(&request, *extent);
                    count(&counters.allocations, 1);
                    count(&counters.shortened, u64::from(extent.len < request.want));
                }
                Outcome::NeedsLoading(_) => {}
                Outcome::Full { .. } if overtaken && (kept || again < AGAIN_MAX) => {
                    // He who overtook it may be about to say what he found.
                    buttress_base::thread::yield_now();
                    continue;
                }
                Outcome::Full { .. } => count(&counters.failed, 1),
            }
            return outcome;
        }
        unreachable!("the loop is left by an answer")
    }
}
