//! Scrubs that hold block groups read-only: they compare the copies of data without checksums, and
//! cause no refusal of a request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use buttress_block::{Device, MemoryDevice};
use buttress_format::Profile;
use buttress_fs::{
    Filesystem, MakeOptions, MountOptions, NewInode, ScrubOptions, ScrubProgress, make::make_on,
};

use crate::checker::check;
use crate::room::fill;
use crate::volume::{file_with, memory, mount_with, nocow};

const SECTOR: usize = 4096;

fn scrub(fs: &Filesystem, hold_groups: bool) -> ScrubProgress {
    let how = ScrubOptions { hold_groups, ..ScrubOptions::default() };
    fs.scrub(how, &mut |_| true).expect("a scrub").0
}

/// Two devices, each with a copy of everything.
fn mirrors(mib: u64) -> Vec<Arc<dyn Device>> {
    let devices: Vec<_> = (0..2).map(|_| MemoryDevice::new(mib << 20)).collect();
    let parts: Vec<_> = devices.iter().map(|device| device as &dyn Device).collect();
    let (metadata, data) = (Some(Profile::Raid1), Some(Profile::Raid1));
    make_on(&parts, &MakeOptions { metadata, data, ..MakeOptions::default() }).expect("a volume");
    devices.into_iter().map(|device| Arc::new(device) as _).collect()
}

fn open(devices: &[Arc<dyn Device>], options: &str) -> Filesystem {
    let options = MountOptions::parse(options).expect("options");
    Filesystem::open(devices.to_vec(), options).expect("a mount")
}

/// A scrub ends, also if a long extent has so many references that they are items of their own.
/// These items have the address of the extent.
#[test]
fn a_scrub_gets_past_long_extents_with_many_references() {
    const LEN: u64 = 100 << 20;
    let device = memory(2048);
    let fs = mount_with(&device, "rw");
    let source = file_with(&fs.root(), "source", b"");
    let keep = buttress_fs::FallocateMode::Allocate { keep_size: false };
    source.fallocate(0, LEN, keep).expect("space");
    for number in 0..100 {
        let copy = file_with(&fs.root(), &format!("copy-{number}"), b"");
        source.clone_range(0, &copy, 0, 0).expect("shared");
    }
    fs.sync().expect("a sync");
    let mut steps = 0;
    let (_, is_complete) = fs
        .scrub(ScrubOptions::default(), &mut |_| {
            steps += 1;
            steps < 100
        })
        .expect("a scrub");
    assert!(is_complete, "{steps} steps");
    fs.close().expect("a close");
}

/// A scrub that is cancelled ends early, and the next scrub is whole. Without a scrub there is
/// nothing to cancel.
#[test]
fn a_cancelled_scrub_ends_early() {
    let devices = mirrors(256);
    let fs = open(&devices, "rw");
    file_with(&fs.root(), "file", &vec![7; 64 << 20]);
    assert!(!fs.cancel_scrubs());
    let (begun, has_begun) = mpsc::channel();
    std::thread::scope(|scope| {
        let fs = &fs;
        let scrub = scope.spawn(move || {
            // The scrub reads on until it is cancelled.
            let mut watch = |_: &ScrubProgress| {
                let _ = begun.send(());
                std::thread::sleep(Duration::from_millis(100));
                true
            };
            fs.scrub(ScrubOptions::default(), &mut watch).expect("a scrub")
        });
        has_begun.recv().expect("it begins");
        assert!(fs.cancel_scrubs());
        let (_, is_whole) = scrub.join().expect("no panic");
        assert!(!is_whole, "it was cancelled");
    });
    let (found, is_whole) = fs.scrub(ScrubOptions::default(), &mut |_| true).expect("a scrub");
    assert!(is_whole && found.data_bytes_scrubbed >= 128 << 20, "{found:?}");
    fs.close().expect("closed");
}

