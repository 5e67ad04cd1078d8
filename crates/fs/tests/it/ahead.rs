//! Preemptive flushing on a small volume at different degrees of fullness. Time is counted in
//! steps, so that every run has the same result.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use buttress_base::seeded::{self, Options};
use buttress_base::{Rng, clock, thread};
use buttress_block::{Device, MemoryDevice};
use buttress_fs::{FallocateMode, Filesystem, MakeOptions, MountOptions, NewInode, XattrFlags};
use buttress_sim::processors::{Cost, Processors};
use buttress_sim::{Slow, Slowness};

/// The cost of a step.
const STEP: Duration = Duration::from_nanos(500);
/// The time of a request.
const LATENCY: Duration = Duration::from_micros(200);
const IDLE: Duration = Duration::from_secs(30);
const LOAD: Duration = Duration::from_millis(200);

/// Runs work on `processors` simulated processors.
fn run<T: Send + 'static>(processors: usize, work: impl FnOnce() -> T + Send + 'static) -> T {
    let processors = Some(Processors { count: processors, cost: Cost::Step(STEP) });
    let options = Options {
        processors: processors.map(Processors::machine),
        steps_max: u64::MAX,
        ..Options::default()
    };
    let (result, _) = seeded::run(1, options, work).unwrap_or_else(|stuck| panic!("{stuck}"));
    result
}

/// A volume that has no space for another chunk, and the number of small files in it.
struct Crowded {
    fs: Filesystem,
    slow: Arc<Slow<MemoryDevice>>,
    files: u64,
}

impl Crowded {
    fn new(preempt: &str, latency: Duration) -> Self {
        let base = MemoryDevice::new(160 << 20);
        let make = MakeOptions { seed: Some(7), ..MakeOptions::default() };
        Filesystem::make(&base, &make).expect("a volume");
        let how = Slowness { mib_s: Some(500.0), latency, depth: 32, forgets_data: false };
        let slow = Arc::new(Slow::new(base, how));
        let options = format!("rw,noatime,commit=3600,preempt={preempt}");
        let options = MountOptions::parse(&options).expect("options");
        let device = Arc::clone(&slow) as Arc<dyn Device>;
        let fs = Filesystem::open(vec![device], options).expect("a mount");
        let filler = fs.root().create(b"filler", NewInode::file(0o644)).expect("a file");
        let mut at = 0;
        for piece in [1 << 20, 4096] {
            let how = FallocateMode::Allocate { keep_size: false };
            while filler.fallocate(at, piece, how).is_ok() {
                at += piece;
            }
        }
        // Every group of data has some free space, and none is empty. So no commit removes a group.
        for hole in 0..at >> 22 {
            filler.fallocate(hole << 22, 1 << 20, FallocateMode::PunchHole).expect("a hole");
        }
        drop(filler);
        fs.sync().expect("a sync");
        Self { fs, slow, files: 0 }
    }

    /// Makes small files until `percent` per cent of the metadata that files may have are in use,
    /// or until no more files fit.
    fn fill(&mut self, percent: u64) {
        let is_full = |fs: &Filesystem| {
            let metadata = fs.space_stats().accounts.metadata;
            metadata.used * 100 >= (metadata.total - metadata.global_reserve) * percent
        };
        while !is_full(&self.fs) {
            for _ in 0..20 {
                let name = format!("f{}", self.files);
                let Ok(file) = self.fs.root().create(name.as_bytes(), NewInode::file(0o644)) else {
                    assert!(percent > 95, "it is full before {percent}%");
                    return self.fs.sync().expect("a sync");
                };
                let _ = file.set_xattr(b"user.large", &[1; 3000], XattrFlags::default());
                self.files += 1;
            }
            self.fs.sync().expect("a sync");
        }
    }

    /// Changes files at random from four threads for a while. Returns the number of changes.
    fn load(&self) -> u64 {
        let over = Arc::new(AtomicBool::new(false));
        let writers: Vec<_> = (0..4)
            .map(|writer| {
                let (root, files, over) = (self.fs.root(), self.files, Arc::clone(&over));
                let work = move || {
                    let mut rng = Rng::new(writer);
                    let mut count = 0;
                    while !over.load(Ordering::Relaxed) {
                        let name = format!("f{}", rng.below(files));
                        let file = root.lookup(name.as_bytes()).expect("a file");
                        let changed =
                            file.set_xattr(b"user.large", &[2; 3000], XattrFlags::default());
                        changed.expect("what was there is replaced");
                        count += 1;
                    }
                    count
                };
                thread::Builder::new().spawn(work).expect("a thread")
            })
            .collect();
        thread::sleep(LOAD);
        over.store(true, Ordering::Relaxed);
        writers.into_iter().map(|writer| writer.join().expect("a writer")).sum()
    }
}

