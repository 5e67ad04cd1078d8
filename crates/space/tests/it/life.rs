//! Groups that are made, found empty and removed while threads use them. The crate runs as it is;
//! a seed decides the order of its locks and threads. `BUTTRESS_SEED=n` runs seed `n` alone,
//! `BUTTRESS_MODEL_RUNS` sets the number of seeds.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use buttress_base::{Rng, seeded, thread};
use buttress_format::{Extent, Logical};
use buttress_space::SpaceKind::Data;
use buttress_space::{AllocPolicy, AllocRequest, Error, Group, LookupPolicy, Space};

use crate::world::*;

/// Places of groups, and sectors of each: so few that all threads meet.
const PLACES: u64 = 3;
const SECTORS: u64 = 4;
const LEN: u64 = SECTORS * SECTOR;
const STEPS: usize = 6;

/// How often each event happened.
#[derive(Debug, Default)]
struct Tally {
    made: AtomicU64,
    removed: AtomicU64,
    not_empty: AtomicU64,
    reserved: AtomicU64,
    written: AtomicU64,
    refused: AtomicU64,
}

struct World {
    space: Arc<Space>,
    /// Extents in use that no thread works on. A thread that takes an extent out of the list owns
    /// it alone.
    recorded: Mutex<Vec<Extent>>,
    /// Removed groups.
    gone: Mutex<Vec<Arc<Group>>>,
    /// The groups in which threads write in place.
    writing: Mutex<Vec<Arc<Group>>>,
    tally: Arc<Tally>,
}

/// Counts one more event.
fn note(count: &AtomicU64) {
    count.fetch_add(1, Ordering::Relaxed);
}

impl World {
    /// Takes one of the extents in use, if there is one.
    fn take(&self, rng: &mut Rng) -> Option<Extent> {
        let mut recorded = self.recorded.lock().expect("no poison");
        let index = rng.below((recorded.len() as u64).max(1)) as usize;
        (index < recorded.len()).then(|| recorded.swap_remove(index))
    }

    fn put(&self, extent: Extent) {
        self.recorded.lock().expect("no poison").push(extent);
    }

    /// The group of an extent that a thread owns. The group stays as long as the extent is in use.
    fn home(&self, extent: Extent) -> Arc<Group> {
        let group = self.space.group_at(extent.start).expect("its group was removed");
        assert!(group.range().end() >= extent.end());
        group
    }

    /// Every reserved byte is free somewhere (A1, A3).
    fn expect_backed(&self) {
        let account = self.space.account(Data);
        assert!(account.free() >= account.may_use, "reserved and not there: {account}");
    }

