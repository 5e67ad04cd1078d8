//! A volume that is kept full: files are written to the last sector, synced, replaced, cut and
//! removed. Snapshots are taken and deleted when no more data fits. The model knows the required
//! content after a power cut. The tests in `tests/interop` use this model, too.

use std::collections::BTreeMap;
use std::sync::Arc;

use buttress_base::Rng;
use buttress_block::{Device, MemoryDevice};
use buttress_fs::{
    ErrorKind, FallocateMode, Filesystem, Inode, InodeFlags, MakeOptions, NewInode, RenameFlags,
    SetAttr, TreeId,
};
use buttress_sim::Log;

use super::model::{Object, State, Synced};
use super::story::{Story, survey, survey_below};
use super::{content, list, open_with, pattern};

/// The subvolume with the file that takes the space.
pub(super) const ASIDE: &str = "aside";

const OPERATIONS: u64 = 60;

/// Mount options that determine how room is made; each seed uses one.
const MOUNTS: [&str; 4] = [
    "rw,noatime,commit=3000",
    "rw,noatime,commit=3000,preempt=off,dirty=1M",
    "rw,noatime,commit=3000,notreelog,preempt=clamp",
    "rw,noatime,commit=3000,compress=zstd",
];

/// A volume that is kept full, and its expected content.
struct Wall {
    fs: Filesystem,
    rng: Rng,
    state: State,
    /// Snapshots and their content.
    snapshots: BTreeMap<String, State>,
    made: u64,
    history: Vec<String>,
    refused: usize,
}

/// The operations, and the allowed states after a crash.
pub(super) struct Tale {
    pub(super) story: Story,
    snapshots: Vec<BTreeMap<String, State>>,
    pub(super) history: Vec<String>,
}

/// Returns `None` if the volume was full. Any other error is a failure of the test.
pub(crate) fn full<T>(outcome: buttress_fs::Result<T>) -> Option<T> {
    outcome.inspect_err(|error| assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}")).ok()
}

/// Allocates all free space, except `spare` bytes, to a file without data in a subvolume of its
/// own.
pub(crate) fn fill(fs: &Filesystem, spare: u64) {
    let aside = fs.root().create_subvolume(ASIDE.as_bytes(), 0o755, 0, 0).expect("a subvolume");
    let filler = aside.create(b"filler", NewInode::file(0o644)).expect("a file");
    let how = FallocateMode::Allocate { keep_size: false };
    let mut at = 0;
    for piece in [8_u64 << 20, 1 << 20, 64 << 10, 4096] {
        while full(filler.fallocate(at, piece, how)).is_some() {
            at += piece;
        }
    }
    let cut = SetAttr { size: Some(at - spare), ..SetAttr::default() };
    filler.set_attr(&cut).expect("shrinking always works");
}

impl Wall {
    fn root(&self) -> Inode {
        self.fs.root()
    }

    fn note(&mut self, what: String) {
        self.history.push(what);
    }

    /// A random file and its name.
    fn any(&mut self) -> Option<(u64, String)> {
        let files: Vec<u64> =
            self.state.iter().filter(|(_, object)| !object.dir).map(|(ino, _)| *ino).collect();
        let ino = *self.rng.choose(&files)?;
        Some((ino, self.name_of(ino)))
    }

    fn name_of(&self, ino: u64) -> String {
        self.state[&ino].names.first().expect("a name").1.clone()
    }

    fn inode(&self, name: &str) -> Inode {
        self.root().lookup(name.as_bytes()).expect("it is there")
    }

    /// Takes the present content of a file into the model. A write may have stopped in the middle.
    fn look(&mut self, ino: u64, file: &Inode) {
        self.state.get_mut(&ino).expect("known").content = Arc::new(content(file));
    }

    fn write(&mut self, ino: u64, file: &Inode, at: u64, len: usize) {
        let mut data = pattern(self.rng.next_u64(), len);
        if self.rng.chance(1, 3) {
            data.iter_mut().for_each(|byte| *byte &= 3);
        }
        let done = full(file.write_at(at, &data)).is_some();
        self.refused += usize::from(!done);
        self.note(format!("write {len} at {at} of {ino}: {done}"));
        self.look(ino, file);
    }

