//! Tests of faults of other implementations, numbered as in `docs/internals/kernel-bugs.md`. These
//! tests control the engine below a mount. They hold block groups read-only at critical moments,
//! and empty groups again and again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use buttress_base::Rng;
use buttress_block::{Device, MemoryDevice};
use buttress_format::{BlockGroupFlags, Key, Kind, Logical, TreeId, ids};
use buttress_txn::{Cost, ReadOnlyHold, ReserveClass};

use crate::{
    ErrorKind, FallocateMode, Filesystem, Inode, InodeFlags, MountOptions, NewInode, SetAttr,
};

mod copies;
mod crafted;
mod finishing;
mod freeing;
mod guards;
mod inode_cache;
mod refused;
mod shared;

const SECTOR: u64 = 4096;
const MIB: u64 = 1 << 20;
const LONG: Duration = Duration::from_secs(60);

fn mount(device: &Arc<dyn Device>, options: &str) -> Filesystem {
    let options = MountOptions::parse(options).expect("options");
    Filesystem::open(vec![Arc::clone(device)], options).expect("a mount")
}

fn volume(mib: u64) -> Arc<dyn Device> {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(mib << 20));
    Filesystem::make(&*device, &crate::MakeOptions::default()).expect("an empty volume");
    device
}

fn check_volume(device: &Arc<dyn Device>) {
    check_volumes(vec![Arc::clone(device)]);
}

fn check_volumes(devices: Vec<Arc<dyn Device>>) {
    let options = buttress_check::Options::thorough();
    let report = buttress_check::check_devices(devices, &options, &buttress_check::NoProgress);
    let report = report.expect("it can be looked at");
    assert!(report.is_clean(), "{}", report.to_text());
}

