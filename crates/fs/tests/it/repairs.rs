//! R10: one bad sector counts as one failure and one repair for any number of readers. Readers that
//! did not ask for the sector count nothing.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;

use buttress_block::{Device, Error};
use buttress_format::Profile;
use buttress_fs::{Filesystem, MakeOptions, MountOptions};

use crate::checker::check;
use crate::devices::{Hook, Hooked};
use crate::volume::{content, file_with, memory_with, mount, mount_with, pattern};

const SECTOR: usize = 4096;
const MIB: usize = 1 << 20;
const LEN: usize = 4 * MIB;
const READERS: usize = 8;

/// A volume with a file of [`LEN`] bytes, and the ascending device offsets of one of its sectors.
fn volume(data: Profile, sector: usize) -> (Arc<dyn Device>, Vec<usize>) {
    let device = memory_with(256, &MakeOptions { data: Some(data), ..MakeOptions::default() });
    let fs = mount(&device);
    file_with(&fs.root(), "file", &pattern(9, LEN));
    fs.close().expect("a close");
    let mut whole = vec![0; device.len() as usize];
    device.read_at(0, &mut whole).expect("the device");
    let wanted = pattern(9, LEN)[sector * SECTOR..(sector + 1) * SECTOR].to_vec();
    let places = (0..whole.len()).step_by(SECTOR).filter(|at| whole[*at..].starts_with(&wanted));
    let places: Vec<_> = places.collect();
    (device, places)
}

fn spoil(device: &Arc<dyn Device>, place: usize) {
    let mut byte = [0];
    device.read_at(place as u64 + 77, &mut byte).expect("the device");
    device.write_at(place as u64 + 77, &[!byte[0]]).expect("damage");
}

/// Holds back the first long reads until every reader has made a long read.
#[derive(Debug)]
struct Together {
    came: AtomicUsize,
    barrier: Barrier,
}

impl Hook for Together {
    fn read(&self, below: &dyn Device, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        below.read_at(offset, buf)?;
        // All readers then check a buffer that was read before any repair.
        if buf.len() >= MIB && self.came.fetch_add(1, Ordering::SeqCst) < READERS {
            self.barrier.wait();
        }
        Ok(())
    }
}

fn together(below: &Arc<dyn Device>, options: &str) -> Filesystem {
    let hook = Together { came: AtomicUsize::new(0), barrier: Barrier::new(READERS) };
    let device: Arc<dyn Device> = Hooked::new(below, hook) as _;
    let options = MountOptions::parse(options).expect("options");
    Filesystem::open(vec![device], options).expect("a mount")
}

fn counts(fs: &Filesystem) -> (u64, u64) {
    let stats = fs.io_stats();
    (stats.csum_failures, stats.repairs)
}

/// Tests R10.
/// Many threads read a bad sector at once: in short pieces through the page cache, in long pieces
/// past the cache, directly, or without a cache. The device gives the bad copy to each thread.
#[test]
fn bad_sector_read_by_many_counts_once() {
    const BAD: usize = 300;
    let expected = pattern(9, LEN);
    for (piece, options) in [(4 * SECTOR, "rw"), (MIB, "rw"), (MIB, "rw,page_cache=0")] {
        let (below, places) = volume(Profile::Dup, BAD);
        assert_eq!(places.len(), 2, "data has two copies");
        spoil(&below, places[0]);
        let fs = together(&below, options);
        let file = fs.resolve("file").expect("a file");
        let begin = Barrier::new(READERS);
        thread::scope(|scope| {
            for _ in 0..READERS {
                scope.spawn(|| {
                    let at = BAD * SECTOR / piece * piece;
                    let mut buf = vec![0; piece];
                    begin.wait();
                    // Long buffered calls share one request, so this case reads directly.
                    let read = match (piece, options) {
                        (MIB, "rw") => file.read_direct(at as u64, &mut buf),
                        _ => file.read_at(at as u64, &mut buf),
                    };
                    assert_eq!(read.expect("a read"), piece);
                    assert!(buf == expected[at..at + piece]);
                });
            }
        });
        assert_eq!(counts(&fs), (1, 1), "failures and repairs, by {piece} of {options}");
        assert_eq!(fs.devices()[0].stats.counts[3], 1, "by {piece} of {options}");
        drop(file);
        fs.close().expect("a close");
        for place in places {
            let mut found = vec![0; SECTOR];
            below.read_at(place as u64, &mut found).expect("the device");
            assert!(found == expected[BAD * SECTOR..(BAD + 1) * SECTOR], "both are right now");
        }
        let fs = mount(&below);
        assert!(content(&fs.resolve("file").expect("a file")) == expected);
        assert_eq!(counts(&fs), (0, 0), "nothing is wrong any more");
        fs.close().expect("a close");
        check(&below);
    }
}

/// Tests R10.
/// A reader finds a bad copy by read-ahead, and no reader finds the bad copy again. This holds if
/// the copy was repaired, and also on a read-only volume, where the cache keeps the good data.
#[test]
fn bad_copy_found_ahead_counts_once() {
    for (options, repairs) in [("rw", 1), ("ro", 0)] {
        for piece in [SECTOR, 5 * SECTOR, 32 * SECTOR] {
            let (below, places) = volume(Profile::Dup, 300);
            spoil(&below, places[0]);
            let fs = mount_with(&below, options);
            let file = fs.resolve("file").expect("a file");
            let (mut buf, expected) = (vec![0; piece], pattern(9, LEN));
            for at in (0..LEN).step_by(piece) {
                let found = file.read_at(at as u64, &mut buf).expect("a read");
                assert!(buf[..found] == expected[at..at + found], "at {at}");
            }
            assert_eq!(counts(&fs), (1, repairs), "{options} by {piece}");
            drop(file);
            fs.close().expect("a close");
        }
    }
}

/// Tests R10.
/// If a sector without a good copy is only read ahead, no failure is counted. Each read that asks
/// for the sector counts one failure.
#[test]
fn unrequested_errors_are_not_counted() {
    const BAD: usize = 300;
    for piece in [SECTOR, 4 * SECTOR] {
        let (below, places) = volume(Profile::Single, BAD);
        assert_eq!(places.len(), 1, "data has one copy");
        spoil(&below, places[0]);
        let fs = mount_with(&below, "rw");
        let file = fs.resolve("file").expect("a file");
        let (mut buf, expected) = (vec![0; piece], pattern(9, LEN));
        for at in (0..LEN).step_by(piece) {
            if !(at..at + piece).contains(&(BAD * SECTOR)) {
                assert_eq!(file.read_at(at as u64, &mut buf).expect("a read"), piece);
                assert!(buf == expected[at..at + piece], "at {at}");
            }
        }
        assert_eq!(counts(&fs), (0, 0), "no read asked for it, by {piece}");
        for times in 1..4 {
            file.read_at((BAD * SECTOR / piece * piece) as u64, &mut buf).expect_err("it is bad");
            assert_eq!(counts(&fs), (times, 0), "by {piece}");
        }
        assert_eq!(fs.devices()[0].stats.counts[3], 3);
        drop(file);
        fs.close().expect("a close");
    }
}