    /// Makes a group at a place, if there is none.
    fn make(&self, place: u64) {
        match self.space.add_group(new_group(Data, place * LEN, LEN, 1)) {
            Ok(()) => note(&self.tally.made),
            Err(Error::Overlap { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }

    /// Reserves some sectors, and allocates them near a group.
    fn allocate(&self, place: u64, rng: &mut Rng) {
        let Ok(mut reservation) = self.space.reserve_data(rng.range(1..4) * SECTOR) else { return };
        self.expect_backed();
        let (goal, want) = (Some(Logical(place * LEN)), reservation.bytes());
        let request = AllocRequest { min: SECTOR, goal, ..exactly(Data, want) };
        let extent = got(self.space.allocate_data(&mut reservation, request));
        let home = self.home(extent);
        if rng.chance(1, 4) {
            self.space.free(extent);
            return;
        }
        self.space.commit_used(extent);
        assert!(Arc::ptr_eq(&home, &self.home(extent)), "another group came under it");
        self.put(extent);
    }

    /// Frees an extent: at once, or when no thread reads it any more.
    fn give_up(&self, rng: &mut Rng) {
        let Some(extent) = self.take(rng) else { return };
        let home = self.home(extent);
        if rng.chance(1, 2) {
            self.space.pin(extent).expect("in use");
            assert!(Arc::ptr_eq(&home, &self.home(extent)), "another group came under it");
            self.space.unpin(extent);
        } else {
            self.space.free(extent);
        }
    }

    /// Writes in place.
    fn write(&self, rng: &mut Rng) {
        let Some(extent) = self.take(rng) else { return };
        if let Some(right) = self.space.begin_nocow(extent) {
            let home = self.home(extent);
            let writing = || self.writing.lock().expect("no poison");
            writing().push(Arc::clone(&home));
            thread::yield_now();
            assert!(Arc::ptr_eq(&home, &self.home(extent)), "another group came under it");
            let at = writing().iter().position(|group| Arc::ptr_eq(group, &home));
            writing().swap_remove(at.expect("it is there"));
            note(&self.tally.written);
            drop(right);
        } else {
            note(&self.tally.refused);
        }
        self.put(extent);
    }

    fn remove(&self, start: Logical) {
        match self.space.remove_group(start) {
            Ok(group) => {
                note(&self.tally.removed);
                self.gone.lock().expect("no poison").push(group);
            }
            Err(Error::NotEmpty { .. }) => note(&self.tally.not_empty),
            Err(Error::Reserved { .. }) => note(&self.tally.reserved),
            Err(Error::NoGroup { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        self.expect_backed();
    }

    /// Removes groups that look empty, as a commit does.
    fn sweep(&self) {
        for group in self.space.groups_of(Data) {
            if group.used() == 0 {
                self.remove(group.start());
            }
        }
    }

    /// Stops a group, waits, and removes the group if it is empty, as a balance does.
    fn drain(&self, place: u64) {
        let Ok(hold) = self.space.hold_read_only(Logical(place * LEN)) else { return };
        hold.drain();
        self.expect_backed();
        assert_eq!(hold.group().usage().reserved, 0, "Q2");
        let is_here = |group: &Arc<Group>| Arc::ptr_eq(group, hold.group());
        let is_written = self.writing.lock().expect("no poison").iter().any(is_here);
        assert!(!is_written, "Q2");
        self.remove(Logical(place * LEN));
    }

    /// Checks that no bytes are left in use, no bytes were counted twice, and no extent came from a
    /// removed group.
    fn finish(&self) {
        let left = std::mem::take(&mut *self.recorded.lock().expect("no poison"));
        assert_eq!(
            left.iter().map(|extent| extent.len).sum::<u64>(),
            self.space.account(Data).used
        );
        left.into_iter().for_each(|extent| self.space.free(extent));
        self.space.verify().expect("sound");
        assert!(self.space.audit().expect("tokens and accounts agree"), "no thread is in the way");
        let account = self.space.account(Data);
        assert_eq!(account.total, self.space.count() as u64 * LEN);
        assert_eq!(account.available(), account.total, "{account}");
        for group in &*self.gone.lock().expect("no poison") {
            let usage = group.usage();
            assert_eq!((usage.used, usage.reserved, usage.pinned), (0, 0, 0), "it was gone");
        }
    }
}

/// The work that a thread repeats.
type Party = fn(&World, &mut Rng);

/// One thread that makes and uses groups, two threads that use groups, and two threads that remove
/// groups.
const PARTIES: [Party; 5] = [
    |world, rng| {
        let place = rng.below(PLACES);
        world.make(place);
        world.allocate(place, rng);
    },
    |world, rng| {
        world.allocate(rng.below(PLACES), rng);
        world.give_up(rng);
    },
    |world, rng| {
        world.allocate(rng.below(PLACES), rng);
        world.write(rng);
        world.give_up(rng);
    },
    |world, _| world.sweep(),
    |world, rng| world.drain(rng.below(PLACES)),
];

fn run(seed: u64, tally: &Arc<Tally>) {
    let tally = Arc::clone(tally);
    let work = move || {
        let mut rng = Rng::new(seed ^ 0x4e34);
        let lookup = *rng.choose(&LookupPolicy::ALL).expect("one of them");
        let policy = *rng.choose(&AllocPolicy::ALL).expect("one of them");
        let space = empty_space().looking_up(lookup).choosing(policy).for_processors(2);
        let (recorded, gone, writing) = Default::default();
        let world = Arc::new(World { space: Arc::new(space), recorded, gone, writing, tally });
        let threads: Vec<_> = PARTIES
            .into_iter()
            .map(|party| {
                let (world, mut rng) = (Arc::clone(&world), Rng::new(rng.next_u64()));
                let work = move || (0..STEPS).for_each(|_| party(&world, &mut rng));
                thread::Builder::new().spawn(work).expect("a thread")
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        world.finish();
    };
    seeded::run(seed, seeded::Options::default(), work).unwrap_or_else(|stuck| panic!("{stuck}"));
}

/// N4: groups are made, looked up, found empty and removed in any order. A group is not removed
/// while it holds an extent, a thread writes to it, or a reservation needs it. Each group is
/// counted once.
#[test]
fn groups_come_and_go_in_any_order() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seeds = match number("BUTTRESS_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("BUTTRESS_MODEL_RUNS").unwrap_or(1500),
    };
    let tally = Arc::new(Tally::default());
    for seed in seeds.clone() {
        let told = std::panic::catch_unwind(|| run(seed, &tally));
        if let Err(panic) = told {
            eprintln!(
                "again: BUTTRESS_SEED={seed} cargo test -p buttress-space --test it groups_come_and_go"
            );
            std::panic::resume_unwind(panic);
        }
    }
    println!("{tally:?}");
    if seeds.end - seeds.start > 100 {
        let Tally { made, removed, not_empty, reserved, written, refused } = &*tally;
        for count in [made, removed, not_empty, reserved, written, refused] {
            assert!(count.load(Ordering::Relaxed) > 50, "it did not come to that: {tally:?}");
        }
    }
}
