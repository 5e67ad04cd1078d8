//! Each test checks one property of [`Space`](buttress_space::Space).

use std::sync::Arc;

use buttress_format::{BlockGroupFlags, Generation, Logical};
use buttress_space::SpaceKind::{Data, Metadata, System};
use buttress_space::{AllocOutcome, AllocRequest, Error, GroupInit, Refused, Space, SpaceKind};

use crate::world::*;

/// Tests X9.
/// L1: a transaction does not use a group that a later transaction made.
#[test]
fn commit_uses_no_group_of_the_next() {
    let space = empty_space();
    space.add_group(new_group(Metadata, 0, MIB, 6)).expect("sound");
    let of_5 = AllocRequest { limit: Generation(5), ..exactly(Metadata, NODE) };
    assert!(matches!(space.allocate(of_5), AllocOutcome::Full { largest: 0 }));
    let of_6 = AllocRequest { limit: Generation(6), ..of_5 };
    assert_eq!(got(space.allocate(of_6)), extent(0, NODE));
}

/// A group is loaded when no loaded group has enough space, and not before.
#[test]
fn asks_for_loading_only_when_it_must() {
    let space = empty_space();
    space.add_group(old_group(Data, 0, MIB, MIB - 4 * SECTOR)).expect("sound");
    space.add_group(new_group(Data, MIB, MIB, 1)).expect("sound");
    assert_eq!(got(space.allocate(exactly(Data, SECTOR))).start, Logical(MIB));
    got(space.allocate(exactly(Data, MIB - SECTOR)));
    let AllocOutcome::NeedsLoading(group) = space.allocate(exactly(Data, SECTOR)) else {
        panic!("the other group has four sectors");
    };
    assert_eq!((group.start(), group.is_loaded()), (Logical(0), false));
    // The request is for more than the free bytes of the group, so there is no reason to load it.
    assert!(matches!(space.allocate(exactly(Data, 5 * SECTOR)), AllocOutcome::Full { .. }));
    group.load([extent(SECTOR, 4 * SECTOR)].into_iter()).expect("four sectors");
    assert_eq!(got(space.allocate(exactly(Data, 4 * SECTOR))), extent(SECTOR, 4 * SECTOR));
    space.verify().expect("sound");
}

/// If no group has all bytes that a request wants, the request gets the largest run, but none
/// shorter than its minimum.
#[test]
fn gives_less_rather_than_nothing() {
    let space = empty_space();
    space.add_group(old_group(Data, 0, MIB, MIB - 5 * SECTOR)).expect("sound");
    let free = [extent(0, SECTOR), extent(8 * SECTOR, 3 * SECTOR), extent(64 * SECTOR, SECTOR)];
    space.group_at(Logical(0)).expect("added").load(free.into_iter()).expect("five sectors");
    let request = AllocRequest { min: 2 * SECTOR, ..exactly(Data, 5 * SECTOR) };
    assert_eq!(got(space.allocate(request)), extent(8 * SECTOR, 3 * SECTOR));
    assert!(matches!(space.allocate(request), AllocOutcome::Full { largest: SECTOR }));
}

/// Nodes of one commit get ascending addresses side by side, across a group that is half used.
#[test]
fn nodes_come_out_clustered() {
    let space = empty_space();
    space.add_group(new_group(Metadata, 0, 8 * MIB, 1)).expect("sound");
    let mut nodes: Vec<_> = (0..64).map(|_| got(space.allocate(exactly(Metadata, NODE)))).collect();
    assert!(nodes.windows(2).all(|pair| pair[0].end() == pair[1].start));
    // The search skips holes before the goal until it reaches the end.
    space.free(nodes.remove(3));
    let next = got(space.allocate(exactly(Metadata, NODE)));
    assert_eq!(next.start, Logical(64 * NODE));
    let goal = Some(Logical(0));
    let back = got(space.allocate(AllocRequest { goal, ..exactly(Metadata, NODE) }));
    assert_eq!(back.start, Logical(3 * NODE));
}

