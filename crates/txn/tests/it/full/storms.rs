//! Many threads that keep a full volume full, each with a model of its files.
//!
//! `BUTTRESS_STORM_SECONDS` says how long. `ENOSPC` is the only failure, removing always works, and what was taken is there.

use std::{sync::Arc, time::Instant};

use buttress_base::Rng;
use buttress_block::{FileDevice, OpenOptions};
use buttress_fs::{
    FallocateMode, Filesystem, Inode, MountOptions, SetAttr, XattrFlags, make::MakeOptions,
};
use buttress_sim::campaign;
use buttress_txn::SpaceKind;

use super::{Kept, content, full, open, verify};
use crate::judge;

const SECTOR: usize = 4096;
/// Seed and length of a file that all threads of a storm clone and none changes: it ends within a sector.
const SHARED: (u64, usize) = (0x5a4ed, (300 << 10) + 100);
/// A thread that has so many files clones no more: clones take no data, and the volume is to be full of that, too.
const FILES_MAX: usize = 300;
/// Leaves of metadata that there are for a storm.
const GIVEN_BACK: usize = 40;
/// A storm that has not filled the volume by then never will.
const FULL_MAX_MILLIS: u128 = 120_000;

/// Takes all space for a file, but what is left to chunks of so many bytes; another one is there to be cloned.
fn fill_but(fs: &Filesystem, chunk: u64, left: u64) {
    let shared = fs.root().create(b"shared", 0o100_644, 0, 0, 0).expect("a file");
    assert!(put(&shared, SHARED, false), "there is room");
    let filler = fs.root().create(b"filler", 0o100_644, 0, 0, 0).expect("a file");
    let mut at = 0;
    for piece in [16_u64 << 20, 1 << 20] {
        let may = || {
            let now = fs.space_stats().accounts;
            left == 0 || now.data.available() >= piece || now.unallocated >= left + chunk
        };
        let mode = FallocateMode::Allocate { keep_size: false };
        while may() && full(filler.fallocate(at, piece, mode)).is_some() {
            at += piece;
        }
    }
}

/// Takes the metadata for attributes of a leaf each, and gives some of it back for the storm to take.
fn crowd(fs: &Filesystem) {
    let dir = fs.root().mkdir(b"crowd", 0o755, 0, 0).expect("a folder");
    let name = |count: usize| format!("{count}").into_bytes();
    let mut count = 0;
    while let Some(file) = full(dir.create(&name(count), 0o100_644, 0, 0, 0)) {
        full(file.set_xattr(b"user.leaf", &[1; 12_000], XattrFlags::default()));
        count += 1;
    }
    for count in 0..GIVEN_BACK.min(count) {
        dir.unlink(&name(count)).expect("removing always works");
    }
    fs.sync().expect("durable");
}

