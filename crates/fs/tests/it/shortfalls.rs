//! `data::placement::reservation::V1`: the reservation of dirty data is enough, for any change of
//! the file before its ordered extents finish, and for any extents under the data. An ordered
//! extent that lacks metadata draws on the global reserve, and is counted. In these tests no
//! ordered extent may do so.
//!
//! Each run has one writer of a few files, and follows from a seed. `BUTTRESS_SEED=n` runs seed `n`
//! alone. The history of the file with a shortfall is printed.

use std::collections::BTreeMap;
use std::sync::Arc;

use buttress_base::{AlignedBuf, Rng};
use buttress_block::{Device, MemoryDevice};
use buttress_fs::{FallocateMode, Filesystem, Inode, MakeOptions, NewInode, SetAttr, TreeId};
use buttress_sim::{FaultDevice, Faults};

use crate::checker::check;
use crate::volume::{file_with, memory, mount_with, setting};

const FILES: u64 = 12;
const TURNS: u64 = 1000;
const BLOCK: u64 = 4096;
/// A file seldom becomes longer than this.
const LONG: u64 = 80_000;

/// An operation on a file.
#[derive(Clone, Copy, Debug)]
enum Act {
    Write { at: u64, len: u64 },
    Direct { at: u64, len: u64 },
    Resize(u64),
    Punch { at: u64, len: u64 },
    Zero { at: u64, len: u64, keep_size: bool },
    Allocate { at: u64, len: u64, keep_size: bool },
    CloneTo(u64),
    RenameTo(u64),
    Sync,
    Flush,
    Unlink,
    SyncAll,
    Snapshot,
}

/// Operations on small files that mostly grow and are renamed.
fn small(rng: &mut Rng, size: u64) -> Act {
    match rng.below(12) {
        0..=3 => Act::Write { at: size, len: rng.range(1..700) },
        4 => Act::Write { at: size, len: rng.range(1..3000) },
        5 | 6 => Act::Write { at: rng.below(size + 1), len: rng.range(1..1500) },
        7 => Act::Resize(rng.below(3000)),
        8 => Act::RenameTo(rng.below(FILES)),
        9 => Act::Unlink,
        _ => Act::Sync,
    }
}

/// Operations on longer files with holes.
fn sparse(rng: &mut Rng, size: u64) -> Act {
    let at = rng.below(LONG);
    match rng.below(14) {
        0..=4 => Act::Write { at, len: rng.range(1..9000) },
        5 => Act::Write { at: size, len: rng.range(1..40_000) },
        6 => Act::Resize(at),
        7 | 8 => Act::Direct { at: at / BLOCK * BLOCK, len: rng.range(1..5) * BLOCK },
        9 => Act::Punch { at, len: rng.range(1..20_000) },
        10 => Act::CloneTo(rng.below(FILES)),
        11 => Act::Unlink,
        12 => {
            if rng.chance(1, 12) {
                Act::Snapshot
            } else {
                Act::SyncAll
            }
        }
        _ => Act::Sync,
    }
}

/// As [`sparse`], with preallocated space.
fn set_aside(rng: &mut Rng, size: u64) -> Act {
    let (at, len) = (rng.below(LONG), rng.range(1..20_000));
    let keep_size = rng.chance(1, 2);
    match rng.below(8) {
        0 | 1 => Act::Allocate { at, len, keep_size },
        2 => Act::Zero { at, len, keep_size },
        3 => Act::Flush,
        _ => sparse(rng, size),
    }
}

struct Story {
    fs: Filesystem,
    files: BTreeMap<u64, (Inode, Vec<String>)>,
    snapshots: u64,
}

fn name(number: u64) -> Vec<u8> {
    format!("f{number}").into_bytes()
}

impl Story {
    fn size(&mut self, number: u64) -> u64 {
        let fresh = || {
            let file = self.fs.root().create(&name(number), NewInode::file(0o644)).expect("a file");
            (file, Vec::new())
        };
        self.files.entry(number).or_insert_with(fresh).0.attr().size
    }

