//! Under the published rule, a reservation takes eight nodes for each item, whatever the height of
//! the trees. The reservation gives back all of these nodes.

use std::sync::Arc;

use buttress_block::MemoryDevice;
use buttress_fs::make::{MakeOptions, make};
use buttress_txn::{Cost, Engine, EngineOptions, MetaReservation, ReserveClass, ReservePolicy};
use buttress_volume::Volume;

const NODE: u64 = 16 << 10;
const COST: Cost = Cost::of(5, 500);
const TAKES: u64 = 5 * 8 * NODE;

fn engine(policy: ReservePolicy) -> Arc<Engine> {
    let device = Arc::new(MemoryDevice::new(1 << 30));
    make(&*device, &MakeOptions { seed: Some(1), ..MakeOptions::default() }).expect("a volume");
    let options = buttress_volume::OpenOptions { writable: true, ..Default::default() };
    let (volume, superblock) = Volume::open(vec![device], options).expect("a volume");
    let options = EngineOptions { policy, ..EngineOptions::default() };
    Engine::open(Arc::new(volume), superblock, options).expect("it opens")
}

/// Makes as many reservations as there is space for, up to a limit.
fn reserve_all(engine: &Arc<Engine>) -> Vec<MetaReservation> {
    let ask = || engine.reserve_at_once(COST, ReserveClass::Normal).expect("nothing failed");
    std::iter::from_fn(ask).take(20_000).collect()
}

#[test]
fn eight_nodes_an_item() {
    let engine = engine(ReservePolicy::Levels);
    let pools = engine.reservations().pools(0, 0);
    let held = reserve_all(&engine);
    let taken = held.len() as u64 * TAKES;
    let room = pools.headroom();
    assert!(taken <= room && taken + 4 * TAKES > room, "{taken} of {room}");
    let full = engine.reservations().pools(0, 0);
    assert!(full.reservations >= taken, "{} for {taken}", full.reservations);
    assert!(full.headroom() < 4 * TAKES);
    let count = held.len();
    drop(held);
    assert_eq!(engine.reservations().pools(0, 0), pools, "all of it came back");
    assert_eq!(reserve_all(&engine).len(), count);
}

/// On a small volume, any number of changes can dirty at most all existing nodes.
#[test]
fn counting_reserves_less_than_levels() {
    let counted = reserve_all(&engine(ReservePolicy::Counted)).len();
    let levels = reserve_all(&engine(ReservePolicy::Levels)).len();
    assert!(counted > 10 * levels, "{counted} and {levels}");
}
