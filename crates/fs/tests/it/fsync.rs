//! Everything that fsync acknowledged survives a crash, whenever the power was cut.
//!
//! A workload from a seed runs on a device that records its writes. The test mounts states that a
//! power cut could leave. Each mount replays the log, and the test compares the content with the
//! model. A synced inode must be as it was at its sync, or at some later time. The checker must
//! find no fault in the rest of the volume.

mod faults;
mod full;
mod model;
mod queue;
mod scripts;
mod story;
mod wall;

use std::sync::Arc;

use buttress_base::Rng;
use buttress_block::{Device, MemoryDevice};
use buttress_fs::{Filesystem, MakeOptions, MountOptions, XattrFlags};
use buttress_sim::{Crash, Log, campaign};
use buttress_volume::Volume;

use crate::checker::{check_cut, find_faults};
use crate::volume::{content, file_with, list, pattern};

pub(crate) use model::{State, Synced, World};
pub(crate) use story::{Story, survey, survey_below};
#[cfg(debug_assertions)]
pub(crate) use wall::{fill, full};

/// Variables for a longer run: the number of seeds to try, and the first seed.
const SEEDS: &str = "BUTTRESS_FSYNC_SEEDS";
const FIRST_SEED: &str = "BUTTRESS_FSYNC_SEED";

/// Kinds of volumes and mounts. The seeds use them in turn.
const KINDS: [&str; 4] = ["plain", "compressed", "in place", "renames"];

const OPERATIONS: u64 = 70;

/// With these options, only the operations of a test cause writes.
const OPTIONS: &str = "rw,noatime,commit=3000";

fn open(device: Arc<dyn Device>) -> Filesystem {
    open_with(device, OPTIONS)
}

fn open_with(device: Arc<dyn Device>, options: &str) -> Filesystem {
    let options = MountOptions::parse(options).expect("options");
    Filesystem::open(vec![device], options).unwrap_or_else(|error| panic!("no mount: {error}"))
}

/// The requests to the device while the state after a crash is mounted.
fn replay(crash: &Crash) -> Arc<Log> {
    let log = Log::new();
    let again = log.device(&crash.devices[0], 512);
    log.start(&[&again]);
    log.mark(crash.mark.unwrap_or(0));
    drop(open(again));
    log
}

/// Mounts the state after a crash, and compares it with the allowed states. Now and then, this
/// mount is cut by a second crash.
fn examine(crash: &Crash, story: &Story, rng: &mut Rng, depth: u32) -> Result<(), String> {
    let done = crash.mark.unwrap_or(0) as usize;
    let device: Arc<dyn Device> = Arc::new(crash.devices[0].fork());
    if depth == 0 && rng.chance(1, 25) {
        let log = replay(crash);
        let mut outcome = Ok(());
        log.crashes(&mut Rng::new(rng.next_u64()), 1, 3, |crash| {
            if outcome.is_ok() {
                outcome = examine(crash, story, rng, 1);
            }
        });
        outcome.map_err(|what| format!("after a crash of replay: {what}"))?;
    }
    if campaign::always_or(rng.clone().chance(1, 6)) {
        check_cut(&device).map_err(|what| format!("before a mount: {what}"))?;
    }
    let options = MountOptions::parse(OPTIONS).expect("options");
    let fs = Filesystem::open(vec![Arc::clone(&device)], options);
    let fs = fs.map_err(|error| format!("no mount: {error}"))?;
    let found = survey(&fs);
    story.check(&found, done)?;
    // A mount that changes nothing would not repair a torn copy of the superblock, so change an
    // attribute.
    fs.root().set_xattr(b"user.seen", b"1", XattrFlags::default()).expect("an attribute");
    fs.close().map_err(|error| error.to_string())?;
    if campaign::always_or(rng.chance(1, 12)) { find_faults(&device) } else { Ok(()) }
}

/// A volume that once had a large file: no other file may ever show its content.
fn used(options: &MakeOptions) -> MemoryDevice {
    let base = Arc::new(MemoryDevice::new(256 << 20));
    Filesystem::make(&*base, options).expect("a volume");
    let fs = open(Arc::clone(&base) as Arc<dyn Device>);
    let secret = file_with(&fs.root(), "secret", &vec![0xee; 48 << 20]);
    fs.sync().expect("sync");
    drop(secret);
    fs.root().unlink(b"secret").expect("unlink");
    fs.close().expect("a clean end");
    base.fork()
}

fn run(seed: u64, options: &MakeOptions, draws: usize, stride: usize) -> (usize, usize) {
    let base = used(options);
    let log = Log::new();
    let device = log.device(&base, 512);
    let kind = KINDS[(seed / 2 % 4) as usize];
    let how = match kind {
        "compressed" => "rw,noatime,commit=3000,compress=zstd",
        _ => "rw,noatime,commit=3000",
    };
    let fs = Arc::new(open_with(Arc::clone(&device) as Arc<dyn Device>, how));
    let root = fs.root().id().ino.0;
    let mut world = World::new(fs, seed, root, kind);
    for _ in 0..12 {
        world.step();
    }
    world.fs.sync().expect("sync");
    world.history.clear();
    log.start(&[&device]);
    let mut story =
        Story { states: vec![world.state.clone()], synced: Vec::new(), root: world.root };
    for done in 1..=OPERATIONS {
        let synced = world.step();
        story.synced.push(synced);
        story.states.push(world.state.clone());
        log.mark(done);
    }
    let mut logs = 0;
    let mut rng = Rng::new(seed);
    let mut events = rng.clone();
    let look = |crash: &Crash| {
        let superblock = Volume::read_superblock(&crash.devices[0]);
        logs += usize::from(superblock.is_ok_and(|superblock| superblock.log_root.0 != 0));
        if let Err(what) = examine(crash, &story, &mut rng, 0) {
            let done = crash.mark.unwrap_or(0) as usize;
            for (index, line) in world.history.iter().enumerate() {
                eprintln!("{index:3} {line}");
            }
            let Crash { event, draw, .. } = crash;
            panic!(
                "{kind}, seed {seed}, event {event}, draw {draw}, {done} operations done: {what}"
            );
        }
    };
    // Random states at every write and flush, or the worst states of each interval between flushes.
    let shown = match (seed % 3, stride) {
        (0, 1) => log.intervals(&mut events, 6, draws, look),
        (0, _) => log.intervals(&mut events, 1, 0, look),
        _ => log.crashes(&mut events, draws, stride, look),
    };
    (shown, logs)
}

/// A number from the environment.
pub(crate) fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().and_then(|text| text.parse().ok())
}

#[test]
fn synced_files_survive_power_cuts() {
    let seeds = number(SEEDS).unwrap_or(6);
    let first = number(FIRST_SEED).unwrap_or(1);
    let (mut states, mut logs) = (0, 0);
    for seed in campaign::seeds(first..first + seeds) {
        let small = MakeOptions { nodesize: 4096, seed: Some(seed), ..MakeOptions::default() };
        let plain = MakeOptions { seed: Some(seed), ..MakeOptions::default() };
        let options = if seed % 2 == 0 { plain } else { small };
        let (shown, made) =
            run(seed, &options, 2, if seeds > 6 || campaign::round() > 0 { 1 } else { 3 });
        states += shown;
        logs += made;
    }
    campaign::count("states", states);
    campaign::count("logs", logs);
    assert!(states > 50 * seeds as usize, "only {states} states were seen");
    assert!(logs > states / 5, "only {logs} of {states} states had a log");
}
