//! States that a power cut may leave are shown to Linux, which replays our logs with its own code.
//!
//! The workload and its model are those of the library's own tests of fsync: each synced file has
//! its content from the sync, or from some time after it. Linux mounts some of the states. Linux
//! must show a state that the model allows, and exactly the state of our own replay. `btrfs check`
//! checks the results of both replays. `BUTTRESS_STATES` sets how many states of each kind of
//! workload are checked.

mod full;
#[path = "../../../../crates/fs/tests/it/fsync/model.rs"]
mod model;
#[path = "../../../../crates/fs/tests/it/fsync/story.rs"]
mod story;
#[path = "../../../../crates/fs/tests/it/fsync/wall.rs"]
mod wall;

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use buttress_base::Rng;
use buttress_block::{Device, MemoryDevice};
use buttress_fs::{Filesystem, Inode, MakeOptions, MountOptions, NewInode, XattrFlags};
use buttress_interop::linux::{Images, check, has_linux_btrfs, save};
use buttress_sim::{Crash, Log, campaign};
use buttress_volume::Volume;

use model::{Object, State, World};
use story::{Story, survey};

/// The variable with the number of states of each kind that Linux is shown.
const STATES: &str = "BUTTRESS_STATES";

/// The inode number of each folder that stands for a subvolume which a snapshot does not have.
const STUB: u64 = 2;

const LEN: u64 = 256 << 20;

const OPERATIONS: u64 = 70;

/// The mount options for the state after a cut.
const OPTIONS: &str = "rw,noatime,commit=3000";

/// Kinds of workloads. The options prevent all writes that the test does not make.
const KINDS: [(&str, &str); 4] = [
    ("plain", "rw,noatime,commit=3000"),
    ("compressed", "rw,noatime,commit=3000,compress=zstd"),
    ("in place", "rw,noatime,commit=3000"),
    ("renames", "rw,noatime,commit=3000"),
];

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::new(seed).fill(&mut bytes);
    bytes
}

fn content(inode: &Inode) -> Vec<u8> {
    let mut bytes = vec![0; inode.attr().size as usize];
    assert_eq!(inode.read_at(0, &mut bytes).expect("a read"), bytes.len());
    bytes
}

fn open_with(device: Arc<dyn Device>, options: &str) -> Filesystem {
    let options = MountOptions::parse(options).expect("options");
    Filesystem::open(vec![device], options).unwrap_or_else(|error| panic!("no mount: {error}"))
}

fn list(dir: &Inode) -> Vec<String> {
    let mut names = Vec::new();
    let take = |entry: buttress_fs::DirEntry<'_>| {
        names.push(String::from_utf8_lossy(entry.name).into_owned());
        std::ops::ControlFlow::Continue(())
    };
    dir.read_dir(0, take).expect("a listing");
    names
}

/// The files that Linux shows of a mounted volume, or of a subvolume in it. Nested subvolumes are
/// left out, and so are the empty folders for them in a snapshot.
fn survey_of_linux(top: &Path) -> State {
    let mut state = State::new();
    let own = top.metadata().expect("a folder").dev();
    let mut queue = vec![top.to_path_buf()];
    while let Some(folder) = queue.pop() {
        let dir = folder.metadata().expect("a folder").ino();
        for entry in std::fs::read_dir(&folder).expect("a listing") {
            let entry = entry.expect("a name");
            let is_dir = entry.file_type().expect("a kind").is_dir();
            let found = entry.metadata().expect("an inode");
            let (path, ino) = (entry.path(), found.ino());
            if found.dev() != own || ino == STUB {
                continue;
            }
            let object = state.entry(ino).or_insert_with(|| {
                let mut value = [0_u8; 16];
                let attribute = rustix::fs::lgetxattr(&path, "user.x", &mut value[..]);
                Object {
                    dir: is_dir,
                    content: Arc::new(match is_dir {
                        true => Vec::new(),
                        false => std::fs::read(&path).expect("a read"),
                    }),
                    attribute: attribute.ok().map(|_| value[0]),
                    names: BTreeSet::new(),
                }
            });
            let name = entry.file_name().into_string().expect("ASCII");
            object.names.insert((dir, name));
            if is_dir {
                queue.push(path);
            }
        }
    }
    state
}

/// The difference between two surveys, in a short text.
fn difference(ours: &State, theirs: &State) -> Option<String> {
    let inos: BTreeSet<&u64> = ours.keys().chain(theirs.keys()).collect();
    let ino = inos.into_iter().find(|ino| ours.get(ino) != theirs.get(ino))?;
    let said = |object: Option<&Object>| {
        let told = |o: &Object| {
            format!("{} bytes, attribute {:?}, named {:?}", o.content.len(), o.attribute, o.names)
        };
        object.map_or("nothing".to_owned(), told)
    };
    Some(format!("{ino}: we see {}, Linux {}", said(ours.get(ino)), said(theirs.get(ino))))
}

