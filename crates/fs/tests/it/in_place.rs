//! Writes in place, while extents become shared and unshared. Only the written file ever sees a
//! change, and reads return the written bytes.
//!
//! In debug builds every use of a remembered check repeats the check. So a stamp that was not
//! changed in time fails the test, even if the bytes happen to be right.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use buttress_base::Rng;
use buttress_fs::{ErrorKind, FallocateMode, Filesystem, Inode, TreeId};

use crate::checker::check;
use crate::volume::{content, memory, mount_with, nocow, pattern, setting};

const SECTOR: u64 = 4096;
const SECTORS: u64 = 96;

/// A file and its required content.
struct Known {
    name: String,
    file: Inode,
    bytes: Vec<u8>,
    /// Whether the file is in a read-only snapshot, so that no write is possible.
    frozen: bool,
}

struct World {
    rng: Rng,
    fs: Filesystem,
    files: Vec<Known>,
    snapshots: Vec<String>,
    next: u64,
}

impl World {
    fn new(seed: u64, fs: Filesystem) -> Self {
        let mut world =
            Self { rng: Rng::new(seed), fs, files: Vec::new(), snapshots: Vec::new(), next: 0 };
        for _ in 0..3 {
            world.create();
        }
        world
    }

    fn create(&mut self) {
        self.next += 1;
        let name = format!("file-{}", self.next);
        let file = nocow(&self.fs, &name);
        let len = SECTORS * SECTOR;
        let bytes = if self.rng.chance(1, 2) {
            let bytes = pattern(self.next, len as usize);
            file.write_direct(0, &bytes).expect("a write");
            bytes
        } else {
            file.fallocate(0, len, FallocateMode::Allocate { keep_size: false }).expect("space");
            vec![0; len as usize]
        };
        self.files.push(Known { name, file, bytes, frozen: false });
    }

    fn range(&mut self) -> (u64, u64) {
        if self.rng.chance(3, 5) {
            // Writes the same few places again and again. So a write often meets a check that was
            // remembered for its place.
            return (self.rng.below(4) * 8 * SECTOR, 2 * SECTOR);
        }
        let from = self.rng.below(SECTORS);
        // Most ranges are small, so that there are more places, and fewer of them overlap.
        let most = if self.rng.chance(1, 4) { SECTORS - from } else { 4.min(SECTORS - from) };
        (from * SECTOR, self.rng.range(1..most + 1) * SECTOR)
    }

    fn pick(&mut self) -> usize {
        self.rng.below(self.files.len() as u64) as usize
    }

    fn write(&mut self) {
        let (from, len) = self.range();
        let index = self.pick();
        if self.files[index].frozen {
            let refused = self.files[index].file.write_direct(from, &[0; 4096]);
            assert_eq!(refused.expect_err("a frozen file").kind(), ErrorKind::ReadOnly);
            return;
        }
        let bytes = pattern(self.rng.next_u64(), len as usize);
        let direct = self.rng.chance(3, 4);
        let known = &mut self.files[index];
        if direct {
            known.file.write_direct(from, &bytes).expect("a write");
        } else {
            known.file.write_at(from, &bytes).expect("a write");
        }
        known.bytes[from as usize..(from + len) as usize].copy_from_slice(&bytes);
    }

    fn share(&mut self) {
        let (from, len) = self.range();
        let (source, target) = (self.pick(), self.pick());
        if source == target || self.files[target].frozen {
            return;
        }
        let to = self.rng.below(SECTORS - len / SECTOR + 1) * SECTOR;
        let (source_file, target_file) = (&self.files[source].file, &self.files[target].file);
        source_file.clone_range(from, target_file, to, len).expect("shared");
        let bytes = self.files[source].bytes[from as usize..(from + len) as usize].to_vec();
        self.files[target].bytes[to as usize..(to + len) as usize].copy_from_slice(&bytes);
    }

    fn snapshot(&mut self) {
        if self.snapshots.len() >= 4 {
            let gone = self.snapshots.swap_remove(0);
            self.files.retain(|known| !known.name.starts_with(&format!("{gone}/")));
            self.fs.root().delete_subvolume(gone.as_bytes()).expect("deleted");
            return;
        }
        self.next += 1;
        let name = format!("snapshot-{}", self.next);
        let frozen = self.rng.chance(1, 2);
        let top = self.fs.root().snapshot(name.as_bytes(), TreeId::FS, frozen).expect("made");
        let mut copies = Vec::new();
        for known in self.files.iter().filter(|known| !known.name.contains('/')) {
            let file = top.lookup(known.name.as_bytes()).expect("it was in the source");
            let name = format!("{name}/{}", known.name);
            copies.push(Known { name, file, bytes: known.bytes.clone(), frozen });
        }
        self.files.extend(copies);
        self.snapshots.push(name);
    }

