//! N3: however a write in place ends, its right to the group is given back, exactly once.

use std::sync::mpsc;

use buttress_format::Profile;
use buttress_sim::{FaultDevice, Faults};

use super::*;
use crate::MakeOptions;

/// Far longer than the time of a drain that has nothing to wait for.
const LONG: Duration = Duration::from_secs(20);

const POLICIES: [&str; 4] =
    ["", ",nocow_check=always", ",bg_lookup=rwlock-double", ",bg_lookup=rwlock-single"];

/// Drains every data group. A right that was not given back, or was given back twice, would block
/// the drain forever.
pub(super) fn drain_all(fs: &Filesystem, when: &str) {
    let holds = hold(fs, |_| true);
    assert!(!holds.is_empty(), "{when}: no group could be held");
    let (done, wait) = mpsc::channel();
    std::thread::spawn(move || {
        holds.iter().for_each(ReadOnlyHold::drain);
        drop(holds);
        let _ = done.send(());
    });
    wait.recv_timeout(LONG).unwrap_or_else(|_| panic!("{when}: a right was not given back once"));
}

/// If a right had been given back too often, this drain would end during a write.
pub(super) fn drain_waits_for_a_writer(fs: &Filesystem, at: Logical, when: &str) {
    let extent = buttress_format::Extent { start: at, len: SECTOR };
    let right = fs.mount().engine.begin_nocow(extent).expect("the group is not held");
    let holds = hold(fs, |_| true);
    let (done, wait) = mpsc::channel();
    let drained = std::thread::spawn(move || {
        holds.iter().for_each(ReadOnlyHold::drain);
        let _ = done.send(());
    });
    // Only the writer can block the drain. A drain that had missed the writer would end at once.
    for _ in 0..200 {
        std::thread::yield_now();
    }
    assert!(wait.try_recv().is_err(), "{when}: a drain went past a writer");
    drop(right);
    wait.recv_timeout(LONG).unwrap_or_else(|_| panic!("{when}: the drain does not return"));
    drained.join().expect("no panic");
}

/// The address of the first byte of a file.
pub(super) fn first_byte(fs: &Filesystem, file: &Inode) -> Logical {
    let key = Key::new(file.id().ino.0, Kind::EXTENT_DATA, 0);
    let item = fs.view().get(file.id().tree, &key).expect("it reads").expect("an extent");
    match buttress_format::FileExtent::parse(&item).expect("an extent").body {
        buttress_format::Body::Regular(region) => Logical(region.disk.0 + region.offset),
        other => panic!("{other:?}"),
    }
}

/// Tests N3.
/// Each request of a write in place fails in turn, on a fresh mount without cached data. The
/// requests look up extents, their other users and checksums, and write. Some data lies in
/// exclusive extents, and some must go to new extents because it is shared.
#[test]
fn each_request_of_a_write_in_place_fails() {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(128 << 20));
    // Use one copy of metadata. With two copies, a reader would try the second copy.
    let made = MakeOptions { metadata: Some(Profile::Single), ..MakeOptions::default() };
    Filesystem::make(&*device, &made).expect("an empty volume");
    let fs = mount(&device, "rw");
    let (target, other) = (nocow(&fs, "target"), nocow(&fs, "other"));
    // Make three extents, because an extent is shared as a whole.
    for (from, sectors) in [(0, 16), (16, 8), (24, 40)] {
        target.write_at(from * SECTOR, &bytes(1, sectors)).expect("a write");
        target.flush_data().expect("it arrives");
    }
    drop((target, other));
    fs.close().expect("closed");
    // A write to the shared part goes to a new extent, which is the file's alone until it is shared
    // again.
    let share = |device: &Arc<dyn Device>| {
        let fs = mount(device, "rw");
        let file = |name: &str| fs.resolve(name).expect("the file");
        file("target").clone_range(16 * SECTOR, &file("other"), 0, 8 * SECTOR).expect("shared");
        fs.close().expect("closed");
    };
    for (index, policy) in POLICIES.iter().enumerate() {
        for direct in [true, false] {
            let (mut n, mut failed) = (0, 0);
            loop {
                let when = format!("request {n}, direct: {direct}{policy}");
                share(&device);
                let faults = Faults::none();
                let faulty: Arc<dyn Device> = FaultDevice::new(Arc::clone(&device), &faults);
                let fs = mount(&faulty, &format!("rw,commit=300{policy}"));
                let target = fs.resolve("target").expect("the file");
                let new = bytes(10 + index as u8, 32);
                faults.fail(n, false);
                let outcome = if direct {
                    target.write_direct(0, &new).map(|_| ())
                } else {
                    target.write_at(0, &new).and_then(|_| target.flush_data())
                };
                let requests = faults.count();
                faults.heal();
                if let Err(error) = &outcome {
                    assert_eq!(error.kind(), ErrorKind::Io, "{when}: {error}");
                    failed += 1;
                }
                assert_eq!((pending(&fs), unreserved(&fs)), ((0, 0), 0), "{when}");
                drain_all(&fs, &when);
                drain_waits_for_a_writer(&fs, first_byte(&fs, &target), &when);
                // A later write goes in place, and a drain waits only as long as the write takes.
                let before = first_byte(&fs, &target);
                target.write_direct(0, &bytes(99, 8)).expect("the device works again");
                assert_eq!(first_byte(&fs, &target), before, "{when}: elsewhere");
                drain_all(&fs, &when);
                // A loss is reported once to a sync of the file, and once to a sync of the volume.
                let _ = (target.sync(), fs.sync());
                drop(target);
                fs.close().unwrap_or_else(|error| panic!("{when}: {error}"));
                if n >= requests {
                    break;
                }
                n += 1;
            }
            assert!(failed >= 3, "only {failed} requests failed, direct: {direct}, {policy}");
        }
    }
    check_volume(&device);
}