/// Linux mounts an image, replaying its log if it has one, and unmounts it.
fn through_linux(images: &Images) -> State {
    let mount = images.mount("");
    let state = survey_of_linux(mount.path());
    mount.unmount();
    state
}

/// The number of states of each sort.
#[derive(Debug, Default)]
struct Seen {
    states: usize,
    logs: usize,
    /// States with a torn first superblock. Linux reads only that copy, and refuses the volume.
    torn: usize,
}

fn examine(crash: &Crash, story: &Story, images: &Images, seen: &mut Seen) -> Result<(), String> {
    let done = crash.mark.unwrap_or(0) as usize;
    let found = &crash.devices[0];
    seen.states += 1;
    let device: Arc<dyn Device> = Arc::new(found.fork());
    let fs = open_with(Arc::clone(&device), OPTIONS);
    let ours = survey(&fs);
    story.check(&ours, done).map_err(|what| format!("our replay: {what}"))?;
    match Volume::read_superblock_mirror(found, 0) {
        Ok(superblock) => {
            seen.logs += usize::from(superblock.log_root.0 != 0);
            save(found, images.path());
            let theirs = through_linux(images);
            story.check(&theirs, done).map_err(|what| format!("Linux' replay: {what}"))?;
            if let Some(what) = difference(&ours, &theirs) {
                return Err(format!("each replays its own way: {what}"));
            }
            check(images.path());
        }
        Err(_) => seen.torn += 1,
    }
    // The volume after our replay is sound for Linux, and shows the same files. The change is
    // needed because a mount without a change would leave a torn superblock copy.
    fs.root().set_xattr(b"user.seen", b"1", XattrFlags::default()).expect("an attribute");
    fs.close().map_err(|error| error.to_string())?;
    save(&*device, images.path());
    check(images.path());
    if seen.states.is_multiple_of(3) {
        let theirs = through_linux(images);
        if let Some(what) = difference(&ours, &theirs) {
            return Err(format!("after our replay: {what}"));
        }
    }
    Ok(())
}

/// A volume that once had another file. No other file may ever show the content of that file.
fn used(seed: u64) -> MemoryDevice {
    let base = Arc::new(MemoryDevice::new(LEN));
    let nodesize = if seed.is_multiple_of(2) { 16 << 10 } else { 4096 };
    let make = MakeOptions { nodesize, seed: Some(seed), ..MakeOptions::default() };
    Filesystem::make(&*base, &make).expect("a volume");
    let fs = open_with(Arc::clone(&base) as Arc<dyn Device>, "rw,noatime");
    let secret = fs.root().create(b"secret", NewInode::file(0o600)).expect("a file");
    secret.write_at(0, &vec![0xee; 16 << 20]).expect("a write");
    fs.sync().expect("sync");
    drop(secret);
    fs.root().unlink(b"secret").expect("unlink");
    fs.close().expect("a clean end");
    base.fork()
}

fn run(seed: u64, wanted: usize, images: &Images, seen: &mut Seen) {
    let (kind, options) = KINDS[(seed % 4) as usize];
    let log = Log::new();
    let device = log.device(&used(seed), 512);
    let fs = Arc::new(open_with(Arc::clone(&device) as Arc<dyn Device>, options));
    let mut world = World::new(Arc::clone(&fs), seed, fs.root().id().ino.0, kind);
    for _ in 0..12 {
        world.step();
    }
    fs.sync().expect("sync");
    world.history.clear();
    log.start(&[&device]);
    let mut story =
        Story { states: vec![world.state.clone()], synced: Vec::new(), root: world.root };
    for done in 1..=OPERATIONS {
        story.synced.push(world.step());
        world.read_back();
        story.states.push(world.state.clone());
        log.mark(done);
    }
    // Each examined point has three states: without later writes, with all later writes, and with
    // one random subset of these writes.
    let stride = (log.len() * 2).div_ceil(wanted);
    let shown = log.crashes(&mut Rng::new(seed), 1, stride, |crash| {
        if let Err(what) = examine(crash, &story, images, seen) {
            for (index, line) in world.history.iter().enumerate() {
                eprintln!("{index:3} {line}");
            }
            let Crash { event, draw, mark, .. } = crash;
            panic!("{kind}, seed {seed}, event {event}, draw {draw}, {mark:?} done: {what}");
        }
    });
    assert!(shown >= wanted / 3, "only {shown} states of {kind} were seen");
}

#[test]
fn linux_reads_synced_files_after_power_cuts() {
    if !has_linux_btrfs() {
        return;
    }
    let set = std::env::var(STATES).ok().map(|text| text.parse().expect("a number"));
    let images = Images::new(1, LEN);
    let mut seen = Seen::default();
    for seed in campaign::seeds(1..1 + KINDS.len() as u64) {
        run(seed, set.unwrap_or(9), &images, &mut seen);
    }
    let Seen { states, logs, torn } = seen;
    eprintln!("{states} states, {logs} with a log, {torn} with a torn superblock");
    campaign::count("states", states);
    campaign::count("logs", logs);
    assert!(logs > states / 5, "only {logs} of {states} states had a log");
}