/// S1: the bytes of an extent that a commit freed are not used any more, but not free before the
/// commit is published.
#[test]
fn pinned_bytes_are_not_allocated() {
    let space = empty_space();
    space.add_group(new_group(Data, 0, MIB, 1)).expect("sound");
    let all = got(space.allocate(exactly(Data, MIB)));
    assert_eq!(space.account(Data).reserved, MIB);
    space.commit_used(all);
    assert_eq!((space.account(Data).reserved, space.account(Data).used), (0, MIB));
    space.pin(all).expect("in use");
    assert_eq!((space.account(Data).used, space.account(Data).pinned), (0, MIB));
    assert!(matches!(space.allocate(exactly(Data, SECTOR)), AllocOutcome::Full { largest: 0 }));
    space.unpin(all);
    assert_eq!(got(space.allocate(exactly(Data, MIB))), all);
    space.verify().expect("sound");
}

/// An extent that a disk's extent tree has twice is an error, not a panic.
#[test]
fn refuses_to_pin_what_is_not_used() {
    let space = empty_space();
    space.add_group(old_group(Data, 0, MIB, 4 * SECTOR)).expect("sound");
    let twice = extent(0, 2 * SECTOR);
    space.pin(twice).expect("in use");
    assert_eq!(space.pin(twice), Err(Error::NotUsed { extent: twice }));
    let much = extent(8 * SECTOR, 3 * SECTOR);
    assert_eq!(space.pin(much), Err(Error::NotUsed { extent: much }));
    let across = extent(MIB - SECTOR, 2 * SECTOR);
    assert_eq!(space.pin(across), Err(Error::Outside { group: Logical(0), extent: across }));
    assert_eq!(space.pin(extent(MIB, SECTOR)), Err(Error::NoGroup { at: Logical(MIB) }));
    space.verify().expect("unchanged by refusals");
}

/// G1: ranges under superblocks are never allocated. They are free in the tree on disk, and are
/// counted separately.
#[test]
fn superblocks_stay_out_of_reach() {
    let space = empty_space();
    let mirrors = vec![extent(0, 64 << 10), extent(MIB - SECTOR, 64 << 10)];
    let init = GroupInit { superblock_stripes: mirrors, ..new_group(Metadata, 0, MIB, 1) };
    space.add_group(init).expect("sound");
    let account = space.account(Metadata);
    assert_eq!(account.super_bytes, (64 << 10) + SECTOR);
    let request = AllocRequest { min: NODE, ..exactly(Metadata, MIB) };
    let all = got(space.allocate(request));
    // The superblock takes a part of the last node's place.
    assert_eq!(all, extent(64 << 10, MIB - (64 << 10) - NODE));
    space.verify().expect("sound");
}

/// G2: free extents that do not fit the group's use are refused, and the group stays unloaded.
#[test]
fn loading_trusts_nothing() {
    let space = empty_space();
    space.add_group(old_group(Data, MIB, MIB, MIB - 4 * SECTOR)).expect("sound");
    let group = space.group_at(Logical(MIB)).expect("added");
    let load = |free: &[(u64, u64)]| group.load(free.iter().map(|&(at, len)| extent(at, len)));
    let at = |sector: u64| MIB + sector * SECTOR;
    let fewer = load(&[(at(0), SECTOR)]);
    let (expected, found) = (4 * SECTOR, SECTOR);
    assert_eq!(fewer, Err(Error::FreeBytes { group: Logical(MIB), expected, found }));
    assert!(matches!(load(&[(0, 4 * SECTOR)]), Err(Error::Outside { .. })));
    assert!(matches!(load(&[(at(1), u64::MAX)]), Err(Error::Outside { .. })));
    assert!(matches!(load(&[(at(254), 4 * SECTOR)]), Err(Error::Outside { .. })));
    assert!(matches!(load(&[(at(1) + 1, SECTOR)]), Err(Error::Unaligned { .. })));
    assert!(matches!(load(&[(at(1), 0)]), Err(Error::Unaligned { .. })));
    let twice = load(&[(at(1), 2 * SECTOR), (at(2), 2 * SECTOR)]);
    assert!(matches!(twice, Err(Error::Disorder { .. })));
    assert!(!group.is_loaded());
    load(&[(at(1), 2 * SECTOR), (at(3), SECTOR), (at(9), SECTOR)]).expect("four sectors");
    load(&[]).expect("a second loading changes nothing");
    assert_eq!(group.largest_free(), 3 * SECTOR);
}

