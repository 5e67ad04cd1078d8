//! The file system on processors that there need not be, each step of a thread for the same time: so what comes out follows
//! from who waits for whom, and from nothing of this machine.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use buttress_base::seeded::{self, Cost, Options, Processors};
use buttress_base::{Rng, clock, thread};
use buttress_block::{Device, MemoryDevice};
use buttress_fs::{FallocateMode, Filesystem, MakeOptions, MountOptions};
use buttress_sim::{Slow, Slowness};

/// What a step costs: about what it does where this was measured.
const STEP: Duration = Duration::from_nanos(500);
const WRITERS: usize = 4;
const BLOCK: usize = 4096;
/// Blocks of each writer's file.
const BLOCKS: u64 = 32_768;
/// How often it is looked how much was written.
const SAMPLE: Duration = Duration::from_millis(5);

/// What writers of small blocks saw.
#[derive(Debug, PartialEq)]
struct Seen {
    /// Blocks written in each sample.
    samples: Vec<u64>,
    /// How long all but one of a thousand waits for metadata were at most.
    wait: Duration,
    /// Rounds made ahead.
    rounds: u64,
}

impl Seen {
    fn blocks(&self) -> u64 {
        self.samples.iter().sum()
    }

    /// Deviation of the samples over their mean.
    fn variation(&self) -> f64 {
        let mean = self.blocks() as f64 / self.samples.len() as f64;
        let squares = self.samples.iter().map(|blocks| (*blocks as f64 - mean).powi(2));
        (squares.sum::<f64>() / self.samples.len() as f64).sqrt() / mean
    }
}

/// Small random writes on a volume whose metadata is promised by Linux's rule, and no chunk can come.
fn scarce(preempt: &'static str, samples: usize) -> Seen {
    let work = move || {
        let base = MemoryDevice::new(52 << 30);
        Filesystem::make(&base, &MakeOptions { seed: Some(7), ..MakeOptions::default() })
            .expect("a volume");
        let slow = Arc::new(Slow::new(
            base,
            Slowness {
                mib_s: Some(500.0),
                latency: Duration::from_micros(200),
                depth: 32,
                forgets_data: true,
            },
        ));
        let options = format!("rw,noatime,commit=300,promise=levels,preempt={preempt}");
        let options = MountOptions::parse(&options).expect("options");
        let device = Arc::clone(&slow) as Arc<dyn Device>;
        let fs = Arc::new(Filesystem::open(vec![device], options).expect("a mount"));
        let create =
            |name: &str| fs.root().create(name.as_bytes(), 0o644, 0, 0, 0).expect("a file");
        let filler = create("filler");
        let mut at = 0;
        for piece in [256_u64 << 20, 1 << 20] {
            let how = FallocateMode::Allocate { keep_size: false };
            while filler.fallocate(at, piece, how).is_ok() {
                at += piece;
            }
        }
        filler.fallocate(0, 2 << 30, FallocateMode::PunchHole).expect("a hole");
        let files: Vec<_> = (0..WRITERS).map(|writer| create(&format!("w{writer}"))).collect();
        fs.sync().expect("a sync");
        slow.begin();
        let (done, over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let writers: Vec<_> = files
            .into_iter()
            .enumerate()
            .map(|(writer, file)| {
                let (done, over) = (Arc::clone(&done), Arc::clone(&over));
                let mut rng = Rng::new(writer as u64);
                let work = move || {
                    while over.load(Ordering::Relaxed) == 0 {
                        let at = rng.below(BLOCKS) * BLOCK as u64;
                        file.write_at(at, &[1; BLOCK]).expect("a write");
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                };
                thread::Builder::new().spawn(work).expect("a thread")
            })
            .collect();
        let mut seen = Vec::new();
        let begun = clock::now();
        let mut before = 0;
        while seen.len() < samples {
            let next = SAMPLE * (seen.len() as u32 + 1);
            thread::sleep(next.saturating_sub(clock::since(begun)));
            let now = done.load(Ordering::Relaxed);
            seen.push(now - before);
            before = now;
        }
        over.store(1, Ordering::Relaxed);
        writers.into_iter().for_each(|writer| writer.join().expect("a writer"));
        let stats = fs.space_stats();
        let fs = Arc::into_inner(fs).expect("nobody else has it");
        fs.close().expect("an unmount");
        // The first fifth is the way into it.
        let samples = seen.split_off(samples / 5);
        Seen { samples, wait: stats.engine.waits.all().per_mille(999), rounds: stats.rounds }
    };
    let processors = Processors { count: 4, cost: Cost::Step(STEP) };
    let options =
        Options { processors: Some(processors), steps_max: u64::MAX, ..Options::default() };
    let (seen, _) = seeded::run(1, options, work).unwrap_or_else(|stuck| panic!("{stuck}"));
    seen
}

/// E19: where metadata is promised by Linux's rule, writers run into the wall, wait until all is written, and run again.
/// Rounds made ahead keep them going, with less to wait for at a time.
#[test]
fn e19_rounds_ahead_flatten_the_saw_tooth() {
    let (off, clamp) = (scarce("off", 40), scarce("clamp", 40));
    assert!(off.rounds == 0 && clamp.rounds > 0, "{off:?} {clamp:?}");
    assert!(clamp.blocks() * 100 > off.blocks() * 134, "{off:?} {clamp:?}");
    assert!(clamp.wait < off.wait / 2, "{off:?} {clamp:?}");
    assert!(clamp.variation() < off.variation() / 2.0, "{off:?} {clamp:?}");
}
