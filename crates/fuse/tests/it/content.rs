//! The content of files.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};

use rustix::fs::{FallocateFlags, OFlags, copy_file_range, fallocate};

use crate::mounted::{mounted, mounted_with};

const MIB: usize = 1 << 20;

fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let step = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..len).map(step).collect()
}

fn open(path: &std::path::Path) -> File {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .expect("a file")
}

/// Reads return the written bytes, for sizes around every border, even after the kernel has dropped
/// its cache.
#[test]
fn sizes_around_borders() {
    let Some(mount) = mounted() else { return };
    let sizes =
        [0, 1, 2047, 2048, 2049, 4095, 4096, 4097, 65535, 131_072, 131_073, MIB + 1, 5 * MIB];
    for size in sizes {
        fs::write(mount.path(&size.to_string()), pattern(size, size as u64)).expect("a file");
    }
    let check = |mount: &crate::mounted::Mounted| {
        for size in sizes {
            let read = fs::read(mount.path(&size.to_string())).expect("a file");
            assert!(read == pattern(size, size as u64), "{size} bytes");
        }
    };
    check(&mount);
    check(&mount.again());
}

/// Appends and overwrites give the expected file, with and without the kernel's write-back cache.
#[test]
fn appends_and_overwrites() {
    for writeback_cache in ["writeback_cache", "nowriteback_cache"] {
        let Some(mount) = mounted_with(writeback_cache) else { return };
        let mut wanted = Vec::new();
        let mut file =
            OpenOptions::new().append(true).create(true).open(mount.path("log")).expect("a log");
        for line in 0..3000 {
            let line = format!("line {line}\n");
            file.write_all(line.as_bytes()).expect("a line");
            wanted.extend_from_slice(line.as_bytes());
        }
        let other = open(&mount.path("log"));
        for (index, at) in (0..wanted.len() - 10).step_by(997).enumerate() {
            let bytes = pattern(10, index as u64);
            other.write_all_at(&bytes, at as u64).expect("an overwrite");
            wanted[at..at + 10].copy_from_slice(&bytes);
        }
        drop((file, other));
        assert!(fs::read(mount.path("log")).expect("the log") == wanted, "{writeback_cache}");
        let mount = mount.again();
        assert!(fs::read(mount.path("log")).expect("the log") == wanted, "{writeback_cache}");
    }
}

/// Files are cut and grow. The removed bytes never come back.
#[test]
fn truncation() {
    let Some(mount) = mounted() else { return };
    let path = mount.path("file");
    let file = open(&path);
    file.write_all_at(&pattern(3 * MIB, 1), 0).expect("content");
    for len in [2 * MIB + 17, MIB + 4096, 5000, 4096, 100, 0] {
        file.set_len(len as u64).expect("shorter");
        assert_eq!(file.metadata().expect("attributes").len(), len as u64);
        file.set_len((3 * MIB) as u64).expect("longer");
        let read = fs::read(&path).expect("content");
        assert!(read[..len] == pattern(3 * MIB, 1)[..len], "{len} stay");
        assert!(read[len..].iter().all(|byte| *byte == 0), "zeros behind {len}");
        file.set_len(len as u64).expect("shorter");
    }
    drop(file);
    fs::write(&path, "longer than what follows").expect("content");
    File::create(&path).expect("cut by opening").write_all(b"new").expect("content");
    assert_eq!(fs::read(&path).expect("content"), b"new");
}

