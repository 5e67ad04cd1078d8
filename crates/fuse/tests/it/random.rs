//! One file, thousands of random operations of every kind, and a vector with its expected content.
//!
//! The seed is printed; `BUTTRESS_SEED` repeats a run, `BUTTRESS_OPS` makes it longer.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use rustix::fs::{FallocateFlags, OFlags, copy_file_range, fallocate};
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};

use crate::mounted::{Mounted, mounted_with};

const LEN_MAX: u64 = 1 << 20;
const SECTOR: u64 = 4096;

/// A stream of numbers from a seed.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound.max(1)
    }

    fn range(&mut self, end: u64) -> (u64, u64) {
        let at = self.below(end);
        let longest = (end - at).min(if self.below(4) == 0 { 300_000 } else { 10_000 });
        (at, 1 + self.below(longest))
    }
}

struct Subject {
    file: File,
    direct: File,
    // This field is dropped after the files, because a mount in use does not end.
    mount: Mounted,
    wanted: Vec<u8>,
    chance: Chance,
}

fn open(mount: &Mounted, flags: OFlags) -> File {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .custom_flags(flags.bits().cast_signed())
        .open(mount.path("subject"))
        .expect("a file")
}

impl Subject {
    fn new(mount: Mounted, seed: u64) -> Self {
        let (file, direct) = (open(&mount, OFlags::empty()), open(&mount, OFlags::DIRECT));
        Self { mount, file, direct, wanted: Vec::new(), chance: Chance(seed | 1) }
    }

    fn grow(&mut self, len: u64) {
        if (self.wanted.len() as u64) < len {
            self.wanted.resize(len as usize, 0);
        }
    }

    fn fill(&mut self, at: u64, len: u64) -> Vec<u8> {
        let first = self.chance.below(256) as u8;
        let bytes: Vec<u8> = (0..len).map(|index| first.wrapping_add((index / 7) as u8)).collect();
        self.grow(at + len);
        self.wanted[at as usize..(at + len) as usize].copy_from_slice(&bytes);
        bytes
    }

    fn write(&mut self) {
        let (at, len) = self.chance.range(LEN_MAX);
        let bytes = self.fill(at, len);
        self.file.write_all_at(&bytes, at).expect("a write");
    }

    fn write_direct(&mut self) {
        let at = self.chance.below(LEN_MAX / SECTOR) * SECTOR;
        let len = (1 + self.chance.below(32)) * SECTOR;
        let bytes = self.fill(at, len);
        let mut memory = vec![0; (len + SECTOR) as usize];
        let skip = memory.as_ptr().align_offset(SECTOR as usize);
        memory[skip..skip + len as usize].copy_from_slice(&bytes);
        self.direct.write_all_at(&memory[skip..skip + len as usize], at).expect("a direct write");
    }

    fn write_mapped(&mut self) {
        let end = self.wanted.len() as u64;
        if end == 0 {
            return;
        }
        let (at, len) = self.chance.range(end);
        let bytes = self.fill(at, len);
        // SAFETY: the new mapping covers the whole file, and is unmapped at once. The file is not
        // truncated meanwhile.
        unsafe {
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            let size = end as usize;
            let memory =
                mmap(std::ptr::null_mut(), size, protection, MapFlags::SHARED, &self.file, 0);
            let memory = memory.expect("a map");
            let shown = std::slice::from_raw_parts_mut(memory.cast::<u8>(), size);
            shown[at as usize..(at + len) as usize].copy_from_slice(&bytes);
            if self.chance.below(2) == 0 {
                msync(memory, size, MsyncFlags::SYNC).expect("durable");
            }
            munmap(memory, size).expect("unmapped");
        }
    }

    fn truncate(&mut self) {
        let len = self.chance.below(LEN_MAX);
        self.file.set_len(len).expect("a length");
        self.wanted.resize(len as usize, 0);
    }

    fn allocate(&mut self) {
        let (at, len) = self.chance.range(LEN_MAX);
        let keep = FallocateFlags::KEEP_SIZE;
        let how = match self.chance.below(4) {
            0 => FallocateFlags::empty(),
            1 => keep,
            2 => FallocateFlags::PUNCH_HOLE | keep,
            _ => FallocateFlags::ZERO_RANGE,
        };
        fallocate(&self.file, how, at, len).expect("an allocation");
        if how.contains(FallocateFlags::PUNCH_HOLE) || how.contains(FallocateFlags::ZERO_RANGE) {
            let end = (self.wanted.len() as u64).min(at + len);
            if at < end {
                self.wanted[at as usize..end as usize].fill(0);
            }
        }
        if !how.contains(keep) {
            self.grow(at + len);
        }
    }

