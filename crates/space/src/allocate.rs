//! Chooses the group of an allocation, and an extent in the group.
//!
//! # Place
//!
//! Writeback allocates data here, and the commit allocates nodes. [`Search`] chooses groups by
//! their summaries, without a lock. This module then locks the chosen group and tries to allocate
//! in it.
//!
//! # Invariants
//!
//! - **L3** An allocated extent begins and ends at whole units.
//! - **L6** While a reservation has a unit of data left, an allocation from it with a `min` of one
//!   unit finds space. Free space enters the index first, then its arrival is counted, and only
//!   then can it be reserved. So a search during which no arrival was counted has looked at all
//!   space that backs existing reservations. During the search this space can only have shrunk, and
//!   the space that remains still covers the caller's reservation. If an arrival was counted, the
//!   search begins again.
//! - L1, L2, L4 and L5 are invariants of `search`.
//!
//! Loading a group costs one read in a session, while a fragmented file stays fragmented. So a
//! search first loads a group that may have all wanted bytes, and only then takes fewer bytes. A
//! caller in a hurry takes fewer bytes at once.
//!
//! # Locks
//!
//! The lock of one group at a time, and the account's lock inside it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use buttress_format::{Extent, Logical};

use crate::group_state::State;
use crate::request::{AllocOutcome, AllocRequest};
use crate::search::{Next, Search, Take};
use crate::{DataReservation, Group, Space, SpaceKind};

/// The most repeats of an overtaken search, if L6 does not apply to the search. Without this limit,
/// threads that free and take short extents could make a search repeat for ever.
const AGAIN_MAX: u32 = 64;

impl Space {
    /// Allocates between `min` and `want` contiguous bytes, as many as there are. The allocation
    /// uses up no reservation: the reservation of metadata is made in advance, and given back when
    /// the commit is done.
    ///
    /// # Panics
    ///
    /// When the request is no multiple of the kind's unit: a bug of the caller.
    pub fn allocate(&self, request: AllocRequest) -> AllocOutcome {
        self.run(request, false)
    }

    /// As [`Space::allocate`], for reserved data: the allocated bytes are taken from `reservation`,
    /// which also limits `want`.
    ///
    /// # Panics
    ///
    /// When the request is not for data, or when the reservation belongs to another volume or holds
    /// less than `min`. These are bugs of the caller.
    pub fn allocate_data(
        &self,
        reservation: &mut DataReservation,
        request: AllocRequest,
    ) -> AllocOutcome {
        assert_eq!(request.kind, SpaceKind::Data, "a data reservation is for data");
        assert!(reservation.is_of(self), "reserve::R1: a reservation of another volume");
        let held = reservation.bytes() & !(self.unit(SpaceKind::Data) - 1);
        let want = request.want.min(held);
        let least = request.min;
        assert!(least <= want, "reserve::R1: {least} bytes of a reservation of {held}");
        let outcome = self.run(AllocRequest { want, ..request }, true);
        if let AllocOutcome::Got(extent) = &outcome {
            reservation.take(extent.len);
        }
        outcome
    }

    /// Takes the next free extent of a group at or behind `from` out of free space, so that a trim
    /// can discard it. Runs shorter than `least` are skipped. The extent has at most `most` bytes.
    /// With a `reservation`, the extent is no longer than the reservation, and its bytes are taken
    /// from the reservation. The caller gives the extent back with [`Space::free`].
    #[must_use = "an extent that is not freed is lost until the next mount"]
    pub fn take_for_trim(
        &self,
        group: &Group,
        reservation: Option<&mut DataReservation>,
        from: Logical,
        least: u64,
        most: u64,
    ) -> Option<Extent> {
        let account = self.shared_account(group.kind());
        let Some(reservation) = reservation else {
            return group.take_for_trim(account, false, from.0, least, most);
        };
        let most = most.min(reservation.bytes());
        let found = group.take_for_trim(account, true, from.0, least, most)?;
        reservation.take(found.len);
        Some(found)
    }

    /// Runs `act` with a new search for `request`.
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
        // Read the count before the directory. The search does not see a group that is added in
        // between. So in that case the search must count as overtaken.
        let begun = index.arrival_count();
        let directory = self.directory();
        let mut search = Search::new(&directory, index, begun, home, request, policy, goal);
        act(&mut search)
    }

    /// Takes the bytes that a search wants from the group that the search named. Waits for the
    /// group's lock. `from_reservation` says whether the bytes come from a reservation.
    pub fn take_from(
        &self,
        search: &Search<'_>,
        group: &Group,
        take: Take,
        from_reservation: bool,
    ) -> Option<Extent> {
        self.take_held(search, group, &mut group.lock(), take, from_reservation)
    }

    /// Sets the goal of the request's stream to the end of `extent`.
    pub fn note_goal(&self, request: &AllocRequest, extent: Extent) {
        self.goals().remember(request.kind, request.stream, self.policy(), extent.end());
    }

    fn take_held(
        &self,
        search: &Search<'_>,
        group: &Group,
        state: &mut State,
        take: Take,
        from_reservation: bool,
    ) -> Option<Extent> {
        let AllocRequest { kind, want, min, .. } = *search.request();
        let goal = search.goal().filter(|&at| group.range().contains(at));
        let goal = goal.map(|at| group.row_behind(at.0));
        let account = self.shared_account(kind);
        group.allocate(state, account, from_reservation, want, |free| match (take, kind) {
            (Take::AtGoal, _) => free.take_at(goal?, want),
            (Take::Wanted, SpaceKind::Data) => free.take_fitting(goal, want),
            (Take::Wanted, _) => free.take_near(goal, want),
            (Take::Largest, _) => free.take_largest(want, min),
        })
    }

    fn run(&self, request: AllocRequest, from_reservation: bool) -> AllocOutcome {
        let counters = self.alloc_counters();
        let count = |counter: &AtomicU64, by: u64| {
            if by > 0 {
                counter.fetch_add(by, Ordering::Relaxed);
            }
        };
        let kept = from_reservation && request.min == self.unit(request.kind);
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
                            let got =
                                self.take_held(search, group, &mut state, take, from_reservation);
                            if let Some(extent) = got {
                                break AllocOutcome::Got(extent);
                            }
                        }
                        Next::Load(group) => break AllocOutcome::NeedsLoading(Arc::clone(group)),
                        Next::Full { largest } => break AllocOutcome::Full { largest },
                    }
                };
                count(&counters.probes, search.probes().into());
                count(&counters.busy, busy);
                (outcome, search.was_overtaken())
            });
            match &outcome {
                AllocOutcome::Got(extent) => {
                    let unit = self.unit(request.kind);
                    assert!(extent.start.0.is_multiple_of(unit), "L3: {extent:?}");
                    let fits = extent.len >= request.min && extent.len <= request.want;
                    assert!(fits, "L3: {extent:?}");
                    self.note_goal(&request, *extent);
                    count(&counters.allocations, 1);
                    count(&counters.shortened, u64::from(extent.len < request.want));
                }
                AllocOutcome::NeedsLoading(_) => {}
                AllocOutcome::Full { .. } if overtaken && (kept || again < AGAIN_MAX) => {
                    // The thread that overtook the search may still be entering a group, so let
                    // that thread run.
                    buttress_base::thread::yield_now();
                    continue;
                }
                AllocOutcome::Full { .. } => count(&counters.failed, 1),
            }
            return outcome;
        }
        unreachable!("the loop is left by an answer")
    }
}