/// Holes are found, cost nothing, and read as zeros.
#[test]
fn holes() {
    let Some(mount) = mounted() else { return };
    let mut file = open(&mount.path("holes"));
    for index in [1, 3] {
        file.write_all_at(&pattern(MIB, 1), index * 4 * MIB as u64).expect("data");
    }
    file.set_len(20 * MIB as u64).expect("a hole at the end");
    // Data in the kernel's write-back cache counts too, because the test syncs nothing before.
    let seek = |file: &File, at: usize, hole: bool| {
        let how = if hole {
            rustix::fs::SeekFrom::Hole(at as u64)
        } else {
            rustix::fs::SeekFrom::Data(at as u64)
        };
        rustix::fs::seek(file, how).map(|at| at as usize)
    };
    assert_eq!(seek(&file, 0, false), Ok(4 * MIB));
    assert_eq!(seek(&file, 0, true), Ok(0));
    assert_eq!(seek(&file, 4 * MIB, true), Ok(5 * MIB));
    assert_eq!(seek(&file, 5 * MIB, false), Ok(12 * MIB));
    assert_eq!(seek(&file, 13 * MIB, false), Err(rustix::io::Errno::NXIO));
    assert_eq!(seek(&file, 12 * MIB, true), Ok(13 * MIB));
    assert_eq!(seek(&file, 20 * MIB, true), Err(rustix::io::Errno::NXIO));
    file.sync_all().expect("durable");
    let used = file.metadata().expect("attributes").blocks() * 512;
    assert!(used <= 3 * MIB as u64, "{used} bytes for 2 MiB of data");
    let mut all = Vec::new();
    file.seek(SeekFrom::Start(0)).expect("the start");
    file.read_to_end(&mut all).expect("content");
    assert_eq!(all.len(), 20 * MIB);
    assert!(all[..4 * MIB].iter().all(|byte| *byte == 0));
}

/// Space can be preallocated, given back, and zeroed. Unknown modes are refused.
#[test]
fn allocation() {
    let Some(mount) = mounted() else { return };
    let file = open(&mount.path("file"));
    fallocate(&file, FallocateFlags::empty(), 0, 4 * MIB as u64).expect("space");
    assert_eq!(file.metadata().expect("attributes").len(), 4 * MIB as u64);
    fallocate(&file, FallocateFlags::KEEP_SIZE, 4 * MIB as u64, MIB as u64)
        .expect("space behind the end");
    assert_eq!(file.metadata().expect("attributes").len(), 4 * MIB as u64);
    file.write_all_at(&pattern(4 * MIB, 2), 0).expect("into that space");
    file.sync_all().expect("durable");
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&file, punch, MIB as u64 + 100, MIB as u64).expect("a hole");
    fallocate(&file, FallocateFlags::ZERO_RANGE, 3 * MIB as u64, 1000).expect("zeros");
    let mut wanted = pattern(4 * MIB, 2);
    wanted[MIB + 100..2 * MIB + 100].fill(0);
    wanted[3 * MIB..3 * MIB + 1000].fill(0);
    assert!(fs::read(mount.path("file")).expect("content") == wanted);
    let collapse = fallocate(&file, FallocateFlags::COLLAPSE_RANGE, 0, 4096);
    assert_eq!(collapse, Err(rustix::io::Errno::OPNOTSUPP));
    drop(file);
    let mount = mount.again();
    assert!(fs::read(mount.path("file")).expect("content") == wanted);
}

/// The bytes of one file are copied into another file without passing through the program.
#[test]
fn copies() {
    let Some(mount) = mounted() else { return };
    let content = pattern(3 * MIB + 123, 9);
    fs::write(mount.path("from"), &content).expect("a file");
    let (from, to) = (open(&mount.path("from")), open(&mount.path("to")));
    let (mut read_at, mut write_at) = (0_u64, 4096_u64);
    loop {
        let count = copy_file_range(&from, Some(&mut read_at), &to, Some(&mut write_at), 10 * MIB)
            .expect("a copy");
        if count == 0 {
            break;
        }
    }
    assert_eq!(read_at, content.len() as u64);
    let copy = fs::read(mount.path("to")).expect("the copy");
    assert!(copy[..4096].iter().all(|byte| *byte == 0));
    assert!(copy[4096..] == content);
}

/// `cp` takes no space, because the copy shares its data until one of the two files changes.
#[test]
fn copies_are_shared() {
    for way in ["none", "zstd"] {
        let Some(mount) = mounted() else { return };
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(mount.path(""), "btrfs.compression", way.as_bytes(), flags)
            .expect("a property");
        let content = "some words ".repeat(4 * MIB).into_bytes();
        fs::write(mount.path("from"), &content).expect("a file");
        open(&mount.path("from")).sync_all().expect("a sync");
        let free = || rustix::fs::statvfs(mount.path("")).expect("the volume").f_bavail;
        let before = free();
        let copied = std::process::Command::new("cp")
            .args([mount.path("from"), mount.path("to")])
            .status()
            .expect("cp");
        assert!(copied.success());
        open(&mount.path("to")).sync_all().expect("a sync");
        assert!(before - free() < (2 * MIB / 4096) as u64, "{way}: it was copied");
        open(&mount.path("from")).write_all_at(&[1; 100_000], 5 << 20).expect("a write");
        assert!(fs::read(mount.path("to")).expect("the copy") == content, "{way}");
    }
}

