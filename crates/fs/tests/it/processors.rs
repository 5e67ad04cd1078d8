//! The file system on simulated processors, with the same time for each step of a thread. So the
//! result follows from the waits of the threads, and not from this machine.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use buttress_base::seeded::{self, Options};
use buttress_base::{Rng, clock, thread};
use buttress_block::{Device, MemoryDevice};
use buttress_fs::{
    FallocateMode, Filesystem, MakeOptions, MountOptions, NewInode, SetAttr, XattrFlags,
};
use buttress_sim::processors::{Cost, Processors};
use buttress_sim::{Slow, Slowness};

use crate::checker::expect_sound;
use crate::volume::{mount_with, nocow};

/// The time of a step: about the time on the machine of the measurements.
const STEP: Duration = Duration::from_nanos(500);
const WRITERS: usize = 4;
const BLOCK: usize = 4096;
/// Blocks of each writer's file.
const BLOCKS: u64 = 32_768;
/// The reservation of Linux's rule for an item: eight nodes.
const LEVELS_BYTES: u64 = 8 * (16 << 10);
/// The time between two samples of the number of written blocks.
const SAMPLE: Duration = Duration::from_millis(5);

/// Figures of writers of small blocks.
#[derive(Debug, PartialEq)]
struct Seen {
    /// Blocks written in each sample.
    samples: Vec<u64>,
    /// The longest wait for metadata, without the longest thousandth of the waits.
    wait: Duration,
    /// Number of preemptive rounds.
    rounds: u64,
    /// Samples in which more than half of all room was reserved, and most data was in ordered
    /// extents.
    on_its_way: usize,
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

/// How small blocks are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Into memory, until a request needs room.
    Lazy,
    /// Into memory, and to the device as soon as a writer has this many dirty blocks.
    Batches(u64),
    /// To the device.
    Direct,
}

/// Small random writes on a volume without space for another chunk. Metadata is reserved by Linux's
/// rule. Each round has its own places of writes, and so its own order of threads.
fn scarce(way: Way, preempt: &'static str, samples: usize, round: u64) -> Seen {
    let work = move || {
        let base = MemoryDevice::new(52 << 30);
        Filesystem::make(&base, &MakeOptions { seed: Some(7), ..MakeOptions::default() })
            .expect("a volume");
        let slow = Arc::new(Slow::new(
            base,
            Slowness {
                // The device is so slow that most of the data of a batch is on its way most of the
                // time.
                mib_s: Some(if way == Way::Lazy { 500.0 } else { 100.0 }),
                latency: Duration::from_micros(200),
                depth: 32,
                forgets_data: true,
            },
        ));
        let options = format!("rw,noatime,commit=300,reserve=levels,preempt={preempt}");
        let options = MountOptions::parse(&options).expect("options");
        let device = Arc::clone(&slow) as Arc<dyn Device>;
        let fs = Arc::new(Filesystem::open(vec![device], options).expect("a mount"));
        let create =
            |name: &str| fs.root().create(name.as_bytes(), NewInode::file(0o644)).expect("a file");
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
                let mut rng = Rng::new(writer as u64 + 100 * round);
                let work = move || {
                    // The writers begin at different counts, so that they flush one after the
                    // other.
                    let mut count = match way {
                        Way::Batches(batch) => batch * writer as u64 / WRITERS as u64,
                        Way::Lazy | Way::Direct => 0,
                    };
                    while over.load(Ordering::Relaxed) == 0 {
                        let at = rng.below(BLOCKS) * BLOCK as u64;
                        let written = match way {
                            Way::Direct => file.write_direct(at, &[1; BLOCK]),
                            Way::Lazy | Way::Batches(_) => file.write_at(at, &[1; BLOCK]),
                        };
                        written.expect("a write");
                        done.fetch_add(1, Ordering::Relaxed);
                        count += 1;
                        if matches!(way, Way::Batches(batch) if count % batch == 0) {
                            file.flush_data().expect("it lands");
                        }
                    }
                };
                thread::Builder::new().spawn(work).expect("a thread")
            })
            .collect();
        let (mut seen, mut on_its_way) = (Vec::new(), 0);
        let begun = clock::now();
        let mut before = 0;
        while seen.len() < samples {
            let next = SAMPLE * (seen.len() as u32 + 1);
            thread::sleep(next.saturating_sub(clock::since(begun)));
            let now = done.load(Ordering::Relaxed);
            seen.push(now - before);
            before = now;
            let stats = fs.space_stats();
            let metadata = stats.accounts.metadata;
            let room = metadata.total - metadata.occupied() - metadata.global_reserve;
            let reserved = stats.accounts.outstanding.items * LEVELS_BYTES;
            let waits = stats.dirty - stats.ordered.min(stats.dirty);
            on_its_way += usize::from(reserved > room / 2 && stats.ordered / 2 >= waits);
        }
        over.store(1, Ordering::Relaxed);
        writers.into_iter().for_each(|writer| writer.join().expect("a writer"));
        let stats = fs.space_stats();
        let fs = Arc::into_inner(fs).expect("no other thread has it");
        fs.close().expect("an unmount");
        // The first fifth of the samples is left out, because writers only begin to fill the room.
        let samples = seen.split_off(samples / 5);
        Seen {
            samples,
            wait: stats.engine.waits.all().per_mille(999),
            rounds: stats.rounds,
            on_its_way,
        }
    };
    let processors = Processors { count: 4, cost: Cost::Step(STEP) };
    let options = Options {
        processors: Some(processors.machine()),
        steps_max: u64::MAX,
        ..Options::default()
    };
    let (seen, _) = seeded::run(1, options, work).unwrap_or_else(|stuck| panic!("{stuck}"));
    seen
}

