//! Data that is written together with the log that names it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use buttress_base::Rng;
use buttress_block::{Device, Error, Layer, MemoryDevice, Operation};
use buttress_fs::{ErrorKind, Filesystem, MakeOptions, RenameFlags};

use crate::checker::check;
use crate::volume::{content, copy, file_with, mount, mount_with};

const SECTOR: usize = 4096;

/// The device refuses sectors that are full of this byte while a test requests refusals.
const REFUSED: u8 = 0xEE;

/// A device that takes many writes at once. The device refuses sectors that are full of one byte
/// while a test requests refusals.
#[derive(Debug)]
struct Picky {
    below: MemoryDevice,
    refuses: AtomicBool,
}

impl Layer for Picky {
    type Inner = MemoryDevice;

    fn inner(&self) -> &Self::Inner {
        &self.below
    }

    fn on_write(&self, offset: u64, buf: &[u8]) -> Result<(), Error> {
        let is_bad = |sector: &[u8]| sector.iter().all(|byte| *byte == REFUSED);
        if self.refuses.load(Ordering::Relaxed) && buf.chunks(SECTOR).any(is_bad) {
            let source = std::io::Error::other("a sector that is refused");
            let (device, len) = (self.name(), buf.len() as u64);
            return Err(Error::Io { device, operation: Operation::Write, offset, len, source });
        }
        self.below.write_at(offset, buf)
    }

    fn takes_many(&self) -> bool {
        true
    }
}

fn picky() -> (Arc<Picky>, Arc<dyn Device>) {
    let below = MemoryDevice::new(256 << 20);
    Filesystem::make(&below, &MakeOptions::default()).expect("an empty volume");
    let picky = Arc::new(Picky { below, refuses: AtomicBool::new(false) });
    let device: Arc<dyn Device> = Arc::clone(&picky) as _;
    (picky, device)
}

/// A mount of the state after a power cut. This device has no cache that a cut would lose.
fn after_a_cut(device: &Arc<dyn Device>) -> Filesystem {
    let copied: Arc<dyn Device> = Arc::new(copy(&**device));
    mount(&copied)
}

/// A3: a file with data that cannot be written with a log shows its earlier content, in this mount
/// and after a crash. Before, that content may have been in a commit, in a log, or in memory alone.
/// Files that share the log lose nothing.
#[test]
fn refused_log_data_changes_nothing() {
    for (commits, logs) in [(true, false), (false, true), (false, false)] {
        let (picky, device) = picky();
        let fs = mount_with(&device, "commit=300");
        let file = file_with(&fs.root(), "file", &[1; 16 * SECTOR]);
        file.flush_data().expect("written");
        file.write_at(20 * SECTOR as u64, &[1; 2 * SECTOR]).expect("into memory");
        file.flush_data().expect("written");
        if commits {
            fs.sync().expect("durable");
        }
        if logs {
            file.sync().expect("durable");
        }
        let other = file_with(&fs.root(), "other", &[2; 3 * SECTOR]);

        // The refused data overwrites a part of an extent and a whole extent, and fills a hole.
        file.write_at(2 * SECTOR as u64, &[REFUSED; 3 * SECTOR]).expect("into memory");
        file.write_at(20 * SECTOR as u64, &[REFUSED; 2 * SECTOR]).expect("into memory");
        file.write_at(40 * SECTOR as u64, &[REFUSED; SECTOR]).expect("into memory");
        picky.refuses.store(true, Ordering::Relaxed);
        let error = file.sync().expect_err("its data cannot be written");
        assert_eq!(error.kind(), ErrorKind::Io, "{error}");
        other.sync().expect("the other file's data is not refused");
        picky.refuses.store(false, Ordering::Relaxed);
        assert!(fs.sync_stats().inodes_with_data >= 2, "{:?}", fs.sync_stats());

        let mut expected = vec![1; 16 * SECTOR];
        expected.resize(20 * SECTOR, 0);
        expected.resize(22 * SECTOR, 1);
        expected.resize(41 * SECTOR, 0);
        assert!(content(&file) == expected, "as it was");
        let there = after_a_cut(&device);
        assert!(content(&there.resolve("other").expect("synced")) == [2; 3 * SECTOR]);
        let found = content(&there.resolve("file").expect("committed instead"));
        // All later bytes read as zeros, whatever the length on disk is.
        assert!(found[..22 * SECTOR] == expected[..22 * SECTOR], "as it was");
        assert!(found[22 * SECTOR..].iter().all(|byte| *byte == 0));
        there.close().expect("it closes");

        file.write_at(2 * SECTOR as u64, &[3; SECTOR]).expect("into memory");
        file.sync().expect("durable");
        expected[2 * SECTOR..3 * SECTOR].fill(3);
        assert!(content(&file) == expected, "as it is now");
        let there = after_a_cut(&device);
        let found = content(&there.resolve("file").expect("synced"));
        assert!(found[..22 * SECTOR] == expected[..22 * SECTOR], "as it was synced");
        there.close().expect("it closes");
        drop((file, other));
        // A sync of the whole volume reports the loss once more.
        drop(fs.sync());
        fs.close().expect("it closes");
        check(&device);
    }
}

