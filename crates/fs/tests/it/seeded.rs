//! The whole file system from one seed: the order of threads, the time, the work of each client,
//! and the places of power cuts.
//!
//! Three clients have models of their own and read back their data. One client makes and deletes
//! snapshots, and another client reads the files of all clients. In some runs, one client moves
//! block groups or checks all copies. The threads of the mount also run. Each run has a kind of
//! files: plain ones, compressed ones, some written in place, or mostly renamed. `BUTTRESS_SEED=n`
//! runs seed `n` alone; `BUTTRESS_SEEDS=first..last` runs several seeds. `BUTTRESS_CUTS` multiplies
//! the states that are checked after each seed. The number of a failing seed is printed, and the
//! same seed fails again.

mod full;

use std::sync::Arc;

use buttress_base::{Rng, seeded, sync::Mutex, thread};
use buttress_block::{Device, MemoryDevice};
use buttress_fs::{
    BalanceOptions, ErrorKind, Filesystem, Ino, InodeId, MakeOptions, MountOptions, ScrubOptions,
    TreeId, XattrFlags,
};
use buttress_sim::{Log, campaign};

use crate::checker::expect_sound;
use crate::fsync::{Story, World, survey};
use crate::volume::setting;

const CLIENTS: usize = 3;

/// The results of a run of one seed.
struct Outcome {
    log: Arc<Log>,
    stories: Vec<Story>,
    /// The number of steps that each client had done at each mark.
    done: Vec<[usize; CLIENTS]>,
    device: MemoryDevice,
    digest: u64,
    steps: u64,
}

fn options(rng: &mut Rng) -> String {
    let preempt = rng.choose(&["clamp", "off"]).expect("one of them");
    let commit = rng.choose(&[1, 5, 300]).expect("one of them");
    format!("rw,noatime,commit={commit},preempt={preempt}")
}

fn snapshots(fs: &Filesystem, mut rng: Rng) {
    for round in 0..3 {
        thread::sleep(std::time::Duration::from_millis(rng.below(30)));
        let name = format!("s{round}");
        drop(fs.root().snapshot(name.as_bytes(), TreeId::FS, round == 1).expect("a snapshot"));
        if rng.chance(1, 2) {
            fs.sync().expect("a sync");
        }
        if rng.chance(1, 2) {
            fs.root().delete_subvolume(name.as_bytes()).expect("a deletion");
        }
    }
}

/// Reads files that other threads write. So several threads compete for the claims of the page
/// cache.
fn reads(fs: &Filesystem, mut rng: Rng) {
    let mut buf = vec![0; 40_000];
    for _ in 0..40 {
        thread::sleep(std::time::Duration::from_micros(rng.below(2000)));
        let ino = Ino(257 + rng.below(30));
        let Ok(inode) = fs.inode(InodeId { tree: TreeId::FS, ino }) else { continue };
        match inode.read_at(rng.below(40_000), &mut buf) {
            Ok(_) => {}
            // The name leads to a directory, or the file is gone.
            Err(error) => assert!(matches!(error.kind(), ErrorKind::Name(_)), "{error}"),
        }
    }
}

/// While the clients run, this thread balances or scrubs. A balance makes block groups read-only,
/// moves their data and removes them.
fn moves(fs: &Filesystem, mut rng: Rng) {
    for _ in 0..rng.below(3) {
        thread::sleep(std::time::Duration::from_millis(rng.below(20)));
        if rng.chance(1, 3) {
            let (found, _) = fs.scrub(ScrubOptions::default(), &mut |_| true).expect("a scrub");
            assert_eq!(found.uncorrectable_errors, 0, "{found:?}");
        } else {
            fs.balance(&BalanceOptions::full(), &mut |_| true).expect("a balance");
        }
    }
}

