//! Groups with parity: a row belongs to one batch of writes until all of it is free again.

use std::collections::BTreeMap;

use buttress_base::Rng;
use buttress_format::{Extent, Generation, Logical};
use buttress_space::SpaceKind::Data;
use buttress_space::{AllocOutcome, AllocRequest, GroupInit, Rows};

use crate::world::*;

const GROUPS: u64 = 3;
const ROWS: u64 = 40;

fn request(want: u64, min: u64, stream: u64) -> AllocRequest {
    let limit = Generation(u64::MAX);
    AllocRequest { kind: Data, want, min, align: SECTOR, goal: None, limit, stream, hurry: false }
}

/// G4, W1: no row has extents of two batches, for any sequence of batches and of moves between
/// states. Accounts never count bytes that cannot be allocated.
#[test]
fn a_row_has_one_owner() {
    let (mut got, mut full) = (0, 0);
    for seed in 0..20 {
        let mut rng = Rng::new(seed);
        let row = (1 + rng.below(4)) * 16 * SECTOR;
        let space = std::sync::Arc::new(empty_space());
        for index in 0..GROUPS {
            let start = (1 + index * 4000) * SECTOR;
            let len = ROWS * row + rng.below(3) * SECTOR;
            let init = GroupInit { row: Some(row), ..old_group(Data, start, len, 0) };
            let init = GroupInit { superblock_stripes: vec![extent(start + 3 * row, row)], ..init };
            space.add_group(init).expect("sound");
            let group = space.group_at(Logical(start)).expect("added");
            assert_eq!(space.account(Data).free() / row, index * (ROWS - 1), "before it is loaded");
            space.load(&group, [group.range()].into_iter()).expect("empty");
        }
        assert_eq!(space.account(Data).free(), GROUPS * (ROWS - 1) * row);
        let row_of = |at: Logical| {
            let group = space.group_at(at).expect("in a group").start();
            (group, (at.0 - group.0) / row)
        };
        // The batch of each row, and how many extents have a part of it.
        let mut owners: BTreeMap<(Logical, u64), (u64, u64)> = BTreeMap::new();
        let mut live: Vec<(Extent, u8)> = Vec::new();
        let rows_of = |extent: Extent| {
            let (group, first) = row_of(extent.start);
            let (_, last) = row_of(Logical(extent.end().0 - 1));
            (first..=last).map(move |row| (group, row))
        };
        for batch in 0..200 {
            let mut rows = Rows::default();
            let mut last: Option<Extent> = None;
            for _ in 0..rng.below(6) {
                let want = (1 + rng.below(3 * row / SECTOR)) * SECTOR;
                let min = if rng.chance(1, 2) { want } else { SECTOR };
                let free = space.account(Data).free();
                let Ok(mut reservation) = space.reserve_data(want) else {
                    full += 1;
                    continue;
                };
                match space.allocate_in_rows(
                    &mut reservation,
                    request(want, min, seed % 2),
                    &mut rows,
                ) {
                    AllocOutcome::Got(extent) => {
                        got += 1;
                        assert!(extent.len >= min && extent.len <= want);
                        let goes_on = last.is_some_and(|last| last.end() == extent.start);
                        let (group, _) = row_of(extent.start);
                        let begins = (extent.start.0 - group.0).is_multiple_of(row);
                        assert!(goes_on || begins, "{extent:?} in the middle of a row");
                        last = Some(extent);
                        for row in rows_of(extent) {
                            let owner = owners.entry(row).or_insert((batch, 0));
                            assert_eq!(owner.0, batch, "seed {seed}: {row:?} is another's");
                            owner.1 += 1;
                        }
                        live.push((extent, 0));
                    }
                    AllocOutcome::Full { .. } => {
                        assert!(free < GROUPS * ROWS * row, "an empty volume is full");
                        full += 1;
                    }
                    AllocOutcome::NeedsLoading(_) => panic!("all are loaded"),
                }
                space.verify().expect("sound");
            }
            space.close_rows(&mut rows);
            for _ in 0..rng.below(8) {
                if live.is_empty() {
                    break;
                }
                let index = rng.below(live.len() as u64) as usize;
                let (extent, state) = live[index];
                match (state, rng.chance(1, 2)) {
                    (0, true) => {
                        space.commit_used(extent);
                        live[index].1 = 1;
                        continue;
                    }
                    (1, true) => {
                        space.pin(extent).expect("in use");
                        live[index].1 = 2;
                        continue;
                    }
                    (2, _) => space.unpin(extent),
                    _ => space.free(extent),
                }
                live.swap_remove(index);
                for row in rows_of(extent) {
                    let owner = owners.get_mut(&row).expect("it has one");
                    owner.1 -= 1;
                    if owner.1 == 0 {
                        owners.remove(&row);
                    }
                }
            }
            space.verify().expect("sound");
            let whole = GROUPS * (ROWS - 1) - owners.len() as u64;
            assert_eq!(space.account(Data).free(), whole * row, "seed {seed}");
        }
    }
    assert!(got > 1000 && full > 0, "{got} {full}");
}