/// A2, A4: readers see every written byte on each path, and after a power cut the volume has the
/// synced state. Some data is written with logs. Other data is written without logs, because a
/// thread reads this data at that moment.
#[test]
fn readers_and_writers_beside_each_other() {
    const SECTORS: u64 = 64;
    let (_, device) = picky();
    let fs = mount_with(&device, "commit=1");
    let files: Vec<_> = (0..2)
        .map(|i| file_with(&fs.root(), &format!("f{i}"), &[0; SECTORS as usize * SECTOR]))
        .collect();
    let done = AtomicBool::new(false);
    let last: Vec<Vec<u8>> = std::thread::scope(|scope| {
        for (i, file) in files.iter().enumerate() {
            let done = &done;
            scope.spawn(move || {
                let mut rng = Rng::new(100 + i as u64);
                let mut seen = vec![0_u8; SECTORS as usize];
                while !done.load(Ordering::Relaxed) {
                    let first = rng.below(SECTORS);
                    let mut buf = vec![0; rng.below(8) as usize * SECTOR + SECTOR];
                    let len = file.read_at(first * SECTOR as u64, &mut buf).expect("readable");
                    for (n, sector) in buf[..len].chunks(SECTOR).enumerate() {
                        let seen = &mut seen[first as usize + n];
                        assert!(sector.iter().all(|byte| *byte == sector[0]), "a torn sector");
                        // Numbers grow and wrap. Two reads are less than half a wrap apart.
                        assert!(sector[0].wrapping_sub(*seen) < 128, "{} after {seen}", sector[0]);
                        *seen = sector[0];
                    }
                    if rng.chance(1, 4) {
                        std::thread::sleep(std::time::Duration::from_micros(rng.below(200)));
                    }
                }
            });
        }
        let writers: Vec<_> = files
            .iter()
            .enumerate()
            .map(|(i, file)| {
                scope.spawn(move || {
                    let mut rng = Rng::new(i as u64);
                    let mut now = vec![0_u8; SECTORS as usize];
                    for _ in 0..1500 {
                        for _ in 0..rng.below(3) + 1 {
                            let sector = rng.below(SECTORS) as usize;
                            now[sector] = now[sector].wrapping_add(1);
                            let written =
                                file.write_at((sector * SECTOR) as u64, &[now[sector]; SECTOR]);
                            written.expect("there is room");
                        }
                        file.sync().expect("durable");
                    }
                    now
                })
            })
            .collect();
        let last = writers.into_iter().map(|writer| writer.join().expect("a writer")).collect();
        done.store(true, Ordering::Relaxed);
        last
    });
    let stats = fs.sync_stats();
    assert!(stats.inodes_with_data > 100, "{stats:?}");
    let there = after_a_cut(&device);
    for (i, last) in last.iter().enumerate() {
        let expected: Vec<u8> = last.iter().flat_map(|byte| [*byte; SECTOR]).collect();
        assert!(content(&files[i]) == expected, "file {i} here");
        assert!(
            content(&there.resolve(format!("f{i}")).expect("synced")) == expected,
            "file {i} after a cut"
        );
    }
    there.close().expect("it closes");
    drop(files);
    fs.close().expect("it closes");
    check(&device);
}

/// E2: with `flushoncommit`, a commit in place of a log writes every file back. No writeback waits
/// for that commit.
#[test]
fn commits_instead_of_logs_do_not_wait() {
    let (_, device) = picky();
    let fs = mount_with(&device, "commit=300,flushoncommit");
    let folder = fs.root().mkdir(b"folder", 0o755, 0, 0).expect("a folder");
    let inside = file_with(&folder, "inside", b"");
    fs.sync().expect("durable");
    std::thread::scope(|scope| {
        for i in 0..3_u8 {
            let fs = fs.clone();
            scope.spawn(move || {
                let file = file_with(&fs.root(), &format!("f{i}"), b"");
                for round in 0..200_u64 {
                    file.write_at(round % 32 * SECTOR as u64, &[i; SECTOR]).expect("there is room");
                    file.sync().expect("durable");
                }
            });
        }
        for round in 0..60_u8 {
            let (from, to) = if round % 2 == 0 { ("folder", "moved") } else { ("moved", "folder") };
            let root = fs.root();
            let flags = RenameFlags::default();
            root.rename(from.as_bytes(), &root, to.as_bytes(), flags).expect("a rename");
            inside.write_at(0, &[round; SECTOR]).expect("there is room");
            folder.sync().expect("durable");
        }
    });
    assert!(!fs.sync_stats().commits.is_empty(), "{:?}", fs.sync_stats());
    drop((inside, folder));
    fs.close().expect("it closes");
    check(&device);
}
