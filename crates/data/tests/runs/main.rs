//! Claims of runs under a scheduler that tries the orders in which threads may run, with readers,
//! waiting threads and writers. The claims are the real code. The device is simulated, with a
//! number in each sector.

#[allow(dead_code, unreachable_pub, reason = "the crate's own source, of which models use a part")]
#[path = "../../src/pages.rs"]
mod pages;
mod sync;

use std::sync::Arc;

use buttress_base::AlignedBuf;
use buttress_format::{Extent, Logical};
use shuttle::sync::atomic::{AtomicU64, Ordering};
use shuttle::thread;

use pages::{PageLookup, Pages, Purpose, RunClaim};

const SECTOR: u64 = 4096;
const SECTORS: u64 = 3;

fn model(world: impl Fn() + Send + Sync + 'static) {
    let runs = std::env::var("BUTTRESS_MODEL_RUNS").ok().and_then(|n| n.parse().ok());
    shuttle::check_random(world, runs.unwrap_or(800));
}

/// A device, its page cache, and the numbers of finished writes. A reader that begins after a write
/// sees the number of this write or a later number.
struct World {
    disk: [AtomicU64; SECTORS as usize],
    told: [AtomicU64; SECTORS as usize],
    /// The number of device reads of each sector.
    reads: [AtomicU64; SECTORS as usize],
    pages: Pages,
}

impl World {
    fn new(budget: u64) -> Arc<Self> {
        let zeroes = || [const { AtomicU64::new(0) }; SECTORS as usize];
        let (disk, told, reads) = (zeroes(), zeroes(), zeroes());
        Arc::new(Self { disk, told, reads, pages: Pages::new(budget) })
    }

    /// Reads a run sector by sector, so that other threads run in between.
    fn load(&self, claim: RunClaim<'_>, purpose: Purpose) -> Arc<AlignedBuf> {
        let extent = claim.extent();
        let mut bytes = AlignedBuf::zeroed(extent.len as usize);
        for (index, sector) in bytes.chunks_mut(SECTOR as usize).enumerate() {
            let number = (extent.start.0 / SECTOR) as usize + index;
            self.reads[number].fetch_add(1, Ordering::SeqCst);
            sector[..8].copy_from_slice(&self.disk[number].load(Ordering::SeqCst).to_le_bytes());
        }
        let bytes = Arc::new(bytes);
        claim.publish(&bytes, purpose);
        bytes
    }

    /// Reads one sector as a file's reader does. It claims up to `want` sectors. If another thread
    /// loads the sector, this reader reads ahead after that thread's run, and waits.
    fn read(&self, number: u64, want: u64, fails: bool) {
        let least = self.told[number as usize].load(Ordering::SeqCst);
        let at = Logical(number * SECTOR);
        let mut fails = fails;
        let (bytes, from) = loop {
            match self.pages.find(at, want.min(SECTORS - number) * SECTOR, false) {
                PageLookup::Ready { bytes, from } => break (bytes, from),
                PageLookup::Claimed(claim) if fails => {
                    fails = false;
                    drop(claim);
                }
                PageLookup::Claimed(claim) => break (self.load(claim, Purpose::Now), 0),
                PageLookup::Loading { end } => {
                    if end.0 < SECTORS * SECTOR
                        && let Ok(next) = self.pages.claim(end, SECTOR)
                    {
                        self.load(next, Purpose::Later);
                    }
                    self.pages.wait(at);
                }
            }
        };
        let found = u64::from_le_bytes(bytes[from..from + 8].try_into().expect("eight bytes"));
        assert!(found >= least, "P1: sector {number} is {found}, told was {least}");
    }

    /// Reads all sectors as a long call does. It first reads the sectors that no other thread
    /// loads, and gives copies to threads that wait.
    fn read_long(&self) {
        let least = [0, 1, 2].map(|number: usize| self.told[number].load(Ordering::SeqCst));
        let mut todo: Vec<u64> = (0..SECTORS).collect();
        while !todo.is_empty() {
            let mut busy = Vec::new();
            for number in todo {
                let at = number as usize;
                let found = match self.pages.find(Logical(number * SECTOR), SECTOR, false) {
                    PageLookup::Ready { bytes, from } => {
                        u64::from_le_bytes(bytes[from..from + 8].try_into().expect("eight bytes"))
                    }
                    PageLookup::Loading { .. } => {
                        busy.push(number);
                        continue;
                    }
                    PageLookup::Claimed(claim) => {
                        self.reads[at].fetch_add(1, Ordering::SeqCst);
                        let found = self.disk[at].load(Ordering::SeqCst);
                        let mut bytes = vec![0; SECTOR as usize];
                        bytes[..8].copy_from_slice(&found.to_le_bytes());
                        claim.publish_copy(&bytes);
                        found
                    }
                };
                let least = least[at];
                assert!(found >= least, "P1: sector {number} is {found}, told was {least}");
            }
            if let Some(first) = busy.first() {
                self.pages.wait(Logical(first * SECTOR));
            }
            todo = busy;
        }
    }

