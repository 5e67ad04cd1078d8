//! Random operations against a model. The answers are the same from memory and after a remount, and
//! the checker finds no fault.
//!
//! `BUTTRESS_SEED` and `BUTTRESS_STEPS` choose another run; each failure prints its seed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use buttress_base::Rng;
use buttress_block::{Device, MemoryDevice};
use buttress_cache::{CacheDevice, CacheOptions};
use buttress_format::Profile;
use buttress_fs::make::Features;
use buttress_fs::{
    ErrorKind, FallocateMode, Inode, InodeFlags, MakeOptions, NameError, NewInode, RenameFlags,
    SetAttr, XattrFlags,
};

use crate::checker::{check, expect_sound};
use crate::snapshots::Snapshots;
use crate::volume::{content, list, memory, memory_with, mount_with, pattern, setting};

const THREADS: u64 = 3;

#[derive(Clone, Debug, Default)]
struct File {
    bytes: Vec<u8>,
    xattrs: BTreeMap<String, Vec<u8>>,
}

/// The expected files of one thread's directory, by name. Hard links are names of one file.
#[derive(Clone, Debug, Default)]
struct Model {
    files: BTreeMap<u64, File>,
    names: BTreeMap<(usize, String), u64>,
    next: u64,
}

struct Worker {
    dirs: Vec<Inode>,
    model: Model,
    rng: Rng,
}

fn small(rng: &mut Rng, limit: u64) -> u64 {
    rng.below(limit)
}

impl Worker {
    fn name(&mut self) -> String {
        format!("n{}", small(&mut self.rng, 24))
    }

    fn some_name(&mut self) -> Option<(usize, String)> {
        let count = self.model.names.len() as u64;
        if count == 0 {
            return None;
        }
        let pick = small(&mut self.rng, count) as usize;
        self.model.names.keys().nth(pick).cloned()
    }

    fn open(&self, at: &(usize, String)) -> Inode {
        self.dirs[at.0].lookup(at.1.as_bytes()).expect("the model knows it")
    }

    fn forget_name(&mut self, at: &(usize, String)) {
        if let Some(file) = self.model.names.remove(at)
            && !self.model.names.values().any(|other| *other == file)
        {
            self.model.files.remove(&file);
        }
    }

    fn step(&mut self) {
        match small(&mut self.rng, 24) {
            0..=3 => self.create(),
            4..=9 => self.write(),
            10 => self.truncate(),
            11 => self.unlink(),
            12 => self.rename(),
            13 => self.link(),
            14 => self.xattr(),
            15 => self.fallocate(),
            16 => self.verify_one(),
            17 => self.exchange(),
            18 => self.sync(),
            19..=20 => self.clone_part(),
            21 => self.dedupe(),
            22 => self.property(),
            _ => self.read_part(),
        }
    }

    fn create(&mut self) {
        let dir = small(&mut self.rng, self.dirs.len() as u64) as usize;
        let name = self.name();
        let made = self.dirs[dir].create(name.as_bytes(), NewInode::file(0o644));
        let at = (dir, name);
        if self.model.names.contains_key(&at) {
            let kind = made.expect_err("taken").kind();
            assert_eq!(kind, ErrorKind::Name(NameError::Exists));
            return;
        }
        let made = made.expect("created");
        if small(&mut self.rng, 6) == 0 {
            made.set_flags(InodeFlags::NODATACOW).expect("an empty file");
        }
        self.model.next += 1;
        self.model.files.insert(self.model.next, File::default());
        self.model.names.insert(at, self.model.next);
    }

    fn write(&mut self) {
        let Some(at) = self.some_name() else { return };
        let inode = self.open(&at);
        let shape = small(&mut self.rng, 4);
        let (offset, len) = match shape {
            0 => (small(&mut self.rng, 6000), small(&mut self.rng, 3000)),
            1 => (small(&mut self.rng, 60) * 4096, (1 + small(&mut self.rng, 8)) * 4096),
            2 => (small(&mut self.rng, 300_000), small(&mut self.rng, 40_000)),
            _ => (inode.attr().size, small(&mut self.rng, 5000)),
        };
        let data = self.data(len as usize);
        if shape == 1 && small(&mut self.rng, 2) == 0 {
            inode.write_direct(offset, &data).expect("direct write");
        } else {
            inode.write_at(offset, &data).expect("write");
        }
        if data.is_empty() {
            return;
        }
        let bytes = &mut self.file(&at).bytes;
        let end = offset as usize + data.len();
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        bytes[offset as usize..end].copy_from_slice(&data);
    }

