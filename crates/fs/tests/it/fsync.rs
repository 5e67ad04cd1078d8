//! Everything that fsync acknowledged is there after a crash, wherever the power went.
//!
//! A workload from a seed runs on a device that records; every state that a power cut could leave is mounted,
//! which replays the log, and compared with the model. What was synced must be as it was then, or as it was at
//! some time since; the rest must be sound.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{ControlFlow, RangeInclusive};
use std::sync::Arc;

use buttress_base::Rng;
use buttress_block::{Device, MemoryDevice};
use buttress_fs::{
    FallocateMode, FileKind, Filesystem, Ino, Inode, InodeFlags, InodeId, MakeOptions,
    MountOptions, RenameFlags, SetAttr, TreeId, XattrFlags,
};
use buttress_sim::{Crash, Log, campaign};
use buttress_volume::Volume;

use crate::checker::judge;
use crate::volume::{content, pattern};

/// Set for more than a look: how many seeds to try, and the first of them.
const SEEDS: &str = "BUTTRESS_FSYNC_SEEDS";
const FIRST_SEED: &str = "BUTTRESS_FSYNC_SEED";

/// Kinds of volumes and mounts that seeds take turns at.
const KINDS: [&str; 3] = ["plain", "compressed", "in place"];

const OPERATIONS: u64 = 70;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Object {
    pub(crate) dir: bool,
    content: Arc<Vec<u8>>,
    attribute: Option<u8>,
    names: BTreeSet<(u64, String)>,
}

/// All inodes by number.
pub(crate) type State = BTreeMap<u64, Object>;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Synced {
    One(u64),
    All,
    Nothing,
}

