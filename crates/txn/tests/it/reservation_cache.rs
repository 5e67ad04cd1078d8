//! Reservations that shards keep count as reserved. Shards give these reservations back for
//! requests that need the space, and at each commit.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use buttress_base::sync::{Condvar, Mutex};
use buttress_base::{Rng, thread};
use buttress_block::MemoryDevice;
use buttress_fs::make::{MakeOptions, make};
use buttress_txn::{Cost, Engine, EngineOptions, MetaReservation, ReserveClass};
use buttress_volume::Volume;

/// The costs of the operations in a race.
const KINDS: [Cost; 2] = [COST, Cost { items: 7, commit_items: 0, bytes: 900 }];
const COST: Cost = Cost { items: 5, commit_items: 3, bytes: 500 };
/// Operations of a batch.
const BATCH: u64 = 16;
/// Threads of a race.
const THREADS: u64 = 4;

pub(crate) fn engine(mib: u64) -> Arc<Engine> {
    let device = Arc::new(MemoryDevice::new(mib << 20));
    make(&*device, &MakeOptions { seed: Some(1), ..MakeOptions::default() }).expect("a volume");
    let options = buttress_volume::OpenOptions { writable: true, ..Default::default() };
    let (volume, superblock) = Volume::open(vec![device], options).expect("a volume");
    Engine::open(Arc::new(volume), superblock, EngineOptions::default()).expect("it opens")
}

fn ask(engine: &Arc<Engine>, cost: Cost) -> Option<MetaReservation> {
    engine.reserve_at_once(cost, ReserveClass::Normal).expect("nothing failed")
}

fn batches(engine: &Engine) -> u64 {
    let reserved = engine.reservations().accounts().outstanding;
    let Cost { items, commit_items, bytes } = reserved;
    assert_eq!(
        (items * 3, items * 100),
        (commit_items * 5, bytes),
        "whole operations: {reserved:?}"
    );
    assert_eq!(items % (BATCH * 5), 0, "whole batches: {reserved:?}");
    items / (BATCH * 5)
}

/// One batch serves as many operations as it has shares. A batch of returned reservations is given
/// back at once. A new batch must fit in the free space, and does not reuse returned reservations
/// (B1, B2).
#[test]
fn batches_come_and_go() {
    let engine = engine(1024);
    for round in 0..4 * BATCH {
        let held = ask(&engine, COST).expect("there is plenty");
        assert_eq!(batches(&engine), 1, "operation {round}");
        drop(held);
    }
    // All reservations of the last batch came back, and were given back together.
    assert_eq!(batches(&engine), 0);
    let held: Vec<_> = (0..BATCH + 1).map(|_| ask(&engine, COST).expect("plenty")).collect();
    assert_eq!(batches(&engine), 2);
    drop(held);
    assert_eq!(batches(&engine), 1, "one went, the other has been used once");
    drop(ask(&engine, Cost::of(7, 10)).expect("plenty"));
    engine.commit().expect("a commit");
    assert_eq!(engine.reservations().accounts().outstanding, Cost::default());
}

/// A reservation with few items and very many bytes is room for copies, and in no batch. If it
/// is refused, shards go on as before (B4).
#[test]
fn room_for_copies_is_in_no_batch() {
    let engine = engine(1024);
    assert!(ask(&engine, Cost { items: 1, commit_items: 0, bytes: 1 << 29 }).is_none());
    let held = ask(&engine, COST).expect("plenty");
    assert_eq!(batches(&engine), 1);
    drop(held);
}

/// Before a request is refused, every shard gives back its reservations (B3).
#[test]
fn no_request_is_refused_for_it() {
    let engine = engine(160);
    std::thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| drop(ask(&engine, COST)));
        }
    });
    assert!(engine.reservations().accounts().outstanding.items > 0, "nothing was kept");
    // Reserves as much as fits, including the space that the shards kept.
    let mut all = Vec::new();
    while let Some(reservation) = ask(&engine, Cost::of(500, 1 << 20)) {
        all.push(reservation);
        assert!(all.len() < 10_000);
    }
    let held: u64 = all.len() as u64 * 500;
    assert_eq!(
        engine.reservations().accounts().outstanding.items,
        held,
        "something is kept by the side"
    );
    // With little free space, shards reserve no batches (`reserve::cache::B4`).
    all.pop();
    for _ in 0..40 {
        let reservation = ask(&engine, COST).expect("there is room again");
        assert_eq!(engine.reservations().accounts().outstanding.items, held - 500 + 5);
        drop(reservation);
        assert_eq!(engine.reservations().accounts().outstanding.items, held - 500);
    }
    drop(all);
}

