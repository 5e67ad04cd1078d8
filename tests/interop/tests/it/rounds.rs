//! Random work on subvolumes, by this library and by Linux in turns, compared with a model. Each
//! side finds the state of the model, and no checker finds a fault.
//!
//! `BUTTRESS_SEED` and `BUTTRESS_ROUNDS` choose another run; each failure prints its seed.

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;

use buttress_base::Rng;
use buttress_fs::{Filesystem, Inode};
use buttress_interop::linux::{Images, Mount, has_linux_btrfs, run};
use buttress_interop::sample::{Folder, Library, Target};

use crate::open::{close, open_with};

const SECTOR: u64 = 4096;
const FILE_MAX: u64 = 400_000;
const STEPS: u64 = 60;

#[derive(Clone, Debug, Default)]
struct Subvolume {
    files: BTreeMap<String, Vec<u8>>,
    read_only: bool,
}

/// The implementation that works on the volume.
enum Side {
    Here(Filesystem),
    Linux(Mount),
}

impl Side {
    fn target(&self) -> Box<dyn Target> {
        match self {
            Self::Here(filesystem) => Box::new(Library::new(filesystem)),
            Self::Linux(mount) => Box::new(Folder::new(mount.path())),
        }
    }

    fn inode(filesystem: &Filesystem, path: &str) -> Inode {
        filesystem.resolve(path).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    fn btrfs(mount: &Mount, words: &[&str]) {
        let mut all = vec!["-q", "subvolume"];
        all.extend(&words[..words.len() - 1]);
        let mut paths = vec![mount.path().join(words[words.len() - 1])];
        if words[0] == "snapshot" {
            paths.insert(0, mount.path().join(all.pop().expect("a source")));
        }
        run("btrfs", all.iter().map(AsRef::as_ref).chain(paths.iter().map(|p| p.as_os_str())));
    }

    fn create(&self, name: &str) {
        match self {
            Self::Here(filesystem) => {
                let made = filesystem.root().create_subvolume(name.as_bytes(), 0o755, 0, 0);
                drop(made.expect("a subvolume"));
            }
            Self::Linux(mount) => Self::btrfs(mount, &["create", name]),
        }
    }

    fn snapshot(&self, source: &str, name: &str, read_only: bool) {
        match self {
            Self::Here(filesystem) => {
                let tree = Self::inode(filesystem, source).id().tree;
                let made = filesystem.root().snapshot(name.as_bytes(), tree, read_only);
                drop(made.expect("a snapshot"));
            }
            Self::Linux(mount) if read_only => {
                Self::btrfs(mount, &["snapshot", "-r", source, name]);
            }
            Self::Linux(mount) => Self::btrfs(mount, &["snapshot", source, name]),
        }
    }

    fn delete(&self, name: &str) {
        match self {
            Self::Here(filesystem) => {
                filesystem.root().delete_subvolume(name.as_bytes()).expect("a deletion");
            }
            Self::Linux(mount) => Self::btrfs(mount, &["delete", name]),
        }
    }

    /// Shares whole sectors of one file with another.
    fn clone(&self, from: (&str, u64), to: (&str, u64), len: u64) {
        match self {
            Self::Here(filesystem) => {
                let (source, target) =
                    (Self::inode(filesystem, from.0), Self::inode(filesystem, to.0));
                source.clone_range(from.1, &target, to.1, len).expect("a clone");
            }
            Self::Linux(mount) => {
                let open = |path: &str, write: bool| {
                    let mut options = std::fs::OpenOptions::new();
                    options.read(true).write(write).open(mount.path().join(path)).expect("a file")
                };
                let (source, target) = (open(from.0, false), open(to.0, true));
                let (mut at, mut into, mut left) = (from.1, to.1, len as usize);
                while left > 0 {
                    // Linux shares the data if it can.
                    let (at, into) = (Some(&mut at), Some(&mut into));
                    let done = rustix::fs::copy_file_range(&source, at, &target, into, left);
                    left -= done.expect("a copy");
                }
            }
        }
    }

    fn content(&self, path: &str) -> Vec<u8> {
        match self {
            Self::Here(filesystem) => {
                let inode = Self::inode(filesystem, path);
                let mut bytes = vec![0; inode.attr().size as usize];
                assert_eq!(inode.read_at(0, &mut bytes).expect("a read"), bytes.len());
                bytes
            }
            Self::Linux(mount) => {
                let file = std::fs::File::open(mount.path().join(path)).expect("a file");
                let mut bytes = vec![0; file.metadata().expect("a size").len() as usize];
                file.read_exact_at(&mut bytes, 0).expect("a read");
                bytes
            }
        }
    }

    fn list(&self, path: &str) -> Vec<String> {
        let mut names = Vec::new();
        match self {
            Self::Here(filesystem) => {
                Self::inode(filesystem, path)
                    .read_dir(0, |entry| {
                        names.push(String::from_utf8_lossy(entry.name).into_owned());
                        std::ops::ControlFlow::Continue(())
                    })
                    .expect("a list");
            }
            Self::Linux(mount) => {
                for entry in std::fs::read_dir(mount.path().join(path)).expect("a list") {
                    names.push(entry.expect("an entry").file_name().to_string_lossy().into_owned());
                }
            }
        }
        names.retain(|name| name != "." && name != "..");
        names.sort();
        names
    }

    fn end(self) {
        match self {
            Self::Here(filesystem) => close(filesystem),
            Self::Linux(mount) => mount.unmount(),
        }
    }
}

struct Model {
    rng: Rng,
    subvolumes: BTreeMap<String, Subvolume>,
    count: u64,
}

impl Model {
    fn pick(&mut self, writable: bool) -> Option<String> {
        let wanted = |one: &&Subvolume| !(writable && one.read_only);
        let names: Vec<_> =
            self.subvolumes.iter().filter(|(_, one)| wanted(one)).map(|(n, _)| n.clone()).collect();
        self.rng.choose(&names).cloned()
    }

