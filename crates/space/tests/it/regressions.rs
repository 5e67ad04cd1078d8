//! Faults of other allocators, by their numbers in `docs/internals/kernel-bugs.md`.

use std::collections::BTreeSet;
use std::sync::Arc;

use buttress_base::Rng;
use buttress_format::{Extent, Logical};
use buttress_space::SpaceKind::{Data, Metadata};
use buttress_space::{AllocOutcome, AllocPolicy, AllocRequest, Space};

use crate::world::*;

const KIB: u64 = 1 << 10;

/// Groups of a MiB each, all free, with as many goals as `processors` can drive.
fn groups(count: u64, processors: usize, policy: AllocPolicy) -> Space {
    let space = empty_space().choosing(policy).for_processors(processors);
    let inits = (0..count).map(|i| new_group(Data, i * MIB, MIB, 1));
    space.add_groups(inits.collect()).expect("sound");
    space
}

/// A3: a group that is empty again serves every size, and nodes have no size class. The class of a
/// loaded group does not depend on its old content.
#[test]
fn classes_end_with_their_group() {
    let space = empty_space();
    space
        .add_groups((0..2).map(|i| new_group(Data, i * 32 * MIB, 32 * MIB, 1)).collect())
        .expect("sound");
    let small = got(space.allocate(exactly(Data, 64 * KIB)));
    // Allocations of other sizes use other groups as long as there are some, unless they continue
    // an extent of their stream.
    let taken = Some(small.start);
    let large = got(space.allocate(AllocRequest { goal: taken, ..exactly(Data, 16 * MIB) }));
    assert_ne!(small.start.0 / (32 * MIB), large.start.0 / (32 * MIB));
    space.free(small);
    let goal = Some(Logical(small.start.0 / (32 * MIB) * (32 * MIB)));
    let medium = got(space.allocate(AllocRequest { goal, ..exactly(Data, MIB) }));
    assert_eq!(Some(medium.start), goal, "the group was empty, so it is of no class");
    // All groups are full except one, which has another class. The search takes this group, so no
    // new chunk is needed.
    let rest = got(space.allocate(exactly(Data, 31 * MIB)));
    assert_eq!(rest.start.0, medium.end().0);
    space.verify().expect("sound");

    let space = empty_space();
    space
        .add_groups((0..2).map(|i| new_group(Metadata, i * MIB, MIB, 1)).collect())
        .expect("sound");
    let nodes = MIB / NODE;
    for i in 0..2 * nodes {
        assert_eq!(got(space.allocate(exactly(Metadata, NODE))).start.0, i * NODE);
    }
}

/// X1: small files, each a stream of its own, go into groups that are full to different degrees.
/// After each folder, all touched groups are full except one for each goal, and the extents of one
/// group lie in one piece. So the files of a folder lie in few pieces, although streams are by file
/// and the allocator does not know the folder.
#[test]
fn small_files_stay_together() {
    const GROUPS: u64 = 40;
    const FILE_MAX: u64 = 4 * SECTOR;
    for (policy, processors) in AllocPolicy::ALL.into_iter().flat_map(|one| [(one, 1), (one, 8)]) {
        let space = groups(GROUPS, processors, policy);
        let goals = if policy == AllocPolicy::IndexGoals { processors } else { 1 };
        let mut rng = Rng::new(1);
        let mut free = Vec::new();
        for group in 0..GROUPS {
            let there = extent(group * MIB, rng.range(1..200) * SECTOR);
            let request = exactly(Data, there.len);
            let goal = Some(there.start);
            assert_eq!(got(space.allocate(AllocRequest { goal, ..request })), there);
            free.push(MIB - there.len);
        }
        let (mut files, mut touched) = (Vec::new(), BTreeSet::new());
        for inode in 1..=1400 {
            let request = exactly(Data, rng.range(1..4) * SECTOR);
            let file = got(space.allocate(AllocRequest { stream: inode, ..request }));
            let group = file.start.0 / MIB;
            free[group as usize] -= file.len;
            touched.insert(group);
            files.push(file);
            if inode % 100 == 0 {
                let open = touched.iter().filter(|group| free[**group as usize] >= FILE_MAX);
                let (open, all) = (open.count(), touched.len());
                assert!(open <= goals, "{policy}, {processors}: {open} of {all} are not full");
            }
        }
        files.sort_by_key(|file| file.start);
        let pieces = 1 + files.windows(2).filter(|pair| pair[0].end() != pair[1].start).count();
        assert_eq!(pieces, touched.len(), "{policy}, {processors}");
    }
}

