//! Reservations that are kept at hand count as reserved, are given back to requests that need them,
//! and are gone behind a commit.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use buttress_base::sync::{Condvar, Mutex};
use buttress_base::{Rng, thread};
use buttress_block::MemoryDevice;
use buttress_fs::make::{MakeOptions, make};
use buttress_txn::{Cost, Costs, Engine, EngineOptions, MetaReservation, Urgency};
use buttress_volume::Volume;

/// What operations of a race need.
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
    engine.reserve_at_once(cost, Urgency::Normal).expect("nothing failed")
}

fn batches(engine: &Engine) -> u64 {
    let reserved = engine.accounts().outstanding;
    let Costs { items, commit_items, bytes } = reserved;
    assert_eq!(
        (items * 3, items * 100),
        (commit_items * 5, bytes),
        "whole operations: {reserved:?}"
    );
    assert_eq!(items % (BATCH * 5), 0, "whole batches: {reserved:?}");
    items / (BATCH * 5)
}

/// A batch serves as many operations, and the batch gives back what they held. A second batch is
/// compared with what there is, and not made of the first (B1, B2).
#[test]
fn batches_come_and_go() {
    let engine = engine(1024);
    for round in 0..4 * BATCH {
        let held = ask(&engine, COST).expect("there is plenty");
        assert_eq!(batches(&engine), 1, "operation {round}");
        drop(held);
    }
    // All of the last batch came back, with nothing left of it.
    assert_eq!(batches(&engine), 0);
    let held: Vec<_> = (0..BATCH + 1).map(|_| ask(&engine, COST).expect("plenty")).collect();
    assert_eq!(batches(&engine), 2);
    drop(held);
    assert_eq!(batches(&engine), 1, "one went, the other has been used once");
    drop(ask(&engine, Cost::of(7, 10)).expect("plenty"));
    engine.commit().expect("a commit");
    assert_eq!(engine.accounts().outstanding, Costs::default());
}

/// A request that would be refused first has all of it given back, from every shard that keeps some
/// (B3).
#[test]
fn no_request_is_refused_for_it() {
    let engine = engine(160);
    std::thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| drop(ask(&engine, COST)));
        }
    });
    assert!(engine.accounts().outstanding.items > 0, "nothing was kept");
    // All that fits: none is left for a request behind it, and what was kept was part of it.
    let mut all = Vec::new();
    while let Some(reservation) = ask(&engine, Cost::of(500, 1 << 20)) {
        all.push(reservation);
        assert!(all.len() < 10_000);
    }
    let held: u64 = all.len() as u64 * 500;
    assert_eq!(engine.accounts().outstanding.items, held, "something is kept by the side");
    // Where there is less than plenty each reservation is by itself (`reserve::credit::B4`).
    all.pop();
    for _ in 0..40 {
        let reservation = ask(&engine, COST).expect("there is room again");
        assert_eq!(engine.accounts().outstanding.items, held - 500 + 5);
        drop(reservation);
        assert_eq!(engine.accounts().outstanding.items, held - 500);
    }
    drop(all);
}

/// Where threads wait for each other, under a seed or not.
struct Meeting {
    count: u64,
    /// How many are here, and how often all were.
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

/// One thread of a race, in one step of it.
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
            mine.extend(reservation.map(|reservation| (reservation, u64::from(cost.items))));
        } else if !mine.is_empty() {
            drop(mine.swap_remove(rng.below(mine.len() as u64) as usize));
        }
    }
    // What would be refused has all that is kept given back.
    if rng.chance(1, 8) {
        let more = ask(engine, Cost::of(1_000_000, 1 << 30));
        assert!(more.is_none(), "so much there is not");
    }
}

/// Threads of several shards reserve their batches, use them up, give reservations back and have
/// all that is kept taken away. A seed gives the steps, which they begin together. Between the
/// steps, when no thread moves, reserved is what operations hold and what shards may keep beside.
/// It is never less, and not a batch more than two for each. In the end it is nothing.
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
                    // Looked at in between.
                    meeting.wait();
                }
            });
        }
        for step in 0..steps {
            meeting.wait();
            meeting.wait();
            let held: u64 = held.iter().map(|sum| sum.load(Ordering::SeqCst)).sum();
            let reserved = engine.accounts().outstanding.items;
            let kept = THREADS * 2 * BATCH * u64::from(KINDS[1].items);
            // Told behind the threads, which wait for each other.
            if !(held..=held + kept).contains(&reserved) {
                wrong.push((step, reserved, held));
            }
            meeting.wait();
        }
    });
    assert_eq!(wrong, [], "seed {seed}: steps, what was reserved, and what was held");
    engine.commit().expect("a commit");
    let _ = ask(&engine, Cost::of(1_000_000, 1 << 30));
    assert_eq!(engine.accounts().outstanding, Costs::default(), "seed {seed}");
}

/// E10: refills against releases, with the system's threads.
#[test]
fn e10_refills_against_releases() {
    for (seed, mib) in [(1, 1024), (2, 1024), (3, 160), (4, 160)] {
        race(seed, mib, 300);
    }
}

/// E10: the same in orders that seeds decide.
#[cfg(debug_assertions)]
#[test]
fn e10_refills_against_releases_in_every_order() {
    use crate::seeds;

    seeds::each(1..33, "e10_refills", |seed| {
        let mib = if seed.is_multiple_of(2) { 160 } else { 1024 };
        seeds::run(seed, move || race(seed, mib, 40));
    });
}