    /// Random bytes, or data that compresses well.
    fn data(&mut self, len: usize) -> Vec<u8> {
        let seed = self.rng.next_u64();
        if seed & 1 == 0 {
            return pattern(seed, len);
        }
        (0..len).map(|at| (at as u64 / (1 + seed % 300) + seed) as u8).collect()
    }

    /// Sets the compression of a file in one of the possible ways.
    fn property(&mut self) {
        let Some(at) = self.some_name() else { return };
        let values: [&[u8]; 6] = [b"zlib", b"lzo", b"zstd", b"zstd:9", b"none", b""];
        let value = *self.rng.choose(&values).expect("some");
        let inode = self.open(&at);
        let name = "btrfs.compression";
        let nocow = inode.attr().flags & InodeFlags::NODATACOW != 0;
        let there = self.file(&at).xattrs.contains_key(name);
        let set = inode.set_xattr(name.as_bytes(), value, XattrFlags::default());
        if value.is_empty() {
            assert_eq!(set.is_ok(), there);
            self.file(&at).xattrs.remove(name);
        } else {
            assert_eq!(set.is_ok(), !nocow);
            if !nocow {
                self.file(&at).xattrs.insert(name.to_owned(), value.to_vec());
            }
        }
    }

    /// Clones or copies a range from one file to another file or to the same file.
    fn clone_part(&mut self) {
        let (Some(from), Some(to)) = (self.some_name(), self.some_name()) else { return };
        let (source, target) = (self.open(&from), self.open(&to));
        let old = self.file(&from).bytes.clone();
        let whole = small(&mut self.rng, 3) == 0;
        let offset = small(&mut self.rng, 40) * 4096;
        let target_offset = small(&mut self.rng, 60) * 4096;
        let size = old.len() as u64;
        if offset >= size {
            return;
        }
        let to_end = size - offset;
        let len = if whole { to_end } else { (1 + small(&mut self.rng, 20)) * 4096 };
        if small(&mut self.rng, 3) == 0 {
            let skew = small(&mut self.rng, 3) * 100;
            let len = len.min(to_end);
            if source.id() == target.id() && offset.abs_diff(target_offset) < len + 5000 {
                return;
            }
            let (low, high) = (offset + skew, (offset + skew + len + 77).min(size));
            let len = high.saturating_sub(low);
            let copied = source.copy_range(low, &target, target_offset + skew, len);
            assert_eq!(copied.expect("copied"), len);
            self.overlay(&to, target_offset + skew, &old[low.min(size) as usize..][..len as usize]);
            return;
        }
        let target_size = self.file(&to).bytes.len() as u64;
        let sums = |inode: &Inode| inode.attr().flags & InodeFlags::NODATASUM;
        let end = offset + len;
        let may = end <= size
            && (end.is_multiple_of(4096) || end == size && target_offset + len >= target_size)
            && !(source.id() == target.id() && offset.abs_diff(target_offset) < len)
            && sums(&source) == sums(&target);
        let done = source.clone_range(offset, &target, target_offset, len);
        if !may {
            assert_eq!(done.expect_err("refused").kind(), ErrorKind::Invalid);
            return;
        }
        done.expect("cloned");
        self.overlay(&to, target_offset, &old[offset as usize..end as usize]);
    }

    fn overlay(&mut self, at: &(usize, String), offset: u64, data: &[u8]) {
        if data.is_empty() {
            return;
        }
        let bytes = &mut self.file(at).bytes;
        let (low, high) = (offset as usize, offset as usize + data.len());
        if bytes.len() < high {
            bytes.resize(high, 0);
        }
        bytes[low..high].copy_from_slice(data);
    }