/// X1: an allocation without a goal continues behind the last extent of its stream, in any group,
/// even where a search would meet other groups first.
#[test]
fn streams_continue_after_their_last_extent() {
    const GROUPS: u64 = 40;
    for (policy, processors) in AllocPolicy::ALL.into_iter().flat_map(|one| [(one, 1), (one, 8)]) {
        let space = groups(GROUPS, processors, policy);
        let mut rng = Rng::new(2);
        let mut order: Vec<_> = (0..GROUPS).collect();
        rng.shuffle(&mut order);
        for group in order {
            let len = rng.range(1..100) * SECTOR;
            let first = AllocRequest { stream: 7, ..exactly(Data, len) };
            let goal = Some(Logical(group * MIB));
            let mut end = got(space.allocate(AllocRequest { goal, ..first })).end();
            assert_eq!(end.0, group * MIB + len, "{policy}, {processors}");
            for _ in 0..3 {
                let next = AllocRequest { stream: 7, ..exactly(Data, 2 * SECTOR) };
                let next = got(space.allocate(next));
                assert_eq!(next.start, end, "{policy}, {processors}: group {group}");
                end = next.end();
            }
        }
        space.verify().expect("sound");
    }
}

/// X2: if every group has room but no group can serve a request in one piece, the search ends after
/// a look at few groups. No request asks for more alignment than a unit.
#[test]
fn search_in_vain_is_bounded() {
    let space = groups(300, 4, AllocPolicy::IndexGoals);
    // Takes every second sector of every group.
    let mut taken = Vec::new();
    while let AllocOutcome::Got(extent) = space.allocate(exactly(Data, SECTOR)) {
        taken.push(extent);
    }
    for extent in taken.iter().filter(|extent| extent.start.0 / SECTOR % 2 == 1) {
        space.free(*extent);
    }
    let before = space.alloc_stats();
    for _ in 0..100 {
        assert!(matches!(space.allocate(exactly(Data, 16 * SECTOR)), AllocOutcome::Full { .. }));
    }
    let probes = space.alloc_stats().probes - before.probes;
    // A few groups of the highest order are compared for the largest run of a smaller request.
    assert!(probes <= 100 * 200, "{probes} probes for a hundred searches");
}

/// X8: the last sector, and the last whole unit, of a group can be allocated and given back; no
/// extent reaches behind the end.
#[test]
fn requests_stop_at_the_end_of_a_group() {
    for (kind, unit) in [(Data, SECTOR), (Metadata, NODE)] {
        let space = empty_space();
        // A length that is no multiple of a node, with another group right behind it.
        let len = MIB + 3 * SECTOR;
        let behind = len.next_multiple_of(NODE);
        let inits = vec![new_group(kind, 0, len, 1), new_group(kind, behind, MIB, 1)];
        space.add_groups(inits).expect("sound");
        let last = len / unit * unit - unit;
        for want in [unit, 2 * unit, 5 * unit] {
            let goal = Some(Logical(last + unit - want));
            let end = got(space.allocate(AllocRequest { goal, ..exactly(kind, want) }));
            assert_eq!(end, extent(last + unit - want, want));
            // A request for one unit more than is left there gets all of its space elsewhere.
            let over = got(space.allocate(AllocRequest { goal, ..exactly(kind, want) }));
            assert!(over.end().0 <= end.start.0 || over.start.0 >= behind, "{over:?}");
            space.free(end);
            space.free(over);
        }
        let goal = Some(Logical(last));
        let two = got(space.allocate(AllocRequest { goal, ..exactly(kind, 2 * unit) }));
        assert!(two.end().0 <= last + unit || two.start.0 >= behind, "{two:?}");
        space.free(two);
        space.verify().expect("sound");
        assert_eq!(space.account(kind).reserved, 0);
    }
}

