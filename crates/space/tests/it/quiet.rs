//! Read-only groups: the guarantees of a hold, while other threads allocate and write.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use buttress_base::Rng;
use buttress_format::Logical;
use buttress_space::SpaceKind::Data;
use buttress_space::{AllocOutcome, AllocRequest, LookupPolicy, Space};

use crate::world::*;

fn space(policy: LookupPolicy, groups: u64) -> Arc<Space> {
    let space = Arc::new(empty_space().looking_up(policy));
    let inits = (0..groups).map(|i| new_group(Data, i * MIB, MIB, 1));
    space.add_groups(inits.collect()).expect("sound");
    space
}

/// N17: with nested holds, nothing is allocated or written in place before the last hold ends.
#[test]
fn read_only_holds_nest() {
    for policy in LookupPolicy::ALL {
        let space = space(policy, 1);
        let there = extent(8 * SECTOR, SECTOR);
        drop(space.begin_nocow(there).expect("not held yet"));
        let first = space.hold_read_only(Logical(0)).expect("a group");
        let second = space.hold_read_only(Logical(0)).expect("held twice");
        first.drain();
        assert_eq!(space.account(Data).read_only, MIB);
        for hold in [first, second] {
            assert!(space.begin_nocow(there).is_none());
            assert!(matches!(
                space.allocate(exactly(Data, SECTOR)),
                AllocOutcome::Full { largest: 0 }
            ));
            drop(hold);
        }
        assert_eq!(space.account(Data).read_only, 0);
        drop(space.begin_nocow(there).expect("no hold is left"));
        assert_eq!(got(space.allocate(exactly(Data, MIB))).len, MIB);
        space.verify().expect("sound");
    }
}

/// Tests N3.
/// If a group is removed while it is held, the end of the hold has no effect.
#[test]
fn held_group_can_go() {
    let space = space(LookupPolicy::Lockfree, 2);
    let hold = space.hold_read_only(Logical(0)).expect("a group");
    hold.drain();
    space.remove_group(Logical(0)).expect("empty");
    assert!(space.begin_nocow(extent(0, SECTOR)).is_none());
    drop(hold);
    assert_eq!(space.account(Data).total, MIB);
    assert_eq!(space.account(Data).read_only, 0);
    space.verify().expect("sound");
}

/// N3: an extent outside of all groups, or across two groups, gives no right to write, and no
/// writer is counted.
#[test]
fn refused_writers_are_not_waited_for() {
    for policy in LookupPolicy::ALL {
        let space = space(policy, 2);
        assert!(space.begin_nocow(extent(2 * MIB, SECTOR)).is_none());
        assert!(space.begin_nocow(extent(MIB - SECTOR, 2 * SECTOR)).is_none());
        let hold = space.hold_read_only(Logical(0)).expect("a group");
        assert!(space.begin_nocow(extent(0, SECTOR)).is_none());
        // A drain does not wait for this writer of another group, either.
        let other = space.begin_nocow(extent(MIB, SECTOR)).expect("not held");
        hold.drain();
        drop(other);
        drop(hold);
        space.hold_read_only(Logical(MIB)).expect("a group").drain();
    }
}

/// If another thread ends a hold, the drain of this hold also ends, whatever is allocated. The hold
/// does not end a second time.
#[test]
fn a_drain_ends_when_the_hold_is_released() {
    for policy in LookupPolicy::ALL {
        let space = space(policy, 1);
        let waits = got(space.allocate(exactly(Data, SECTOR)));
        let hold = space.hold_read_only(Logical(0)).expect("a group");
        let outer = space.hold_read_only(Logical(0)).expect("held twice");
        std::thread::scope(|scope| {
            let drain = scope.spawn(|| hold.drain());
            std::thread::sleep(std::time::Duration::from_millis(5));
            assert!(hold.is_held() && hold.release() && !hold.release());
            assert!(matches!(
                space.allocate(exactly(Data, SECTOR)),
                AllocOutcome::Full { largest: 0 }
            ));
            assert!(!drain.is_finished(), "{policy}: the other hold is still there");
            drop(outer);
            drain.join().expect("no panic");
        });
        assert!(!hold.is_held());
        drop(hold);
        assert_eq!(space.account(Data).read_only, 0);
        assert_eq!(got(space.allocate(exactly(Data, SECTOR))).len, SECTOR);
        space.free(waits);
        space.verify().expect("sound");
    }
}

/// Q2: once a group is drained, no thread writes there, and no extent waits to be recorded.
#[test]
fn drained_groups_are_quiet() {
    const GROUPS: u64 = 3;
    for policy in LookupPolicy::ALL {
        let space = space(policy, GROUPS);
        let active: Vec<AtomicU64> = (0..GROUPS).map(|_| AtomicU64::new(0)).collect();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for seed in 0..3 {
                let (space, active, stop) = (&space, &active, &stop);
                scope.spawn(move || {
                    let mut rng = Rng::new(seed);
                    while !stop.load(Ordering::Relaxed) {
                        if rng.chance(1, 2) {
                            let at = rng.below(GROUPS * MIB / SECTOR) * SECTOR;
                            let Some(right) = space.begin_nocow(extent(at, SECTOR)) else {
                                continue;
                            };
                            let count = &active[(at / MIB) as usize];
                            count.fetch_add(1, Ordering::SeqCst);
                            std::thread::yield_now();
                            count.fetch_sub(1, Ordering::SeqCst);
                            drop(right);
                        } else {
                            let stream = seed;
                            let request = AllocRequest { stream, ..exactly(Data, SECTOR) };
                            let AllocOutcome::Got(found) = space.allocate(request) else {
                                continue;
                            };
                            std::thread::yield_now();
                            if rng.chance(1, 2) {
                                space.commit_used(found);
                            }
                            space.free(found);
                        }
                    }
                });
            }
            let mut rng = Rng::new(99);
            for _ in 0..400 {
                let index = rng.below(GROUPS);
                let hold = space.hold_read_only(Logical(index * MIB)).expect("a group");
                hold.drain();
                for _ in 0..10 {
                    assert_eq!(active[index as usize].load(Ordering::SeqCst), 0, "{policy}");
                    assert_eq!(hold.group().usage().reserved, 0, "{policy}");
                    std::thread::yield_now();
                }
                drop(hold);
            }
            stop.store(true, Ordering::Relaxed);
        });
        space.verify().expect("sound");
    }
}