    fn pick_file(&mut self, writable: bool) -> Option<(String, String)> {
        let subvolume = self.pick(writable)?;
        let names: Vec<_> = self.subvolumes[&subvolume].files.keys().cloned().collect();
        let name = self.rng.choose(&names)?.clone();
        Some((subvolume, name))
    }

    fn file(&mut self, subvolume: &str, name: &str) -> &mut Vec<u8> {
        let files = &mut self.subvolumes.get_mut(subvolume).expect("a subvolume").files;
        files.entry(name.to_owned()).or_default()
    }

    fn bytes(&mut self) -> Vec<u8> {
        let most = [100, 5000, 60_000, 150_000][self.rng.below(4) as usize];
        let mut bytes = vec![0; self.rng.below(most) as usize + 1];
        if self.rng.chance(1, 2) {
            self.rng.fill(&mut bytes);
        } else {
            // These bytes compress well.
            let word = self.rng.next_u64().to_le_bytes();
            bytes.iter_mut().zip(word.iter().cycle()).for_each(|(byte, from)| *byte = *from);
        }
        bytes
    }

    fn step(&mut self, side: &Side, target: &dyn Target) {
        match self.rng.below(20) {
            0 if self.subvolumes.len() < 12 => {
                let name = self.new_name("sub");
                side.create(&name);
                self.subvolumes.insert(name, Subvolume::default());
            }
            1 | 2 if self.subvolumes.len() < 12 => {
                let Some(source) = self.pick(false) else { return };
                let name = self.new_name("snap");
                let read_only = self.rng.chance(1, 2);
                side.snapshot(&source, &name, read_only);
                let copy = Subvolume { read_only, ..self.subvolumes[&source].clone() };
                self.subvolumes.insert(name, copy);
            }
            3 if self.subvolumes.len() > 3 => {
                let Some(name) = self.pick(false) else { return };
                side.delete(&name);
                self.subvolumes.remove(&name);
            }
            4..=7 => {
                let Some(subvolume) = self.pick(true) else { return };
                let (name, bytes) = (self.new_name("file"), self.bytes());
                let path = format!("{subvolume}/{name}");
                target.make_file(path.as_bytes(), 0o644);
                target.write(path.as_bytes(), 0, &bytes);
                *self.file(&subvolume, &name) = bytes;
            }
            8..=11 => {
                let Some((subvolume, name)) = self.pick_file(true) else { return };
                let (bytes, at) = (self.bytes(), self.rng.below(FILE_MAX / 2));
                target.write(format!("{subvolume}/{name}").as_bytes(), at, &bytes);
                put(self.file(&subvolume, &name), at as usize, &bytes);
            }
            12 => {
                let Some((subvolume, name)) = self.pick_file(true) else { return };
                let len = self.rng.below(FILE_MAX);
                target.set_len(format!("{subvolume}/{name}").as_bytes(), len);
                self.file(&subvolume, &name).resize(len as usize, 0);
            }
            13 => {
                let Some((subvolume, name)) = self.pick_file(true) else { return };
                let (at, len) = (self.rng.below(FILE_MAX / 2), self.rng.below(100_000) + 1);
                target.punch(format!("{subvolume}/{name}").as_bytes(), at, len);
                let file = self.file(&subvolume, &name);
                let end = file.len().min((at + len) as usize);
                file[(at as usize).min(end)..end].fill(0);
            }
            14 => {
                let Some((subvolume, name)) = self.pick_file(true) else { return };
                target.remove_file(format!("{subvolume}/{name}").as_bytes());
                self.subvolumes.get_mut(&subvolume).expect("it").files.remove(&name);
            }
            15 => {
                let Some((subvolume, name)) = self.pick_file(true) else { return };
                let new = self.new_name("moved");
                let path = |name: &str| format!("{subvolume}/{name}").into_bytes();
                target.rename(&path(&name), &path(&new));
                let files = &mut self.subvolumes.get_mut(&subvolume).expect("it").files;
                let bytes = files.remove(&name).expect("it");
                files.insert(new, bytes);
            }
            16..=18 => self.clone_some(side),
            _ => target.sync(),
        }
    }

