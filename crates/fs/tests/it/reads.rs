//! Reads through the page cache: the requests are long, and no read returns old or bad bytes.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use buttress_base::Rng;
use buttress_block::{Device, Error};
use buttress_format::Profile;
use buttress_fs::{FallocateMode, Filesystem, MakeOptions, MountOptions, SetAttr};

use crate::checker::check;
use crate::devices::{Hook, Hooked};
use crate::volume::{content, file_with, memory, memory_with, mount, mount_with, pattern, setting};

const SECTOR: usize = 4096;
const MIB: usize = 1 << 20;

/// The length of each read. Reads of the size of a node are not recorded.
#[derive(Debug, Default)]
struct Watched(Mutex<Vec<u64>>);

impl Hook for Watched {
    fn read(&self, below: &dyn Device, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        if buf.len() != 16384 {
            self.0.lock().expect("a list").push(buf.len() as u64);
        }
        below.read_at(offset, buf)
    }
}

/// Reads a file from its beginning to its end in pieces of 32 KiB, with `threads` threads. Returns
/// the number of device requests and their bytes.
fn read_cold(below: &Arc<dyn Device>, threads: usize, options: &str, len: usize) -> (usize, u64) {
    let watched = Hooked::new(below, Watched::default());
    let options = MountOptions::parse(options).expect("known options");
    let fs = Filesystem::open(vec![watched.clone()], options).expect("a mount");
    let file = fs.resolve("large").expect("a file");
    watched.hook.0.lock().expect("a list").clear();
    let expected = pattern(9, len);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut buf = vec![0; 32768];
                for offset in (0..len).step_by(buf.len()) {
                    let found = file.read_at(offset as u64, &mut buf).expect("a read");
                    assert_eq!(buf[..found], expected[offset..offset + found], "at {offset}");
                }
            });
        }
    });
    let reads = watched.hook.0.lock().expect("a list").clone();
    drop(file);
    fs.close().expect("a close");
    (reads.len(), reads.iter().sum())
}

/// Tests R1 and R6.
/// However many threads read a file, the requests are as long as the requests of one thread. Each
/// block is requested once. With a `read_batch` of one page, the device gets a request for each
/// page.
#[test]
fn many_readers_make_long_requests() {
    let device = memory(256);
    let len = 48 * MIB;
    let fs = mount(&device);
    file_with(&fs.root(), "large", &pattern(9, len));
    fs.close().expect("a close");
    let (alone, bytes) = read_cold(&device, 1, "ro", len);
    assert_eq!(bytes, len as u64, "each block once");
    assert!(alone <= len / MIB, "{alone} requests");
    for threads in [2, 4, 16, 64] {
        let (requests, bytes) = read_cold(&device, threads, "ro", len);
        assert_eq!(bytes, len as u64, "each block once, {threads} threads");
        assert!(requests * 9 <= alone * 10, "{threads} threads: {requests} requests, one: {alone}");
    }
    let (requests, bytes) = read_cold(&device, 4, "ro,read_batch=1", len);
    assert_eq!((requests, bytes), (len / SECTOR, len as u64));
    let (requests, _) = read_cold(&device, 4, "ro,read_batch=16", len);
    assert!((len / 65536..len / 32768).contains(&requests), "{requests} requests of 64 KiB");
}