fn wait_for(fs: &Filesystem, what: &str, is_done: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_done() {
        assert!(begun.elapsed() < LONG, "it is not {what}: {}", fs.space_stats().accounts);
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether some removed inode still has its orphan item.
fn has_orphans(fs: &Filesystem) -> bool {
    let view = fs.view();
    let key = |of| Key::new(ids::ORPHAN, Kind::ORPHAN_ITEM, of);
    view.range(TreeId::FS, key(0), key(u64::MAX)).next().is_some()
}

fn file(fs: &Filesystem, name: &str) -> Inode {
    fs.root().create(name.as_bytes(), NewInode::file(0o644)).expect("a file")
}

fn nocow(fs: &Filesystem, name: &str) -> Inode {
    let file = file(fs, name);
    let flags = Some(InodeFlags::NODATACOW);
    file.set_attr(&SetAttr { flags, ..SetAttr::default() }).expect("flags");
    file
}

fn fill(fs: &Filesystem) -> Inode {
    let filler = file(fs, "filler");
    let mut at = 0;
    for size in [MIB, 64 << 10, SECTOR] {
        let allocate = FallocateMode::Allocate { keep_size: false };
        while filler.fallocate(at, size, allocate).is_ok() {
            at += size;
        }
    }
    fs.sync().expect("durable");
    filler
}

fn bytes(seed: u8, sectors: u64) -> Vec<u8> {
    (0..sectors * SECTOR).map(|i| (i / 7) as u8 ^ seed).collect()
}

fn content(file: &Inode) -> Vec<u8> {
    let mut bytes = vec![0; file.attr().size as usize];
    file.read_at(0, &mut bytes).expect("a read");
    bytes
}

/// Holds the data groups with these numbers read-only, except groups that reservations need. The
/// numbers follow the order of addresses.
fn hold(fs: &Filesystem, mut wanted: impl FnMut(usize) -> bool) -> Vec<ReadOnlyHold> {
    let view = fs.view();
    let key = |start| Key::new(start, Kind(0), 0);
    let items = view.range(TreeId::BLOCK_GROUP, key(0), key(u64::MAX));
    let items = items.map(|found| found.expect("it reads"));
    let of_data = items.filter(|(_, item)| item[16] == BlockGroupFlags::DATA.0 as u8);
    let starts: Vec<_> = of_data.map(|(key, _)| Logical(key.objectid)).collect();
    drop(view);
    let wanted = starts.into_iter().enumerate().filter(|(index, _)| wanted(*index));
    let holds = wanted.map(|(_, start)| fs.mount().engine.hold_read_only(start));
    holds
        .filter_map(|hold| match hold {
            Err(buttress_txn::Error::NoSpace(_)) => None,
            hold => Some(hold.expect("a group")),
        })
        .collect()
}

/// Bytes of data that are reserved, and bytes that are allocated without an extent item yet.
fn pending(fs: &Filesystem) -> (u64, u64) {
    let data = fs.space_stats().accounts.data;
    (data.may_use, data.reserved)
}

/// Bytes that are dirty without a reservation.
fn unreserved(fs: &Filesystem) -> u64 {
    fs.space_stats().accounts.unreserved
}

/// N1: no free space is left, and a write in place goes to a group that is read-only at the time of
/// writeback. Writeback allocates new space if some is free by then, and fails otherwise. Writeback
/// gives back only reservations that were made.
#[test]
fn group_turns_read_only_under_a_write() {
    let device = volume(128);
    let fs = mount(&device, "rw");
    let target = nocow(&fs, "target");
    target.write_at(0, &bytes(1, 64)).expect("a write");
    let filler = fill(&fs);
    let mut expected = bytes(1, 64);
    for round in 0..6_u8 {
        let new = bytes(100 + round, 8);
        let at = u64::from(round) * 8 * SECTOR;
        if round == 3 {
            // From this round on, other groups have free space.
            let cut = SetAttr { size: Some(filler.attr().size - 8 * MIB), ..SetAttr::default() };
            filler.set_attr(&cut).expect("shrinking always works");
            fs.sync().expect_err("what was refused is told, once");
            fs.sync().expect("durable");
        }
        // On a full volume the write must not have reserved anything.
        target.write_at(at, &new).expect("in place");
        let reserved = pending(&fs).0;
        assert!(round >= 3 || reserved == 0, "{reserved} bytes reserved on a full volume");
        assert_eq!(unreserved(&fs), if round < 3 { 8 * SECTOR } else { 0 }, "round {round}");
        // The file's own group is the first.
        let holds = hold(&fs, |index| round < 3 || index == 0);
        let outcome = target.flush_data().map_err(|error| error.kind());
        drop(holds);
        if round < 3 {
            assert_eq!(outcome, Err(ErrorKind::NoSpace), "round {round}");
        } else {
            outcome.expect("there is room");
            expected[at as usize..at as usize + new.len()].copy_from_slice(&new);
        }
        assert_eq!((pending(&fs), unreserved(&fs)), ((0, 0), 0), "round {round}");
        assert!(content(&target) == expected, "round {round}");
    }
    drop((target, filler));
    fs.close().expect("closed");
    check_volume(&device);
}

/// N2: as N1, with groups that change between read-only and writable all the time. One thread
/// empties the groups, and another thread inspects them.
#[test]
fn groups_flip_beside_writers() {
    let device = volume(128);
    let fs = mount(&device, "rw");
    let files: Vec<_> = (0..3).map(|i| nocow(&fs, &format!("file-{i}"))).collect();
    for file in &files {
        file.write_at(0, &bytes(0, 64)).expect("a write");
    }
    let filler = fill(&fs);
    let stop = AtomicBool::new(false);
    let written = std::thread::scope(|scope| {
        let (fs, stop) = (&fs, &stop);
        for seed in 0..2_u64 {
            scope.spawn(move || {
                let mut rng = Rng::new(seed);
                while !stop.load(Ordering::Relaxed) {
                    let holds = hold(fs, |_| rng.chance(1, 2));
                    if seed == 0 {
                        holds.iter().for_each(ReadOnlyHold::drain);
                    }
                    drop(holds);
                }
            });
        }
        scope.spawn(move || {
            for hold_groups in [false, true].into_iter().cycle() {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let how = crate::ScrubOptions { hold_groups, ..Default::default() };
                fs.scrub(how, &mut |_| true).expect("a scrub");
            }
        });
        let writers = files.iter().zip(0_u64..).map(|(file, seed)| {
            scope.spawn(move || {
                let mut rng = Rng::new(100 + seed);
                let mut arrived = 0;
                for _ in 0..150 {
                    let at = rng.below(56) * SECTOR;
                    let direct = rng.chance(1, 3);
                    let outcome = if direct {
                        file.write_direct(at, &bytes(seed as u8, 8)).map(|_| ())
                    } else {
                        file.write_at(at, &bytes(seed as u8, 8)).and_then(|_| file.flush_data())
                    };
                    match outcome {
                        Ok(()) => arrived += 1,
                        Err(error) => assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}"),
                    }
                }
                arrived
            })
        });
        let writers: Vec<_> = writers.collect();
        let arrived: Vec<_> =
            writers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        stop.store(true, Ordering::Relaxed);
        arrived.into_iter().map(|arrived| arrived.expect("no panic")).sum::<u32>()
    });
    assert!(written > 0, "nothing arrived");
    let _ = fs.sync();
    assert_eq!(pending(&fs), (0, 0));
    // No thread holds the groups any more, so writes in place need no new space.
    for file in &files {
        file.write_at(0, &bytes(9, 64)).expect("in place");
    }
    fs.sync().expect("it arrives");
    files.iter().for_each(|file| assert!(content(file) == bytes(9, 64)));
    drop((files, filler));
    fs.close().expect("closed");
    check_volume(&device);
}

/// A4: the work that empties groups with little data comes to an end. Extents that were moved once
/// are not moved again unless something was deleted meanwhile.
#[test]
fn groups_are_moved_once() {
    for seed in 0..3 {
        let device = volume(400);
        let fs = mount(&device, "rw");
        let mut rng = Rng::new(seed);
        let files: Vec<_> = (0..180).map(|i| (i, file(&fs, &format!("file-{i}")))).collect();
        for (i, file) in &files {
            file.write_at(0, &bytes(*i as u8, 1 + rng.below(512))).expect("there is room");
        }
        fs.sync().expect("durable");
        for (i, file) in files {
            drop(file);
            if rng.chance(7, 10) {
                fs.root().unlink(format!("file-{i}").as_bytes()).expect("removed");
            }
        }
        fs.sync().expect("durable");
        let engine = &fs.mount().engine;
        let reclaim = |fs: &Filesystem| {
            fs.mount().maintenance.reclaim_groups(60, &fs.mount().holders(), &|_| true)
        };
        let (mut moved, mut passes) = (0, 0);
        loop {
            let count = reclaim(&fs).expect("emptied");
            passes += 1;
            moved += count;
            // A pass may fill a group partly, and leave the group below 60 percent. The next pass
            // then empties that group.
            if count == 0 {
                break;
            }
            assert!(passes <= 3 && moved <= 40, "pass {passes} moved {count} of {moved}");
        }
        assert!(moved > 0, "seed {seed}: there was nothing to do");
        let written = engine.statistics().nodes_written;
        assert_eq!(reclaim(&fs).expect("nothing to do"), 0);
        assert_eq!(engine.statistics().nodes_written, written, "nothing was done");
        fs.close().expect("closed");
        check_volume(&device);
    }
}

/// X10: a group with a wrong record of its free space is not used. A file that ends in this group
/// continues in another group. Searches and commits take no space of the damaged group. Nothing
/// fails while other groups have space.
#[test]
fn damaged_group_is_left_alone() {
    let device = volume(256);
    let fs = mount(&device, "rw");
    let kept = file(&fs, "kept");
    kept.write_at(0, &bytes(1, 64)).expect("a write");
    fs.sync().expect("durable");
    // Record one free sector less than there is, in the group that the file lies in.
    let group = hold(&fs, |index| index == 0).pop().expect("data").group().range();
    let engine = &fs.mount().engine;
    let (low, high) =
        (Key::new(group.start.0, Kind(0), 0), Key::new(group.end().0 - 1, Kind(u8::MAX), u64::MAX));
    let items: Vec<_> =
        fs.view().range(TreeId::FREE_SPACE, low, high).map(Result::unwrap).collect();
    let extents = items.iter().filter(|(key, _)| key.kind == Kind::FREE_SPACE_EXTENT);
    let (key, _) = extents.max_by_key(|(key, _)| key.offset).expect("an extent");
    let cost = Cost::of(2, 100);
    let handle = engine.begin(engine.reserve(cost, ReserveClass::Normal).expect("space"));
    handle.delete(TreeId::FREE_SPACE, *key);
    let shorter = Key::new(key.objectid, key.kind, key.offset - SECTOR);
    handle.put(TreeId::FREE_SPACE, shorter, Vec::new());
    drop(handle);
    drop(kept);
    fs.close().expect("closed");

    let fs = mount(&device, "rw");
    let kept = fs.resolve("kept").expect("the file");
    for round in 1..40_u8 {
        kept.write_at(u64::from(round) * 64 * SECTOR, &bytes(round, 64)).expect("there is room");
        kept.sync().expect("it arrives");
    }
    fs.sync().expect("durable");
    let stats = fs.space_stats();
    assert_eq!(stats.engine.groups_unreadable, 1);
    assert!(stats.accounts.data.read_only > 0, "what is free in it cannot be reserved");
    let held = fs.mount().engine.hold_read_only(group.start).expect("the group");
    assert!(!held.group().is_loaded());
    assert_eq!(held.group().used(), 64 * SECTOR, "nothing was put there");
    drop(held);
    for round in 1..40_u8 {
        let mut found = bytes(0, 64);
        kept.read_at(u64::from(round) * 64 * SECTOR, &mut found).expect("a read");
        assert!(found == bytes(round, 64));
    }
    drop(kept);
    fs.close().expect("closed");
}
