//! Replacements that go on where they were interrupted.

use std::sync::Arc;
use std::time::Duration;

use buttress_block::{Device, MemoryDevice};
use buttress_format::{DeviceId, ReplaceItem};
use buttress_fs::{Filesystem, MakeOptions, MountOptions, ReplaceState};
use buttress_sim::Log;
use buttress_volume::Volume;

use crate::checker::expect_sound;
use crate::volume::{content, copy, file_with, mount, nocow, pattern};

const LEN: u64 = 768 << 20;
const FILES: u64 = 12;
const FILE_LEN: usize = 16 << 20;

fn open(devices: &[&Arc<dyn Device>]) -> Filesystem {
    let options = MountOptions::parse("rw,noatime").expect("options");
    Filesystem::open(devices.iter().map(|device| Arc::clone(device)).collect(), options)
        .expect("a mount")
}

fn file(number: u64) -> Vec<u8> {
    pattern(number, FILE_LEN)
}

/// A replacement that an unmount has interrupted after half of its bytes. Returns the old device,
/// the new one, and the bytes to copy in all and up to the interruption.
struct Half {
    old: Arc<dyn Device>,
    new: MemoryDevice,
    all: u64,
    done: u64,
}

fn half() -> Half {
    let old: Arc<dyn Device> = Arc::new(MemoryDevice::new(LEN));
    Filesystem::make(&*old, &MakeOptions::default()).expect("a volume");
    let fs = mount(&old);
    for number in 0..FILES {
        drop(file_with(&fs.root(), &format!("file-{number}"), &file(number)));
    }
    nocow(&fs, "bare").write_at(0, &pattern(100, FILE_LEN)).expect("a write");
    fs.sync().expect("a commit");
    let new: Arc<dyn Device> = Arc::new(MemoryDevice::new(LEN));
    let (mut all, mut done) = (0, 0);
    std::thread::scope(|scope| {
        let (begun, begins) = std::sync::mpsc::channel();
        let (replacing, target) = (fs.clone(), Arc::clone(&new));
        let (all, done) = (&mut all, &mut done);
        let work = scope.spawn(move || {
            replacing.replace_device(DeviceId(1), target, &mut |progress| {
                (*all, *done) = (progress.bytes, progress.moved);
                if progress.moved > progress.bytes / 2 {
                    let _ = begun.send(());
                    std::thread::sleep(Duration::from_millis(20));
                }
                true
            })
        });
        begins.recv().expect("it comes to the half");
        fs.clone().close().expect("a close");
        assert!(work.join().expect("no panic").is_err(), "it ended before the unmount");
    });
    let new = copy(&*new);
    let found = Volume::read_superblock(&new).expect("a superblock");
    assert_eq!(found.dev_item.devid, ReplaceItem::TARGET);
    Half { old, new, all, done }
}

/// Only what is left is copied. What was written before the copy goes on is on the new device, too.
#[test]
fn a_replacement_goes_on_at_its_cursor() {
    let Half { old, new, all, done } = half();
    let log = Log::new();
    let new = log.device(&new, 512);
    log.start(&[&new]);
    let target: Arc<dyn Device> = Arc::clone(&new) as Arc<dyn Device>;
    let fs = open(&[&target, &old]);
    let status = fs.replace_status().expect("the record").expect("one");
    assert_eq!(status.state, ReplaceState::Suspended);
    assert!(status.copied > 0, "{status:?}");
    fs.resolve("bare").expect("it").write_at(1 << 20, &pattern(101, 1 << 20)).expect("a write");
    fs.resolve("bare").expect("it").sync().expect("a log");
    let (before, _) = log.totals(new.id());
    let found = fs.resume_replace(&mut |_| true).expect("the rest").expect("a record");
    assert_eq!(found.uncorrectable_errors, 0);
    let (after, _) = log.totals(new.id());
    let (copied, left) = (after - before, all - done);
    println!("{all} bytes, {done} before the unmount, {copied} after it");
    assert!(copied < left + (24 << 20), "{copied} of {left} left");
    fs.close().expect("a close");
    expect_new(&target, &[(1 << 20, 101)]);
}

/// The old device decides if the new one was damaged while the volume was away.
#[test]
fn a_damaged_copy_is_made_anew() {
    let Half { old, new, done, .. } = half();
    let noise = vec![0x77; 1 << 20];
    for at in (2 << 20..done / 2).step_by(8 << 20) {
        new.write_at(at, &noise).expect("damage");
    }
    let new: Arc<dyn Device> = Arc::new(new);
    let fs = open(&[&new, &old]);
    let found = fs.resume_replace(&mut |_| true).expect("the rest").expect("a record");
    assert_eq!(found.uncorrectable_errors, 0);
    fs.close().expect("a close");
    expect_new(&new, &[]);
}

/// A target that a mount went on without is copied from the beginning.
#[test]
fn a_target_that_was_away_begins_anew() {
    let Half { old, new, all, .. } = half();
    let fs = open(&[&old]);
    fs.resolve("bare").expect("it").write_at(0, &pattern(102, 1 << 20)).expect("a write");
    fs.close().expect("a close");
    let log = Log::new();
    let new = log.device(&new, 512);
    log.start(&[&new]);
    let target: Arc<dyn Device> = Arc::clone(&new) as Arc<dyn Device>;
    let fs = open(&[&target, &old]);
    fs.resume_replace(&mut |_| true).expect("all").expect("a record");
    assert!(log.totals(new.id()).0 >= all, "all of it is copied");
    fs.close().expect("a close");
    expect_new(&target, &[(0, 102)]);
}

/// The new device alone has all files, with these changes of one file.
#[track_caller]
fn expect_new(new: &Arc<dyn Device>, changes: &[(usize, u64)]) {
    let fs = mount(new);
    for number in 0..FILES {
        let found = content(&fs.resolve(format!("file-{number}")).expect("it"));
        assert!(found == file(number), "file-{number}");
    }
    let mut bare = pattern(100, FILE_LEN);
    for (at, seed) in changes {
        bare[*at..at + (1 << 20)].copy_from_slice(&pattern(*seed, 1 << 20));
    }
    assert!(content(&fs.resolve("bare").expect("it")) == bare, "bare");
    fs.close().expect("a close");
    expect_sound(new);
}