/// Tests R2.
/// Reads never return old bytes of sectors that are overwritten, in place or not.
#[test]
fn overwritten_bytes_are_not_read_old() {
    let seed = setting("BUTTRESS_SEED", 3);
    for options in ["nodatacow,page_cache=2m", "page_cache=2m"] {
        let device = memory(256);
        let fs = mount_with(&device, options);
        let sectors = 1024;
        let file = file_with(&fs.root(), "file", &vec![0; sectors * SECTOR]);
        file.sync().expect("a sync");
        let told: Vec<AtomicU64> = (0..sectors).map(|_| AtomicU64::new(0)).collect();
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            for reader in 0..2 {
                let (file, told, done) = (&file, &told, &done);
                scope.spawn(move || {
                    let mut rng = Rng::new(seed * 10 + reader);
                    let mut buf = vec![0; 32 * SECTOR];
                    while !done.load(Ordering::Relaxed) {
                        let first = rng.below(sectors as u64 - 32) as usize;
                        let count = rng.range(1..33) as usize;
                        let least: Vec<u64> = told[first..first + count]
                            .iter()
                            .map(|stamp| stamp.load(Ordering::SeqCst))
                            .collect();
                        let buf = &mut buf[..count * SECTOR];
                        file.read_at((first * SECTOR) as u64, buf).expect("a read");
                        for (index, sector) in buf.chunks(SECTOR).enumerate() {
                            let found =
                                u64::from_le_bytes(sector[..8].try_into().expect("eight bytes"));
                            let at = first + index;
                            assert!(found >= least[index], "{options}: {at}: {found}, seed {seed}");
                        }
                    }
                });
            }
            let mut rng = Rng::new(seed);
            for stamp in 1..1500_u64 {
                let first = rng.below(sectors as u64 - 8) as usize;
                let count = rng.range(1..9) as usize;
                let mut bytes = vec![0; count * SECTOR];
                bytes.chunks_mut(SECTOR).for_each(|s| s[..8].copy_from_slice(&stamp.to_le_bytes()));
                let offset = (first * SECTOR) as u64;
                if rng.chance(2, 3) {
                    file.write_direct(offset, &bytes).expect("a write");
                } else {
                    file.write_at(offset, &bytes).expect("a write");
                }
                told[first..first + count].iter().for_each(|s| s.store(stamp, Ordering::SeqCst));
                if rng.chance(1, 50) {
                    file.sync().expect("a sync");
                }
            }
            done.store(true, Ordering::Relaxed);
        });
        drop(file);
        fs.close().expect("a close");
        check(&device);
    }
}

/// Tests R10.
/// A bad sector that is only read ahead fails no read. A read of the sector itself fails, and all
/// other reads are right.
#[test]
fn bad_sector_ahead_spoils_nothing() {
    let made = MakeOptions { data: Some(Profile::Single), ..MakeOptions::default() };
    let device = memory_with(256, &made);
    let len = 4 * MIB;
    let bytes = pattern(9, len);
    let fs = mount(&device);
    file_with(&fs.root(), "file", &bytes);
    fs.close().expect("a close");
    let bad = 300 * SECTOR;
    let mut whole = vec![0; device.len() as usize];
    device.read_at(0, &mut whole).expect("the device");
    let wanted = &bytes[bad..bad + SECTOR];
    let places = (0..whole.len()).step_by(SECTOR).filter(|at| whole[*at..].starts_with(wanted));
    let places: Vec<_> = places.collect();
    assert_eq!(places.len(), 1, "data has one copy");
    device.write_at(places[0] as u64 + 77, &[!whole[places[0] + 77]]).expect("damage");

    let watched = Hooked::new(&device, Watched::default());
    let options = MountOptions::parse("ro").expect("known options");
    let fs = Filesystem::open(vec![watched.clone()], options).expect("a mount");
    let file = fs.resolve("file").expect("a file");
    let mut buf = vec![0; 4 * SECTOR];
    for offset in (0..len).step_by(buf.len()) {
        let found = file.read_at(offset as u64, &mut buf);
        if (offset..offset + buf.len()).contains(&bad) {
            found.expect_err("no mirror is right");
        } else {
            assert_eq!(found.expect("a read"), buf.len(), "at {offset}");
            assert_eq!(buf, bytes[offset..offset + buf.len()], "at {offset}");
        }
    }
    let read: u64 = watched.hook.0.lock().expect("a list").iter().sum();
    assert!(read < 3 * len as u64, "{read} bytes were read of {len}");
    drop(file);
    fs.close().expect("a close");
}

