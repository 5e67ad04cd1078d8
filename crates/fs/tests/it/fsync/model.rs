//! The model of fsync: operations from a seed on files, directories and names, and their required
//! result. The tests in `tests/interop` use this model, too.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use buttress_base::Rng;
use buttress_fs::{
    FallocateMode, Filesystem, Ino, Inode, InodeFlags, InodeId, NewInode, RenameFlags, SetAttr,
    TreeId, XattrFlags,
};

use super::pattern;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Object {
    pub(crate) dir: bool,
    pub(super) content: Arc<Vec<u8>>,
    pub(super) attribute: Option<u8>,
    pub(super) names: BTreeSet<(u64, String)>,
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
    pub(super) fs: Arc<Filesystem>,
    rng: Rng,
    pub(crate) state: State,
    pub(super) root: u64,
    pub(crate) history: Vec<String>,
    kind: &'static str,
    in_place: BTreeSet<u64>,
    /// A name at which a new file will replace the old file, and the number of steps until then.
    replacing: Option<((u64, &'static str), u32)>,
}

const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

fn id(ino: u64) -> InodeId {
    InodeId { tree: TreeId::FS, ino: Ino(ino) }
}

impl World {
    /// A world below an empty directory.
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
        let mut what = self.rng.below(30);
        // This kind mostly changes names, as editors and package managers do.
        if self.kind == "renames" && self.rng.chance(1, 2) {
            what = *self.rng.choose(&[9, 10, 11, 12, 13, 15, 16, 18, 21, 21, 21]).expect("one");
        }
        match (what, file) {
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

    /// Reads a random file and compares it with the model, in about every second call.
    pub(crate) fn read_back(&mut self) {
        let files: Vec<_> = self.state.iter().filter(|(_, object)| !object.dir).collect();
        if files.is_empty() || !self.rng.chance(1, 2) {
            return;
        }
        let (ino, object) = files[self.rng.below(files.len() as u64) as usize];
        let mut found = vec![0; object.content.len() + 1];
        let len = self.inode(*ino).read_at(0, &mut found).expect("a read");
        assert!(found[..len] == object.content[..], "{ino} has other content: {:?}", self.history);
    }

    fn write(&mut self, place: (u64, &'static str), file: Option<u64>) {
        let ino = file.unwrap_or_else(|| {
            let made = self.inode(place.0).create(place.1.as_bytes(), NewInode::file(0o644));
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

    /// Random data. For the kind "compressed" the data can be compressed.
    fn data(&mut self, len: usize) -> Vec<u8> {
        let mut data = pattern(self.rng.next_u64(), len);
        if self.kind == "compressed" {
            data.iter_mut().for_each(|byte| *byte &= 7);
        }
        data
    }

    /// In worlds of the kind "in place", turns off copy-on-write for some files that have no
    /// content yet.
    fn set_kind(&mut self, ino: u64) {
        if self.kind == "in place" && self.rng.chance(1, 2) {
            self.note(format!("{ino} is written in place"));
            self.inode(ino).set_flags(InodeFlags::NODATACOW).expect("a flag");
            self.in_place.insert(ino);
        }
    }

    /// Clones sectors of one file into another file.
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

    /// Replaces a file as editors and package managers do, over several steps. A new file is
    /// written beside the old file, mostly synced, and renamed over the old file.
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

    /// The next step of a replacement.
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

    /// Writes and syncs a file without a name. Then the file gets a name or is dropped.
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
            // A rename between two names of one file does nothing.
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
