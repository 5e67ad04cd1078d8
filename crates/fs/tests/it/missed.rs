//! Devices that missed a short degraded mount are never taken for current ones.

use std::sync::Arc;

use buttress_block::error::Operation;
use buttress_block::{Device, MemoryDevice};
use buttress_format::Profile;
use buttress_fs::make::make_on;
use buttress_fs::{Filesystem, MakeOptions, MountOptions, ScrubOptions};
use buttress_sim::{FaultDevice, FaultKind, Faults};
use buttress_volume::Volume;

use crate::checker::find_faults_of;
use crate::volume::{content, copy, file_with, nocow, pattern};

const LEN: usize = 500_000;

fn open(devices: &[&Arc<dyn Device>], options: &str) -> Filesystem {
    let options = MountOptions::parse(options).expect("options");
    Filesystem::open(devices.iter().map(|device| Arc::clone(device)).collect(), options)
        .expect("a mount")
}

fn generation(device: &Arc<dyn Device>) -> u64 {
    Volume::read_superblock(&**device).expect("a superblock").generation.0
}

/// Two mirrors with data that has no checksums, so that only the age of a device tells which copy
/// is right.
fn mirrored() -> [Arc<dyn Device>; 2] {
    let devices: [Arc<dyn Device>; 2] = [0, 1].map(|_| Arc::new(MemoryDevice::new(1 << 30)) as _);
    let raid1 = Some(Profile::Raid1);
    let options = MakeOptions { metadata: raid1, data: raid1, ..MakeOptions::default() };
    make_on(&[&*devices[0], &*devices[1]], &options).expect("a volume");
    let fs = open(&[&devices[0], &devices[1]], "rw,noatime");
    nocow(&fs, "bare").write_at(0, &pattern(1, LEN)).expect("a write");
    fs.close().expect("a close");
    devices
}

fn write_bare(fs: &Filesystem, seed: u64) {
    fs.resolve("bare").expect("the file").write_at(0, &pattern(seed, LEN)).expect("a write");
}

/// Opens both devices, changes something, and reads the file many times. A device that was trusted
/// too early would be read in turn.
#[track_caller]
fn expect_bare(devices: [&Arc<dyn Device>; 2], seed: u64, when: &str) {
    for round in 0..3 {
        let fs = open(&devices, "rw,noatime");
        assert_eq!(fs.read_only_reason(), None, "{when}");
        let name = format!("{when} {round}");
        drop(file_with(&fs.root(), &name, b"a change"));
        let found = content(&fs.resolve("bare").expect("the file"));
        assert!(found == pattern(seed, LEN), "{when}: old content in round {round}");
        fs.close().expect("a close");
    }
}

/// A degraded mount of one transaction, or only of a log, leaves a device that is old for sure. It
/// is read last until a scrub has renewed it.
#[test]
fn a_short_degraded_mount_is_seen() {
    for how in ["a commit", "a log", "nothing"] {
        let [one, two] = mirrored();
        let before = generation(&one);
        let fs = open(&[&one], "rw,noatime,degraded,commit=3000");
        assert!(generation(&one) >= before + 2, "{how}: it is ahead before any change");
        let mut left: Arc<dyn Device> = Arc::clone(&one);
        let mut seed = 2;
        write_bare(&fs, seed);
        match how {
            "a commit" => fs.close().expect("a close"),
            "a log" => {
                fs.resolve("bare").expect("the file").sync().expect("a log");
                left = Arc::new(copy(&*one));
                fs.close().expect("a close");
                let found = Volume::read_superblock(&*left).expect("a superblock");
                assert_ne!(found.log_root.0, 0, "there is a log");
            }
            _ => {
                // Data that was written in place before any commit, and then the power is cut.
                let file = fs.resolve("bare").expect("the file");
                seed = 3;
                file.write_at(0, &pattern(seed, LEN)).expect("a write");
                file.sync().expect("durable");
                left = Arc::new(copy(&*one));
                fs.close().expect("a close");
            }
        }
        assert_eq!(generation(&two), before, "{how}");
        expect_bare([&left, &two], seed, how);
        assert_eq!(generation(&two), before, "{how}: it is not renewed without a scrub");
        let fs = open(&[&left, &two], "rw,noatime");
        let options = ScrubOptions::default();
        let (found, _) = fs.scrub(options, &mut |_| true).expect("a scrub");
        assert_eq!(found.uncorrectable_errors, 0, "{how}");
        fs.close().expect("a close");
        assert_eq!(generation(&two), generation(&left), "{how}: the scrub renewed it");
        // Now the device alone has everything.
        let alone = open(&[&two], "ro,degraded");
        let found = content(&alone.resolve("bare").expect("the file"));
        assert!(found == pattern(seed, LEN), "{how}: alone");
        alone.close().expect("a close");
        find_faults_of(vec![left, two]).unwrap_or_else(|what| panic!("{how}: {what}"));
    }
}

/// The replay of a log is the first commit of a degraded mount. A device that missed only this
/// commit is old, too.
#[test]
fn a_replay_without_a_device_is_seen() {
    let [one, two] = mirrored();
    let fs = open(&[&one, &two], "rw,noatime,commit=3000");
    let file = file_with(&fs.root(), "logged", &pattern(7, 5000));
    file.sync().expect("a log");
    let [one, two] = [&one, &two].map(|device| -> Arc<dyn Device> { Arc::new(copy(&**device)) });
    fs.close().expect("a close");
    let before = generation(&one);
    assert_eq!(generation(&two), before);
    let faults = Faults::none();
    // The power is cut at each flush.
    let mut seen = Vec::new();
    for number in 0..12 {
        let left: Arc<dyn Device> = Arc::new(copy(&*one));
        let faulty: Arc<dyn Device> = FaultDevice::new(Arc::clone(&left), &faults);
        faults.strike(number, Some(Operation::Flush), FaultKind::Gone);
        let options = MountOptions::parse("rw,noatime,degraded,commit=3000").expect("options");
        if let Ok(fs) = Filesystem::open(vec![faulty], options) {
            let _ = fs.close();
        }
        faults.heal();
        seen.push(generation(&left));
    }
    let first = *seen.iter().find(|found| **found > before).expect("the replay was committed");
    assert!(first >= before + 2, "{before}, then {seen:?}");
}

/// A mount without missing devices, and one that only reads, make no commits of their own.
#[test]
fn whole_volumes_are_left_alone() {
    let [one, two] = mirrored();
    let before = generation(&one);
    for (devices, options) in
        [(vec![&one, &two], "rw,degraded"), (vec![&one, &two], "rw"), (vec![&one], "ro,degraded")]
    {
        open(&devices, options).close().expect("a close");
        assert_eq!(generation(&one), before, "{options}");
    }
}
