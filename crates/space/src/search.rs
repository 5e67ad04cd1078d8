//! The order in which groups are tried for one allocation.
//!
//! # Place
//!
//! A search names groups and takes no lock. [`Space`](crate::Space) locks the named group and
//! reports the result.
//!
//! # Invariants
//!
//! - **L1** No group born after the request's limit is named. So a commit never uses a chunk that
//!   only the next commit records.
//! - **L2** A search that met busy groups names all candidates once more, with a wait for their
//!   locks. Only after this second round may the search return that there is no space.
//! - **L4** A search ends: each pass visits every slot at most once, from the goal's slot to the
//!   last and then from the first. A group that changes its plane meanwhile is met at most once
//!   more in each pass.
//! - **L5** A search finds free space that was there all the time. The exception is a search during
//!   which groups moved in the index: [`Search::was_overtaken`] then returns true.
//!
//! The order, best first:
//!
//! - the goal's own group;
//! - groups with an order in which every run is long enough: first groups of the size's class, then
//!   of no class, then of other classes;
//! - groups with an order in which only some runs are long enough;
//! - all of these once more, with a wait for busy groups;
//! - the loading of a group that may have `want` bytes;
//! - the longest run of any group, if it has `min` bytes;
//! - the loading of a group that may have `min` bytes.

use std::sync::Arc;

use buttress_format::Logical;

use crate::directory::{Directory, Slots};
use crate::index::{Index, ORDERS, Plane, order_holding, order_of};
use crate::size_class::SizeClass;
use crate::{AllocPolicy, AllocRequest, Group, SpaceKind};

/// The most groups of one order that are compared to find the largest run.
const COMPARED_MAX: usize = 64;

/// The bytes to take from a named group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Take {
    /// All wanted bytes, anywhere in the group.
    Wanted,
    /// All wanted bytes, but only right at the goal, because the group has another size class.
    AtGoal,
    /// The largest run, if it has at least `min` bytes.
    Largest,
}

/// The next step of a caller.
#[derive(Clone, Copy, Debug)]
pub enum Next<'a> {
    /// Try this group.
    Group {
        /// The group.
        group: &'a Arc<Group>,
        /// Whether to wait for the group's lock. Otherwise a busy group is skipped.
        wait: bool,
        /// The bytes to take from the group.
        take: Take,
    },
    /// Load this group, then search again.
    Load(&'a Arc<Group>),
    /// No group has enough contiguous space.
    Full {
        /// The length of a run that a smaller request could get. There may be a run up to twice as
        /// long.
        largest: u64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Goal,
    /// Groups with an order in which every run is long enough, in the plane with this number.
    Sure(usize),
    /// Groups with an order in which only some runs are long enough.
    Open(usize),
    /// All groups of the earlier phases once more, with a wait for busy groups.
    Wait(usize),
    #[cfg(feature = "baselines")]
    Linear,
    #[cfg(feature = "baselines")]
    LinearWait,
    Load,
    Largest,
    LoadLeast,
    Full,
}

/// One pass over all slots, which begins in the middle.
#[derive(Clone, Copy, Debug)]
struct Pass {
    next: usize,
    wrapped: bool,
}

/// One search.
#[derive(Debug)]
pub struct Search<'a> {
    slots: &'a Slots,
    index: &'a Index,
    request: AllocRequest,
    #[cfg(feature = "baselines")]
    policy: AllocPolicy,
    goal: Option<Logical>,
    /// The slot of the goal's group, at which every pass begins.
    origin: usize,
    goal_group: Option<&'a Arc<Group>>,
    planes: [Plane; 4],
    phase: Phase,
    pass: Pass,
    busy: bool,
    /// The index's count of arrivals when the search began.
    begun: u64,
    /// The number of groups that were looked at, for statistics.
    probes: u32,
}

impl<'a> Search<'a> {
    pub(crate) fn new(
        directory: &'a Directory,
        index: &'a Index,
        begun: u64,
        home: SpaceKind,
        request: AllocRequest,
        policy: AllocPolicy,
        goal: Option<Logical>,
    ) -> Self {
        let slots = directory.of(home);
        let goal_group =
            goal.and_then(|at| directory.find(at)).filter(|group| group.kind() == home);
        let origin = goal_group.map_or(0, |group| group.slot());
        let phase = match policy {
            #[cfg(feature = "baselines")]
            AllocPolicy::Linear | AllocPolicy::LinearTrylock => Phase::Linear,
            _ => Phase::Goal,
        };
        Self {
            slots,
            index,
            request,
            #[cfg(feature = "baselines")]
            policy,
            goal,
            origin,
            goal_group,
            planes: SizeClass::of(home, request.want).order(),
            phase,
            pass: Pass { next: origin, wrapped: false },
            busy: false,
            begun,
            probes: 0,
        }
    }