pub(crate) struct World {
    fs: Arc<Filesystem>,
    rng: Rng,
    pub(crate) state: State,
    root: u64,
    pub(crate) history: Vec<String>,
    kind: &'static str,
    in_place: BTreeSet<u64>,
    /// A file that is about to take this place, and how many steps that is away.
    replacing: Option<((u64, &'static str), u32)>,
}

const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

fn id(ino: u64) -> InodeId {
    InodeId { tree: TreeId::FS, ino: Ino(ino) }
}

impl World {
    /// A world below a directory, which is empty.
    pub(crate) fn new(fs: Arc<Filesystem>, seed: u64, root: u64, kind: &'static str) -> Self {
        let mut world = Self {
            fs,
            rng: Rng::new(seed),
            state: State::new(),
            root,
            history: Vec::new(),
            kind,
            in_place: BTreeSet::new(),
            replacing: None,
        };
        world.state.insert(root, Object { dir: true, ..Object::default() });
        world.name(root, (0, ""));
        world
    }

    fn inode(&self, ino: u64) -> Inode {
        self.fs.inode(id(ino)).unwrap_or_else(|error| panic!("{ino}: {error}"))
    }

    fn dirs(&self) -> Vec<u64> {
        let dirs = self.state.iter().filter(|(_, object)| object.dir);
        dirs.map(|(ino, _)| *ino).collect()
    }

    fn find(&self, dir: u64, name: &str) -> Option<u64> {
        let has = |object: &Object| object.names.contains(&(dir, name.to_owned()));
        self.state.iter().find(|(_, object)| has(object)).map(|(ino, _)| *ino)
    }

    fn place(&mut self) -> (u64, &'static str) {
        let dirs = self.dirs();
        let dir = *self.rng.choose(&dirs).expect("the root");
        (dir, self.rng.choose(&NAMES).expect("names"))
    }

    fn file_at(&self, place: (u64, &str)) -> Option<u64> {
        self.find(place.0, place.1).filter(|ino| !self.state[ino].dir)
    }

    fn edit(&mut self, ino: u64, change: impl FnOnce(&mut Vec<u8>)) {
        let object = self.state.get_mut(&ino).expect("it is there");
        change(Arc::make_mut(&mut object.content));
    }

    fn unname(&mut self, ino: u64, place: (u64, &str)) {
        let object = self.state.get_mut(&ino).expect("it is there");
        object.names.remove(&(place.0, place.1.to_owned()));
        if object.names.is_empty() {
            self.state.remove(&ino);
        }
    }

    fn name(&mut self, ino: u64, place: (u64, &str)) {
        let object = self.state.get_mut(&ino).expect("it is there");
        object.names.insert((place.0, place.1.to_owned()));
    }

    fn note(&mut self, what: String) {
        self.history.push(what);
    }

    pub(crate) fn step(&mut self) -> Synced {
        if let Some((place, steps)) = self.replacing.take() {
            return self.go_on(place, steps);
        }
        let place = self.place();
        let there = self.find(place.0, place.1);
        let file = self.file_at(place);
        match (self.rng.below(30), file) {
            (0..=4, _) if there.is_none() || file.is_some() => self.write(place, file),
            (5, Some(ino)) => self.cut(ino),
            (6, Some(ino)) => self.punch(ino),
            (7, Some(ino)) => {
                let len = self.rng.range(1..60_000);
                let keep_size = self.rng.chance(1, 2);
                self.note(format!("set {len} aside in {ino}, {keep_size}"));
                let how = FallocateMode::Allocate { keep_size };
                self.inode(ino).fallocate(10_000, len, how).expect("space");
                if !keep_size {
                    let end = 10_000 + len as usize;
                    self.edit(ino, |content| content.resize(content.len().max(end), 0));
                }
            }
            (8, Some(ino)) => {
                let value = self.rng.below(200) as u8;
                self.note(format!("attribute {value} of {ino}"));
                self.inode(ino)
                    .set_xattr(b"user.x", &[value], XattrFlags::default())
                    .expect("an attribute");
                self.state.get_mut(&ino).expect("it is there").attribute = Some(value);
            }
            (9..=11, Some(ino)) => self.rename(place, ino),
            (12, Some(ino)) => self.link(ino),
            (13 | 14, Some(ino)) => {
                self.note(format!("unlink {place:?} of {ino}"));
                self.inode(place.0).unlink(place.1.as_bytes()).expect("unlink");
                self.unname(ino, place);
            }
            (15, None) if there.is_none() && self.dirs().len() < 5 => {
                let dir = self.inode(place.0).mkdir(place.1.as_bytes(), 0o755, 0, 0);
                let ino = dir.expect("a directory").id().ino.0;
                self.note(format!("mkdir {place:?}: {ino}"));
                let object = Object { dir: true, ..Object::default() };
                self.state.insert(ino, object);
                self.name(ino, place);
            }
            (16, None) => self.rmdir(place, there),
            (17, _) if self.rng.chance(1, 4) => {
                self.note("sync".to_owned());
                self.fs.sync().expect("sync");
                return Synced::All;
            }
            (18, _) => {
                self.note(format!("sync directory {}", place.0));
                self.inode(place.0).sync().expect("sync");
                return Synced::One(place.0);
            }
            (19 | 20, Some(ino)) => self.clone_from(ino),
            (21, _) => self.replace(place),
            (22, _) if self.rng.chance(1, 2) => self.without_a_name(),
            (23.., Some(ino)) => {
                self.note(format!("sync {ino}"));
                self.inode(ino).sync().expect("sync");
                return Synced::One(ino);
            }
            _ => self.note("nothing".to_owned()),
        }
        Synced::Nothing
    }

    fn write(&mut self, place: (u64, &'static str), file: Option<u64>) {
        let ino = file.unwrap_or_else(|| {
            let made = self.inode(place.0).create(place.1.as_bytes(), 0o644, 0, 0, 0);
            made.expect("a file").id().ino.0
        });
        if file.is_none() {
            self.state.insert(ino, Object::default());
            self.name(ino, place);
            self.set_kind(ino);
        }
        let offset = self.rng.below(30_000);
        let offset = if self.rng.chance(1, 2) { offset / 4096 * 4096 } else { offset };
        let len = self.rng.range(1..20_000) as usize;
        let data = self.data(len);
        self.note(format!("write {len} at {offset} of {place:?}, {ino}"));
        self.inode(ino).write_at(offset, &data).expect("a write");
        self.edit(ino, |content| {
            let end = offset as usize + len;
            content.resize(content.len().max(end), 0);
            content[offset as usize..end].copy_from_slice(&data);
        });
    }

    /// What shrinks, where it is to be compressed.
    fn data(&mut self, len: usize) -> Vec<u8> {
        let mut data = pattern(self.rng.next_u64(), len);
        if self.kind == "compressed" {
            data.iter_mut().for_each(|byte| *byte &= 7);
        }
        data
    }

    /// Some files of the last kind are written where they lie: those that have no content yet can be.
    fn set_kind(&mut self, ino: u64) {
        if self.kind == "in place" && self.rng.chance(1, 2) {
            self.note(format!("{ino} is written in place"));
            self.inode(ino).set_flags(InodeFlags::NODATACOW).expect("a flag");
            self.in_place.insert(ino);
        }
    }

    /// Shows sectors of one file in another.
    fn clone_from(&mut self, ino: u64) {
        let place = self.place();
        let Some(target) = self.file_at(place).filter(|target| *target != ino) else {
            return self.note("nothing".to_owned());
        };
        let size = self.state[&ino].content.len();
        let sectors = size / 4096;
        if sectors == 0 || self.in_place.contains(&ino) != self.in_place.contains(&target) {
            return self.note("nothing".to_owned());
        }
        let from = self.rng.below(sectors as u64);
        let count = self.rng.range(1..sectors as u64 - from + 1);
        let to = self.rng.below(10) * 4096;
        let (from, len) = (from * 4096, count * 4096);
        self.note(format!("clone {len} at {from} of {ino} to {to} of {target}"));
        self.inode(ino).clone_range(from, &self.inode(target), to, len).expect("a clone");
        let bytes = self.state[&ino].content[from as usize..(from + len) as usize].to_vec();
        self.edit(target, |content| {
            let end = to as usize + bytes.len();
            content.resize(content.len().max(end), 0);
            content[to as usize..end].copy_from_slice(&bytes);
        });
    }

    /// As editors save and package managers unpack: written beside, synced, renamed over, a step at a time.
    fn replace(&mut self, place: (u64, &'static str)) {
        if self.find(place.0, place.1).is_some_and(|old| self.state[&old].dir)
            || self.find(place.0, "new").is_some()
        {
            return self.note("nothing".to_owned());
        }
        self.write((place.0, "new"), None);
        let steps = if self.rng.chance(2, 3) { 2 } else { 1 };
        self.replacing = Some((place, steps));
    }

    /// The next step of a file that takes another's place.
    fn go_on(&mut self, place: (u64, &'static str), steps: u32) -> Synced {
        let ino = self.find(place.0, "new").expect("it was made");
        if steps == 2 {
            self.note(format!("sync {ino}, which is new"));
            self.inode(ino).sync().expect("sync");
            self.replacing = Some((place, 1));
            return Synced::One(ino);
        }
        let old = self.find(place.0, place.1);
        self.note(format!("replace {place:?}, {old:?}, by {ino}"));
        let dir = self.inode(place.0);
        dir.rename(b"new", &dir, place.1.as_bytes(), RenameFlags::default()).expect("rename");
        self.name(ino, place);
        self.unname(ino, (place.0, "new"));
        if let Some(old) = old {
            self.unname(old, place);
        }
        Synced::Nothing
    }

    /// A file without a name is written, synced and named, or forgotten.
    fn without_a_name(&mut self) {
        let place = self.place();
        let file = self.inode(place.0).tmpfile(0o644, 0, 0).expect("a file");
        let ino = file.id().ino.0;
        let data = self.data(5000);
        file.write_at(0, &data).expect("a write");
        file.sync().expect("sync");
        let named = self.find(place.0, place.1).is_none();
        self.note(format!("{ino} has no name, then {place:?}, {named}"));
        if named {
            self.inode(place.0).link(&file, place.1.as_bytes()).expect("link");
            self.state.insert(ino, Object { content: Arc::new(data), ..Object::default() });
            self.name(ino, place);
        }
    }

    fn cut(&mut self, ino: u64) {
        let size = self.rng.below(50_000);
        self.note(format!("cut {ino} to {size}"));
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        self.inode(ino).set_attr(&set).expect("truncate");
        self.edit(ino, |content| content.resize(size as usize, 0));
    }

    fn punch(&mut self, ino: u64) {
        let (offset, len) = (self.rng.below(40_000), self.rng.range(1..20_000));
        self.note(format!("punch {len} at {offset} of {ino}"));
        self.inode(ino).fallocate(offset, len, FallocateMode::PunchHole).expect("a hole");
        self.edit(ino, |content| {
            let end = content.len().min((offset + len) as usize);
            if let Some(gone) = content.get_mut(offset as usize..end) {
                gone.fill(0);
            }
        });
    }

    fn rename(&mut self, from: (u64, &'static str), ino: u64) {
        let to = self.place();
        let target = self.find(to.0, to.1);
        if target.is_some_and(|target| self.state[&target].dir) {
            return self.note("nothing".to_owned());
        }
        let exchange = target.is_some() && self.rng.chance(1, 3);
        self.note(format!("rename {from:?} of {ino} to {to:?} of {target:?}, {exchange}"));
        let flags = RenameFlags { exchange, ..RenameFlags::default() };
        let (dir, other) = (self.inode(from.0), self.inode(to.0));
        dir.rename(from.1.as_bytes(), &other, to.1.as_bytes(), flags).expect("rename");
        match target {
            // Two names of one file: nothing happens.
            Some(target) if target == ino => {}
            Some(target) => {
                self.name(ino, to);
                self.unname(ino, from);
                if exchange {
                    self.name(target, from);
                }
                self.unname(target, to);
            }
            None => {
                self.name(ino, to);
                self.unname(ino, from);
            }
        }
    }

    fn link(&mut self, ino: u64) {
        let to = self.place();
        if self.find(to.0, to.1).is_some() {
            return self.note("nothing".to_owned());
        }
        self.note(format!("link {ino} to {to:?}"));
        self.inode(to.0).link(&self.inode(ino), to.1.as_bytes()).expect("link");
        self.name(ino, to);
    }

    fn rmdir(&mut self, place: (u64, &'static str), there: Option<u64>) {
        let Some(ino) = there else { return self.note("nothing".to_owned()) };
        if self.state.values().any(|object| object.names.iter().any(|(dir, _)| *dir == ino)) {
            return self.note("nothing".to_owned());
        }
        self.note(format!("rmdir {place:?} of {ino}"));
        self.inode(place.0).rmdir(place.1.as_bytes()).expect("rmdir");
        self.unname(ino, place);
    }
}

/// What a mounted volume holds.
pub(crate) fn survey(fs: &Filesystem) -> State {
    let mut state = State::new();
    let mut queue = vec![fs.root()];
    while let Some(dir) = queue.pop() {
        let mut entries = Vec::new();
        dir.read_dir(0, |entry| {
            let name = String::from_utf8_lossy(entry.name).into_owned();
            entries.push((entry.id, name, entry.kind));
            ControlFlow::Continue(())
        })
        .expect("a listing");
        for (id, name, kind) in entries {
            // Numbers of inodes are of their subvolume, and snapshots have nothing to say here.
            if id.tree != TreeId::FS {
                continue;
            }
            let inode = fs.inode(id).expect("what has a name is there");
            assert_eq!(dir.lookup(name.as_bytes()).expect("found by name").id(), id);
            let object = state.entry(id.ino.0).or_insert_with(|| Object {
                dir: kind == FileKind::Directory,
                content: Arc::new(match kind {
                    FileKind::Directory => Vec::new(),
                    _ => content(&inode),
                }),
                attribute: inode.xattr(b"user.x").ok().map(|value| value[0]),
                names: BTreeSet::new(),
            });
            object.names.insert((dir.id().ino.0, name));
            if kind == FileKind::Directory {
                queue.push(inode);
            }
        }
    }
    state
}

/// The states after so many operations, and what each operation synced.
pub(crate) struct Story {
    pub(crate) states: Vec<State>,
    pub(crate) synced: Vec<Synced>,
    pub(crate) root: u64,
}

impl Story {
    /// The states that an inode may be in after a crash when `done` operations were acknowledged.
    fn range(&self, ino: u64, done: usize) -> Option<RangeInclusive<usize>> {
        let last = (0..done).rev().find(|op| match self.synced[*op] {
            Synced::One(synced) => synced == ino,
            Synced::All => true,
            Synced::Nothing => false,
        })?;
        Some(last + 1..=(done + 1).min(self.states.len() - 1))
    }

    pub(crate) fn check(&self, found: &State, done: usize) -> Result<(), String> {
        let inos: BTreeSet<u64> = self.states.iter().flat_map(|s| s.keys().copied()).collect();
        for ino in inos {
            let Some(range) = self.range(ino, done) else { continue };
            let states = || self.states[range.clone()].iter().map(|state| state.get(&ino));
            if states().any(|object| object.is_none()) && ino != self.root {
                continue;
            }
            if ino != self.root {
                let Some(is) = found.get(&ino) else { return Err(format!("{ino} is lost")) };
                let were: Vec<&Object> = states().flatten().collect();
                check_object(is, &were).map_err(|what| format!("{ino}: {what}"))?;
            }
            if ino == self.root || self.states[*range.start()][&ino].dir {
                self.check_entries(found, ino, range.clone())?;
            }
        }
        Ok(())
    }

    /// A directory that was synced has the names that it had then, or since.
    fn check_entries(
        &self,
        found: &State,
        dir: u64,
        range: RangeInclusive<usize>,
    ) -> Result<(), String> {
        let of = |state: &State| -> BTreeSet<(String, u64)> {
            let all = state.iter().flat_map(|(ino, object)| {
                object.names.iter().map(move |(dir, name)| (*dir, name.clone(), *ino))
            });
            all.filter(|(of, _, _)| *of == dir).map(|(_, name, ino)| (name, ino)).collect()
        };
        let were: Vec<_> = self.states[range].iter().map(of).collect();
        let are = of(found);
        for entry in &are {
            if !were.iter().any(|entries| entries.contains(entry)) {
                return Err(format!("directory {dir} has {entry:?}"));
            }
        }
        for entry in &were[0] {
            if were.iter().all(|entries| entries.contains(entry)) && !are.contains(entry) {
                return Err(format!("directory {dir} lost {entry:?}"));
            }
        }
        Ok(())
    }
}

fn check_object(is: &Object, were: &[&Object]) -> Result<(), String> {
    for name in &is.names {
        if !were.iter().any(|object| object.names.contains(name)) {
            return Err(format!("has the name {name:?}"));
        }
    }
    if !were.iter().any(|object| object.attribute == is.attribute) {
        return Err(format!("has the attribute {:?}", is.attribute));
    }
    let sizes = || were.iter().map(|object| object.content.len());
    let (low, high) = (sizes().min().unwrap_or(0), sizes().max().unwrap_or(0));
    let changed = were.windows(2).any(|pair| pair[0].content != pair[1].content);
    if !changed {
        return if *is.content == *were[0].content {
            Ok(())
        } else {
            let at = is.content.iter().zip(were[0].content.iter()).position(|(a, b)| a != b);
            Err(format!(
                "{} bytes of {}, other from {at:?}",
                is.content.len(),
                were[0].content.len()
            ))
        };
    }
    if is.content.len() < low || is.content.len() > high {
        return Err(format!("{} bytes, not {low} to {high}", is.content.len()));
    }
    for (at, byte) in is.content.iter().enumerate() {
        let was = |object: &&Object| object.content.get(at).copied().unwrap_or(0) == *byte;
        if !were.iter().any(was) {
            return Err(format!("byte {at} was never {byte}"));
        }
    }
    Ok(())
}

fn open(device: Arc<dyn Device>) -> Filesystem {
    open_with(device, "rw,noatime,commit=3000")
}

fn open_with(device: Arc<dyn Device>, options: &str) -> Filesystem {
    let options = MountOptions::parse(options).expect("options");
    Filesystem::open(vec![device], options).unwrap_or_else(|error| panic!("no mount: {error}"))
}

/// Mounts what a crash left and compares; now and then the mount, too, is cut short.
fn examine(crash: &Crash, story: &Story, rng: &mut Rng, depth: u32) -> Result<(), String> {
    let done = crash.mark.unwrap_or(0) as usize;
    let device: Arc<dyn Device> = Arc::new(crash.devices[0].fork());
    if depth == 0 && rng.chance(1, 25) {
        let log = Log::new();
        let again = log.device(&crash.devices[0], 512);
        log.start(&[&again]);
        log.mark(done as u64);
        drop(open(again));
        let mut outcome = Ok(());
        log.crashes(&mut Rng::new(rng.next_u64()), 1, 3, |crash| {
            if outcome.is_ok() {
                outcome = examine(crash, story, rng, 1);
            }
        });
        outcome.map_err(|what| format!("after a crash of replay: {what}"))?;
    }
    let fs = open(Arc::clone(&device));
    let found = survey(&fs);
    story.check(&found, done)?;
    // A mount that changes nothing leaves a copy of the superblock torn, if it was.
    fs.root().set_xattr(b"user.seen", b"1", XattrFlags::default()).expect("an attribute");
    fs.close().map_err(|error| error.to_string())?;
    if rng.chance(1, 12) {
        judge(&device);
    }
    Ok(())
}

fn run(seed: u64, options: &MakeOptions, draws: usize, stride: usize) -> (usize, usize) {
    let base = MemoryDevice::new(256 << 20);
    Filesystem::make(&base, options).expect("a volume");
    let log = Log::new();
    let device = log.device(&base, 512);
    let kind = KINDS[(seed / 2 % 3) as usize];
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
    let shown = log.crashes(&mut events, draws, stride, |crash| {
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
    });
    (shown, logs)
}

/// A number from the environment.
pub(crate) fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().and_then(|text| text.parse().ok())
}

#[test]
fn what_was_synced_survives() {
    let seeds = number(SEEDS).unwrap_or(6);
    let first = number(FIRST_SEED).unwrap_or(1);
    let (mut states, mut logs) = (0, 0);
    for seed in campaign::seeds(first..first + seeds) {
        let small = MakeOptions { nodesize: 4096, seed: Some(seed), ..MakeOptions::default() };
        let plain = MakeOptions { seed: Some(seed), ..MakeOptions::default() };
        let options = if seed % 2 == 0 { plain } else { small };
        let (shown, made) = run(seed, &options, 2, if seeds > 6 { 2 } else { 5 });
        states += shown;
        logs += made;
    }
    campaign::count("states", states);
    campaign::count("logs", logs);
    assert!(states > 50 * seeds as usize, "only {states} states were seen");
    assert!(logs > states / 5, "only {logs} of {states} states had a log");
}

/// What fsync writes, by the options of the mount: a log, or a commit.
#[test]
fn options_say_what_is_written() {
    let cases = [
        ("commit=3000", true),
        ("commit=3000,notreelog", false),
        ("commit=3000,flushoncommit", true),
    ];
    for (options, logs) in cases {
        let base = Arc::new(MemoryDevice::new(128 << 20));
        Filesystem::make(&*base, &MakeOptions::default()).expect("a volume");
        let fs = open_with(Arc::clone(&base) as Arc<dyn Device>, options);
        let (file, other) = (
            fs.root().create(b"a", 0o644, 0, 0, 0).expect("a file"),
            fs.root().create(b"b", 0o644, 0, 0, 0).expect("a file"),
        );
        other.write_at(0, &pattern(2, 9000)).expect("a write");
        fs.sync().expect("sync");
        let before = Volume::read_superblock(&*base).expect("a superblock");
        file.write_at(0, &pattern(1, 9000)).expect("a write");
        file.sync().expect("sync");
        let after = Volume::read_superblock(&*base).expect("a superblock");
        assert_eq!(after.log_root.0 != 0, logs, "{options}");
        assert_eq!(after.generation == before.generation, logs, "{options}");
        assert_eq!(fs.sync_stats().logs > 0, logs, "{options}");
        drop((file, other));
        fs.close().expect("a clean end");
    }
}

/// Names beyond what one item holds are logged as others are.
#[test]
fn many_names_are_logged() {
    let base = MemoryDevice::new(128 << 20);
    Filesystem::make(&base, &MakeOptions { nodesize: 4096, ..MakeOptions::default() })
        .expect("a volume");
    let device: Arc<dyn Device> = Arc::new(base);
    let fs = open(Arc::clone(&device));
    let root = fs.root();
    let file = root.create(b"0", 0o644, 0, 0, 0).expect("a file");
    let name = |index: u64| format!("{index}-{}", "n".repeat(200));
    for index in 1..40 {
        root.link(&file, name(index).as_bytes()).expect("a link");
    }
    fs.sync().expect("sync");
    for index in 40..50 {
        root.link(&file, name(index).as_bytes()).expect("a link");
    }
    root.unlink(name(3).as_bytes()).expect("unlink");
    root.unlink(name(38).as_bytes()).expect("unlink");
    file.sync().expect("sync");
    assert_eq!(fs.sync_stats().logs, 1, "{:?}", fs.sync_stats());
    // As a crash leaves it: nothing was written since.
    let crashed: Arc<dyn Device> = Arc::new(fork(&device));
    let again = open(Arc::clone(&crashed));
    for index in 1..50 {
        let there = again.root().lookup(name(index).as_bytes()).is_ok();
        assert_eq!(there, index != 3 && index != 38, "{index}");
    }
    assert_eq!(again.resolve("/0").expect("the file").attr().nlink, 48);
    again.close().expect("a clean end");
    judge(&crashed);
    drop((file, root));
    fs.close().expect("a clean end");
}

fn fork(device: &Arc<dyn Device>) -> MemoryDevice {
    let mut bytes = vec![0; device.len() as usize];
    device.read_at(0, &mut bytes).expect("a read");
    let copy = MemoryDevice::new(device.len());
    copy.write_at(0, &bytes).expect("a write");
    copy
}

/// An extent that another file has after a crash is not overwritten in place, though it has lost it since: neither
/// one that it has in the committed trees, nor one that it has in the log.
#[test]
fn what_others_have_after_a_crash_stays() {
    for in_log in [false, true] {
        let base = MemoryDevice::new(128 << 20);
        Filesystem::make(&base, &MakeOptions::default()).expect("a volume");
        let device: Arc<dyn Device> = Arc::new(base);
        let fs = open(Arc::clone(&device));
        let make = |name: &str| {
            let file = fs.root().create(name.as_bytes(), 0o644, 0, 0, 0).expect("a file");
            file.set_flags(InodeFlags::NODATACOW).expect("a flag");
            file
        };
        let (mine, other) = (make("mine"), make("other"));
        let old = pattern(1, 65_536);
        mine.write_at(0, &old).expect("a write");
        if in_log {
            fs.sync().expect("sync");
        }
        mine.sync().expect("sync");
        mine.clone_range(0, &other, 0, 65_536).expect("a clone");
        other.sync().expect("sync");
        if !in_log {
            fs.sync().expect("sync");
        }
        let none = SetAttr { size: Some(0), ..SetAttr::default() };
        other.set_attr(&none).expect("truncate");
        mine.write_at(0, &pattern(2, 65_536)).expect("a write");
        mine.flush_data().expect("a flush");
        let again = open(Arc::new(fork(&device)));
        let found = content(&again.resolve("/other").expect("it was synced"));
        assert!(found == old || found.is_empty(), "in a log: {in_log}");
        again.close().expect("a clean end");
        drop((mine, other));
        fs.close().expect("a clean end");
    }
}