/// A mapping of a file, and reads and writes of the file, see the same content.
#[test]
fn memory_maps() {
    use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
    let Some(mount) = mounted() else { return };
    let file = open(&mount.path("mapped"));
    file.write_all_at(&pattern(MIB, 3), 0).expect("content");
    let mut wanted = pattern(MIB, 3);
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the new mapping covers the whole file, and is unmapped once, at the end. The file is
    // not truncated.
    unsafe {
        let memory =
            mmap(std::ptr::null_mut(), MIB, protection, MapFlags::SHARED, &file, 0).expect("a map");
        let bytes = std::slice::from_raw_parts_mut(memory.cast::<u8>(), MIB);
        assert!(bytes == wanted, "the map shows what was written");
        bytes[5000..6000].fill(0xaa);
        file.write_all_at(&[0xbb; 1000], 7000).expect("a write beside");
        assert_eq!(bytes[7500], 0xbb, "the map shows what is written");
        msync(memory, MIB, MsyncFlags::SYNC).expect("durable");
        munmap(memory, MIB).expect("unmapped");
    }
    wanted[5000..6000].fill(0xaa);
    wanted[7000..8000].fill(0xbb);
    drop(file);
    assert!(fs::read(mount.path("mapped")).expect("content") == wanted);
    let mount = mount.again();
    assert!(fs::read(mount.path("mapped")).expect("content") == wanted);
}

/// Direct I/O sees the data of the cache, and the cache sees data that direct I/O wrote.
#[test]
fn direct_io() {
    let Some(mount) = mounted() else { return };
    let path = mount.path("direct");
    fs::write(&path, pattern(MIB, 4)).expect("through the cache");
    let direct = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(OFlags::DIRECT.bits().cast_signed())
        .open(&path)
        .expect("direct");
    let mut memory = vec![0_u8; 3 * 65536];
    let skip = memory.as_ptr().align_offset(4096);
    let buffer = &mut memory[skip..skip + 65536];
    direct.read_exact_at(buffer, 65536).expect("a read");
    assert!(*buffer == pattern(MIB, 4)[65536..131_072]);
    buffer.fill(0xcc);
    direct.write_all_at(buffer, 0).expect("a write");
    let mut wanted = pattern(MIB, 4);
    wanted[..65536].fill(0xcc);
    assert!(fs::read(&path).expect("through the cache") == wanted);
    let threads: Vec<_> = (0..8_u8)
        .map(|index| {
            let file = direct.try_clone().expect("a descriptor");
            std::thread::spawn(move || {
                let mut memory = vec![index; 3 * 65536];
                let skip = memory.as_ptr().align_offset(4096);
                let buffer = &mut memory[skip..skip + 65536];
                for _ in 0..20 {
                    file.write_all_at(buffer, u64::from(index) * 65536).expect("a write");
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().expect("a writer");
    }
    let read = fs::read(&path).expect("content");
    for index in 0..8_usize {
        assert!(
            read[index * 65536..(index + 1) * 65536].iter().all(|byte| usize::from(*byte) == index)
        );
    }
}

/// Calls that make data durable return. The test calls them for files and directories, and makes
/// synchronous writes.
#[test]
fn synchronous_writes() {
    let Some(mount) = mounted() else { return };
    let file = open(&mount.path("file"));
    for round in 0..20 {
        file.write_all_at(&pattern(4096, round), round * 4096).expect("content");
        if round % 2 == 0 { file.sync_all() } else { file.sync_data() }.expect("durable");
    }
    File::open(mount.path("")).expect("the root").sync_all().expect("durable");
    for flags in [OFlags::SYNC, OFlags::DSYNC, OFlags::SYNC | OFlags::DIRECT] {
        let mut memory = vec![1_u8; 3 * 4096];
        let skip = memory.as_ptr().align_offset(4096);
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .custom_flags(flags.bits().cast_signed())
            .open(mount.path("synchronous"))
            .expect("a file");
        file.write_all_at(&memory[skip..skip + 4096], 0).expect("a write");
        memory.clear();
    }
}