/// Keeps a full volume full for a while: files come, through memory and directly, are overwritten, cloned, cut and removed,
/// snapshots are taken and deleted. Debug builds compare the accounts with groups and tokens at every commit of it.
///
/// What fills it before leaves so much of the devices to chunks, and metadata full or nearly empty.
fn storm(seed: u64, size: u64, (left, crowded): (u64, bool), options: &str) {
    let dir = tempfile::tempdir().expect("a folder");
    let path = judge::volume(dir.path(), size, &MakeOptions::default());
    let device = FileDevice::open(&path, OpenOptions::WRITE).expect("the image opens");
    let options = MountOptions::parse(options).expect("options");
    let fs = Filesystem::open(vec![Arc::new(device)], options).expect("it mounts");
    let seed = seed + 100 * campaign::round();
    let dirs: Vec<_> = (0..8)
        .map(|thread| fs.root().mkdir(format!("dir{thread}").as_bytes(), 0o755, 0, 0))
        .collect::<Result<_, _>>()
        .expect("folders");
    fill_but(&fs, size / 10, left);
    if crowded {
        crowd(&fs);
    }
    let unallocated = fs.space_stats().accounts.unallocated;
    assert!(unallocated >= left, "{unallocated} for chunks");
    // Where metadata is full, of that.
    let kind = if crowded { SpaceKind::Metadata } else { SpaceKind::Data };
    let refused = || fs.space_stats().engine.waits.of_kind(kind).refused;
    let (before, begun, millis) = (refused(), Instant::now(), storm_millis());
    // Until it was full once, however slow the machine is.
    let goes_on = || {
        let passed = begun.elapsed().as_millis();
        passed < millis || (refused() == before && passed < FULL_MAX_MILLIS)
    };
    let kept: Vec<Kept> = std::thread::scope(|scope| {
        let worker = |(thread, dir): (usize, Inode)| {
            let (fs, goes_on) = (fs.clone(), &goes_on);
            scope.spawn(move || stay_full(&fs, &dir, seed * 8 + thread as u64, goes_on))
        };
        let workers: Vec<_> = dirs.into_iter().enumerate().map(worker).collect();
        workers.into_iter().map(|worker| worker.join().expect("no panic")).collect()
    });
    let stats = fs.space_stats();
    assert_eq!(fs.read_only_reason(), None, "{}", stats.accounts);
    assert!(refused() > before, "{kind} was never full: {}", stats.accounts);
    assert!(left == 0 || stats.accounts.unallocated < unallocated, "no chunk was made");
    let accounts = stats.accounts;
    let (compared, overtaken) = (stats.engine.audits, stats.engine.audits_overtaken);
    let is_compared = cfg!(debug_assertions);
    assert!(!is_compared || compared > 0, "no commit was compared");
    assert_eq!(overtaken, 0, "not every commit was compared, of {compared}");
    campaign::count("audits", compared as usize);
    assert_eq!(accounts.waiting, (0, 0), "nobody is left in a line: {accounts}");
    fs.close().expect("a full volume unmounts");
    judge::check(&path);
    let fs = open(&path);
    for (thread, kept) in kept.iter().enumerate() {
        let dir = fs.root().lookup(format!("dir{thread}").as_bytes()).expect("it was made");
        verify(&dir, kept);
        for name in kept.keys() {
            dir.unlink(name.as_bytes()).expect("removing always works");
        }
    }
    verify(&fs.root(), &Kept::from([("shared".to_owned(), SHARED)]));
    fs.root().unlink(b"shared").expect("removing always works");
    fs.root().unlink(b"filler").expect("removing always works");
    fs.close().expect("it unmounts");
    judge::check(&path);
}

/// Writes all of a file, directly but for a last sector that is not whole, or through memory; says whether it was taken.
fn put(file: &Inode, (seed, len): (u64, usize), direct: bool) -> bool {
    let data = content(seed, len);
    let whole = if direct { len / SECTOR * SECTOR } else { 0 };
    (whole == 0 || full(file.write_direct(0, &data[..whole])).is_some())
        && full(file.write_at(whole as u64, &data[whole..])).is_some()
        && full(file.flush_data()).is_some()
}

/// Makes a clone of a file; says whether there is one.
fn clone(dir: &Inode, name: &str, source: &Inode, shown: (u64, usize), rng: &mut Rng) -> bool {
    let Some(clone) = full(dir.create(name.as_bytes(), 0o100_644, 0, 0, 0)) else {
        return false;
    };
    if full(source.clone_range(0, &clone, 0, 0)).is_none() {
        dir.unlink(name.as_bytes()).expect("removing always works");
        return false;
    }
    if rng.chance(1, 2) {
        part_and_share(source, &clone, shown, rng);
    }
    true
}

/// Writes a range of a clone anew, and has it show its source's again; what it holds is the same at any point.
fn part_and_share(source: &Inode, clone: &Inode, (seed, len): (u64, usize), rng: &mut Rng) {
    let sectors = (len / SECTOR) as u64;
    if sectors == 0 {
        return;
    }
    let first = rng.below(sectors);
    let count = 1 + rng.below(sectors - first);
    let (start, bytes) = (first as usize * SECTOR, count as usize * SECTOR);
    let data = &content(seed, len)[start..start + bytes];
    if rng.chance(1, 2) {
        full(clone.write_direct(start as u64, data));
    } else {
        full(clone.write_at(start as u64, data));
    }
    if rng.chance(2, 3) {
        full(source.clone_range(start as u64, clone, start as u64, bytes as u64));
    }
}

