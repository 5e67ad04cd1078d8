//! Faults of other implementations, by their numbers in `docs/internals/kernel-bugs.md`: on a
//! volume where space is short, where a device fails, or where a range passes to another file
//! meanwhile.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use buttress_block::{Device, Error};
use buttress_format::{Body, FileExtent, Key, Kind};
use buttress_fs::{
    ErrorKind, FallocateMode, Filesystem, Inode, MountOptions, NewInode, SetAttr, TreeId,
};
use buttress_sim::{FaultDevice, Faults};

use crate::checker::check;
use crate::devices::{Hook, Hooked};
use crate::volume::{content, file_with, memory, mount, mount_with, nocow, pattern};

const SECTOR: u64 = 4096;
const MIB: u64 = 1 << 20;

/// Takes all free space for data, after dirty data has reserved its own space.
fn fill(fs: &Filesystem) -> Inode {
    let filler = file_with(&fs.root(), "filler", b"");
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

/// Reserved bytes, and allocated bytes, of data that no item names yet.
fn pending(fs: &Filesystem) -> (u64, u64) {
    let data = fs.space_stats().accounts.data;
    (data.may_use, data.reserved)
}

/// The extents of a file: offset, length and address; the address of a hole is zero.
fn layout(fs: &Filesystem, file: &Inode) -> Vec<(u64, u64, u64)> {
    let view = fs.view();
    let key = |offset| Key::new(file.id().ino.0, Kind::EXTENT_DATA, offset);
    let items = view.range(file.id().tree, key(0), key(u64::MAX));
    let show = |(key, item): (Key, buttress_tree::Item)| {
        let extent = FileExtent::parse(&item).expect("an extent");
        let at = match &extent.body {
            Body::Regular(region) | Body::Prealloc(region) if region.disk.0 != 0 => {
                region.disk.0 + region.offset
            }
            _ => 0,
        };
        (key.offset, extent.file_len(), at)
    };
    items.map(|found| show(found.expect("it reads"))).collect()
}

/// The address of a byte of a file.
fn address(layout: &[(u64, u64, u64)], offset: u64) -> u64 {
    let holds = |(start, len, _): &&(u64, u64, u64)| (*start..start + len).contains(&offset);
    layout
        .iter()
        .find(holds)
        .map_or(0, |(start, _, at)| if *at == 0 { 0 } else { at + offset - start })
}

/// N6: on a full volume a file is written in place, and then shared before the data is written
/// back. Every accepted write reaches the device.
#[test]
fn data_written_without_space_can_be_shared() {
    let device = memory(128);
    let fs = mount(&device);
    let file = nocow(&fs, "file");
    file.write_at(0, &pattern(1, MIB as usize)).expect("a write");
    let target = nocow(&fs, "target");
    let filler = fill(&fs);
    let mut expected = pattern(1, MIB as usize);
    for round in 0..4_u64 {
        let bytes = pattern(10 + round, 16 * SECTOR as usize);
        let at = round * 20 * SECTOR;
        match file.write_at(at, &bytes).map_err(|error| error.kind()) {
            Ok(_) => expected[at as usize..at as usize + bytes.len()].copy_from_slice(&bytes),
            // From the second round on, the clone shares the old data there.
            Err(kind) => assert!(round > 0 && kind == ErrorKind::NoSpace, "{kind:?}"),
        }
        file.clone_range(0, &target, 0, MIB).expect("sharing takes no data space");
        file.sync().expect("what was accepted arrives");
        assert!(content(&file) == expected && content(&target) == expected, "round {round}");
        assert_eq!(pending(&fs), (0, 0), "round {round}");
    }
    drop((file, target, filler));
    fs.close().expect("closed");
    check(&device);
}

/// N7: a thread overwrites all extents of a file in place. Between its writes, another thread
/// splits and joins the extents. The writer ends without an error. The test
/// `scanned_extents_are_not_split`, in `processors`, checks that no extent is split during a
/// write.
#[test]
fn extents_split_under_a_writer() {
    const SECTORS: u64 = 256;
    let device = memory(256);
    let fs = mount(&device);
    let file = nocow(&fs, "file");
    file.write_direct(0, &vec![1; (SECTORS * SECTOR) as usize]).expect("a write");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (file, stop) = (&file, &stop);
        scope.spawn(move || {
            let mut at = 0;
            while !stop.load(Ordering::Relaxed) {
                at = (at + 37) % (SECTORS - 2);
                let allocate = FallocateMode::Allocate { keep_size: true };
                file.fallocate(at * SECTOR, SECTOR, FallocateMode::PunchHole).expect("a hole");
                file.fallocate(at * SECTOR, 2 * SECTOR, allocate).expect("space");
            }
        });
        for round in 0..60_u8 {
            let bytes = vec![round.max(1); (SECTORS * SECTOR) as usize];
            if round % 2 == 0 {
                file.write_direct(0, &bytes).expect("a write");
            } else {
                file.write_at(0, &bytes).expect("a write");
                file.flush_data().expect("written back");
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    for sector in content(&file).chunks_exact(SECTOR as usize) {
        let byte = sector[0];
        assert!((byte == 0 || byte == 59) && sector.iter().all(|other| *other == byte), "{byte}");
    }
    drop(file);
    fs.close().expect("closed");
    check(&device);
}

/// N8: one write over a hole, a preallocated part, a shared part and unshared parts copies only the
/// parts that cannot be written in place.
#[test]
fn copies_cover_only_the_needed_bytes() {
    let device = memory(256);
    let fs = mount(&device);
    let part = 16 * SECTOR;
    for direct in [true, false] {
        let file = nocow(&fs, if direct { "direct" } else { "buffered" });
        let other = nocow(&fs, if direct { "other" } else { "another" });
        let mine = |at: u64| file.write_direct(at, &pattern(at, part as usize)).expect("a write");
        // The parts are: unshared, hole, preallocated, shared, unshared.
        mine(0);
        mine(3 * part);
        mine(4 * part);
        let allocate = FallocateMode::Allocate { keep_size: false };
        file.fallocate(2 * part, part, allocate).expect("space");
        file.clone_range(3 * part, &other, 0, part).expect("shared");
        fs.sync().expect("durable");
        let before = layout(&fs, &file);
        // The write goes from the middle of the first part to the middle of the last.
        let range: Range<u64> = part / 2..4 * part + part / 2;
        let bytes = pattern(99, (range.end - range.start) as usize);
        if direct {
            file.write_direct(range.start, &bytes).expect("a write");
        } else {
            file.write_at(range.start, &bytes).expect("a write");
        }
        fs.sync().expect("durable");
        let after = layout(&fs, &file);
        for sector in (0..5 * part).step_by(SECTOR as usize) {
            let (old, new) = (address(&before, sector), address(&after, sector));
            let stays = matches!(sector / part, 0 | 2 | 4);
            assert_eq!(old == new, stays, "{direct}: {sector} was at {old}, is at {new}");
            assert_ne!(new, 0);
        }
        assert!(content(&other) == pattern(3 * part, part as usize));
        let mut found = vec![0; bytes.len()];
        file.read_at(range.start, &mut found).expect("a read");
        assert!(found == bytes);
    }
    fs.close().expect("closed");
    check(&device);
}

/// N12: cutting a file in the middle of a sector makes that sector dirty. On a full volume no space
/// is reserved for this sector, and only reserved space is given back.
#[test]
fn cut_gives_back_the_reservation() {
    let device = memory(128);
    let fs = mount(&device);
    let files: Vec<_> = (0..6).map(|i| nocow(&fs, &format!("file-{i}"))).collect();
    for (file, seed) in files.iter().zip(0..) {
        file.write_at(0, &pattern(seed, 64 * SECTOR as usize)).expect("a write");
    }
    let filler = fill(&fs);
    for (file, seed) in files.iter().zip(0_u64..) {
        let mut expected = pattern(seed, 64 * SECTOR as usize);
        let bytes = pattern(100 + seed, 8 * SECTOR as usize);
        // The file has dirty data without reserved space. The file is cut within this data, or in a
        // sector before or after the data, and then becomes longer again.
        file.write_at(16 * SECTOR, &bytes).expect("in place");
        expected[16 * SECTOR as usize..24 * SECTOR as usize].copy_from_slice(&bytes);
        let size = [20 * SECTOR + 100, 10 * SECTOR + 1, 40 * SECTOR + 4095][seed as usize % 3];
        for size in [size, size + 3 * SECTOR] {
            file.set_attr(&SetAttr { size: Some(size), ..SetAttr::default() }).expect("a cut");
        }
        expected[size as usize..].fill(0);
        expected.truncate((size + 3 * SECTOR) as usize);
        if seed % 2 == 0 {
            file.sync().expect("what was accepted arrives");
        }
        assert!(content(file) == expected, "file {seed}");
    }
    fs.sync().expect("what was accepted arrives");
    assert_eq!(pending(&fs), (0, 0));
    drop((files, filler));
    fs.close().expect("closed");
    check(&device);
}

/// N13, N14: the device fails in the middle of a writeback, or with the last part of it.
/// Reservation and allocation are given back exactly once, the old content stays, and the next
/// write succeeds.
#[test]
fn failed_writeback_gives_reservations_back() {
    let below = memory(160);
    let faults = Faults::none();
    let device: Arc<dyn Device> = FaultDevice::new(Arc::clone(&below), &faults);
    let fs = Filesystem::open(vec![device], MountOptions::default()).expect("a mount");
    let kept = file_with(&fs.root(), "kept", &pattern(1, 40 * SECTOR as usize));
    // The free space is in many parts, so that a run becomes many extents.
    let name = |i: u64| format!("sector-{i}");
    for i in 0..160 {
        let sector = file_with(&fs.root(), &name(i), &[1; SECTOR as usize]);
        sector.flush_data().expect("written");
    }
    let filler = fill(&fs);
    for i in (0..160).step_by(2) {
        fs.root().unlink(name(i).as_bytes()).expect("removed");
    }
    fs.sync().expect("durable");
    let used = fs.space_stats().accounts.data.used;
    let mut hit = 0;
    for n in 0.. {
        let direct = n % 2 == 1;
        let file = file_with(&fs.root(), &format!("file-{n}"), b"");
        let bytes = pattern(n, 24 * SECTOR as usize);
        let outcome = if direct {
            faults.fail(n / 2, false);
            file.write_direct(0, &bytes).map(|_| ())
        } else {
            file.write_at(0, &bytes).expect("into memory");
            faults.fail(n / 2, false);
            file.flush_data()
        };
        let requests = faults.count();
        faults.heal();
        assert_eq!(pending(&fs), (0, 0), "request {n} of {requests}");
        assert!(content(&kept) == pattern(1, 40 * SECTOR as usize));
        match outcome {
            Ok(()) => assert!(content(&file) == bytes, "nothing had failed"),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Io, "{error}");
                hit += 1;
                file.write_at(0, &bytes).expect("into memory");
                file.flush_data().expect("the device works again");
                assert!(content(&file) == bytes);
            }
        }
        drop(file);
        fs.root().unlink(format!("file-{n}").as_bytes()).expect("removed");
        fs.sync().map_or_else(|error| assert_eq!(error.kind(), ErrorKind::Io), |()| ());
        if n / 2 > requests && !direct {
            break;
        }
    }
    assert!(hit >= 16, "only {hit} requests failed");
    fs.sync().expect("durable");
    assert_eq!(fs.space_stats().accounts.data.used, used, "nothing is lost");
    drop((kept, filler));
    fs.close().expect("closed");
    check(&below);
}

/// A device with slow discards, and whether a discard has begun.
#[derive(Debug, Default)]
struct Slow(AtomicBool);

impl Hook for Slow {
    fn discard(&self, below: &dyn Device, offset: u64, len: u64) -> Result<(), Error> {
        if len > 512 << 10 {
            self.0.store(true, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(120));
        }
        below.discard(offset, len)
    }
}

/// X4, N5: space that is about to be discarded is not allocated yet, although it is the only free
/// space.
#[test]
fn space_under_discard_is_not_allocated() {
    let below = memory(128);
    let slow = Hooked::new(&below, Slow::default());
    let device: Arc<dyn Device> = Arc::clone(&slow) as _;
    let options = MountOptions::parse("rw,discard").expect("options");
    let fs = Filesystem::open(vec![device], options).expect("a mount");
    let large = file_with(&fs.root(), "large", &pattern(1, 4 << 20));
    fs.sync().expect("durable");
    let filler = fill(&fs);
    drop(large);
    fs.root().unlink(b"large").expect("removed");
    std::thread::scope(|scope| {
        let (fs, slow) = (&fs, &slow);
        scope.spawn(move || fs.sync().expect("durable"));
        while !slow.hook.0.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let new = file_with(&fs.root(), "new", b"");
        new.write_direct(0, &pattern(2, 2 << 20)).expect("it waits for the space, or has some");
    });
    drop(filler);
    fs.close().expect("closed");
    let fs = mount(&below);
    assert!(content(&fs.resolve("new").expect("the file")) == pattern(2, 2 << 20));
    fs.close().expect("closed");
    check(&below);
}

/// N5: a new group does not get the addresses of a removed group before the removal is durable.
/// This holds even if the removed group was the last one.
#[test]
fn addresses_of_a_removed_group_are_used_again() {
    let device = memory(512);
    let ends = |fs: &Filesystem| -> Vec<u64> {
        let view = fs.view();
        let key = |start| Key::new(start, Kind(0), 0);
        let items = view.range(TreeId::BLOCK_GROUP, key(0), key(u64::MAX));
        items.map(|found| found.expect("it reads").0).map(|key| key.objectid + key.offset).collect()
    };
    let fs = mount(&device);
    let large = fs.root().create(b"large", NewInode::file(0o644)).expect("a file");
    let allocate = FallocateMode::Allocate { keep_size: false };
    large.fallocate(0, 150 << 20, allocate).expect("space");
    fs.sync().expect("durable");
    drop(large);
    fs.close().expect("closed");
    // This mount has not made any group yet.
    let fs = mount_with(&device, "rw");
    let before = ends(&fs);
    fs.root().unlink(b"large").expect("removed");
    // The first commit frees the groups, which are then removed. The file needs a new group at
    // once.
    for round in 0..3 {
        fs.sync().expect("durable");
        let file = fs
            .root()
            .create(format!("f{round}").as_bytes(), NewInode::file(0o644))
            .expect("a file");
        file.fallocate(0, 60 << 20, allocate).expect("space");
        fs.sync().expect("durable");
        check(&device);
    }
    let after = ends(&fs);
    let last = |ends: &[u64]| ends.iter().copied().max().expect("some");
    assert!(last(&after) > last(&before), "{before:?}, then {after:?}");
    fs.close().expect("closed");
    check(&device);
}