/// The figures at one degree of fullness.
#[derive(Debug)]
struct Held {
    /// Rounds and commits while the volume was idle, before a load and after it.
    idle: [(u64, u64); 2],
    /// Rounds and commits under the load.
    loaded: (u64, u64),
    changes: u64,
}

fn hold(preempt: &'static str) -> Vec<Held> {
    let work = move || {
        let mut volume = Crowded::new(preempt, LATENCY);
        volume.slow.begin();
        let mut seen = Vec::new();
        for percent in [40, 80, 90, 94, 98] {
            volume.fill(percent);
            let figures = |volume: &Crowded| {
                let stats = volume.fs.space_stats();
                (stats.rounds, stats.engine.commits)
            };
            let mut last = figures(&volume);
            let mut since = |volume: &Crowded| {
                let now = figures(volume);
                let before = std::mem::replace(&mut last, now);
                (now.0 - before.0, now.1 - before.1)
            };
            thread::sleep(IDLE);
            let before = since(&volume);
            let changes = volume.load();
            // Wait for the commits that began under the load.
            thread::sleep(LOAD / 4);
            let loaded = since(&volume);
            thread::sleep(IDLE);
            seen.push(Held { idle: [before, since(&volume)], loaded, changes });
        }
        volume.fs.close().expect("an unmount");
        seen
    };
    run(4, work)
}

/// E1: no round and no commit runs on an idle volume, however full it is. Without the clamp,
/// writers under load cause some number of commits. With the clamp they cause at most a tenth more,
/// plus ten a second.
#[test]
fn full_volume_is_not_flushed_for_ever() {
    for (held, off) in hold("clamp").iter().zip(&hold("off")) {
        println!("{held:?}, off: {:?}", off.loaded);
        assert_eq!(held.idle, [(0, 0); 2], "{held:?}");
        let (made, commits) = held.loaded;
        let most = off.loaded.1 + off.loaded.1 / 10 + LOAD.as_millis() as u64 / 100;
        assert!(commits <= most, "{held:?}, {most} at most");
        // With so little metadata, no round is worth its cost.
        assert_eq!(made, 0, "{held:?}");
        assert!(held.changes * 2 >= off.changes, "{held:?}, {off:?}");
    }
}

/// E2: 64 threads enter the queue for space at the same time, again and again. Each time, all of
/// them together move the clamp by one step at most. They do not move the clamp if data on its way
/// holds the space that they wait for.
#[test]
fn waiters_at_once_are_one_step() {
    const THREADS: usize = 64;
    const MEETINGS: u64 = 20;
    let mut steps = Vec::new();
    for processors in [1, 4, 8, 16] {
        let work = move || {
            // A commit takes longer than one processor needs until all threads are in the queue.
            let mut volume = Crowded::new("clamp", 10 * LATENCY);
            volume.fill(90);
            let create = |writer| {
                let name = format!("w{writer}");
                volume.fs.root().create(name.as_bytes(), NewInode::file(0o644)).expect("a file")
            };
            let files: Vec<_> = (0..THREADS).map(create).collect();
            volume.fs.sync().expect("a sync");
            volume.slow.begin();
            let mut steps = 0;
            for meeting in 0..MEETINGS {
                let before = volume.fs.space_stats();
                let when = clock::now() + Duration::from_millis(50);
                let writers: Vec<_> = files
                    .iter()
                    .map(|file| {
                        let file = file.clone();
                        let work = move || {
                            thread::sleep(when.saturating_duration_since(clock::now()));
                            file.write_at(meeting * 20 * 4096, &[3; 4096]).expect("room");
                        };
                        thread::Builder::new().spawn(work).expect("a thread")
                    })
                    .collect();
                writers.into_iter().for_each(|writer| writer.join().expect("a writer"));
                thread::sleep(Duration::from_millis(50));
                let after = volume.fs.space_stats();
                let waits = after.engine.waits.all().count() - before.engine.waits.all().count();
                let step = after.clamp - before.clamp;
                println!(
                    "{processors} processors, {waits} waited: from {} by {step}",
                    before.clamp
                );
                assert!(waits as usize > THREADS / 2, "{waits} met");
                assert_eq!(
                    after.flush_runs - before.flush_runs,
                    1,
                    "{waits} waited together, {processors} processors"
                );
                assert!(step <= 1, "{waits} waiting requests made {step} steps");
                steps += step;
            }
            drop(files);
            volume.fs.close().expect("an unmount");
            steps
        };
        steps.push((processors, run(processors, work)));
    }
    // Chance decides whether data is on its way when the waiters may move the clamp. With several
    // processors there mostly is such data. With a single processor there may be none, because the
    // threads run one after the other.
    let sum: u32 = steps.iter().map(|(_, steps)| steps).sum();
    assert!(sum * 10 > MEETINGS as u32, "{steps:?}");
}