    fn act(&mut self, number: u64, act: Act, fill: u8) {
        let (file, _) = &self.files[&number];
        let room = "there is room";
        match act {
            Act::Write { at, len } => {
                file.write_at(at, &vec![fill; len as usize]).expect(room);
            }
            Act::Direct { at, len } => {
                file.write_direct(at, &AlignedBuf::zeroed(len as usize)).expect(room);
            }
            Act::Resize(size) => {
                file.set_attr(&SetAttr { size: Some(size), ..SetAttr::default() }).expect(room);
            }
            Act::Punch { at, len } => {
                file.fallocate(at, len, FallocateMode::PunchHole).expect(room);
            }
            Act::Zero { at, len, keep_size } => {
                file.fallocate(at, len, FallocateMode::ZeroRange { keep_size }).expect(room);
            }
            Act::Allocate { at, len, keep_size } => {
                file.fallocate(at, len, FallocateMode::Allocate { keep_size }).expect(room);
            }
            Act::CloneTo(to) => {
                let len = file.attr().size / BLOCK * BLOCK;
                if let Some((target, _)) = self.files.get(&to).filter(|_| to != number && len > 0) {
                    file.clone_range(0, target, 0, len).expect(room);
                }
            }
            Act::RenameTo(to) if to == number => {}
            Act::RenameTo(to) => {
                let root = self.fs.root();
                root.rename(&name(number), &root, &name(to), Default::default()).expect(room);
                let moved = self.files.remove(&number).expect("it is there");
                self.files.insert(to, moved);
            }
            Act::Sync => file.sync().expect("durable"),
            Act::Flush => file.flush_data().expect("it lands"),
            Act::Unlink => {
                self.files.remove(&number);
                self.fs.root().unlink(&name(number)).expect("removing always works");
            }
            Act::SyncAll => self.fs.sync().expect("durable"),
            Act::Snapshot => {
                self.snapshots += 1;
                let name = format!("s{}", self.snapshots);
                drop(self.fs.root().snapshot(name.as_bytes(), TreeId::FS, true).expect(room));
            }
        }
    }
}

/// Runs one story and returns its number of shortfalls. Prints the history of each file with a
/// shortfall.
fn shorts(seed: u64, options: &str, what: fn(&mut Rng, u64) -> Act) -> u64 {
    let mut rng = Rng::new(seed);
    // On a device that serves many requests at once, logs write prepared data: its extents are put
    // before it is written.
    let device: Arc<dyn Device> =
        FaultDevice::new(Arc::new(MemoryDevice::new(256 << 20)), &Faults::none());
    let nodesize = if seed.is_multiple_of(3) { 16384 } else { 4096 };
    let mut make = MakeOptions { nodesize, ..MakeOptions::default() };
    // On volumes with items for holes, these items are reserved as well.
    make.features.no_holes = !seed.is_multiple_of(2);
    make.features.block_group_tree = make.features.no_holes;
    Filesystem::make(&*device, &make).expect("an empty volume");
    let fs = mount_with(&device, &format!("rw,commit=300{options}"));
    let mut story = Story { fs, files: BTreeMap::new(), snapshots: 0 };
    let mut shorts = 0;
    for turn in 0..TURNS {
        let number = rng.below(FILES);
        let size = story.size(number);
        let act = what(&mut rng, size);
        let told = format!("{turn}: {act:?} of {size}");
        story.files.get_mut(&number).expect("it is there").1.push(told);
        story.act(number, act, turn as u8);
        let now = story.fs.space_stats().shortfalls;
        if now != shorts {
            shorts = now;
            eprintln!("seed {seed}, nodes of {nodesize}{options}: f{number} by {act:?}");
            // A sync of the volume finishes the ordered extents of all files.
            let all = matches!(act, Act::SyncAll | Act::Snapshot);
            for (which, (_, told)) in &story.files {
                let last = &told[told.len().saturating_sub(20)..];
                if all || *which == number {
                    eprintln!("  f{which}\n    {}", last.join("\n    "));
                }
            }
        }
    }
    let Story { fs, files, .. } = story;
    fs.sync().expect("durable");
    shorts = fs.space_stats().shortfalls;
    drop(files);
    fs.close().expect("it closes");
    check(&device);
    shorts
}