    fn dedupe(&mut self) {
        let (Some(from), Some(to)) = (self.some_name(), self.some_name()) else { return };
        let (source, target) = (self.open(&from), self.open(&to));
        let (left, right) = (self.file(&from).bytes.clone(), self.file(&to).bytes.clone());
        let pages = (left.len().min(right.len()) / 4096) as u64;
        if pages == 0 || source.id() == target.id() {
            return;
        }
        let offset = small(&mut self.rng, pages) * 4096;
        let len = (1 + small(&mut self.rng, pages - offset / 4096)) * 4096;
        let part = offset as usize..(offset + len) as usize;
        match source.dedupe_range(offset, &target, offset, len) {
            Ok(same) => assert_eq!(same, left[part.clone()] == right[part]),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Invalid),
        }
    }

    fn file(&mut self, at: &(usize, String)) -> &mut File {
        let id = self.model.names[at];
        self.model.files.get_mut(&id).expect("names lead to files")
    }

    fn truncate(&mut self) {
        let Some(at) = self.some_name() else { return };
        let size = match small(&mut self.rng, 3) {
            0 => small(&mut self.rng, 5000),
            1 => small(&mut self.rng, 350_000),
            _ => small(&mut self.rng, 80) * 4096,
        };
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        assert_eq!(self.open(&at).set_attr(&set).expect("truncate").size, size);
        self.file(&at).bytes.resize(size as usize, 0);
    }

    fn unlink(&mut self) {
        let Some(at) = self.some_name() else { return };
        self.dirs[at.0].unlink(at.1.as_bytes()).expect("unlink");
        self.forget_name(&at);
    }

    fn rename(&mut self) {
        let Some(from) = self.some_name() else { return };
        let to = (small(&mut self.rng, self.dirs.len() as u64) as usize, self.name());
        let flags = RenameFlags::default();
        let (source, target) = (&self.dirs[from.0], &self.dirs[to.0]);
        source.rename(from.1.as_bytes(), target, to.1.as_bytes(), flags).expect("rename");
        let moved = self.model.names[&from];
        if self.model.names.get(&to) == Some(&moved) {
            return;
        }
        self.forget_name(&to);
        self.model.names.remove(&from);
        self.model.names.insert(to, moved);
    }

    fn exchange(&mut self) {
        let (Some(a), Some(b)) = (self.some_name(), self.some_name()) else { return };
        let flags = RenameFlags { exchange: true, ..RenameFlags::default() };
        let (source, target) = (&self.dirs[a.0], &self.dirs[b.0]);
        source.rename(a.1.as_bytes(), target, b.1.as_bytes(), flags).expect("exchange");
        let (first, second) = (self.model.names[&a], self.model.names[&b]);
        self.model.names.insert(a, second);
        self.model.names.insert(b, first);
    }

    fn link(&mut self) {
        let Some(at) = self.some_name() else { return };
        let to = (small(&mut self.rng, self.dirs.len() as u64) as usize, self.name());
        let linked = self.dirs[to.0].link(&self.open(&at), to.1.as_bytes());
        if self.model.names.contains_key(&to) {
            let kind = linked.expect_err("taken").kind();
            assert_eq!(kind, ErrorKind::Name(NameError::Exists));
            return;
        }
        linked.expect("linked");
        let file = self.model.names[&at];
        self.model.names.insert(to, file);
    }

    fn xattr(&mut self) {
        let Some(at) = self.some_name() else { return };
        let inode = self.open(&at);
        let name = format!("user.x{}", small(&mut self.rng, 4));
        if small(&mut self.rng, 3) == 0 {
            let removed = inode.remove_xattr(name.as_bytes()).is_ok();
            assert_eq!(removed, self.file(&at).xattrs.remove(&name).is_some());
            return;
        }
        let len = small(&mut self.rng, 300) as usize;
        let value = pattern(self.rng.next_u64(), len);
        inode.set_xattr(name.as_bytes(), &value, XattrFlags::default()).expect("set");
        self.file(&at).xattrs.insert(name, value);
    }

    fn fallocate(&mut self) {
        let Some(at) = self.some_name() else { return };
        let inode = self.open(&at);
        let (offset, len) = (small(&mut self.rng, 200_000), 1 + small(&mut self.rng, 100_000));
        let end = (offset + len) as usize;
        let keep_size = small(&mut self.rng, 2) == 0;
        let shape = small(&mut self.rng, 3);
        let mode = match shape {
            0 => FallocateMode::Allocate { keep_size },
            1 => FallocateMode::PunchHole,
            _ => FallocateMode::ZeroRange { keep_size },
        };
        inode.fallocate(offset, len, mode).expect("fallocate");
        let bytes = &mut self.file(&at).bytes;
        if shape > 0 {
            let (low, high) = ((offset as usize).min(bytes.len()), end.min(bytes.len()));
            bytes[low..high].fill(0);
        }
        if shape != 1 && !keep_size && bytes.len() < end {
            bytes.resize(end, 0);
        }
    }

    fn sync(&mut self) {
        let Some(at) = self.some_name() else { return };
        let inode = self.open(&at);
        if small(&mut self.rng, 3) == 0 {
            inode.sync().expect("sync");
        } else {
            inode.flush_data().expect("flush");
        }
    }

    fn read_part(&mut self) {
        let Some(at) = self.some_name() else { return };
        let (offset, len) = (small(&mut self.rng, 350_000), small(&mut self.rng, 70_000));
        let mut buf = vec![0xee; len as usize];
        let got = self.open(&at).read_at(offset, &mut buf).expect("read");
        let bytes = &self.file(&at).bytes;
        let low = (offset as usize).min(bytes.len());
        let high = (low + len as usize).min(bytes.len());
        assert!(buf[..got] == bytes[low..high], "{at:?} at {offset} for {len}");
    }

    fn verify_one(&mut self) {
        if let Some(at) = self.some_name() {
            self.verify(&at);
        }
    }

    fn verify(&self, at: &(usize, String)) {
        let inode = self.open(at);
        let file = &self.model.files[&self.model.names[at]];
        let bytes = content(&inode);
        assert_eq!(bytes.len(), file.bytes.len(), "length of {at:?} {:?}", inode.id());
        if let Some(wrong) = bytes.iter().zip(&file.bytes).position(|(a, b)| a != b) {
            panic!("{at:?} differs at {wrong} of {}", bytes.len());
        }
        let names = self.model.names.values().filter(|id| **id == self.model.names[at]).count();
        assert_eq!(inode.attr().nlink as usize, names, "names of {at:?}");
        let mut listed = inode.list_xattrs().expect("list");
        listed.sort();
        let known: Vec<_> = file.xattrs.keys().map(|name| name.clone().into_bytes()).collect();
        assert_eq!(listed, known);
        for (name, value) in &file.xattrs {
            assert_eq!(inode.xattr(name.as_bytes()).expect("xattr"), *value);
        }
    }

    fn verify_all(&self) {
        for (index, dir) in self.dirs.iter().enumerate() {
            let mut known: Vec<String> = Vec::new();
            for (in_dir, name) in self.model.names.keys() {
                if *in_dir == index {
                    known.push(name.clone());
                }
            }
            known.sort();
            assert_eq!(list(dir), known);
        }
        for at in self.model.names.keys() {
            self.verify(at);
        }
    }
}