    fn create(&mut self) -> Option<u64> {
        self.made += 1;
        let name = format!("f{}", self.made);
        let file = full(self.root().create(name.as_bytes(), NewInode::file(0o644)));
        self.note(format!("create {name}: {:?}", file.as_ref().map(|file| file.id().ino.0)));
        let Some(file) = file else {
            self.refused += 1;
            return None;
        };
        let ino = file.id().ino.0;
        if self.rng.chance(1, 4) && full(file.set_flags(InodeFlags::NODATACOW)).is_some() {
            self.note(format!("{ino} is written in place"));
        }
        let mut object = Object::default();
        object.names.insert((self.root().id().ino.0, name));
        self.state.insert(ino, object);
        Some(ino)
    }

    fn step(&mut self) -> Synced {
        let victim = self.any();
        match (self.rng.below(20), victim) {
            (0..=4, _) | (_, None) => {
                if let Some(ino) = self.create() {
                    let file = self.inode(&self.name_of(ino));
                    let len = self.rng.range(1..300_000) as usize;
                    self.write(ino, &file, 0, len);
                }
            }
            (5..=7, Some((ino, name))) => {
                let (at, len) = (self.rng.below(100_000), self.rng.range(1..60_000) as usize);
                self.write(ino, &self.inode(&name), at, len);
            }
            (8..=11, Some((ino, name))) => {
                self.note(format!("sync {ino}"));
                self.inode(&name).sync().expect("what was taken can be synced");
                return Synced::One(ino);
            }
            (12, Some((ino, name))) => {
                let file = self.inode(&name);
                let size = self.state[&ino].content.len() as u64 / 2;
                self.note(format!("cut {ino} to {size}"));
                let set = SetAttr { size: Some(size), ..SetAttr::default() };
                file.set_attr(&set).expect("shrinking always works");
                self.look(ino, &file);
            }
            (13 | 14, Some((ino, name))) => {
                self.note(format!("unlink {name} of {ino}"));
                self.root().unlink(name.as_bytes()).expect("removing always works");
                self.state.remove(&ino);
            }
            (15, Some((ino, name))) => {
                let (at, len) = (self.rng.below(200_000), self.rng.range(1..400_000));
                let file = self.inode(&name);
                let how = FallocateMode::Allocate { keep_size: false };
                let done = full(file.fallocate(at, len, how)).is_some();
                self.refused += usize::from(!done);
                self.note(format!("set {len} at {at} aside in {ino}: {done}"));
                self.look(ino, &file);
            }
            (16, Some((ino, name))) => self.replace(ino, &name),
            (17, _) => self.snapshots(),
            (18, _) => {
                self.note("sync the folder".to_owned());
                self.root().sync().expect("what was taken can be synced");
                return Synced::One(self.root().id().ino.0);
            }
            _ => {
                self.note("sync".to_owned());
                self.fs.sync().expect("what was taken can be committed");
                return Synced::All;
            }
        }
        Synced::Nothing
    }

    /// Renames a file over another file.
    fn replace(&mut self, ino: u64, name: &str) {
        let Some((other, target)) = self.any().filter(|(other, _)| *other != ino) else { return };
        let root = self.root();
        let flags = RenameFlags::default();
        let done = full(root.rename(name.as_bytes(), &root, target.as_bytes(), flags)).is_some();
        self.note(format!("rename {name} of {ino} to {target} of {other}: {done}"));
        if done {
            self.state.remove(&other);
            let names = &mut self.state.get_mut(&ino).expect("known").names;
            names.clear();
            names.insert((root.id().ino.0, target));
        }
    }