/// X11: a thread that allocates and frees the same few blocks again and again stays in its groups.
#[test]
fn threads_stay_in_their_groups() {
    for policy in AllocPolicy::ALL {
        let space = groups(64, 8, policy);
        // The groups are half full, so that they have many orders.
        let mut rng = Rng::new(11);
        for group in 0..64 {
            let len = rng.range(1..200) * SECTOR;
            let goal = Some(Logical(group * MIB));
            let _ = got(space.allocate(AllocRequest { goal, stream: group, ..exactly(Data, len) }));
        }
        let before = space.alloc_stats();
        let mut places = vec![BTreeSet::new(); 64];
        for _ in 0..50 {
            let mut round = Vec::new();
            for stream in 0..64_u64 {
                let request = AllocRequest { stream, ..exactly(Data, 2 * SECTOR) };
                let found = got(space.allocate(request));
                places[stream as usize].insert(found.start.0 / MIB);
                round.push(found);
            }
            round.into_iter().for_each(|extent| space.free(extent));
        }
        let stats = space.alloc_stats();
        let (probes, allocations) =
            (stats.probes - before.probes, stats.allocations - before.allocations);
        assert!(probes <= 2 * allocations, "{policy}: {probes} probes for {allocations}");
        let most = places.iter().map(BTreeSet::len).max().expect("64");
        assert!(most <= 3, "{policy}: one of them was in {most} groups");
    }
}

/// Lengths of the free runs of a volume that was written and deleted at random for long, 90% full.
fn aged(processors: usize, seed: u64) -> Vec<u64> {
    const GROUPS: u64 = 48;
    let space = Arc::new(groups(GROUPS, processors, AllocPolicy::IndexGoals));
    let mut rng = Rng::new(seed);
    let mut files: Vec<Vec<Extent>> = Vec::new();
    let (mut bytes, mut inode) = (0, 0);
    for _ in 0..12_000 {
        let full = bytes > GROUPS * MIB / 10 * 9;
        if full {
            let gone = files.swap_remove(rng.below(files.len() as u64) as usize);
            bytes -= gone.iter().map(|extent| extent.len).sum::<u64>();
            gone.into_iter().for_each(|extent| space.free(extent));
            continue;
        }
        inode += 1;
        let mut left = rng.range(1..32) * SECTOR * if rng.chance(1, 8) { 8 } else { 1 };
        let mut file = Vec::new();
        while left > 0 {
            let request =
                AllocRequest { stream: inode, min: SECTOR, ..exactly(Data, left.min(256 * KIB)) };
            let extent = got(space.allocate(request));
            left -= extent.len;
            bytes += extent.len;
            file.push(extent);
        }
        files.push(file);
    }
    let mut used: Vec<Extent> = files.into_iter().flatten().collect();
    used.sort_by_key(|extent| extent.start);
    let mut free = Vec::new();
    let mut at = 0;
    for extent in used {
        if extent.start.0 > at {
            free.push(extent.start.0 - at);
        }
        at = extent.end().0;
    }
    free
}

/// Classes of free runs. Each class has twice the length of the class before; the first is one
/// sector. The last class has all runs of 64 KiB and more.
const CLASSES: usize = 5;

/// How many free runs of each class there are, and how many sectors are in them, in the volumes of
/// several seeds.
fn histogram(processors: usize) -> [(u64, u64); CLASSES] {
    let mut classes = [(0, 0); CLASSES];
    for len in (13..45).flat_map(|seed| aged(processors, seed)) {
        let class = ((len / SECTOR).ilog2() as usize).min(CLASSES - 1);
        classes[class].0 += 1;
        classes[class].1 += len / SECTOR;
    }
    classes
}

/// X13: with several goals, an aged volume has as many free runs of each class as with one goal,
/// within a tenth. The bytes in the runs of each class also agree within a tenth.
#[test]
fn goals_do_not_fragment() {
    let one = histogram(1);
    for processors in [2, 4, 8, 16] {
        let many = histogram(processors);
        println!("{processors}: {many:?}, one: {one:?}");
        let is_near = |many: u64, one: u64| many.abs_diff(one) * 10 <= one;
        for (many, one) in many.into_iter().zip(one) {
            assert!(is_near(many.0, one.0) && is_near(many.1, one.1), "{many:?} for {one:?}");
        }
    }
}
