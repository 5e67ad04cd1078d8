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

use buttress_format::{Extent, Logical};

use crate::group_state::State;
use crate::request::{AllocRequest, Outcome};
use crate::search::{Next, Search, Take};
use crate::{DataReservation, Group, Space, SpaceKind};

/// How often a search begins again that was overtaken, when nothing is promised: somebody may come and go for ever
/// with less than it needs.
const AGAIN_MAX: u32 = 64;

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

    /// Takes what is free next in a group out of everybody's reach for a while, at or behind `from`: no more than
    /// `most` and no more than `promise` has, which it is taken from. Runs shorter than `least` are passed over.
    /// [`Space::free`] gives it back.
    #[must_use = "an extent that nobody frees is lost until the next mount"]
    pub fn borrow(
        &self,
        group: &Group,
        promise: Option<&mut DataReservation>,
        from: Logical,
        least: u64,
        most: u64,
    ) -> Option<Extent> {
        let ledger = self.ledger(group.kind());
        let Some(promise) = promise else {
            return group.borrow(ledger, false, from.0, least, most);
        };
        let most = most.min(promise.bytes());
        let found = group.borrow(ledger, true, from.0, least, most)?;
        promise.take(found.len);
        Some(found)
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
        state: &mut State,
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
