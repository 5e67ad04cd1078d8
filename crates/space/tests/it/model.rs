//! For any sequence of calls, the crate gives the same answers as a model with a byte for every
//! sector.
//!
//! The model walks every sector, so it knows the free sectors, and the most bytes that a request
//! can get. Group, extent and amount come from a seed, which a failure names.

use std::sync::Arc;

use buttress_base::Rng;
use buttress_format::{Extent, Generation, Logical};
use buttress_space::SpaceKind::{Data, Metadata, System};
use buttress_space::{
    AllocOutcome, AllocPolicy, AllocRequest, DataReservation, GroupInit, Space, SpaceKind,
};

use crate::world::*;

const STEPS: usize = 3000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Reserved,
    Used,
    Pinned,
    Super,
}

/// One group of the model.
struct Group {
    kind: SpaceKind,
    birth: u64,
    start: u64,
    /// The state of each sector.
    states: Vec<State>,
    loaded: bool,
    /// The sectors that were free when the group was added: an old free-space tree.
    free_at_first: Vec<bool>,
}

impl Group {
    fn unit(&self) -> u64 {
        if self.kind == Data { SECTOR } else { NODE }
    }

    fn count(&self, state: State) -> u64 {
        self.states.iter().filter(|&&found| found == state).count() as u64 * SECTOR
    }

    /// The most whole units in a row that are free; for an unloaded group, an upper bound.
    fn largest(&self) -> u64 {
        if !self.loaded {
            return self.count(State::Free) & !(self.unit() - 1);
        }
        let run = (self.unit() / SECTOR) as usize;
        let first = (self.start.next_multiple_of(self.unit()) - self.start) / SECTOR;
        let (mut best, mut current) = (0, 0);
        for unit in self.states[first as usize..].chunks_exact(run) {
            let is_free = unit.iter().all(|&state| state == State::Free);
            current = if is_free { current + self.unit() } else { 0 };
            best = best.max(current);
        }
        best
    }

    /// Runs of sectors for which `is` holds.
    fn runs(&self, is: impl Fn(usize) -> bool) -> Vec<Extent> {
        let mut runs: Vec<Extent> = Vec::new();
        for sector in (0..self.states.len()).filter(|&sector| is(sector)) {
            let at = self.start + sector as u64 * SECTOR;
            match runs.last_mut() {
                Some(run) if run.end().0 == at => run.len += SECTOR,
                _ => runs.push(extent(at, SECTOR)),
            }
        }
        runs
    }
}

struct World {
    rng: Rng,
    space: Arc<Space>,
    groups: Vec<Group>,
    next_start: u64,
    data: Vec<DataReservation>,
    /// How often an allocation got all bytes, got fewer bytes, needed a group to be loaded, or
    /// failed.
    outcomes: [u32; 4],
}

impl World {
    fn new(seed: u64) -> Self {
        let mut world = Self {
            rng: Rng::new(seed),
            // X6: the answers are equally good with every policy.
            space: Arc::new(
                empty_space()
                    .choosing(AllocPolicy::ALL[(seed % 4) as usize])
                    .for_processors(1 + (seed % 3) as usize),
            ),
            groups: Vec::new(),
            next_start: 0,
            data: Vec::new(),
            outcomes: [0; 4],
        };
        for _ in 0..6 {
            world.add_group();
        }
        world
    }

    /// A group with any content, at a place that may not suit the node size.
    fn add_group(&mut self) {
        let rng = &mut self.rng;
        let kind = *rng.choose(&[Data, Data, Metadata, Metadata, System]).expect("not empty");
        let sectors = rng.range(1..300) as usize;
        let start = self.next_start + rng.below(5) * SECTOR;
        self.next_start = start + sectors as u64 * SECTOR;
        let birth = if rng.chance(1, 2) { rng.range(1..4) } else { 0 };
        let mut states = vec![State::Free; sectors];
        let mut superblock_stripes = Vec::new();
        if rng.chance(1, 3) {
            let at = rng.below(sectors as u64) as usize;
            // The range may reach past the end of the group.
            superblock_stripes.push(extent(start + at as u64 * SECTOR, 16 * SECTOR));
            states.iter_mut().skip(at).take(16).for_each(|state| *state = State::Super);
        }
        if birth == 0 {
            let density = rng.below(5);
            for state in states.iter_mut().filter(|state| **state == State::Free) {
                if rng.chance(density, 4) {
                    *state = State::Used;
                }
            }
        }
        let group = Group {
            kind,
            birth,
            start,
            free_at_first: states.iter().map(|&state| state != State::Used).collect(),
            states,
            loaded: birth > 0,
        };
        let init = GroupInit {
            range: extent(start, sectors as u64 * SECTOR),
            flags: flags(kind),
            used: group.count(State::Used),
            birth: Generation(birth),
            read_only: false,
            superblock_stripes,
            row: None,
        };
        self.space.add_group(init).expect("sound");
        self.groups.push(group);
    }