/// Tests N3.
/// A write over two groups, one of which is held read-only. The part in the held group has no
/// reservation for new space, so the write fails. It gives back its right to write in the other
/// group.
#[test]
fn data_without_a_reservation_is_handled() {
    for policy in POLICIES {
        let device = volume(160);
        let fs = mount(&device, &format!("rw{policy}"));
        let target = nocow(&fs, "target");
        target.write_at(0, &bytes(1, 16)).expect("a write");
        target.flush_data().expect("it arrives, in the first group");
        let filler = fill(&fs);
        let size = filler.attr().size;
        // The end of the filler lies in the group that was filled last.
        let cut = SetAttr { size: Some(size - MIB), ..SetAttr::default() };
        filler.set_attr(&cut).expect("shrinking always works");
        fs.sync().expect("durable");
        target.write_at(16 * SECTOR, &bytes(2, 16)).expect("there is room");
        fs.sync().expect("durable");
        drop(filler);
        let filler = file(&fs, "rest");
        let allocate = FallocateMode::Allocate { keep_size: false };
        let mut at = 0;
        for size in [64 << 10, SECTOR] {
            while filler.fallocate(at, size, allocate).is_ok() {
                at += size;
            }
        }
        fs.sync().expect("durable");
        for round in 0..4_u8 {
            target.write_at(0, &bytes(50 + round, 32)).expect("in place");
            let first = first_byte(&fs, &target);
            let mut holds = hold(&fs, |_| true);
            assert!(holds.len() > 1, "there is one group only");
            holds.retain(|hold| {
                let group = hold.group().range();
                group.start <= first && first < group.end()
            });
            let outcome = if round < 2 {
                target.flush_data()
            } else {
                target.write_direct(0, &bytes(60 + round, 32)).map(|_| ())
            };
            let when = format!("round {round}{policy}");
            let kind = outcome.map_err(|error| error.kind());
            // Dirty data may have been written in the background before the group was held.
            let is_written = round < 2 && kind == Ok(());
            assert!(is_written || kind == Err(ErrorKind::NoSpace), "{when}: {kind:?}");
            drop(holds);
            let _ = target.flush_data();
            assert_eq!((pending(&fs), unreserved(&fs)), ((0, 0), 0), "{when}");
            drain_all(&fs, &when);
            drain_waits_for_a_writer(&fs, first_byte(&fs, &target), &when);
            target.write_direct(0, &bytes(70 + round, 32)).expect("in place");
            assert!(content(&target) == bytes(70 + round, 32), "{when}");
            drain_all(&fs, &when);
            let _ = (target.sync(), fs.sync());
        }
        drop((target, filler));
        fs.close().expect("closed");
        check_volume(&device);
    }
}

/// U4: a scrub holds a group while it still waits for the group's writers. The group is released
/// like any other when a caller needs space.
#[test]
fn a_scrub_that_waits_refuses_no_caller() {
    let device = volume(128);
    let fs = mount(&device, "rw,commit=300");
    let target = nocow(&fs, "target");
    target.write_at(0, &bytes(1, 64)).expect("a write");
    fs.sync().expect("durable");
    let extent = buttress_format::Extent { start: first_byte(&fs, &target), len: SECTOR };
    std::thread::scope(|scope| {
        let right = fs.mount().engine.begin_nocow(extent).expect("the group is not held");
        let how = crate::ScrubOptions { hold_groups: true, ..Default::default() };
        let fs = &fs;
        let scrub = scope.spawn(move || fs.scrub(how, &mut |_| true).expect("a scrub").0);
        let begun = Instant::now();
        while fs.space_stats().accounts.data.read_only == 0 {
            assert!(begun.elapsed() < LONG, "the scrub holds nothing");
            std::thread::yield_now();
        }
        let filler = fill(fs);
        let data = fs.space_stats().accounts.data;
        assert!(data.read_only == 0 && data.free() < MIB, "{data:?}");
        assert!(!scrub.is_finished(), "it did not wait for the write in place");
        drop((right, filler));
        scrub.join().expect("no panic");
    });
    assert_eq!(content(&target), bytes(1, 64));
    drop(target);
    fs.close().expect("closed");
    check_volume(&device);
}