    fn copy(&mut self) {
        let end = self.wanted.len() as u64;
        let (mut from, len) = self.chance.range(end);
        let mut to = self.chance.below(LEN_MAX);
        let len = len.min(end.saturating_sub(from));
        if len == 0 || from.abs_diff(to) < len {
            return;
        }
        let bytes = self.wanted[from as usize..(from + len) as usize].to_vec();
        self.grow(to + len);
        self.wanted[to as usize..(to + len) as usize].copy_from_slice(&bytes);
        let mut left = len as usize;
        while left > 0 {
            left -= copy_file_range(&self.file, Some(&mut from), &self.file, Some(&mut to), left)
                .expect("a copy");
        }
    }

    fn read(&mut self) {
        let end = self.wanted.len() as u64;
        assert_eq!(self.file.metadata().expect("attributes").len(), end, "the length");
        if end == 0 {
            return;
        }
        let (at, len) = self.chance.range(end);
        let mut bytes = vec![0; len as usize];
        self.file.read_exact_at(&mut bytes, at).expect("a read");
        self.compare(at, &bytes);
    }

    fn read_direct(&mut self) {
        let at = self.chance.below(LEN_MAX / SECTOR) * SECTOR;
        let len = ((1 + self.chance.below(32)) * SECTOR) as usize;
        let mut memory = vec![0; len + SECTOR as usize];
        let skip = memory.as_ptr().align_offset(SECTOR as usize);
        let count = self.direct.read_at(&mut memory[skip..skip + len], at).expect("a direct read");
        let there = (self.wanted.len() as u64).saturating_sub(at);
        assert_eq!(count as u64, there.min(len as u64), "{len} bytes at {at}");
        self.compare(at, &memory[skip..skip + count]);
    }

    fn compare(&self, at: u64, bytes: &[u8]) {
        let wanted = self.wanted.get(at as usize..).unwrap_or_default();
        if let Some(index) = bytes.iter().zip(wanted).position(|(found, wanted)| found != wanted) {
            panic!("byte {} is {}, wanted {}", at + index as u64, bytes[index], wanted[index]);
        }
    }

    fn step(&mut self) -> &'static str {
        match self.chance.below(100) {
            0..25 => (self.write(), "write").1,
            25..35 => (self.write_direct(), "write_direct").1,
            35..45 => (self.write_mapped(), "write_mapped").1,
            45..52 => (self.truncate(), "truncate").1,
            52..62 => (self.allocate(), "allocate").1,
            62..67 => (self.copy(), "copy").1,
            67..87 => (self.read(), "read").1,
            87..95 => (self.read_direct(), "read_direct").1,
            _ => (self.file.sync_all().expect("durable"), "sync").1,
        }
    }

    fn check_whole(&self) {
        let content = fs::read(self.mount.path("subject")).expect("content");
        assert_eq!(content.len(), self.wanted.len());
        self.compare(0, &content);
    }

    fn again(self) -> Self {
        let Self { mount, file, direct, wanted, chance } = self;
        drop((file, direct));
        let mount = mount.again();
        let (file, direct) = (open(&mount, OFlags::empty()), open(&mount, OFlags::DIRECT));
        let subject = Self { mount, file, direct, wanted, chance };
        subject.check_whole();
        subject
    }
}

fn run(options: &str) {
    let Some(mount) = mounted_with(options) else { return };
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let now =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    let seed = number("BUTTRESS_SEED").unwrap_or(now.as_nanos() as u64);
    println!("BUTTRESS_SEED={seed}");
    let mut subject = Subject::new(mount, seed);
    for index in 0..number("BUTTRESS_OPS").unwrap_or(1500) {
        let done = subject.step();
        println!("{index}: {done}, length {}", subject.wanted.len());
        if index % 400 == 399 {
            subject.check_whole();
            subject = subject.again();
        }
    }
    subject.check_whole();
    drop(subject.again());
}

/// Runs the operations with the kernel's write-back cache.
#[test]
fn every_operation_on_one_file_cached() {
    run("writeback_cache");
}

/// Runs the operations without the kernel's write-back cache.
#[test]
fn every_operation_on_one_file_uncached() {
    run("nowriteback_cache");
}