/// Differing copies are counted only by a scrub that holds groups, even on a read-only volume.
#[test]
fn copies_without_checksums_are_compared() {
    let devices = mirrors(256);
    let fs = open(&devices, "rw");
    let file = nocow(&fs, "file");
    let marked: Vec<u8> = (0..64 * SECTOR).map(|at| (at / SECTOR) as u8 ^ 0x5A).collect();
    file.write_at(0, &marked).expect("a write");
    drop(file);
    fs.close().expect("closed");
    let mut place = vec![0; SECTOR];
    let mut damaged = 0;
    for at in (1 << 20..devices[1].len()).step_by(SECTOR) {
        devices[1].read_at(at, &mut place).expect("a read");
        let is_ours = place.iter().all(|byte| *byte == place[0]);
        if is_ours && [0x5A, 0x5A ^ 17, 0x5A ^ 63].contains(&place[0]) {
            devices[1].write_at(at, &[0xEE; SECTOR]).expect("damage");
            damaged += 1;
        }
    }
    assert_eq!(damaged, 3, "the sectors of the file that were meant");
    for options in ["rw", "ro"] {
        let fs = open(&devices, options);
        let (plain, held) = (scrub(&fs, false), scrub(&fs, true));
        assert_eq!((plain.no_csum_unlike, plain.groups_held), (0, 0), "{options}");
        assert_eq!((held.no_csum_unlike, held.no_csum), (3, 64), "{options}");
        assert_eq!(held.groups_held > 0, options == "rw", "{options}");
        assert!(!held.has_errors(), "{options}: which copy is right cannot be told");
        fs.close().expect("closed");
    }
}

/// Files are written in place during the scrub. The scrub counts no sector under a write as
/// damaged, and all written data reaches the device.
#[test]
fn writers_in_place_beside_a_scrub_that_holds() {
    let devices = mirrors(256);
    let fs = open(&devices, "rw,commit=300");
    let files: Vec<_> = (0..2).map(|i| nocow(&fs, &format!("f{i}"))).collect();
    for file in &files {
        file.write_at(0, &[1; 256 * SECTOR]).expect("a write");
    }
    fs.sync().expect("durable");
    let stop = AtomicBool::new(false);
    let turns = std::thread::scope(|scope| {
        let writers: Vec<_> = files
            .iter()
            .map(|file| {
                scope.spawn(|| {
                    let mut turn = 0_u64;
                    while !stop.load(Ordering::Relaxed) {
                        turn += 1;
                        let at = turn * 7 % 256 * SECTOR as u64;
                        file.write_at(at, &[turn as u8; SECTOR]).expect("there is room");
                        file.flush_data().expect("it arrives");
                    }
                    turn
                })
            })
            .collect();
        let found: Vec<_> = (0..60).map(|_| scrub(&fs, true)).collect();
        stop.store(true, Ordering::Relaxed);
        assert!(found.iter().any(|found| found.groups_held > 0), "some were held");
        assert!(found.iter().all(|found| found.no_csum_unlike == 0));
        writers.into_iter().map(|writer| writer.join().expect("no panic")).collect::<Vec<_>>()
    });
    for (file, turns) in files.iter().zip(turns) {
        let mut found = [0; SECTOR];
        for turn in turns.saturating_sub(255).max(1)..=turns {
            file.read_at(turn * 7 % 256 * SECTOR as u64, &mut found).expect("a read");
            assert_eq!(found, [turn as u8; SECTOR]);
        }
    }
    drop(files);
    fs.close().expect("closed");
}

/// U4: all free space lies in groups that are held one after the other. A request for this space is
/// served at once, while the scrub makes no progress.
#[test]
fn no_request_is_refused_for_a_scrub() {
    let device = memory(128);
    let fs = mount_with(&device, "rw,commit=300");
    let kept = file_with(&fs.root(), "kept", &[1; 12 << 20]);
    fs.sync().expect("durable");
    let (mut looks, mut held) = (0, false);
    let how = ScrubOptions { hold_groups: true, ..ScrubOptions::default() };
    let mut during = |progress: &ScrubProgress| {
        (looks, held) = (looks + 1, progress.groups_held > 0);
        // Takes all free space, and gives it back.
        drop(fill(&fs, 0));
        let data = fs.space_stats().accounts.data;
        assert!(data.read_only == 0 && data.free() < 1 << 20, "{data:?}");
        fs.root().unlink(b"filler").expect("removed");
        true
    };
    fs.scrub(how, &mut during).expect("a scrub");
    assert!(held && looks >= 3, "{looks} looks");
    drop(kept);
    fs.close().expect("closed");
    check(&device);
}

/// A scrub checks data that was written just before the scrub, because a scrub begins with a
/// commit.
#[test]
fn a_scrub_begins_with_a_commit() {
    let device = memory(256);
    let fs = open(&[device], "rw");
    let file = fs.root().create(b"f", NewInode::file(0o644)).expect("made");
    for at in 0..8 {
        file.write_at(at << 20, &vec![1; 1 << 20]).expect("written");
    }
    let found = scrub(&fs, false);
    assert!(found.data_bytes_scrubbed >= 8 << 20, "{found:?}");
    fs.close().expect("closed");
}