/// Invalid groups are refused, and so are all groups that were added in the same call.
#[test]
fn refuses_groups_that_make_no_sense() {
    let space = empty_space();
    let mixed = BlockGroupFlags(BlockGroupFlags::DATA.0 | BlockGroupFlags::METADATA.0);
    let refused = |init: GroupInit| space.add_group(init).expect_err("makes no sense");
    let sound = old_group(Data, 0, MIB, 0);
    let kind = GroupInit { flags: mixed, ..sound.clone() };
    assert!(matches!(refused(kind), Error::Kind { .. }));
    assert!(matches!(refused(old_group(Data, 0, 0, 0)), Error::Range { .. }));
    assert!(matches!(refused(old_group(Data, 0, MIB + 1, 0)), Error::Range { .. }));
    assert!(matches!(refused(old_group(Data, 512, MIB, 0)), Error::Range { .. }));
    let past = old_group(Data, u64::MAX - SECTOR + 1, 2 * SECTOR, 0);
    assert!(matches!(refused(past), Error::Range { .. }));
    assert!(matches!(refused(old_group(Data, 0, MIB, MIB + 1)), Error::Used { .. }));
    let batch = vec![sound.clone(), old_group(System, MIB - SECTOR, MIB, 0)];
    let overlap = Error::Overlap { start: Logical(MIB - SECTOR), other: Logical(0) };
    assert_eq!(space.add_groups(batch), Err(overlap));
    assert!(space.groups().is_empty());
    assert_eq!(space.account(Data).total, 0);
    space.add_group(sound.clone()).expect("sound");
    assert!(matches!(refused(sound), Error::Overlap { .. }));
}

/// Mixed groups serve data and metadata from one account.
#[test]
fn mixed_groups_have_one_account() {
    let space = Arc::new(Space::new(SECTOR as u32, SECTOR as u32).mixed());
    let pure = old_group(Data, 0, MIB, 0);
    assert!(matches!(space.add_group(pure.clone()), Err(Error::Kind { .. })));
    let both = BlockGroupFlags::DATA.with(BlockGroupFlags::METADATA);
    let init = GroupInit { flags: both, birth: Generation(1), ..pure };
    space.add_group(init).expect("mixed");
    let reservation = space.reserve_data(MIB / 2).expect("half of it");
    assert_eq!(space.account(Metadata).may_use, MIB / 2);
    let node = got(space.allocate(AllocRequest { align: SECTOR, ..exactly(Metadata, SECTOR) }));
    space.commit_used(node);
    assert_eq!(space.account(Data).used, SECTOR);
    drop(reservation);
    space.free(node);
    space.verify().expect("consistent");
}

/// D1: a lookup finds the group of every address, and finds nothing for addresses between groups.
#[test]
fn finds_groups_by_address() {
    let space = empty_space();
    let inits = (0..1000_u64).rev().map(|i| {
        let kind = SpaceKind::ALL[(i % 3) as usize];
        old_group(kind, i * 2 * MIB, MIB, 0)
    });
    space.add_groups(inits.collect()).expect("sound");
    assert_eq!(space.groups().len(), 1000);
    for i in [0, 1, 500, 999] {
        let start = i * 2 * MIB;
        let found = |at: u64| space.group_at(Logical(at)).map(|group| group.start().0);
        assert_eq!(found(start), Some(start));
        assert_eq!(found(start + MIB - 1), Some(start));
        assert_eq!(found(start + MIB), None);
    }
    assert!(space.groups_of(Metadata).iter().all(|group| group.kind() == Metadata));
    space.verify().expect("sound");
}

