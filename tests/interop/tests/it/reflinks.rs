//! Files that share extents, compressed and not: Linux and this library take turns and write into
//! the shared files of each other. All views are the same, and no checker finds a fault.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use buttress_base::Rng;
use buttress_fs::{FallocateMode, Filesystem, Inode, NewInode, SetAttr, XattrFlags};
use buttress_interop::linux::{Images, has_linux_btrfs};
use buttress_interop::sample::{noise, words};
use rustix::fs::{FallocateFlags, copy_file_range, fallocate};

use crate::open::{close, open_with};

const FILES: u64 = 6;
const STEPS: u64 = 120;
const PAGE: u64 = 4096;

/// The operations on files, by name, that both sides have.
trait Side {
    fn write(&self, name: &str, offset: u64, data: &[u8]);
    fn cut(&self, name: &str, len: u64);
    fn punch(&self, name: &str, offset: u64, len: u64);
    fn allocate(&self, name: &str, offset: u64, len: u64);
    fn share(&self, from: (&str, u64), to: (&str, u64), len: u64);
    fn pack(&self, name: &str, way: &str);
    fn content(&self, name: &str) -> Vec<u8>;
    fn flush(&self);
}

struct Ours(Filesystem);

impl Ours {
    fn open(&self, name: &str) -> Inode {
        let root = self.0.root();
        root.lookup(name.as_bytes())
            .or_else(|_| root.create(name.as_bytes(), NewInode::file(0o644)))
            .expect("a file")
    }
}

impl Side for Ours {
    fn write(&self, name: &str, offset: u64, data: &[u8]) {
        self.open(name).write_at(offset, data).expect("a write");
    }
    fn cut(&self, name: &str, len: u64) {
        let set = SetAttr { size: Some(len), ..SetAttr::default() };
        self.open(name).set_attr(&set).expect("a length");
    }
    fn punch(&self, name: &str, offset: u64, len: u64) {
        self.open(name).fallocate(offset, len, FallocateMode::PunchHole).expect("a hole");
    }
    fn allocate(&self, name: &str, offset: u64, len: u64) {
        let mode = FallocateMode::Allocate { keep_size: true };
        self.open(name).fallocate(offset, len, mode).expect("space");
    }
    fn share(&self, from: (&str, u64), to: (&str, u64), len: u64) {
        let (source, target) = (self.open(from.0), self.open(to.0));
        assert_eq!(source.copy_range(from.1, &target, to.1, len).expect("a copy"), len);
    }
    fn pack(&self, name: &str, way: &str) {
        let flags = XattrFlags::default();
        self.open(name).set_xattr(b"btrfs.compression", way.as_bytes(), flags).expect("a property");
    }
    fn content(&self, name: &str) -> Vec<u8> {
        let inode = self.open(name);
        let mut bytes = vec![0; inode.attr().size as usize];
        assert_eq!(inode.read_at(0, &mut bytes).expect("a read"), bytes.len());
        bytes
    }
    fn flush(&self) {
        self.0.sync().expect("a sync");
    }
}

struct Linux<'p>(&'p Path);

impl Linux<'_> {
    fn open(&self, name: &str) -> File {
        OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(self.0.join(name))
            .expect("a file")
    }
}

impl Side for Linux<'_> {
    fn write(&self, name: &str, offset: u64, data: &[u8]) {
        self.open(name).write_all_at(data, offset).expect("a write");
    }
    fn cut(&self, name: &str, len: u64) {
        self.open(name).set_len(len).expect("a length");
    }
    fn punch(&self, name: &str, offset: u64, len: u64) {
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(self.open(name), how, offset, len).expect("a hole");
    }
    fn allocate(&self, name: &str, offset: u64, len: u64) {
        fallocate(self.open(name), FallocateFlags::KEEP_SIZE, offset, len).expect("space");
    }
    fn share(&self, from: (&str, u64), to: (&str, u64), len: u64) {
        let (source, target) = (self.open(from.0), self.open(to.0));
        let (mut at, mut to, mut left) = (from.1, to.1, len);
        while left > 0 {
            let part = usize::try_from(left).expect("small");
            let done = copy_file_range(&source, Some(&mut at), &target, Some(&mut to), part);
            left -= done.expect("a copy") as u64;
        }
    }
    fn pack(&self, name: &str, way: &str) {
        let path = self.0.join(name);
        self.open(name);
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(path, "btrfs.compression", way.as_bytes(), flags).expect("a property");
    }
    fn content(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.0.join(name)).expect("a file")
    }
    fn flush(&self) {
        rustix::fs::syncfs(File::open(self.0).expect("the mount")).expect("a sync");
    }
}

type Model = BTreeMap<String, Vec<u8>>;

fn place(bytes: &mut Vec<u8>, offset: u64, data: &[u8]) {
    let (low, high) = (offset as usize, offset as usize + data.len());
    if bytes.len() < high {
        bytes.resize(high, 0);
    }
    bytes[low..high].copy_from_slice(data);
}

