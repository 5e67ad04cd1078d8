//! Many threads on few groups: no sector has two owners, and nothing is lost.
//!
//! Every thread marks its sectors in a shared map, and fails at once if a sector has another mark.
//! The work of each thread comes from the seed; the order between threads does not.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use buttress_base::Rng;
use buttress_format::{Extent, Logical};
use buttress_space::SpaceKind::{Data, Metadata};
use buttress_space::{AllocOutcome, AllocPolicy, AllocRequest, Space, SpaceKind};

use crate::world::*;

const GROUPS: u64 = 6;
const GROUP_LEN: u64 = 4 * MIB;
const THREADS: u8 = 4;
const STEPS: usize = 4000;

/// The owner of each sector; zero means that the sector has no owner.
struct Owners(Vec<AtomicU8>);

impl Owners {
    fn change(&self, extent: Extent, from: u8, to: u8) {
        let first = (extent.start.0 / SECTOR) as usize;
        for sector in &self.0[first..first + (extent.len / SECTOR) as usize] {
            let was = sector.swap(to, Ordering::Relaxed);
            assert_eq!(was, from, "G1: {extent:?} has two owners");
        }
    }
}

struct Worker<'a> {
    me: u8,
    rng: Rng,
    space: &'a Arc<Space>,
    owners: &'a Owners,
    reserved: Vec<Extent>,
    used: Vec<Extent>,
    pinned: Vec<Extent>,
}

impl Worker<'_> {
    fn allocate(&mut self, kind: SpaceKind) {
        let unit = if kind == Data { SECTOR } else { NODE };
        let want = unit * self.rng.range(1..40);
        let stream = u64::from(self.me);
        let request = AllocRequest { min: unit, stream, ..exactly(kind, want) };
        let outcome = if kind == Data {
            let Ok(mut reservation) = self.space.reserve_data(want) else { return };
            self.space.allocate_data(&mut reservation, request)
        } else {
            self.space.allocate(request)
        };
        match outcome {
            AllocOutcome::Got(extent) => {
                self.owners.change(extent, 0, self.me);
                self.reserved.push(extent);
            }
            AllocOutcome::NeedsLoading(group) => {
                group.load([group.range()].into_iter()).expect("nothing is used");
            }
            AllocOutcome::Full { .. } => {}
        }
    }

    fn give_up(&self, extent: Extent) {
        // The mark is removed before another thread can get the extent.
        self.owners.change(extent, self.me, 0);
    }

    fn take(rng: &mut Rng, extents: &mut Vec<Extent>) -> Option<Extent> {
        let index = rng.below((extents.len() as u64).max(1)) as usize;
        (index < extents.len()).then(|| extents.swap_remove(index))
    }

    fn step(&mut self) {
        match self.rng.below(10) {
            0..3 => self.allocate(Data),
            3..5 => self.allocate(Metadata),
            5..7 => {
                if let Some(extent) = Self::take(&mut self.rng, &mut self.reserved) {
                    self.space.commit_used(extent);
                    self.used.push(extent);
                }
            }
            7 => {
                if let Some(extent) = Self::take(&mut self.rng, &mut self.reserved) {
                    self.give_up(extent);
                    self.space.free(extent);
                }
            }
            8 => {
                if let Some(extent) = Self::take(&mut self.rng, &mut self.used) {
                    self.space.pin(extent).expect("in use");
                    self.pinned.push(extent);
                }
            }
            _ => {
                if let Some(extent) = Self::take(&mut self.rng, &mut self.pinned) {
                    self.give_up(extent);
                    self.space.unpin(extent);
                }
            }
        }
    }

    fn finish(mut self) {
        for extent in self.reserved.split_off(0).into_iter().chain(self.used.split_off(0)) {
            self.give_up(extent);
            self.space.free(extent);
        }
        for extent in self.pinned.split_off(0) {
            self.give_up(extent);
            self.space.unpin(extent);
        }
    }
}

/// Adds and removes groups past the end while other threads work.
fn churn(space: &Space, seed: u64) {
    let mut rng = Rng::new(seed);
    let start = GROUPS * GROUP_LEN;
    for _ in 0..200 {
        space.add_group(new_group(Data, start, GROUP_LEN, 11)).expect("nothing is there");
        assert!(space.group_at(Logical(start + rng.below(GROUP_LEN))).is_some());
        // For a moment, reservations may need the group.
        while space.remove_group(Logical(start)).is_err() {
            std::thread::yield_now();
        }
    }
}

/// Tests N4 and X12.
/// G1, L2, A1: extents never overlap during the test, and all space is free again afterwards.
#[test]
fn threads_never_share_a_sector() {
    for (seed, policy) in (1..).zip(AllocPolicy::ALL) {
        println!("seed {seed}, {policy}");
        let space = Arc::new(empty_space().choosing(policy).for_processors(4));
        let groups = (0..GROUPS).map(|i| {
            let kind = if i % 2 == 0 { Data } else { Metadata };
            if i < 2 {
                old_group(kind, i * GROUP_LEN, GROUP_LEN, 0)
            } else {
                new_group(kind, i * GROUP_LEN, GROUP_LEN, 1)
            }
        });
        space.add_groups(groups.collect()).expect("sound");
        let sectors = GROUPS * GROUP_LEN / SECTOR;
        let owners = Owners((0..sectors).map(|_| AtomicU8::new(0)).collect());
        std::thread::scope(|scope| {
            for me in 1..=THREADS {
                let (space, owners) = (&space, &owners);
                scope.spawn(move || {
                    let rng = Rng::new(seed * 100 + u64::from(me));
                    let (reserved, used, pinned) = Default::default();
                    let mut worker = Worker { me, rng, space, owners, reserved, used, pinned };
                    for _ in 0..STEPS {
                        worker.step();
                    }
                    worker.finish();
                });
            }
            scope.spawn(|| churn(&space, seed));
        });
        space.verify().expect("sound");
        for kind in [Data, Metadata] {
            let account = space.account(kind);
            assert_eq!(account.available(), account.total, "{account}");
        }
        let whole = |group: &Arc<buttress_space::Group>| group.largest_free() == GROUP_LEN;
        assert!(space.groups().iter().all(whole));
    }
}
