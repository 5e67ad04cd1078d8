//! If free space lies in pieces, a chunk is added, as long as the devices have enough unallocated
//! space.

use std::sync::Arc;

use buttress_format::{Extent, Ino, TreeId};
use buttress_fs::make::MakeOptions;
use buttress_txn::{Cost, DataRef, Engine, ReserveClass};

use crate::checker;

const SECTOR: u64 = 4096;
const WANTED: u64 = 64 << 10;
const SIZE: u64 = 1 << 30;

/// Allocates all space of the groups, sector by sector, and gives back every other sector.
fn shred(engine: &Arc<Engine>, kept: &mut Vec<Extent>) {
    let groups = engine.group_fill().len();
    let free = engine.reservations().accounts().data.free();
    let mut space = engine.reserve_data(free).expect("it is free");
    let mut one = || engine.allocate_data(&mut space, SECTOR, SECTOR, None, 1).expect("a sector");
    let mut taken: Vec<_> = (0..free / SECTOR).map(|_| one()).collect();
    taken.sort_unstable_by_key(|extent| extent.start);
    for (index, extent) in taken.into_iter().enumerate() {
        if index % 2 == 0 {
            kept.push(extent);
        } else {
            engine.allocation().free_unused_data(engine.storage(), extent);
        }
    }
    assert_eq!(engine.group_fill().len(), groups, "a sector is no piece");
}

/// Allocates once, and returns the length of the extent.
fn allocate(engine: &Arc<Engine>, kept: &mut Vec<Extent>) -> u64 {
    let mut space = engine.reserve_data(WANTED).expect("there is room");
    let extent = engine.allocate_data(&mut space, WANTED, SECTOR, None, 1).expect("there is room");
    kept.push(extent);
    extent.len
}

/// A3: while much device space is unallocated, data in pieces gets a chunk.
#[test]
fn fragmented_space_gets_a_chunk_while_some_are_free() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = checker::volume(dir.path(), SIZE, &MakeOptions::default());
    let engine = checker::open(&path);
    let (mut kept, mut grown) = (Vec::new(), 0);
    loop {
        shred(&engine, &mut kept);
        let groups = engine.group_fill().len();
        assert!(allocate(&engine, &mut kept) < WANTED, "all is in pieces");
        if engine.group_fill().len() == groups {
            break;
        }
        grown += 1;
        assert_eq!(engine.group_fill().len(), groups + 1, "one is enough");
        assert_eq!(allocate(&engine, &mut kept), WANTED, "and has it whole");
        assert_eq!(engine.group_fill().len(), groups + 1, "no other group is needed");
    }
    let left = engine.reservations().accounts().unallocated;
    assert!(grown > 2, "{grown} chunks, {left} bytes left");
    assert!((SIZE / 10..=SIZE / 4).contains(&left), "{left} bytes left");
    // Extents in pieces can be used like any other extents.
    for (index, extent) in kept.into_iter().enumerate() {
        let user = DataRef { root: TreeId::FS, ino: Ino(257), offset: index as u64 * WANTED };
        let reservation =
            engine.reserve(Cost::of(1, 300), ReserveClass::Normal).expect("there is room");
        engine.begin(reservation).add_data_ref(extent, user);
    }
    engine.commit().expect("a commit");
}