/// One epoch: every thread works in directories of its own, on one mount.
fn epoch(
    device: &Arc<dyn Device>,
    models: Vec<Model>,
    snapshots: &Snapshots,
    seed: u64,
    steps: u64,
) -> Vec<Model> {
    let ways = ["rw", "compress=zstd:1", "compress-force=lzo", "compress=zlib:1", "nodatasum"];
    let fs = mount_with(device, ways[seed as usize % ways.len()]);
    snapshots.verify(&fs);
    let done = AtomicBool::new(false);
    let models = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut rng = Rng::new(seed ^ 0x5a5a);
            while !done.load(Ordering::Relaxed) {
                snapshots.step(&fs, &mut rng);
            }
        });
        let threads: Vec<_> = models
            .into_iter()
            .enumerate()
            .map(|(thread, model)| {
                let fs = fs.clone();
                scope.spawn(move || {
                    let root = fs.root();
                    let dirs = (0..3).map(|n| {
                        let name = format!("t{thread}d{n}").into_bytes();
                        root.lookup(&name)
                            .or_else(|_| root.mkdir(&name, 0o755, 0, 0))
                            .expect("a directory")
                    });
                    let dirs = dirs.collect();
                    let rng = Rng::new(seed.wrapping_mul(31) + thread as u64);
                    let mut worker = Worker { dirs, model, rng };
                    worker.verify_all();
                    for _ in 0..steps {
                        worker.step();
                    }
                    worker.verify_all();
                    worker.model
                })
            })
            .collect();
        let models: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        done.store(true, Ordering::Relaxed);
        models.into_iter().map(|model| model.expect("a worker")).collect()
    });
    snapshots.verify(&fs);
    fs.close().expect("closed");
    models
}