/// One thread of a storm; answers what it left.
fn stay_full(fs: &Filesystem, dir: &Inode, seed: u64, goes_on: impl Fn() -> bool) -> Kept {
    let mut rng = Rng::new(seed);
    let mut kept = Kept::new();
    let mut snapshot = None;
    let mut count = 0;
    while goes_on() {
        let victim = kept.keys().nth(rng.below(kept.len().max(1) as u64) as usize).cloned();
        match (rng.below(20), victim) {
            (0..=8, _) => {
                count += 1;
                let name = format!("{seed}-{count}");
                let Some(file) = full(dir.create(name.as_bytes(), 0o100_644, 0, 0, 0)) else {
                    continue;
                };
                let put_now = (rng.next_u64(), rng.below(96 << 10) as usize);
                if put(&file, put_now, rng.chance(1, 3)) {
                    kept.insert(name, put_now);
                } else {
                    dir.unlink(name.as_bytes()).expect("removing always works");
                }
            }
            (9..=10, Some(name)) => {
                let file = dir.lookup(name.as_bytes()).expect("it is there");
                let put_now = (rng.next_u64(), kept[&name].1);
                // Whole, or not at all, or in doubt: then it is not looked at again.
                kept.remove(&name);
                if put(&file, put_now, rng.chance(1, 3)) {
                    kept.insert(name, put_now);
                } else {
                    dir.unlink(name.as_bytes()).expect("removing always works");
                }
            }
            (11, Some(name)) => {
                let file = dir.lookup(name.as_bytes()).expect("it is there");
                let none = SetAttr { size: Some(0), ..SetAttr::default() };
                file.set_attr(&none).expect("shrinking always works");
                kept.insert(name, (0, 0));
            }
            (12..=13, Some(name)) => {
                dir.unlink(name.as_bytes()).expect("removing always works");
                kept.remove(&name);
            }
            (14, Some(name)) => {
                full(dir.lookup(name.as_bytes()).expect("it is there").sync());
            }
            (15, _) => match snapshot.take() {
                None => {
                    let name = format!("snapshot{seed}-{count}");
                    let tree = fs.root().id().tree;
                    snapshot = full(fs.root().snapshot(name.as_bytes(), tree, true)).map(|_| name);
                }
                Some(name) => {
                    fs.root().delete_subvolume(name.as_bytes()).expect("removing always works");
                }
            },
            (16..=18, Some(of)) if kept.len() < FILES_MAX => {
                count += 1;
                let name = format!("{seed}-{count}");
                // One that nobody else has in hand, or one that all clone at once.
                let (source, shown) = match rng.chance(2, 3) {
                    true => (dir.lookup(of.as_bytes()).expect("it is there"), kept[&of]),
                    false => (fs.root().lookup(b"shared").expect("it is there"), SHARED),
                };
                if clone(dir, &name, &source, shown, &mut rng) {
                    kept.insert(name, shown);
                }
            }
            (16.., Some(name)) => {
                dir.unlink(name.as_bytes()).expect("removing always works");
                kept.remove(&name);
            }
            _ => {}
        }
    }
    if let Some(name) = snapshot {
        fs.root().delete_subvolume(name.as_bytes()).expect("removing always works");
    }
    kept
}

/// Milliseconds of one storm; `BUTTRESS_STORM_SECONDS` for long ones, and ten seconds in a round of a search.
fn storm_millis() -> u128 {
    let seconds =
        std::env::var("BUTTRESS_STORM_SECONDS").ok().and_then(|text| text.parse::<u64>().ok());
    let usual = if campaign::round() > 0 { 10_000 } else { 1500 };
    seconds.map_or(usual, |seconds| seconds * 1000).into()
}

/// E4, E9, E12: at the edge of a full volume `ENOSPC` is the only failure, by every rule of making room.
#[test]
fn e12_a_storm_at_the_edge() {
    storm(1, 160 << 20, (0, false), "preempt=pace,dirty=8M");
}

/// The same without anything made ahead.
#[test]
fn e12_a_storm_without_preemption() {
    storm(2, 128 << 20, (0, false), "preempt=off,dirty=4M");
}

/// The same by the kernel's rule.
#[test]
fn e12_a_storm_by_the_clamp() {
    storm(3, 140 << 20, (0, false), "preempt=clamp,dirty=8M");
}

/// The same where the last chunks are made meanwhile: there is a place for one of data, or for two.
#[test]
fn e12_a_storm_for_the_last_chunk() {
    let (size, chunks) = (160 << 20, 1 + campaign::round() % 2);
    storm(4, size, (chunks * size / 10, false), "preempt=pace,dirty=8M");
}

/// The same where metadata is full, too: clones and names are refused.
#[test]
fn e12_a_storm_for_the_last_node() {
    let rules = ["clamp", "pace", "off", "pace,promise=levels"];
    let rule = rules[campaign::round() as usize % rules.len()];
    storm(5, 128 << 20, (0, true), &format!("preempt={rule},dirty=4M"));
}