/// E19: where metadata is reserved by Linux's rule, writers fill all room, wait until all data is
/// written, and begin again. Preemptive rounds keep the writers going, with shorter waits, and
/// their rates vary less. The last is a mean of rounds: each change of the engine's steps gives
/// another order of threads, and the figure of one order jumps with it.
#[test]
fn rounds_ahead_flatten_the_saw_tooth() {
    const ROUNDS: u64 = 5;
    let (mut without, mut with) = (0.0, 0.0);
    for round in 0..ROUNDS {
        let way = Way::Lazy;
        let (off, clamp) = (scarce(way, "off", 40, round), scarce(way, "clamp", 40, round));
        assert!(off.rounds == 0 && clamp.rounds > 0, "{round}: {off:?} {clamp:?}");
        assert!(clamp.blocks() * 100 > off.blocks() * 134, "{round}: {off:?} {clamp:?}");
        assert!(clamp.wait < off.wait / 2, "{round}: {off:?} {clamp:?}");
        without += off.variation() / ROUNDS as f64;
        with += clamp.variation() / ROUNDS as f64;
    }
    assert!(with < without / 2.0, "{with} of {without}");
}

/// E16: data on its way to the device gives its room back by itself, so preemptive rounds would
/// gain nothing. No such round is made, and writers are as fast as without preemption.
#[test]
fn direct_writers_are_not_slowed() {
    // Three batches in ordered extents and one dirty batch reserve more than half of all room. If
    // all of this data were dirty, a round would be due. The batches reserve less than all room, so
    // no request waits.
    for way in [Way::Direct, Way::Batches(720)] {
        let (off, ahead) = (scarce(way, "off", 60, 0), scarce(way, "clamp", 60, 0));
        // Direct writers have no reservation while the device has their data.
        let is_tried = way == Way::Direct || off.on_its_way.min(ahead.on_its_way) > 30;
        assert!(is_tried, "{way:?}: {off:?} {ahead:?}");
        assert_eq!(ahead.rounds, 0, "{way:?}: {off:?} {ahead:?}");
        assert!(ahead.blocks() * 100 >= off.blocks() * 98, "{way:?}: {off:?} {ahead:?}");
    }
}

/// Number and length of the extents of the file.
const EXTENTS: u64 = 256;
const EXTENT_LEN: u64 = 4 * BLOCK as u64;

/// The operation that splits an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Split {
    Hole,
    Cut,
    Clone,
}

/// N7: a thread scans extents to write in place, and may wait for the device to read the extents'
/// items. No scanned extent is split meanwhile. A thread that wants to split a scanned extent waits
/// for the write.
#[test]
fn scanned_extents_are_not_split() {
    let base = MemoryDevice::new(256 << 20);
    let make = MakeOptions { nodesize: 4096, seed: Some(7), ..MakeOptions::default() };
    Filesystem::make(&base, &make).expect("a volume");
    let base = Arc::new(base);
    let fs = mount_with(&(Arc::clone(&base) as _), "rw,noatime,commit=300");
    let file = nocow(&fs, "file");
    // The extents are written from the last to the first, so that no two extents are joined.
    for extent in (0..EXTENTS).rev() {
        file.write_direct(extent * EXTENT_LEN, &[1; EXTENT_LEN as usize]).expect("a write");
    }
    nocow(&fs, "other").write_direct(0, &[3; BLOCK]).expect("a write");
    drop(file);
    fs.close().expect("an unmount");
    for split in [Split::Hole, Split::Cut, Split::Clone] {
        expect_no_split(base.fork(), split);
    }
}