/// Any sequence of operations gives the model's answers, and leaves a volume without faults.
#[test]
fn any_sequence_of_operations() {
    let seed = setting("BUTTRESS_SEED", 1);
    let steps = setting("BUTTRESS_STEPS", 300);
    eprintln!("BUTTRESS_SEED={seed} BUTTRESS_STEPS={steps}");
    let device = memory(1024);
    let mut models: Vec<Model> = (0..THREADS).map(|_| Model::default()).collect();
    let snapshots = Snapshots::default();
    for round in 0..4 {
        models = epoch(&device, models, &snapshots, seed * 1000 + round, steps);
        check(&device);
    }
}

/// As `any_sequence_of_operations`, with two copies of data and a stripe tree.
#[test]
fn any_sequence_of_operations_with_a_stripe_tree() {
    let seed = setting("BUTTRESS_SEED", 3);
    let steps = setting("BUTTRESS_STEPS", 200);
    eprintln!("BUTTRESS_SEED={seed} BUTTRESS_STEPS={steps}");
    let features = Features { raid_stripe_tree: true, ..Features::default() };
    let make = MakeOptions { data: Some(Profile::Dup), features, ..MakeOptions::default() };
    let device = memory_with(1024, &make);
    let mut models: Vec<Model> = (0..THREADS).map(|_| Model::default()).collect();
    let snapshots = Snapshots::default();
    for round in 0..4 {
        models = epoch(&device, models, &snapshots, seed * 1000 + round, steps);
        expect_sound(&device);
    }
}

/// As `any_sequence_of_operations`, but through a write-back cache. Each opening of the cache has
/// other options. After a flush of the cache, the device behind it holds the whole volume.
#[test]
fn any_sequence_of_operations_on_a_cached_device() {
    let seed = setting("BUTTRESS_SEED", 2);
    let steps = setting("BUTTRESS_STEPS", 120);
    eprintln!("BUTTRESS_SEED={seed} BUTTRESS_STEPS={steps}");
    let origin = memory(512);
    let cache: Arc<dyn Device> = Arc::new(MemoryDevice::new(6 << 20));
    buttress_cache::format(Arc::clone(&cache), Some(&*origin), 4096, 0, false).expect("it fits");
    let mut models: Vec<Model> = (0..THREADS).map(|_| Model::default()).collect();
    let snapshots = Snapshots::default();
    let ways = [
        "high_watermark=30,low_watermark=10,pause_writeback=0",
        "consistent_origin=on,autocommit_time=20",
        "metadata_only,mode=pmem,max_age=5",
    ];
    for (round, way) in (0..).zip(ways) {
        let options = CacheOptions::parse(way).expect("right");
        let opened = CacheDevice::open(Arc::clone(&origin), Arc::clone(&cache), options);
        let cached = Arc::new(opened.expect("it opens"));
        let device = Arc::clone(&cached) as Arc<dyn Device>;
        models = epoch(&device, models, &snapshots, seed * 1000 + round, steps);
        expect_sound(&device);
        if round == 1 {
            cached.drain(|_| {}).expect("memory");
            check(&origin);
        }
        cached.close().expect("memory");
    }
    let options = CacheOptions::default();
    let cached = CacheDevice::open(Arc::clone(&origin), cache, options).expect("it opens");
    cached.drain(|_| {}).expect("memory");
    check(&origin);
    epoch(&origin, models, &snapshots, seed * 1000 + 9, 0);
}