fn step(there: &dyn Side, model: &mut Model, packs: bool, rng: &mut Rng) {
    let name = format!("f{}", rng.below(FILES));
    let other = format!("f{}", rng.below(FILES));
    let mut bytes = model.remove(&name).unwrap_or_default();
    match rng.below(14) {
        0..=3 => {
            let len = (1 + rng.below(90)) * PAGE - rng.below(2) * rng.below(PAGE);
            let offset = rng.below(100) * PAGE + rng.below(2) * rng.below(PAGE);
            let make = if rng.chance(1, 3) { noise } else { words };
            let data = make(rng.next_u64(), len as usize);
            there.write(&name, offset, &data);
            place(&mut bytes, offset, &data);
        }
        4 => {
            let len = rng.below(bytes.len() as u64 + 5000);
            there.write(&name, 0, b"");
            there.cut(&name, len);
            bytes.resize(len as usize, 0);
        }
        5 => {
            let (offset, len) = (rng.below(400_000), 1 + rng.below(60_000));
            there.write(&name, 0, b"");
            there.punch(&name, offset, len);
            let high = bytes.len().min((offset + len) as usize);
            let low = high.min(offset as usize);
            bytes[low..high].fill(0);
        }
        6 if rng.chance(1, 4) => there.allocate(&name, rng.below(400_000), 1 + rng.below(60_000)),
        7 if packs => there.pack(&name, rng.choose(&["zlib", "lzo", "zstd"]).expect("some")),
        8 => there.flush(),
        _ if bytes.len() as u64 > PAGE => {
            let size = bytes.len() as u64;
            let from = rng.below(size / PAGE) * PAGE;
            let to = rng.below(120) * PAGE + rng.below(4) / 3 * 100;
            let len = if rng.chance(1, 2) { size - from } else { PAGE * (1 + rng.below(40)) };
            let len = len.min(size - from);
            if name != other || from.abs_diff(to) >= len + PAGE {
                there.share((&name, from), (&other, to), len);
                let data = bytes[from as usize..(from + len) as usize].to_vec();
                if name == other {
                    place(&mut bytes, to, &data);
                } else {
                    place(model.entry(other).or_default(), to, &data);
                }
            }
        }
        _ => there.write(&name, 0, b""),
    }
    model.insert(name, bytes);
}

#[track_caller]
fn assert_same(there: &dyn Side, model: &Model, side: &str) {
    for (name, bytes) in model {
        let seen = there.content(name);
        assert_eq!(seen.len(), bytes.len(), "{side}: length of {name}");
        let wrong = seen.iter().zip(bytes).position(|(a, b)| a != b);
        assert_eq!(wrong, None, "{side}: {name} differs there");
    }
}

fn work(there: &dyn Side, model: &mut Model, packs: bool, rng: &mut Rng) {
    // Every file is created before its first use.
    for number in 0..FILES {
        let name = format!("f{number}");
        model.entry(name.clone()).or_insert_with(|| {
            there.write(&name, 0, b"first");
            b"first".to_vec()
        });
    }
    for _ in 0..STEPS {
        step(there, model, packs, rng);
    }
}

fn back_and_forth(seed: u64, mkfs: &[&str], linux: &str, ours: &str) {
    if !has_linux_btrfs() {
        return;
    }
    let images = Images::new(1, 512 << 20);
    images.mkfs(mkfs);
    let mut rng = Rng::new(seed);
    let mut model = Model::new();
    // Files that are overwritten in place cannot be compressed.
    let packs = linux != "nodatacow";
    for round in 0..3 {
        let mount = images.mount(linux);
        assert_same(&Linux(mount.path()), &model, "Linux");
        work(&Linux(mount.path()), &mut model, packs, &mut rng);
        if round > 0 {
            let scrub = mount.btrfs("scrub start -B -R");
            for line in scrub.lines().filter(|line| line.contains("errors:")) {
                assert!(line.trim_end().ends_with(" 0"), "scrub: {scrub}");
            }
        }
        mount.unmount();
        let there = Ours(open_with(images.paths(), ours));
        assert_eq!(there.0.read_only_reason(), None);
        assert_same(&there, &model, "the library");
        work(&there, &mut model, packs, &mut rng);
        assert_same(&there, &model, "the library, later");
        close(there.0);
        images.check();
    }
    let mount = images.mount("ro");
    assert_same(&Linux(mount.path()), &model, "Linux at the end");
    mount.unmount();
}

/// Only files with the property are compressed.
#[test]
fn plain() {
    back_and_forth(1, &[], "", "rw");
}

/// Everything is compressed, by each side with another codec.
#[test]
fn packed() {
    back_and_forth(2, &[], "compress-force=zstd", "compress-force=lzo");
}

/// The codecs are exchanged, and each side compresses only if that seems worthwhile.
#[test]
fn packed_where_it_looks_worth_it() {
    back_and_forth(3, &[], "compress=lzo", "compress=zstd:1");
}

/// Holes have items, and checksums are long.
#[test]
fn explicit_holes() {
    let mkfs = ["-O", "^no-holes", "--csum", "xxhash"];
    back_and_forth(4, &mkfs, "compress-force=zlib", "compress-force=zlib");
}

/// Nothing has checksums. Extents that are not shared are overwritten in place, by Linux and by us.
#[test]
fn in_place() {
    back_and_forth(5, &[], "nodatacow", "nodatacow");
}