    /// The preferred start of the extent.
    pub(crate) fn goal(&self) -> Option<Logical> {
        self.goal
    }

    /// The request.
    pub(crate) fn request(&self) -> &AllocRequest {
        &self.request
    }

    /// Notes that the group named last was skipped because another thread holds its lock.
    pub fn was_busy(&mut self) {
        self.busy = true;
    }

    /// Whether space may have become free since the search began, in a group that the search had
    /// already passed. If so, there may be space although the search found none (L5).
    #[must_use]
    pub fn was_overtaken(&self) -> bool {
        self.index.was_overtaken(self.begun)
    }

    /// How many groups were named or looked at so far.
    #[must_use]
    pub fn probes(&self) -> u32 {
        self.probes
    }

    fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        self.pass = Pass { next: self.origin, wrapped: false };
    }

    /// The next step. The caller calls this again when the named group had no room or was busy.
    pub fn step(&mut self) -> Next<'a> {
        let want = self.request.want;
        let try_it = |group, wait, take| Next::Group { group, wait, take };
        loop {
            match self.phase {
                Phase::Goal => {
                    self.enter(Phase::Sure(0));
                    let Some(group) = self.goal_group.filter(|group| self.may(group)) else {
                        continue;
                    };
                    self.probes += 1;
                    if group.is_loaded() && group.largest_free() >= want {
                        let fits = self.planes[..2].contains(&group.plane());
                        return try_it(
                            group,
                            false,
                            if fits { Take::Wanted } else { Take::AtGoal },
                        );
                    }
                }
                Phase::Sure(plane) => {
                    let order = order_holding(want).filter(|_| plane < self.planes.len());
                    let Some(order) = order else {
                        self.enter(Phase::Open(0));
                        continue;
                    };
                    match self.ahead(self.planes[plane], order, want) {
                        Some(group) => return try_it(group, false, Take::Wanted),
                        None => self.enter(Phase::Sure(plane + 1)),
                    }
                }
                Phase::Open(plane) if plane < self.planes.len() => {
                    // If both orders are equal, the phase `Sure` has named these groups already.
                    let open = order_of(want).filter(|order| order_holding(want) != Some(*order));
                    let found = open.and_then(|order| self.ahead(self.planes[plane], order, want));
                    match found {
                        Some(group) => return try_it(group, false, Take::Wanted),
                        None => self.enter(Phase::Open(plane + 1)),
                    }
                }
                Phase::Open(_) => {
                    self.enter(if self.busy { Phase::Wait(0) } else { Phase::Load });
                }
                Phase::Wait(plane) if plane < self.planes.len() => {
                    let order = order_of(want).unwrap_or(0);
                    match self.ahead(self.planes[plane], order, want) {
                        Some(group) => return try_it(group, true, Take::Wanted),
                        None => self.enter(Phase::Wait(plane + 1)),
                    }
                }
                Phase::Wait(_) => self.enter(Phase::Load),
                #[cfg(feature = "baselines")]
                Phase::Linear => match self.linear(want) {
                    Some(group) => {
                        return try_it(group, self.policy == AllocPolicy::Linear, Take::Wanted);
                    }
                    None => {
                        self.enter(if self.busy { Phase::LinearWait } else { Phase::Load });
                    }
                },
                #[cfg(feature = "baselines")]
                Phase::LinearWait => match self.linear(want) {
                    Some(group) => return try_it(group, true, Take::Wanted),
                    None => self.enter(Phase::Load),
                },
                Phase::Load => {
                    self.enter(Phase::Largest);
                    if !self.request.hurry
                        && let Some(group) = self.unloaded(want)
                    {
                        return Next::Load(group);
                    }
                }
                Phase::Largest => {
                    match self.largest(self.request.min) {
                        // If this attempt fails, another thread took the run. The group's summary
                        // shows the loss by now, so the next step tries another group.
                        Some(group) => return try_it(group, true, Take::Largest),
                        None => self.enter(Phase::LoadLeast),
                    }
                }
                Phase::LoadLeast => {
                    self.enter(Phase::Full);
                    if let Some(group) = self.unloaded(self.request.min) {
                        return Next::Load(group);
                    }
                }
                Phase::Full => {
                    let loaded = self.largest(1).map_or(0, |group| group.largest_free());
                    let most = |order: &usize| self.index.any(Plane::Unloaded, *order);
                    let unloaded = (0..ORDERS).rev().find(most).and_then(|order| {
                        let group = self.unloaded_of(order, 0)?;
                        Some(group.largest_free())
                    });
                    return Next::Full { largest: loaded.max(unloaded.unwrap_or(0)) };
                }
            }
        }
    }

    /// Whether a group may be used at all (L1).
    fn may(&self, group: &Group) -> bool {
        group.birth() <= self.request.limit
    }

    /// The next slot of this pass that the index names.
    fn slot_ahead(&mut self, plane: Plane, order: usize) -> Option<usize> {
        loop {
            let end = if self.pass.wrapped { self.origin } else { usize::MAX };
            let found = self.index.next(plane, order, self.pass.next).filter(|slot| *slot < end);
            if let Some(slot) = found {
                self.pass.next = slot + 1;
                return Some(slot);
            }
            if self.pass.wrapped {
                return None;
            }
            self.pass = Pass { next: 0, wrapped: true };
        }
    }

    /// The next group of this pass that the index names and that seems to have `bytes`.
    fn ahead(&mut self, plane: Plane, order: usize, bytes: u64) -> Option<&'a Arc<Group>> {
        while let Some(slot) = self.slot_ahead(plane, order) {
            if let Some(group) = self.probe(slot, bytes) {
                return Some(group);
            }
        }
        None
    }

    /// Returns the group in a slot, if it may be used and seems to have `bytes`.
    fn probe(&mut self, slot: usize, bytes: u64) -> Option<&'a Arc<Group>> {
        self.probes += 1;
        let group = self.slots.get(slot).filter(|group| self.may(group))?;
        (group.is_loaded() && group.largest_free() >= bytes).then_some(group)
    }

    /// As [`ahead`](Self::ahead), without an index.
    #[cfg(feature = "baselines")]
    fn linear(&mut self, bytes: u64) -> Option<&'a Arc<Group>> {
        loop {
            let end = if self.pass.wrapped { self.origin } else { self.slots.len() };
            while self.pass.next < end {
                let slot = self.pass.next;
                self.pass.next += 1;
                if let Some(group) = self.probe(slot, bytes) {
                    return Some(group);
                }
            }
            if self.pass.wrapped {
                return None;
            }
            self.pass = Pass { next: 0, wrapped: true };
        }
    }

    /// The nearest unloaded group that may have `bytes`.
    fn unloaded(&mut self, bytes: u64) -> Option<&'a Arc<Group>> {
        let sure = order_holding(bytes).and_then(|order| self.unloaded_of(order, bytes));
        sure.or_else(|| self.unloaded_of(order_of(bytes)?, bytes))
    }

    fn unloaded_of(&mut self, order: usize, bytes: u64) -> Option<&'a Arc<Group>> {
        self.pass = Pass { next: self.origin, wrapped: false };
        while let Some(slot) = self.slot_ahead(Plane::Unloaded, order) {
            let group = self.slots.get(slot).filter(|group| self.may(group));
            if let Some(group) = group
                && !group.is_loaded()
                && group.largest_free() >= bytes
            {
                return Some(group);
            }
        }
        None
    }

    /// Finds a loaded group with a run of the highest order that any group has, and of at least
    /// `least` bytes. The search compares the first [`COMPARED_MAX`] groups in each plane, and
    /// takes the group with the longest run. At the order of the request's `min` the search
    /// compares all groups, because groups of lower orders have too few bytes.
    ///
    /// Another thread may empty or remove a group after the search looked at it. The group's
    /// summary shows the change first, and its entries leave the index afterwards. The search then
    /// finds nothing in that group. The search still finds the space that the request has reserved,
    /// because other groups have this space (L5).
    fn largest(&mut self, least: u64) -> Option<&'a Arc<Group>> {
        let last = order_of(least).unwrap_or(0);
        let all = order_of(self.request.min);
        for order in (last..ORDERS).rev() {
            let mut best: Option<(u64, &'a Arc<Group>)> = None;
            for plane in self.planes {
                self.pass = Pass { next: self.origin, wrapped: false };
                let mut compared = 0;
                while let Some(slot) = self.slot_ahead(plane, order) {
                    self.probes += 1;
                    let Some(group) = self.slots.get(slot) else { continue };
                    let free = group.largest_free();
                    if free < least || !group.is_loaded() || !self.may(group) {
                        continue;
                    }
                    if best.is_none_or(|(most, _)| most < free) {
                        best = Some((free, group));
                    }
                    compared += 1;
                    if compared >= COMPARED_MAX && all != Some(order) {
                        break;
                    }
                }
            }
            if let Some((_, group)) = best {
                return Some(group);
            }
        }
        None
    }
}
