//! Reserved space is found, whatever other threads do meanwhile.
//!
//! Groups of a few sectors are almost full all the time. Threads allocate their reservations from
//! these groups and give the extents back. Meanwhile other groups are added and removed. No search
//! for reserved space may fail.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use buttress_base::Rng;
use buttress_format::{Generation, Logical};
use buttress_space::SpaceKind::Data;
use buttress_space::{AllocOutcome, AllocPolicy, AllocRequest, Space};

use crate::world::*;

const GROUPS: u64 = 3;
const GROUP_LEN: u64 = 16 * SECTOR;
const THREADS: u64 = 6;
const STEPS: usize = 3000;

/// Reserves some sectors, allocates all of them in any number of pieces, and gives them back.
fn take_and_give_back(space: &Arc<Space>, rng: &mut Rng, stream: u64) {
    let sectors = rng.range(1..20);
    let Ok(mut reservation) = space.reserve_data(sectors * SECTOR) else {
        return std::thread::yield_now();
    };
    let mut taken = Vec::new();
    while reservation.bytes() > 0 {
        let limit = Generation(u64::MAX);
        let want = SECTOR * rng.range(1..reservation.bytes() / SECTOR + 1);
        let request = AllocRequest { min: SECTOR, stream, limit, ..exactly(Data, want) };
        match space.allocate_data(&mut reservation, request) {
            AllocOutcome::Got(extent) => taken.push(extent),
            AllocOutcome::NeedsLoading(group) => {
                group.load([group.range()].into_iter()).expect("nothing is used");
            }
            AllocOutcome::Full { largest } => {
                panic!(
                    "{} bytes were reserved; at most {largest}: {}",
                    reservation.bytes(),
                    space.account(Data)
                )
            }
        }
    }
    for extent in taken {
        if rng.chance(1, 2) {
            space.commit_used(extent);
            space.pin(extent).expect("in use");
            space.unpin(extent);
        } else {
            space.free(extent);
        }
    }
}

fn come_and_go(space: &Space, stop: &AtomicBool) {
    let start = GROUPS * GROUP_LEN;
    while !stop.load(Ordering::Relaxed) {
        space.add_group(new_group(Data, start, GROUP_LEN, 11)).expect("nothing is there");
        std::thread::yield_now();
        // If a worker fails, its extents stay in the group, so the removal must not be retried for
        // ever.
        while space.remove_group(Logical(start)).is_err() && !stop.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
    }
}

/// L5: threads always find their reserved space.
#[test]
fn reserved_space_is_found() {
    for (seed, policy) in (1..).zip(AllocPolicy::ALL) {
        let space = Arc::new(empty_space().choosing(policy).for_processors(4));
        let groups = (0..GROUPS).map(|i| old_group(Data, i * GROUP_LEN, GROUP_LEN, 0));
        space.add_groups(groups.collect()).expect("sound");
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..THREADS)
                .map(|me| {
                    let space = &space;
                    scope.spawn(move || {
                        let mut rng = Rng::new(seed * 100 + me);
                        (0..STEPS).for_each(|_| take_and_give_back(space, &mut rng, me));
                    })
                })
                .collect();
            let churn = scope.spawn(|| come_and_go(&space, &stop));
            let outcomes: Vec<_> =
                workers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
            stop.store(true, Ordering::Relaxed);
            churn.join().expect("groups come and go");
            for outcome in outcomes {
                if let Err(why) = outcome {
                    std::panic::resume_unwind(why);
                }
            }
        });
        space.verify().expect("sound");
    }
}