/// A thread that reads a large file once, in pieces smaller than sectors, evicts no data that other
/// readers use.
#[test]
fn a_scan_in_small_pieces_drives_out_nothing_that_is_used() {
    let device = memory(256);
    let fs = mount(&device);
    let hot = pattern(3, 8 * MIB);
    file_with(&fs.root(), "hot", &hot);
    file_with(&fs.root(), "large", &pattern(9, 48 * MIB));
    fs.close().expect("a close");
    let watched = Hooked::new(&device, Watched::default());
    let options = MountOptions::parse("ro,page_cache=16m").expect("known options");
    let fs = Filesystem::open(vec![watched.clone()], options).expect("a mount");
    let mut buf = vec![0; 32 << 10];
    let mut read = |name: &str, piece: usize| {
        let file = fs.resolve(name).expect("a file");
        let len = file.attr().size as usize;
        watched.hook.0.lock().expect("a list").clear();
        for offset in (0..len).step_by(piece) {
            file.read_at(offset as u64, &mut buf[..piece]).expect("a read");
        }
        watched.hook.0.lock().expect("a list").iter().sum::<u64>()
    };
    (0..3).for_each(|_| _ = read("hot", 32 << 10));
    read("large", 1 << 10);
    let again = read("hot", 32 << 10);
    assert!(again < 2 * MIB as u64, "{again} bytes of what is used were read again");
    fs.close().expect("a close");
}

/// Tests R4 and R5.
/// A file has several parts of one compressed extent side by side, one of them twice. Each part
/// reads as its own bytes.
#[test]
fn parts_of_a_compressed_extent_lie_side_by_side() {
    let device = memory(256);
    let fs = mount_with(&device, "compress-force=zstd");
    let word = |n: usize| format!("{:>15}\n", n / 16).into_bytes()[n % 16];
    let bytes: Vec<u8> = (0..128 << 10).map(word).collect();
    let source = file_with(&fs.root(), "source", &bytes);
    source.sync().expect("a sync");
    let target = file_with(&fs.root(), "target", b"");
    let parts = [(0, 64), (0, 64), (32, 96), (64, 128), (0, 32), (96, 100)];
    let mut expected = Vec::new();
    for (low, high) in parts.map(|(low, high)| (low << 10, high << 10)) {
        let at = expected.len() as u64;
        source.clone_range(low as u64, &target, at, (high - low) as u64).expect("a clone");
        expected.extend_from_slice(&bytes[low..high]);
    }
    drop((source, target));
    fs.close().expect("a close");
    check(&device);
    for piece in [512 << 10, 4096, 12_000] {
        let fs = mount_with(&device, "ro");
        let file = fs.resolve("target").expect("a file");
        let mut buf = vec![0; piece];
        for offset in (0..expected.len()).step_by(piece) {
            let found = file.read_at(offset as u64, &mut buf).expect("a read");
            assert_eq!(found, piece.min(expected.len() - offset));
            assert!(buf[..found] == expected[offset..offset + found], "{offset} by {piece}");
        }
        drop(file);
        fs.close().expect("a close");
    }
}

/// Tests R7 and R8.
/// While a file is cut, grown and written again, a read returns bytes that belong to the place of
/// the read, or zeros. Data that is partly dirty, partly on its way and partly on the device is
/// read whole.
#[test]
fn file_that_is_cut_and_written_is_read_right() {
    let device = memory(256);
    let fs = mount_with(&device, "page_cache=1m");
    let len = MIB;
    let file = file_with(&fs.root(), "file", &vec![0; len]);
    // A byte encodes its place, and zero means that nothing is there.
    let byte = |at: usize| (at / 100 % 255) as u8 + 1;
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for reader in 0..2 {
            let (file, done) = (&file, &done);
            scope.spawn(move || {
                let mut rng = Rng::new(reader);
                let mut buf = vec![0; 50_000];
                while !done.load(Ordering::Relaxed) {
                    let at = rng.below((len - buf.len()) as u64) as usize;
                    let found = file.read_at(at as u64, &mut buf).expect("a read");
                    let wrong = (0..found).find(|n| buf[*n] != 0 && buf[*n] != byte(at + n));
                    assert_eq!(wrong, None, "at {at}");
                }
            });
        }
        let writer = scope.spawn(|| {
            let mut rng = Rng::new(7);
            for round in 0..400 {
                let at = rng.below(len as u64 - 70_000) as usize;
                let bytes: Vec<u8> = (at..at + rng.range(1..70_000) as usize).map(byte).collect();
                file.write_at(at as u64, &bytes).expect("a write");
                match round % 8 {
                    3 => {
                        let size = Some(rng.below(len as u64));
                        let attr = SetAttr { size, ..SetAttr::default() };
                        file.set_attr(&attr).expect("a cut");
                    }
                    5 => {
                        let attr = SetAttr { size: Some(len as u64), ..SetAttr::default() };
                        file.set_attr(&attr).expect("growth");
                    }
                    7 => file.sync().expect("a sync"),
                    _ => {}
                }
            }
        });
        writer.join().expect("the writer");
        done.store(true, Ordering::Relaxed);
    });
    drop(file);
    fs.close().expect("a close");
    check(&device);
}