    fn step(&mut self) {
        match self.rng.below(40) {
            0..26 => self.write(),
            26..30 => self.share(),
            30 => self.snapshot(),
            31 => {
                let (from, len) = self.range();
                let index = self.pick();
                let known = &mut self.files[index];
                if !known.frozen {
                    known.file.fallocate(from, len, FallocateMode::PunchHole).expect("a hole");
                    known.bytes[from as usize..(from + len) as usize].fill(0);
                }
            }
            32 => {
                let (from, len) = self.range();
                let index = self.pick();
                let known = &self.files[index];
                if !known.frozen {
                    let mode = FallocateMode::Allocate { keep_size: true };
                    known.file.fallocate(from, len, mode).expect("space");
                }
            }
            33 => self.fs.sync().expect("sync"),
            34 => {
                let index = self.pick();
                if !self.files[index].frozen {
                    self.files[index].file.sync().expect("sync");
                }
            }
            35 if self.files.len() > 4 => {
                // The other files that shared the extent may be removed by now.
                let index = self.pick();
                if !self.files[index].name.contains('/') {
                    let gone = self.files.swap_remove(index);
                    drop(gone.file);
                    self.fs.root().unlink(gone.name.as_bytes()).expect("unlinked");
                }
            }
            36 if self.files.len() < 12 => self.create(),
            _ => {
                let index = self.pick();
                let known = &self.files[index];
                assert!(content(&known.file) == known.bytes, "{}", known.name);
            }
        }
    }

    fn verify(&self) {
        for known in &self.files {
            assert!(content(&known.file) == known.bytes, "{}", known.name);
        }
    }
}

/// Tests N15.
/// N9, N10, N16: random writes beside snapshots and clones. Every file and every snapshot keeps its
/// bytes, with and without remembered checks.
#[test]
fn writes_are_seen_in_one_file() {
    let seeds = setting("BUTTRESS_SEEDS", 4);
    let options =
        ["rw", "nocow_check=always", "bg_lookup=rwlock-double", "bg_lookup=rwlock-single"];
    for seed in 0..seeds {
        println!("seed {seed}");
        let device = memory(256);
        let fs = mount_with(&device, options[(seed % 4) as usize]);
        let mut world = World::new(seed, fs);
        for _ in 0..600 {
            world.step();
        }
        world.verify();
        let World { fs, files, .. } = world;
        let expected: Vec<_> = files.into_iter().map(|k| (k.name, k.bytes)).collect();
        fs.close().expect("closed");
        let fs = mount_with(&device, "ro");
        for (name, bytes) in expected {
            assert!(content(&fs.resolve(&name).expect("there")) == bytes, "{name}, read again");
        }
        fs.close().expect("closed");
        check(&device);
    }
}

/// N16: snapshots are taken while threads overwrite in place. The content of a snapshot does not
/// change, and each of its sectors has the bytes of one write.
#[test]
fn snapshots_beside_writers_stay_as_they_are() {
    const FILES: usize = 3;
    let device = memory(512);
    let fs = mount_with(&device, "rw");
    let files: Vec<_> = (0..FILES).map(|i| nocow(&fs, &format!("file-{i}"))).collect();
    for file in &files {
        file.write_direct(0, &vec![0; (SECTORS * SECTOR) as usize]).expect("a write");
    }
    fs.sync().expect("sync");
    let stop = AtomicBool::new(false);
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for (index, file) in files.iter().enumerate() {
            let (stop, failed) = (&stop, &failed);
            scope.spawn(move || {
                let mut rng = Rng::new(index as u64);
                while !stop.load(Ordering::Relaxed) {
                    // All bytes of a sector are the same.
                    let sector = vec![rng.below(256) as u8; SECTOR as usize];
                    if let Err(error) = file.write_direct(rng.below(SECTORS) * SECTOR, &sector) {
                        failed.lock().expect("no panic").push(error.to_string());
                        return;
                    }
                }
            });
        }
        for round in 0..6 {
            let name = format!("snapshot-{round}");
            let top = fs.root().snapshot(name.as_bytes(), TreeId::FS, true).expect("made");
            let read = || -> Vec<Vec<u8>> {
                let of = |i| content(&top.lookup(format!("file-{i}").as_bytes()).expect("there"));
                (0..FILES).map(of).collect()
            };
            let first = read();
            for bytes in &first {
                for sector in bytes.chunks_exact(SECTOR as usize) {
                    assert!(sector.iter().all(|byte| *byte == sector[0]), "torn in {name}");
                }
            }
            std::thread::sleep(std::time::Duration::from_millis(60));
            assert!(read() == first, "{name} changed");
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(failed.into_inner().expect("no panic"), Vec::<String>::new());
    drop(files);
    fs.close().expect("closed");
    check(&device);
}

/// N9: a remembered check of an extent ends when a clone shares the extent, whichever of the two
/// files is written.
#[test]
fn a_clone_ends_what_was_remembered() {
    let device = memory(256);
    let fs = mount_with(&device, "rw");
    let (source, target) = (nocow(&fs, "source"), nocow(&fs, "target"));
    let len = SECTORS * SECTOR;
    let mut bytes = pattern(1, len as usize);
    source.write_direct(0, &bytes).expect("a write");
    let sector = |seed: u64| pattern(seed, SECTOR as usize);
    for round in 0..4 {
        let at = (round * 7 * SECTOR) as usize;
        // The first write remembers the check, and the second write uses it.
        for seed in [2 * round, 2 * round + 1] {
            source.write_direct(at as u64, &sector(seed)).expect("in place");
            bytes[at..at + SECTOR as usize].copy_from_slice(&sector(seed));
        }
        source.clone_range(0, &target, 0, len).expect("shared");
        source.write_direct(at as u64, &sector(100 + round)).expect("elsewhere");
        assert!(content(&target) == bytes, "the clone changed with its source, round {round}");
        bytes[at..at + SECTOR as usize].copy_from_slice(&sector(100 + round));
        assert!(content(&source) == bytes);
    }
    drop((source, target));
    fs.close().expect("closed");
    check(&device);
}