fn expect_no_shortfalls(what: fn(&mut Rng, u64) -> Act, options: &[&str]) {
    let seeds = match setting("BUTTRESS_SEED", 0) {
        0 => 3..6,
        seed => seed..seed + 1,
    };
    let told = |seed| options.iter().map(move |one| shorts(seed, one, what)).sum::<u64>();
    assert_eq!(seeds.map(told).sum::<u64>(), 0, "an ordered extent had a shortfall");
}

/// The reservation is also enough for chosen operations. In each case an ordered extent needs more
/// items than a write that is finished at once.
#[test]
fn each_way_to_write_more_is_reserved() {
    for options in ["rw", "nodatacow"] {
        let device = memory(256);
        let fs = mount_with(&device, &format!("{options},commit=300"));
        let blocks = |file: &Inode, at: u64, count: u64| {
            let data = vec![7; (count * BLOCK) as usize];
            file.write_at(at * BLOCK, &data).expect("there is room");
        };
        let aside = |file: &Inode, at: u64, count: u64| {
            let how = FallocateMode::Allocate { keep_size: true };
            file.fallocate(at * BLOCK, count * BLOCK, how).expect("there is room");
        };
        let finishes = |file: Inode, what: &str| {
            file.sync().expect("durable");
            assert_eq!(fs.space_stats().shortfalls, 0, "{options}: {what}");
        };
        let file = |name: &str| file_with(&fs.root(), name, b"");

        let joined = file("joined");
        blocks(&joined, 1, 8);
        joined.sync().expect("durable");
        blocks(&joined, 0, 1);
        blocks(&joined, 1, 1);
        finishes(joined, "what begins over a hole goes on over an extent, and cuts it");

        let punched = file("punched");
        blocks(&punched, 0, 9);
        for at in [1, 3, 5, 7] {
            let hole = FallocateMode::PunchHole;
            punched.fallocate(at * BLOCK, BLOCK, hole).expect("making room always works");
        }
        finishes(punched, "what waits loses its middle");

        let replaced = file("replaced");
        blocks(&replaced, 0, 9);
        for at in [1, 3, 5, 7] {
            let one = AlignedBuf::zeroed(BLOCK as usize);
            replaced.write_direct(at * BLOCK, &one).expect("there is room");
        }
        finishes(replaced, "its middle is written directly");

        let part = file("part");
        for at in [2, 4, 6] {
            blocks(&part, at, 1);
        }
        blocks(&part, 8, 60);
        aside(&part, 8, 60);
        finishes(part, "the longest part lands before the rest");

        let spread = file("spread");
        for at in [0, 2, 4, 6, 8] {
            aside(&spread, at, 1);
        }
        blocks(&spread, 0, 9);
        finishes(spread, "some of it has space, and some between has not");

        let mixed = file("mixed");
        aside(&mixed, 0, 32);
        for at in (1..32).step_by(2) {
            blocks(&mixed, at, 1);
            mixed.sync().expect("durable");
        }
        for at in 0..32 {
            blocks(&mixed, at, 1);
        }
        finishes(mixed, "each second block has space alone");
        fs.close().expect("it closes");
        check(&device);
    }
}

#[test]
fn small_files_reserve_enough() {
    expect_no_shortfalls(small, &["", ",compress-force=zstd"]);
}

#[test]
fn files_with_holes_reserve_enough() {
    expect_no_shortfalls(sparse, &["", ",compress-force=zstd", ",nodatacow"]);
}

#[test]
fn preallocated_space_reserves_enough() {
    expect_no_shortfalls(set_aside, &["", ",nodatacow"]);
}