/// Tests R9.
/// One read covers extents of the last commit, extents of this transaction, and data still in
/// memory.
#[test]
fn one_read_joins_old_and_new_extents() {
    let device = memory(256);
    let fs = mount(&device);
    let mut expected = pattern(1, MIB);
    let file = file_with(&fs.root(), "file", &expected);
    fs.sync().expect("a commit");
    let mut change = |seed: u64, direct: bool| {
        for at in (seed as usize * SECTOR..MIB - SECTOR).step_by(16 * SECTOR) {
            let new = pattern(seed + at as u64, SECTOR);
            expected[at..at + SECTOR].copy_from_slice(&new);
            if direct {
                file.write_direct(at as u64, &new).expect("a write");
            } else {
                file.write_at(at as u64, &new).expect("a write");
            }
        }
    };
    change(3, true);
    change(7, false);
    for piece in [MIB, 100_000, SECTOR] {
        let mut buf = vec![0; piece];
        for offset in (0..MIB).step_by(piece) {
            let found = file.read_at(offset as u64, &mut buf).expect("a read");
            assert!(buf[..found] == expected[offset..offset + found], "{offset} by {piece}");
        }
    }
    drop(file);
    fs.close().expect("a close");
    check(&device);
}

/// A file has plain and compressed extents, holes and preallocated parts. Several threads read it
/// in order, backwards and in strides. Read-ahead goes from each extent to the next, and all bytes
/// are right.
#[test]
fn a_mosaic_is_read_ahead() {
    let device = memory(256);
    let fs = mount_with(&device, "compress=zstd");
    let piece = 192 << 10;
    let len = 60 * piece;
    let mut expected = vec![0; len];
    let file = file_with(&fs.root(), "file", b"");
    let text = |n: usize| b"what lies here is soon read again. "[n % 35];
    for index in 0..len / piece {
        let at = index * piece;
        let bytes: Vec<u8> = match index % 5 {
            0 | 3 => pattern(index as u64, piece),
            1 | 4 => (at..at + piece).map(text).collect(),
            _ => continue,
        };
        file.write_at(at as u64, &bytes).expect("a write");
        expected[at..at + piece].copy_from_slice(&bytes);
        if index % 7 == 0 {
            file.sync().expect("a sync");
        }
    }
    let mode = FallocateMode::Allocate { keep_size: false };
    file.fallocate(2 * piece as u64, piece as u64, mode).expect("space");
    drop(file);
    fs.close().expect("a close");
    check(&device);
    for options in ["ro", "ro,page_cache=3m"] {
        let fs = mount_with(&device, options);
        let file = fs.resolve("file").expect("a file");
        let read = |at: usize, len: usize| {
            let mut buf = vec![7; len];
            let found = file.read_at(at as u64, &mut buf).expect("a read");
            assert_eq!(found, len.min(expected.len() - at));
            assert!(buf[..found] == expected[at..at + found], "{at}, {options}");
        };
        thread::scope(|scope| {
            scope.spawn(|| (0..len).step_by(32768).for_each(|at| read(at, 32768)));
            scope.spawn(|| (0..len).step_by(20_000).for_each(|at| read(at, 20_000)));
            scope.spawn(|| (0..len).rev().step_by(16384).for_each(|at| read(at & !16383, 16384)));
            scope.spawn(|| (0..len - 8192).step_by(90_112).for_each(|at| read(at, 8192)));
        });
        drop(file);
        fs.close().expect("a close");
    }
}

