//! The engine over a store of objects. The machine loses power, or another writer takes over the
//! volume.
//!
//! After each crash the volume opens, the checker finds nothing, and the volume has everything that
//! was acknowledged. A crash may leave any selection of the requests that were under way. The other
//! requests may arrive when the next writer has the volume.
//!
//! With a local log, an fsync waits for the log alone. Then a crash leaves a part of the log, too.
//!
//! `BUTTRESS_CUTS` multiplies the number of checked states.

mod away;
mod growing;
mod logged;
mod reading;
mod scrubbing;
mod writers;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use buttress_base::Rng;
use buttress_block::Device;
use buttress_fs::{
    BalanceOptions, Filesystem, Filter, MakeOptions, MountOptions, TreeId, XattrFlags,
};
use buttress_remote::store::Store;
use buttress_remote::store::simulated::Weather;
use buttress_remote::store::timed::{Crash, TimedStore};
use buttress_remote::{Options, RemoteDevice, Site};
use buttress_sim::campaign;
use tempfile::TempDir;

use crate::checker::{check_cut, find_faults};
use crate::fsync::{State, Story, Synced, World, survey, survey_below};
use crate::volume::{list, setting};

use logged::Kept;

const LEN: u64 = 256 << 20;
const OPERATIONS: usize = 60;
/// With these options, only the operations of a test cause writes.
const MOUNT: &str = "rw,noatime,commit=3000";
/// The longest time of a request to the store before its effect, and the longest time after its
/// effect.
const REQUEST: Duration = Duration::from_micros(300);

/// Small objects and a short time for old commits, so that there is much to collect.
fn site(store: Arc<dyn Store>, write: bool) -> Site {
    site_with(store, write, None)
}

/// Such a volume with a folder for a local log, or without one.
fn site_with(store: Arc<dyn Store>, write: bool, folder: Option<&Path>) -> Site {
    let options = Options {
        cache_dir: folder.map(Path::to_owned),
        write,
        takeover: write,
        object_len: 64 << 10,
        memory: 16 << 20,
        timeout: Duration::from_secs(20),
        max_lag: Duration::from_millis(200),
        min_keep: Duration::from_millis(60),
        ..Options::default()
    };
    Site::in_store(store, "v", options)
}

fn open(device: Arc<RemoteDevice>) -> Result<Filesystem, String> {
    let options = MountOptions::parse(MOUNT).expect("options");
    Filesystem::open(vec![device], options).map_err(|error| format!("no mount: {error}"))
}

/// A snapshot: its name, its content, and the operation that acknowledged it.
struct Taken {
    name: String,
    state: State,
    done: usize,
}

struct Tale {
    story: Story,
    taken: Vec<Taken>,
    /// Objects that the collector deleted or moved data from.
    collected: u64,
    /// The local log, if there is one.
    log: Option<Kept>,
}

/// Makes a volume and works on it, with each kind of upkeep.
fn live(store: &Arc<TimedStore>, seed: u64, folder: Option<&Path>) -> Tale {
    let device = site_with(store.clone(), true, folder).create(LEN).expect("an honest store");
    let device = Arc::new(device);
    let make = MakeOptions { nodesize: 4096, seed: Some(seed), ..MakeOptions::default() };
    Filesystem::make(&*device, &make).expect("a volume");
    device.push().expect("a store");
    let fs = Arc::new(open(Arc::clone(&device)).expect("a mount"));
    let kind = ["plain", "in place", "renames"][(seed % 3) as usize];
    let root = fs.root().id().ino.0;
    let mut world = World::new(Arc::clone(&fs), seed, root, kind);
    for _ in 0..12 {
        world.step();
    }
    fs.sync().expect("sync");
    let story = Story { states: vec![world.state.clone()], synced: Vec::new(), root };
    let mut tale = Tale { story, taken: Vec::new(), collected: 0, log: None };
    let mut ends = Vec::new();
    ends.extend(folder.map(logged::len));
    store.mark(0);
    for done in 1..=OPERATIONS {
        let mut synced = world.step();
        if done % 17 == 0 {
            let name = format!("snapshot-{done}");
            fs.root().snapshot(name.as_bytes(), TreeId::FS, true).expect("a snapshot");
            fs.sync().expect("sync");
            synced = Synced::All;
            let mut state = world.state.clone();
            state.remove(&root);
            tale.taken.push(Taken { name, state, done });
        }
        if done % 8 == 0 {
            let collected = device.collect().expect("a store");
            tale.collected += collected.objects + collected.moved_bytes / 4096;
        }
        if done % 20 == 0 {
            device.checkpoint().expect("a store");
        }
        if done == OPERATIONS / 2 {
            let all = Some(Filter::default());
            let options = BalanceOptions { data: all.clone(), metadata: all, system: None };
            fs.balance(&options, &mut |_| true).expect("a balance");
        }
        tale.story.synced.push(synced);
        tale.story.states.push(world.state.clone());
        ends.extend(folder.map(logged::len));
        store.mark(done as u64);
    }
    tale.log = folder.map(|folder| Kept::of(folder, ends));
    drop(world);
    Arc::into_inner(fs).expect("the last").close().expect("a close");
    device.close().expect("a store");
    tale
}