    fn remove_group(&mut self) {
        let index = self.rng.below(self.groups.len() as u64) as usize;
        let group = &self.groups[index];
        let left = |state| group.count(state) == 0;
        let empty = left(State::Used) && left(State::Reserved) && left(State::Pinned);
        let account = self.space.account(group.kind);
        let result = self.space.remove_group(Logical(group.start));
        assert_eq!(result.is_ok(), empty && account.available() >= group.count(State::Free));
        if result.is_ok() {
            self.groups.remove(index);
        }
    }

    /// Loads a group from an old or a new tree: without the extents freed since, or with them.
    fn load(&mut self, index: usize) {
        let group = &mut self.groups[index];
        let new = self.rng.chance(1, 2);
        let free = group.runs(|sector| {
            let free_now = matches!(group.states[sector], State::Free | State::Pinned);
            group.free_at_first[sector] || (new && free_now)
        });
        let at = Logical(group.start);
        let target = self.space.group_at(at).expect("is there");
        target.load(free.into_iter()).expect("consistent");
        group.loaded = true;
    }

    fn allocate(&mut self) {
        let rng = &mut self.rng;
        let kind = *rng.choose(&SpaceKind::ALL).expect("not empty");
        let unit = if kind == Data { SECTOR } else { NODE };
        let want = rng.range(1..40) * unit;
        let min = if rng.chance(1, 2) { unit * rng.range(1..want / unit + 1) } else { want };
        let goal = rng.chance(1, 3).then(|| Logical(rng.below(self.next_start + 1)));
        let limit = Generation(rng.below(4));
        let stream = rng.below(3);
        let request =
            AllocRequest { kind, want, min, align: unit, goal, limit, stream, hurry: false };
        let reservation =
            self.data.pop_if(|reservation| kind == Data && reservation.bytes() >= want);
        let outcome = match reservation {
            Some(mut reservation) => {
                let held = reservation.bytes();
                let outcome = self.space.allocate_data(&mut reservation, request);
                let kept = if let AllocOutcome::Got(extent) = &outcome { extent.len } else { 0 };
                assert_eq!(reservation.bytes(), held - kept);
                self.data.push(reservation);
                outcome
            }
            None => self.space.allocate(request),
        };
        self.compare(request, outcome);
    }

    /// Compares an outcome with the result of a walk over every sector.
    fn compare(&mut self, request: AllocRequest, outcome: AllocOutcome) {
        let AllocRequest { kind, want, min, limit, .. } = request;
        let eligible = |group: &&Group| group.kind == kind && group.birth <= limit.0;
        let largest = |loaded: bool| {
            let groups = self.groups.iter().filter(eligible);
            groups.filter(|group| group.loaded == loaded).map(Group::largest).max().unwrap_or(0)
        };
        let (loaded, unloaded) = (largest(true), largest(false));
        match outcome {
            AllocOutcome::Got(extent) => {
                // If a group has all wanted bytes, the request gets all. Otherwise it gets more
                // than half of the largest run.
                let most = want.min(loaded);
                assert!(extent.len <= most && extent.len * 2 > most, "{request:?}");
                assert_eq!(extent.len == want, loaded >= want, "{request:?}");
                assert!(extent.len >= min && (extent.len == want || unloaded < want));
                let group = self.group_of(extent);
                assert!(eligible(&&*group) && group.loaded, "{request:?}");
                assert_eq!(extent.start.0 % group.unit(), 0);
                self.set(extent, State::Free, State::Reserved);
                self.outcomes[usize::from(extent.len < want)] += 1;
            }
            AllocOutcome::NeedsLoading(group) => {
                let useful = if loaded >= min { want } else { min };
                assert!(loaded < want && unloaded >= useful, "{request:?}");
                let at = group.start();
                let index = self.groups.iter().position(|group| group.start == at.0);
                let index = index.expect("a group that is there");
                assert!(!self.groups[index].loaded && eligible(&&self.groups[index]));
                self.load(index);
                self.outcomes[2] += 1;
            }
            AllocOutcome::Full { largest } => {
                assert!(loaded < min && unloaded < min, "{request:?}");
                let most = loaded.max(unloaded);
                assert!(largest <= most && (largest * 2 > most || most == 0), "{request:?}");
                self.outcomes[3] += 1;
            }
        }
    }

    fn group_of(&mut self, extent: Extent) -> &mut Group {
        let at = extent.start.0;
        let holds = |group: &Group| {
            (group.start..group.start + group.states.len() as u64 * SECTOR).contains(&at)
        };
        self.groups.iter_mut().find(|group| holds(group)).expect("an extent of a group")
    }