    /// Takes a snapshot, or deletes one.
    fn snapshots(&mut self) {
        let root = self.root();
        if self.snapshots.len() > 2 || self.rng.chance(1, 3) {
            let Some(name) = self.snapshots.keys().next().cloned() else { return };
            self.note(format!("delete {name}"));
            root.delete_subvolume(name.as_bytes()).expect("removing always works");
            self.snapshots.remove(&name);
            return;
        }
        self.made += 1;
        let name = format!("s{}", self.made);
        let done = full(root.snapshot(name.as_bytes(), TreeId::FS, self.rng.chance(1, 2)));
        self.note(format!("snapshot {name}: {}", done.is_some()));
        match done {
            Some(_) => drop(self.snapshots.insert(name, self.state.clone())),
            None => self.refused += 1,
        }
    }
}

/// The visible content of a volume.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Shown {
    pub(super) state: State,
    pub(super) snapshots: BTreeMap<String, State>,
}

impl Shown {
    /// The content that a mount by Buttress shows.
    pub(super) fn of(fs: &Filesystem) -> Self {
        let snapshot = |name: String| {
            let top = fs.resolve(&name).expect("a name that is listed");
            let is_one = top.id().tree != TreeId::FS && name != ASIDE;
            is_one.then(|| (name, survey_below(fs, top)))
        };
        let snapshots = list(&fs.root()).into_iter().filter_map(snapshot).collect();
        Self { state: survey(fs), snapshots }
    }
}

impl Tale {
    pub(super) fn check(&self, shown: &Shown, done: usize) -> Result<(), String> {
        self.story.check(&shown.state, done)?;
        let now = done..=(done + 1).min(self.snapshots.len() - 1);
        for (name, held) in &self.snapshots[done] {
            let Some(found) = shown.snapshots.get(name) else {
                // A deletion of the snapshot may have been under way.
                if self.snapshots[now.clone()].iter().all(|s| s.contains_key(name)) {
                    return Err(format!("snapshot {name} is lost"));
                }
                continue;
            };
            let mut held = held.clone();
            held.remove(&self.story.root);
            if *found != held {
                let differ =
                    held.keys().chain(found.keys()).find(|ino| held.get(ino) != found.get(ino));
                return Err(format!("snapshot {name} is not as it was taken: {differ:?}"));
            }
        }
        Ok(())
    }
}

/// Runs one seed up to its end. Returns the requests to the device, the allowed states, and the
/// number of refusals.
pub(super) fn work(seed: u64) -> (Arc<Log>, Tale, usize) {
    let base = MemoryDevice::new((112 + seed % 3 * 24) << 20);
    let nodesize = if seed.is_multiple_of(2) { 16384 } else { 4096 };
    let make = MakeOptions { nodesize, seed: Some(seed), ..MakeOptions::default() };
    Filesystem::make(&base, &make).expect("a volume");
    let log = Log::new();
    let device = log.device(&base, 512);
    let fs = open_with(
        Arc::clone(&device) as Arc<dyn Device>,
        MOUNTS[(seed / 2) as usize % MOUNTS.len()],
    );
    let root = fs.root().id().ino.0;
    fill(&fs, 700_000);
    fs.sync().expect("sync");
    let mut top = Object { dir: true, ..Object::default() };
    top.names.insert((0, String::new()));
    let mut wall = Wall {
        fs,
        rng: Rng::new(seed),
        state: State::from([(root, top)]),
        snapshots: BTreeMap::new(),
        made: 0,
        history: Vec::new(),
        refused: 0,
    };
    log.start(&[&device]);
    let story = Story { states: vec![wall.state.clone()], synced: Vec::new(), root };
    let mut tale = Tale { story, snapshots: vec![wall.snapshots.clone()], history: Vec::new() };
    for done in 1..=OPERATIONS {
        let synced = wall.step();
        tale.story.synced.push(synced);
        tale.story.states.push(wall.state.clone());
        tale.snapshots.push(wall.snapshots.clone());
        log.mark(done);
    }
    let Wall { fs, history, refused, .. } = wall;
    assert_eq!(fs.read_only_reason(), None);
    fs.close().expect("a full volume unmounts");
    tale.history = history;
    (log, tale, refused)
}