/// Dirty data stays in memory until it is written, however much other data is read.
#[test]
fn reading_drops_nothing_that_is_dirty() {
    let device = memory(256);
    let fs = mount_with(&device, "page_cache=1m,commit=3600");
    let large = file_with(&fs.root(), "large", &pattern(2, 8 * MIB));
    fs.sync().expect("a commit");
    let file = file_with(&fs.root(), "dirty", &pattern(3, 2 * MIB));
    let mut buf = vec![0; 32768];
    for at in (0..8 * MIB).step_by(buf.len()) {
        large.read_at(at as u64, &mut buf).expect("a read");
    }
    assert!(content(&file) == pattern(3, 2 * MIB));
    drop((file, large));
    fs.close().expect("a close");
    let fs = mount(&device);
    assert!(content(&fs.resolve("dirty").expect("a file")) == pattern(3, 2 * MIB));
    fs.close().expect("a close");
    check(&device);
}

/// A direct read also returns dirty and cached bytes, and verifies the bytes that it reads. It adds
/// nothing to the page cache, so each direct read costs a request.
#[test]
fn direct_reads_keep_nothing() {
    let device = memory(256);
    let fs = mount_with(&device, "compress=zstd");
    let len = 4 * MIB;
    let expected = pattern(9, len);
    file_with(&fs.root(), "plain", &expected);
    let text: Vec<u8> = (0..len).map(|n| b"many words of few letters, "[n % 27]).collect();
    file_with(&fs.root(), "packed", &text);
    fs.close().expect("a close");
    check(&device);
    let watched = Hooked::new(&device, Watched::default());
    let options = MountOptions::parse("rw,noatime,commit=300").expect("known options");
    let fs = Filesystem::open(vec![watched.clone()], options).expect("a mount");
    let all = |name: &str, expected: &[u8], piece: usize| {
        let file = fs.resolve(name).expect("a file");
        watched.hook.0.lock().expect("a list").clear();
        let mut buf = vec![0; piece];
        for at in (0..len).step_by(piece) {
            let found = file.read_direct(at as u64, &mut buf).expect("a read");
            assert_eq!(found, piece.min(len - at), "{name} at {at}");
            assert!(buf[..found] == expected[at..at + found], "{name} at {at} by {piece}");
        }
        watched.hook.0.lock().expect("a list").clone()
    };
    for piece in [2 * SECTOR, 64 << 10, MIB] {
        for _ in 0..2 {
            assert_eq!(all("plain", &expected, piece), vec![piece as u64; len / piece]);
        }
    }
    for piece in [1000, 5000, 128 << 10, 3_000_000] {
        all("plain", &expected, piece);
        all("packed", &text, piece);
    }
    // Read dirty data directly, and data that other reads had cached.
    let mut expected = expected;
    let file = fs.resolve("plain").expect("a file");
    file.write_at(5 * SECTOR as u64 + 7, &[1; 3 * SECTOR]).expect("a write");
    expected[5 * SECTOR + 7..][..3 * SECTOR].fill(1);
    assert!(content(&file) == expected);
    all("plain", &expected, 3 * SECTOR);
    file.sync().expect("a sync");
    assert_eq!(all("plain", &expected, 64 << 10).iter().filter(|len| **len > 65536).count(), 0);
    assert_eq!(file.read_direct(len as u64 - 10, &mut [0; 100]).expect("a read"), 10);
    assert_eq!(file.read_direct(len as u64, &mut [0; 100]).expect("a read"), 0);
    drop(file);
    fs.close().expect("a close");
    check(&device);
}