/// Tests A1.
/// A group is removed if it is empty and no reservation needs its bytes.
#[test]
fn group_is_removed_only_without_reservations() {
    let space = Arc::new(empty_space());
    space
        .add_groups(vec![new_group(Data, 0, MIB, 1), new_group(Data, MIB, MIB, 1)])
        .expect("sound");
    let first = got(space.allocate(exactly(Data, SECTOR)));
    assert!(matches!(space.remove_group(first.start), Err(Error::NotEmpty { .. })));
    let reservation = space.reserve_data(MIB).expect("almost two are free");
    let needed = Error::Reserved { start: Logical(MIB), missing: SECTOR };
    assert_eq!(space.remove_group(Logical(MIB)).map(|_| ()), Err(needed));
    drop(reservation);
    assert!(matches!(space.remove_group(Logical(MIB + SECTOR)), Err(Error::NoGroup { .. })));
    let gone = space.remove_group(Logical(MIB)).expect("empty and not needed");
    assert_eq!((gone.start(), gone.largest_free()), (Logical(MIB), 0));
    assert!(space.group_at(Logical(MIB)).is_none());
    assert_eq!(space.account(Data).total, MIB);
    space.verify().expect("sound");
}

/// Nothing is allocated in a read-only group, and its free bytes cannot be reserved.
#[test]
fn read_only_groups_only_count() {
    let space = Arc::new(empty_space());
    let init = GroupInit { read_only: true, ..old_group(Data, 0, MIB, 4 * SECTOR) };
    space.add_group(init).expect("sound");
    assert_eq!(space.account(Data).read_only, MIB - 4 * SECTOR);
    assert!(matches!(space.allocate(exactly(Data, SECTOR)), AllocOutcome::Full { largest: 0 }));
    assert_eq!(space.reserve_data(SECTOR).err(), Some(Refused { missing: SECTOR }));
    space.pin(extent(0, SECTOR)).expect("in use");
    space.unpin(extent(0, SECTOR));
    assert_eq!(space.account(Data).read_only, MIB - 3 * SECTOR);
    space.verify().expect("sound");
}

/// R1, R2: tokens split, merge, shrink, turn into extents, and give back the rest.
#[test]
fn reservations_are_linear() {
    let space = Arc::new(empty_space());
    space.add_group(new_group(Data, 0, MIB, 1)).expect("sound");
    let mut reservation = space.reserve_data(MIB).expect("all of it is free");
    assert_eq!(space.reserve_data(SECTOR).err(), Some(Refused { missing: SECTOR }));
    let part = reservation.split(MIB / 4);
    assert_eq!((reservation.bytes(), part.bytes()), (3 * MIB / 4, MIB / 4));
    reservation.merge(part);
    let taken = got(space.allocate_data(&mut reservation, exactly(Data, MIB / 2)));
    assert_eq!((reservation.bytes(), taken.len), (MIB / 2, MIB / 2));
    let account = space.account(Data);
    assert_eq!((account.may_use, account.reserved, account.available()), (MIB / 2, MIB / 2, 0));
    reservation.shrink_to(SECTOR);
    // More is wanted than was reserved: the reservation is the limit.
    let wish = AllocRequest { min: SECTOR, ..exactly(Data, MIB) };
    assert_eq!(got(space.allocate_data(&mut reservation, wish)).len, SECTOR);
    assert_eq!(reservation.bytes(), 0);
    drop(reservation);
    space.verify().expect("sound");
    assert_eq!(space.account(Data).may_use, 0);
    assert!(space.account(Data).to_string().starts_with("data: total 1048576, used 0, reserved"));
}