    fn write(&self, number: u64, stamp: u64) {
        self.disk[number as usize].store(stamp, Ordering::SeqCst);
        self.pages.forget(Extent::new(Logical(number * SECTOR), SECTOR));
        self.told[number as usize].store(stamp, Ordering::SeqCst);
    }
}

/// The work of one thread.
type Work = Box<dyn Fn(&World) + Send>;

fn together(world: &Arc<World>, works: Vec<Work>) {
    let threads = works.into_iter().map(|work| {
        let world = Arc::clone(world);
        thread::spawn(move || work(&world))
    });
    let threads: Vec<_> = threads.collect();
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    world.pages.audit();
}

/// Three readers and a read-ahead: each sector is read once, and no thread is left asleep.
#[test]
fn a_run_is_read_once() {
    model(|| {
        let world = World::new(1 << 20);
        let reader = |want: u64| -> Work {
            Box::new(move |world| (0..SECTORS).for_each(|number| world.read(number, want, false)))
        };
        let ahead = Box::new(|world: &World| {
            let mut at = Logical(0);
            while at.0 < SECTORS * SECTOR {
                at = match world.pages.claim(at, SECTOR) {
                    Ok(claim) => {
                        let end = claim.extent().end();
                        world.load(claim, Purpose::Later);
                        end
                    }
                    Err(end) => end,
                };
            }
        });
        together(&world, vec![reader(1), reader(3), reader(2), ahead]);
        assert!(world.reads.iter().all(|reads| reads.load(Ordering::SeqCst) == 1));
        assert_eq!(world.pages.audit(), SECTORS * SECTOR);
    });
}

/// P3: when a claim is dropped, one of the threads that wait claims the run.
#[test]
fn a_failed_read_falls_to_the_next() {
    model(|| {
        let world = World::new(1 << 20);
        let reader = |fails: bool| -> Work {
            Box::new(move |world| (0..2).for_each(|number| world.read(number, 2, fails)))
        };
        together(&world, vec![reader(true), reader(false), reader(true)]);
    });
}

/// P1: if a sector is written while its run is read or cached, no later reader finds the old bytes.
#[test]
fn lookups_find_no_old_data() {
    model(|| {
        let world = World::new(2 * SECTOR);
        let reader = || -> Work {
            Box::new(|world| {
                [0, 1, 2, 1].into_iter().for_each(|number| world.read(number, 3, false));
            })
        };
        let writer = Box::new(|world: &World| {
            for stamp in 1..3 {
                world.write(1, stamp);
                world.write(2, stamp);
            }
        });
        together(&world, vec![reader(), reader(), writer]);
    });
}

/// P1 also holds beside long calls, which cache only sectors that other threads wait for. No thread
/// is left asleep.
#[test]
fn long_calls_give_copies_to_waiting_threads() {
    static SHARED: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    model(|| {
        let world = World::new(1 << 20);
        let long = || -> Work { Box::new(World::read_long) };
        let shortfall = Box::new(|world: &World| world.read(1, 2, false));
        let writer = Box::new(|world: &World| world.write(1, 1));
        together(&world, vec![long(), long(), shortfall, writer]);
        let reads = world.reads.iter().map(|reads| reads.load(Ordering::SeqCst)).sum::<u64>();
        assert!(reads <= 3 * SECTORS + 1, "{reads} reads");
        if reads < 2 * SECTORS {
            SHARED.fetch_add(1, Ordering::Relaxed);
        }
    });
    assert!(SHARED.load(Ordering::Relaxed) > 0, "no thread ever had the bytes of another");
}

/// A long call without waiting threads adds nothing to the page cache.
#[test]
fn a_long_call_keeps_nothing_without_waiting_threads() {
    model(|| {
        let world = World::new(1 << 20);
        together(&world, vec![Box::new(World::read_long)]);
        assert_eq!(world.pages.audit(), 0);
    });
}