/// Runs everything from one seed.
fn whole(seed: u64, operations: usize) -> Outcome {
    let work = move || {
        let mut rng = Rng::new(seed ^ 0x5eed);
        let base = MemoryDevice::new(256 << 20);
        let nodesize = *rng.choose(&[4096, 16384]).expect("one of them");
        let make = MakeOptions { nodesize, seed: Some(seed), ..MakeOptions::default() };
        Filesystem::make(&base, &make).expect("a volume");
        let log = Log::new();
        let device = log.device(&base, 512);
        let mount = MountOptions::parse(&options(&mut rng)).expect("options");
        let fs = Filesystem::open(vec![Arc::clone(&device) as Arc<dyn Device>], mount);
        let fs = Arc::new(fs.expect("a mount"));
        let roots: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let name = format!("c{client}");
                let dir = fs.root().mkdir(name.as_bytes(), 0o755, 0, 0).expect("a directory");
                dir.id().ino.0
            })
            .collect();
        fs.sync().expect("a sync");
        log.start(&[&device]);
        let kind =
            *rng.choose(&["plain", "in place", "compressed", "renames"]).expect("one of them");
        let done = Arc::new(Mutex::new(vec![[0; CLIENTS]]));
        let clients: Vec<_> = roots
            .into_iter()
            .enumerate()
            .map(|(client, root)| {
                let (fs, log, done) = (Arc::clone(&fs), Arc::clone(&log), Arc::clone(&done));
                let mut world = World::new(fs, rng.next_u64(), root, kind);
                let work = move || {
                    let states = vec![world.state.clone()];
                    let mut story = Story { states, synced: Vec::new(), root };
                    for _ in 0..operations {
                        let synced = world.step();
                        world.read_back();
                        story.synced.push(synced);
                        story.states.push(world.state.clone());
                        let mut done = done.lock();
                        let mut now = *done.last().expect("the first");
                        now[client] += 1;
                        done.push(now);
                        log.mark(done.len() as u64 - 1);
                    }
                    story
                };
                thread::Builder::new()
                    .name(format!("client {client}"))
                    .spawn(work)
                    .expect("a thread")
            })
            .collect();
        let cutter = {
            let (fs, rng) = (Arc::clone(&fs), rng.clone());
            let name = "snapshots".to_owned();
            thread::Builder::new().name(name).spawn(move || snapshots(&fs, rng)).expect("a thread")
        };
        let others: Vec<_> = [("reads", reads as fn(&Filesystem, Rng)), ("moves", moves)]
            .into_iter()
            .map(|(name, work)| {
                let (fs, rng) = (Arc::clone(&fs), Rng::new(rng.next_u64()));
                let builder = thread::Builder::new().name(name.to_owned());
                builder.spawn(move || work(&fs, rng)).expect("a thread")
            })
            .collect();
        let stories = clients.into_iter().map(|client| client.join().expect("a client")).collect();
        cutter.join().expect("the one that cuts snapshots");
        others.into_iter().for_each(|other| other.join().expect("one that reads or moves"));
        let fs = Arc::into_inner(fs).expect("no other thread has it");
        fs.close().expect("an unmount");
        let done = std::mem::take(&mut *done.lock());
        let digest = log.digest();
        Outcome { log, stories, done, device: device.fork(), digest, steps: 0 }
    };
    let (mut outcome, report) = seeded::run(seed, seeded::Options::default(), work)
        .unwrap_or_else(|stuck| panic!("{stuck}"));
    outcome.steps = report.steps;
    outcome
}

/// Mounts the state after a cut, and compares it with the model of every client.
fn examine(
    outcome: &Outcome,
    mark: u64,
    device: &MemoryDevice,
    rng: &mut Rng,
) -> Result<(), String> {
    let device: Arc<dyn Device> = Arc::new(device.fork());
    let options = MountOptions::parse("rw,noatime,commit=300").expect("options");
    let fs = Filesystem::open(vec![Arc::clone(&device)], options).map_err(|e| e.to_string())?;
    let found = survey(&fs);
    let done = outcome.done[mark as usize];
    for (story, done) in outcome.stories.iter().zip(done) {
        story.check(&found, done)?;
    }
    fs.root().set_xattr(b"user.seen", b"1", XattrFlags::default()).map_err(|e| e.to_string())?;
    fs.close().map_err(|error| error.to_string())?;
    if campaign::always_or(rng.chance(1, 6)) {
        expect_sound(&device);
    }
    Ok(())
}

/// In any order of threads, each client gets right answers, no thread waits for ever, and every cut
/// leaves the synced state.
#[test]
fn every_order_keeps_its_word() {
    let more = setting("BUTTRESS_CUTS", 1) as usize;
    let (mut states, mut steps) = (0, 0);
    let seeds = campaign::seeds_or(1..6);
    for seed in seeds.clone() {
        let told = std::panic::catch_unwind(|| {
            let outcome = whole(seed, 30);
            let device: Arc<dyn Device> = Arc::new(outcome.device.fork());
            expect_sound(&device);
            let mut rng = Rng::new(seed);
            let stride = (outcome.log.len() / (8 * more)).max(1);
            let mut cuts = rng.clone();
            let shown = outcome.log.crashes(&mut cuts, 1, stride, |crash| {
                let mark = crash.mark.unwrap_or(0);
                if let Err(what) = examine(&outcome, mark, &crash.devices[0], &mut rng) {
                    panic!("event {}, draw {}, mark {mark}: {what}", crash.event, crash.draw);
                }
            });
            (shown, outcome.steps)
        });
        let (shown, stepped) = told.unwrap_or_else(|panic| {
            eprintln!(
                "again: BUTTRESS_SEED={seed} cargo test -p buttress-fs --test it every_order"
            );
            std::panic::resume_unwind(panic)
        });
        states += shown;
        steps += stepped;
    }
    campaign::count("states", states);
    campaign::count("orders", (seeds.end - seeds.start) as usize);
    campaign::count("steps", steps as usize);
}

/// The device sees the same requests in the same order when a seed is run again.
#[test]
fn a_seed_replays() {
    for seed in campaign::seeds_or(900..903) {
        let (first, second) = (whole(seed, 20), whole(seed, 20));
        assert_eq!(first.steps, second.steps, "seed {seed}: steps");
        assert_eq!(first.digest, second.digest, "seed {seed}: requests to the device");
    }
    assert_ne!(whole(900, 20).digest, whole(901, 20).digest);
}