/// A barrier at which threads wait for each other, with or without a seeded scheduler.
struct Meeting {
    count: u64,
    /// The number of threads that have arrived, and the number of times that all threads have
    /// arrived.
    here: Mutex<(u64, u64)>,
    all: Condvar,
}

impl Meeting {
    fn of(count: u64) -> Self {
        Self { count, here: Mutex::new((0, 0)), all: Condvar::new() }
    }

    fn wait(&self) {
        let mut here = self.here.lock();
        let round = here.1;
        here.0 += 1;
        if here.0 == self.count {
            *here = (0, round + 1);
            self.all.notify_all();
        }
        while here.1 == round {
            self.all.wait(&mut here);
        }
    }
}

/// One step of one thread of a race.
fn race_step(
    engine: &Arc<Engine>,
    rng: &mut Rng,
    mine: &mut Vec<(MetaReservation, u64)>,
    mib: u64,
) {
    const LARGE: Cost = Cost { items: 100, commit_items: 0, bytes: 1 << 20 };
    for _ in 0..rng.below(12) {
        let cost = match rng.below(20) {
            0 if mib < 1024 => LARGE,
            kind => KINDS[usize::from(kind > 15)],
        };
        if rng.chance(11, 20) {
            let reservation = ask(engine, cost);
            mine.extend(reservation.map(|reservation| (reservation, cost.items)));
        } else if !mine.is_empty() {
            drop(mine.swap_remove(rng.below(mine.len() as u64) as usize));
        }
    }
    // Before this request is refused, all shards give back their reservations.
    if rng.chance(1, 8) {
        let more = ask(engine, Cost::of(1_000_000, 1 << 30));
        assert!(more.is_none(), "so much there is not");
    }
}

/// Threads of several shards reserve batches, use them up, and give reservations back. Refused
/// requests make all shards give back the reservations that they keep. A seed decides the steps,
/// which the threads begin together. Between the steps no thread acts. At these times at least the
/// items that operations hold are reserved, and at most two batches more for each thread. In the
/// end nothing is reserved.
fn race(seed: u64, mib: u64, steps: usize) {
    let engine = engine(mib);
    let meeting = Meeting::of(THREADS + 1);
    let mut wrong = Vec::new();
    let held: Vec<AtomicU64> = (0..THREADS).map(|_| AtomicU64::new(0)).collect();
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (engine, meeting, sum) = (&engine, &meeting, &held[thread as usize]);
            scope.spawn(move || {
                let mut rng = Rng::new(seed * 10 + thread);
                let mut mine = Vec::new();
                for _ in 0..steps {
                    meeting.wait();
                    race_step(engine, &mut rng, &mut mine, mib);
                    sum.store(mine.iter().map(|(_, items)| items).sum(), Ordering::SeqCst);
                    meeting.wait();
                    // The main thread compares the sums between these two waits.
                    meeting.wait();
                }
            });
        }
        for step in 0..steps {
            meeting.wait();
            meeting.wait();
            let held: u64 = held.iter().map(|sum| sum.load(Ordering::SeqCst)).sum();
            let reserved = engine.reservations().accounts().outstanding.items;
            let kept = THREADS * 2 * BATCH * KINDS[1].items;
            // A failure is reported only after the end: the threads wait for each other until then.
            if !(held..=held + kept).contains(&reserved) {
                wrong.push((step, reserved, held));
            }
            meeting.wait();
        }
    });
    assert_eq!(wrong, [], "seed {seed}: steps, what was reserved, and what was held");
    engine.commit().expect("a commit");
    let _ = ask(&engine, Cost::of(1_000_000, 1 << 30));
    assert_eq!(engine.reservations().accounts().outstanding, Cost::default(), "seed {seed}");
}

/// E10: refills against releases, with the system's threads.
#[test]
fn refills_race_with_releases() {
    for (seed, mib) in [(1, 1024), (2, 1024), (3, 160), (4, 160)] {
        race(seed, mib, 300);
    }
}

/// E10: refills against releases, in orders that seeds decide.
#[cfg(debug_assertions)]
#[test]
fn refills_race_with_releases_in_every_order() {
    use crate::seeds;

    seeds::each(1..33, "refills_race", |seed| {
        let mib = if seed.is_multiple_of(2) { 160 } else { 1024 };
        seeds::run(seed, move || race(seed, mib, 40));
    });
}