/// Returns the fault of a file system after a crash, in words.
fn examine(fs: &Filesystem, tale: &Tale, done: usize) -> Result<(), String> {
    tale.story.check(&survey(fs), done)?;
    let names = list(&fs.root());
    for Taken { name, state, done: taken } in &tale.taken {
        match names.contains(name) {
            true => {
                let found = survey_below(fs, fs.resolve(name).map_err(|e| e.to_string())?);
                if found != *state {
                    return Err(format!("{name} is not as it was taken"));
                }
            }
            false if done >= *taken => return Err(format!("{name} is lost")),
            false => {}
        }
    }
    Ok(())
}

fn reader(crash: &Crash) -> Result<Arc<dyn Device>, String> {
    let device = site(crash.store.clone(), false).open().map_err(|error| error.to_string())?;
    Ok(Arc::new(device))
}

/// Checks the state after a crash: by a reader, by the next writer, and by a reader after this
/// writer.
fn look(crash: &Crash, tale: &Tale, rng: &mut Rng) -> Result<(), String> {
    let Some(&done) = crash.marks.last() else {
        // There may be no volume yet, or no file system in it.
        if let Ok(device) = reader(crash) {
            let mut content = vec![0; 1 << 20];
            device.read_at(0, &mut content).map_err(|error| error.to_string())?;
        }
        return Ok(());
    };
    let before = reader(crash)?;
    check_cut(&before)?;
    let folder = tale.log.as_ref().map(|log| log.after_crash(done as usize, rng));
    let next = site_with(crash.store.clone(), true, folder.as_ref().map(TempDir::path)).open();
    let next = Arc::new(next.map_err(|error| error.to_string())?);
    let fs = open(Arc::clone(&next))?;
    // Late requests of the dead writer arrive at any time.
    let is_early = rng.chance(1, 2);
    if is_early {
        crash.deliver();
    }
    examine(&fs, tale, done as usize)?;
    fs.root().set_xattr(b"user.seen", b"1", XattrFlags::default()).expect("an attribute");
    fs.sync().map_err(|error| error.to_string())?;
    if !is_early {
        crash.deliver();
    }
    next.collect().map_err(|error| error.to_string())?;
    fs.close().map_err(|error| error.to_string())?;
    next.close().map_err(|error| error.to_string())?;
    let after = reader(crash)?;
    find_faults(&after)?;
    let mounted = MountOptions::parse("ro").expect("options");
    let fs = Filesystem::open(vec![after], mounted).map_err(|error| error.to_string())?;
    examine(&fs, tale, done as usize)
}

/// The distance between checked events: a short round checks `states` of them, a campaign checks
/// each event.
fn stride(store: &TimedStore, states: usize) -> usize {
    let more = setting("BUTTRESS_CUTS", if campaign::round() > 0 { 100 } else { 1 }) as usize;
    (store.events() / (states * more)).max(1)
}

#[test]
fn synced_files_survive_the_end_of_a_writer_to_a_store() {
    for seed in campaign::seeds(1..2) {
        let store = Arc::new(TimedStore::new(seed, Weather::default(), REQUEST));
        let tale = live(&store, seed, None);
        assert!(tale.collected > 0, "nothing was collected");
        crash_anywhere(&store, &tale, seed);
    }
}

/// Looks at the states after crashes.
fn crash_anywhere(store: &TimedStore, tale: &Tale, seed: u64) {
    let mut rng = Rng::new(seed);
    let mut drawn = rng.clone();
    let shown = store.crashes(&mut drawn, 1, stride(store, 12), |crash| {
        if let Err(what) = look(crash, tale, &mut rng) {
            let Crash { event, draw, marks, .. } = crash;
            panic!("seed {seed}, event {event}, draw {draw}, {:?}: {what}", marks.last());
        }
    });
    campaign::count("states", shown);
    assert!(shown >= 12, "{shown} states");
}