    fn new_name(&mut self, word: &str) -> String {
        self.count += 1;
        format!("{word}-{}", self.count)
    }

    fn clone_some(&mut self, side: &Side) {
        let (Some(from), Some(to)) = (self.pick_file(false), self.pick_file(true)) else { return };
        let source = self.subvolumes[&from.0].files[&from.1].clone();
        let sectors = source.len() as u64 / SECTOR;
        if from == to || sectors == 0 {
            return;
        }
        let at = self.rng.below(sectors);
        let len = (self.rng.below(sectors - at) + 1) * SECTOR;
        let (at, into) = (at * SECTOR, self.rng.below(40) * SECTOR);
        let path = |(subvolume, name): &(String, String)| format!("{subvolume}/{name}");
        side.clone((&path(&from), at), (&path(&to), into), len);
        let shared = &source[at as usize..(at + len) as usize];
        put(self.file(&to.0, &to.1), into as usize, shared);
    }

    /// Every name and every byte equals the name and the byte in the model.
    fn verify(&self, side: &Side, when: &str) {
        let names: Vec<_> = self.subvolumes.keys().cloned().collect();
        assert_eq!(side.list(""), names, "{when}: subvolumes");
        for (name, subvolume) in &self.subvolumes {
            let files: Vec<_> = subvolume.files.keys().cloned().collect();
            assert_eq!(side.list(name), files, "{when}: {name}");
            for (file, bytes) in &subvolume.files {
                let found = side.content(&format!("{name}/{file}"));
                let first = found.iter().zip(bytes).position(|(one, other)| one != other);
                assert!(
                    found == *bytes,
                    "{when}: {name}/{file}: {} bytes, not {}; the first that differs is {first:?}",
                    found.len(),
                    bytes.len()
                );
            }
        }
    }
}

fn put(file: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    if file.len() < at + bytes.len() {
        file.resize(at + bytes.len(), 0);
    }
    file[at..at + bytes.len()].copy_from_slice(bytes);
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// Linux and this library take turns.
#[test]
fn turns_with_linux() {
    if !has_linux_btrfs() {
        return;
    }
    let seed = number("BUTTRESS_SEED").unwrap_or(20_260);
    let rounds = number("BUTTRESS_ROUNDS").unwrap_or(6);
    println!("BUTTRESS_SEED={seed} BUTTRESS_ROUNDS={rounds}");
    let images = Images::new(1, 1 << 30);
    images.mkfs(if seed.is_multiple_of(2) { &[] } else { &["-n", "4096"] });
    let mut model = Model { rng: Rng::new(seed), subvolumes: BTreeMap::new(), count: 0 };
    for round in 0..rounds {
        let compress = ["", "compress=zstd:3", "compress=lzo", "compress-force=zlib"]
            [model.rng.below(4) as usize];
        let side = if round % 2 == 0 {
            let options = format!("rw,noatime,{compress}");
            Side::Here(open_with(images.paths(), options.trim_end_matches(',')))
        } else {
            Side::Linux(images.mount(compress))
        };
        model.verify(&side, &format!("seed {seed}, before round {round}"));
        let target = side.target();
        if round == 0 {
            side.create("first");
            model.subvolumes.insert("first".to_owned(), Subvolume::default());
        }
        for _ in 0..STEPS {
            model.step(&side, &*target);
        }
        drop(target);
        model.verify(&side, &format!("seed {seed}, in round {round}"));
        side.end();
        images.check();
    }
    let side = Side::Linux(images.mount("ro"));
    model.verify(&side, &format!("seed {seed}, at the end"));
    side.end();
}