    fn set(&mut self, extent: Extent, from: State, to: State) {
        let group = self.group_of(extent);
        let first = ((extent.start.0 - group.start) / SECTOR) as usize;
        for state in &mut group.states[first..first + (extent.len / SECTOR) as usize] {
            assert_eq!(*state, from, "{extent:?}");
            *state = to;
        }
    }

    /// A random part of a run of sectors in one state.
    fn some(&mut self, state: State) -> Option<Extent> {
        let group = self.rng.choose(&self.groups)?;
        let runs = group.runs(|sector| group.states[sector] == state);
        let run = *self.rng.choose(&runs)?;
        let skip = self.rng.below(run.len / SECTOR);
        let len = self.rng.range(1..run.len / SECTOR - skip + 1);
        Some(extent(run.start.0 + skip * SECTOR, len * SECTOR))
    }

    fn reserve(&mut self) {
        let bytes = self.rng.below(64) * SECTOR;
        match self.rng.below(3) {
            0 | 1 => {
                let available = self.space.account(Data).available();
                match self.space.reserve_data(bytes) {
                    Ok(reservation) => self.data.push(reservation),
                    // Bytes that were allocated without a reservation may be missing, too.
                    Err(short) => assert!(short.missing >= bytes - available),
                }
            }
            _ => {
                if let (Some(mut first), Some(second)) = (self.data.pop(), self.data.pop()) {
                    first.merge(second);
                    let part = first.split(self.rng.below(first.bytes() + 1));
                    first.shrink_to(self.rng.below(first.bytes() + 1));
                    self.data.extend([first, part]);
                }
            }
        }
        if self.data.len() > 6 {
            drop(self.data.remove(0));
        }
    }

    fn step(&mut self) {
        match self.rng.below(100) {
            0..35 => self.allocate(),
            35..50 => {
                if let Some(extent) = self.some(State::Reserved) {
                    self.space.commit_used(extent);
                    self.set(extent, State::Reserved, State::Used);
                }
            }
            50..60 => {
                let state = if self.rng.chance(1, 2) { State::Reserved } else { State::Used };
                if let Some(extent) = self.some(state) {
                    self.space.free(extent);
                    self.set(extent, state, State::Free);
                }
            }
            60..75 => {
                if let Some(extent) = self.some(State::Used) {
                    self.space.pin(extent).expect("in use");
                    self.set(extent, State::Used, State::Pinned);
                }
            }
            75..88 => {
                if let Some(extent) = self.some(State::Pinned) {
                    self.space.unpin(extent);
                    self.set(extent, State::Pinned, State::Free);
                }
            }
            88..96 => self.reserve(),
            96 if self.groups.len() < 10 => self.add_group(),
            97 if self.groups.len() > 3 => self.remove_group(),
            _ => {
                // An extent that is not in use is refused, whatever its state, and nothing changes.
                let state = *self.rng.choose(&[State::Reserved, State::Pinned]).expect("not empty");
                if let Some(extent) = self.some(state) {
                    self.space.pin(extent).expect_err("not in use");
                }
            }
        }
    }

    /// A1, A2, G1: the accounts are the sums of the sectors and the tokens.
    fn check(&self) {
        self.space.verify().expect("sound");
        for kind in SpaceKind::ALL {
            let account = self.space.account(kind);
            let groups = || self.groups.iter().filter(|group| group.kind == kind);
            let sum = |state| groups().map(|group| group.count(state)).sum::<u64>();
            assert_eq!(account.used, sum(State::Used));
            assert_eq!(account.reserved, sum(State::Reserved));
            assert_eq!(account.pinned, sum(State::Pinned));
            assert_eq!(account.super_bytes, sum(State::Super));
            assert_eq!(account.free(), sum(State::Free));
            let reserved = match kind {
                Data => self.data.iter().map(DataReservation::bytes).sum(),
                Metadata | System => 0,
            };
            assert_eq!(account.may_use, reserved);
        }
    }
}

/// Prints how to run a failure again.
struct Place {
    seed: u64,
    step: usize,
}

impl Drop for Place {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("seed {}, step {}", self.seed, self.step);
        }
    }
}

/// Tests X5 and X6.
/// G1, G3, S1, L1, L3: the crate agrees with the model for several seeds.
#[test]
fn allocator_agrees_with_a_model_of_sectors() {
    for seed in 0..12 {
        let mut world = World::new(seed);
        for step in 0..STEPS {
            let _place = Place { seed, step };
            world.step();
            world.check();
        }
        assert!(world.outcomes.iter().all(|&times| times > 0), "{:?}", world.outcomes);
    }
}