/// One thread scans extents, and another thread splits them. Only the last leaf of the file is in
/// memory, so the scan waits for the device.
fn expect_no_split(base: MemoryDevice, split: Split) {
    const LATENCY: Duration = Duration::from_millis(1);
    let work = move || {
        let slowness = Slowness { mib_s: None, latency: LATENCY, depth: 32, forgets_data: false };
        let slow = Arc::new(Slow::new(base, slowness));
        let device = Arc::clone(&slow) as Arc<dyn Device>;
        let fs = mount_with(&device, "rw,noatime,commit=300,preempt=off");
        let other = fs.resolve("other").expect("the file");
        let file = Arc::new(fs.resolve("file").expect("the file"));
        file.read_at((EXTENTS - 1) * EXTENT_LEN, &mut [0; BLOCK]).expect("a read");
        other.read_at(0, &mut [0; BLOCK]).expect("a read");
        file.write_at(0, &[2; (EXTENTS * EXTENT_LEN) as usize]).expect("a write");
        slow.begin();
        let writer = Arc::clone(&file);
        let write = move || writer.flush_data().expect("it lands");
        let writes = thread::Builder::new().spawn(write).expect("a thread");
        thread::sleep(LATENCY * 5 / 2);
        let before = slow.request_counts();
        let at = (EXTENTS - 1) * EXTENT_LEN + BLOCK as u64;
        let done = match split {
            Split::Hole => file.fallocate(at, BLOCK as u64, FallocateMode::PunchHole),
            Split::Cut => {
                file.set_attr(&SetAttr { size: Some(at), ..SetAttr::default() }).map(drop)
            }
            Split::Clone => other.clone_range(0, &file, at, BLOCK as u64),
        };
        done.expect("there is room");
        let after = slow.request_counts();
        writes.join().expect("the writer");
        let mut found = vec![0; (EXTENTS * EXTENT_LEN) as usize];
        let len = file.read_at(0, &mut found).expect("a read");
        drop((file, other));
        fs.close().expect("an unmount");
        let mut expected = vec![2; (EXTENTS * EXTENT_LEN) as usize];
        let (low, high) = (at as usize, at as usize + BLOCK);
        match split {
            Split::Hole => expected[low..high].fill(0),
            Split::Cut => expected.truncate(low),
            Split::Clone => expected[low..high].fill(3),
        }
        (before, after, found[..len] == expected, device)
    };
    let processors = Processors { count: 4, cost: Cost::Step(STEP) };
    let options = Options {
        processors: Some(processors.machine()),
        steps_max: u64::MAX,
        ..Options::default()
    };
    let (seen, _) = seeded::run(1, options, work).unwrap_or_else(|stuck| panic!("{stuck}"));
    let (before, after, is_sound, device) = seen;
    let which = format!("{split:?}: {before:?}, {after:?}");
    assert!(before.reads > 0 && before.data == 0, "the writer is in the middle: {which}");
    assert!(after.reads > before.reads, "the writer went on: {which}");
    assert_eq!(after.data, EXTENTS * EXTENT_LEN, "the writer was not done: {which}");
    assert!(is_sound, "what was split, and around it what was written: {which}");
    expect_sound(&device);
}

/// A thread that makes room waits for readers of old trees, because the end of such a reader gives
/// space back. If one reader takes seconds, refused requests do not wait for this reader again in
/// each of their flush steps.
#[test]
fn a_long_reader_is_waited_for_once() {
    let work = || {
        let base = MemoryDevice::new(128 << 20);
        let make = MakeOptions { seed: Some(7), ..MakeOptions::default() };
        Filesystem::make(&base, &make).expect("a volume");
        let device: Arc<dyn Device> = Arc::new(base);
        let fs = mount_with(&device, "rw,noatime,commit=300,preempt=off");
        let filler = fs.root().create(b"filler", NewInode::file(0o644)).expect("a file");
        let mut at = 0;
        let how = FallocateMode::Allocate { keep_size: false };
        while filler.fallocate(at, 1 << 20, how).is_ok() {
            at += 1 << 20;
        }
        let mut count = 0;
        let mut fill = |fs: &Filesystem| {
            let begun = clock::now();
            loop {
                count += 1;
                let name = format!("{count}");
                let file = fs.root().create(name.as_bytes(), NewInode::file(0o644));
                let flags = XattrFlags::default();
                if file.and_then(|file| file.set_xattr(b"user.a", &[1; 3000], flags)).is_err() {
                    return clock::since(begun);
                }
            }
        };
        fill(&fs);
        fs.sync().expect("durable");
        let old = fs.view();
        for name in 1..60 {
            fs.root().unlink(format!("{name}").as_bytes()).expect("removing always works");
        }
        fs.sync().expect("durable");
        let waited: Vec<_> = (0..5).map(|_| fill(&fs)).collect();
        drop(old);
        let last = fs.root().create(b"last", NewInode::file(0o644)).map(drop);
        drop(filler);
        fs.close().expect("an unmount");
        (waited, last.is_ok(), device)
    };
    let processors = Processors { count: 4, cost: Cost::Step(STEP) };
    let options = Options {
        processors: Some(processors.machine()),
        steps_max: u64::MAX,
        ..Options::default()
    };
    let (seen, _) = seeded::run(1, options, work).unwrap_or_else(|stuck| panic!("{stuck}"));
    let (waited, is_there, device) = seen;
    let all: Duration = waited.iter().sum();
    assert!(waited[0] > Duration::from_millis(300), "no request waited for the reader: {waited:?}");
    assert!(all < Duration::from_secs(4), "the reader was waited for again: {waited:?}");
    assert!(is_there, "what the reader held back came with its end");
    expect_sound(&device);
}
