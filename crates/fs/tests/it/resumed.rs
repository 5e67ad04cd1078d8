//! Replacements that go on where they were interrupted.

use std::sync::Arc;
use std::time::Duration;

use buttress_base::Rng;
use buttress_block::error::Operation;
use buttress_block::{Device, MemoryDevice};
use buttress_format::{DeviceId, ReplaceItem};
use buttress_fs::{Filesystem, Inode, MakeOptions, MountOptions, ReplaceState, XattrFlags};
use buttress_sim::{FaultDevice, FaultKind, Faults, Log, campaign};
use buttress_volume::Volume;

use crate::checker::{expect_cut_sound, expect_sound};
use crate::moving::beside_writes;
use crate::volume::{content, copy, file_with, mount, nocow, pattern, wait_until_closing};

const LEN: u64 = 512 << 20;
const FILES: u64 = 6;
const FILE_LEN: usize = 8 << 20;
const ATOM: usize = 512;

fn open(devices: &[&Arc<dyn Device>]) -> Filesystem {
    let options = MountOptions::parse("rw,noatime").expect("options");
    Filesystem::open(devices.iter().map(|device| Arc::clone(device)).collect(), options)
        .expect("a mount")
}

fn file(number: u64) -> Vec<u8> {
    pattern(number, FILE_LEN)
}

fn version(number: u64) -> Vec<u8> {
    pattern(1000 + number, 60_000)
}

fn bare(fs: &Filesystem) -> Inode {
    fs.resolve("bare").expect("it")
}

/// A volume with files, two of which are overwritten in place.
fn filled() -> MemoryDevice {
    let old: Arc<dyn Device> = Arc::new(MemoryDevice::new(LEN));
    Filesystem::make(&*old, &MakeOptions::default()).expect("a volume");
    let fs = mount(&old);
    nocow(&fs, "busy").write_at(0, &version(0)).expect("a write");
    nocow(&fs, "bare").write_at(0, &pattern(100, FILE_LEN)).expect("a write");
    // The files that are overwritten in place lie before the cursor.
    fs.sync().expect("a commit");
    for number in 0..FILES {
        drop(file_with(&fs.root(), &format!("file-{number}"), &file(number)));
    }
    fs.close().expect("a close");
    copy(&*old)
}

/// Replaces the device of a volume, and does `work` when half of the bytes were copied. The copy
/// stands still then. Returns the bytes to copy, and how many were copied.
fn replaced_by_half(
    fs: &Filesystem,
    new: &Arc<dyn Device>,
    work: impl FnOnce(Filesystem),
) -> (u64, u64) {
    let (mut all, mut done) = (0, 0);
    std::thread::scope(|scope| {
        let (begun, begins) = std::sync::mpsc::channel();
        let (end, ends) = std::sync::mpsc::channel::<()>();
        let (replacing, target) = (fs.clone(), Arc::clone(new));
        let (all, done) = (&mut all, &mut done);
        let copying = scope.spawn(move || {
            let mut stands = false;
            replacing.replace_device(DeviceId(1), target, &mut |progress| {
                (*all, *done) = (progress.bytes, progress.moved);
                if progress.moved > progress.bytes / 2 && !stands {
                    stands = true;
                    let _ = begun.send(());
                    let _ = ends.recv_timeout(Duration::from_secs(20));
                }
                !stands
            })
        });
        begins.recv().expect("it comes to the half");
        work(fs.clone());
        let _ = end.send(());
        assert!(copying.join().expect("no panic").is_err(), "it did not end");
    });
    (all, done)
}

/// A replacement that an unmount has interrupted after half of its bytes. Returns the old device,
/// the new one, and the bytes to copy in all and up to the interruption.
struct Half {
    old: MemoryDevice,
    new: MemoryDevice,
    all: u64,
    done: u64,
}

fn half() -> Half {
    let old: Arc<dyn Device> = Arc::new(filled());
    let new: Arc<dyn Device> = Arc::new(MemoryDevice::new(LEN));
    let fs = mount(&old);
    let mut closing = None;
    let (all, done) = replaced_by_half(&fs, &new, |fs| {
        let closed = fs.clone();
        closing = Some(std::thread::spawn(move || closed.close().expect("a close")));
        // A copy that stops before the close has begun is cancelled.
        wait_until_closing(&fs);
    });
    closing.expect("it was begun").join().expect("no panic");
    let found = Volume::read_superblock(&*new).expect("a superblock");
    assert_eq!(found.dev_item.devid, ReplaceItem::TARGET);
    Half { old: copy(&*old), new: copy(&*new), all, done }
}

fn shared(device: &MemoryDevice) -> Arc<dyn Device> {
    Arc::new(device.fork())
}

/// Only what is left is copied, and data without checksums. What was written before the copy goes
/// on is on the new device, too.
#[test]
fn a_replacement_goes_on_at_its_cursor() {
    let Half { old, new, all, done } = half();
    let log = Log::new();
    let new = log.device(&new, ATOM);
    log.start(&[&new]);
    let target: Arc<dyn Device> = Arc::clone(&new) as Arc<dyn Device>;
    let fs = open(&[&target, &shared(&old)]);
    let status = fs.replace_status().expect("the record").expect("one");
    assert_eq!(status.state, ReplaceState::Suspended);
    assert!(status.copied > 0, "{status:?}");
    bare(&fs).write_at(1 << 20, &pattern(101, 1 << 20)).expect("a write");
    bare(&fs).sync().expect("a log");
    let (before, _) = log.totals(new.id());
    let found = fs.resume_replace(&mut |_| true).expect("the rest").expect("a record");
    assert_eq!(found.uncorrectable_errors, 0);
    let (after, _) = log.totals(new.id());
    let (copied, left) = (after - before, all - done);
    println!("{all} bytes, {done} before the unmount, {copied} after it");
    assert!(copied < left + FILE_LEN as u64 + (8 << 20), "{copied} of {left} left");
    assert!(left > 64 << 20 && done > 64 << 20, "{done} of {all}");
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
    let fs = open(&[&new, &shared(&old)]);
    let found = fs.resume_replace(&mut |_| true).expect("the rest").expect("a record");
    assert_eq!(found.uncorrectable_errors, 0);
    fs.close().expect("a close");
    expect_new(&new, &[]);
}

/// A target that a mount went on without is copied from the beginning.
#[test]
fn a_target_that_was_away_begins_anew() {
    let Half { old, new, all, .. } = half();
    let old = shared(&old);
    let fs = open(&[&old]);
    bare(&fs).write_at(0, &pattern(102, 1 << 20)).expect("a write");
    fs.close().expect("a close");
    let log = Log::new();
    let new = log.device(&new, ATOM);
    log.start(&[&new]);
    let target: Arc<dyn Device> = Arc::clone(&new) as Arc<dyn Device>;
    let fs = open(&[&target, &old]);
    fs.resume_replace(&mut |_| true).expect("all").expect("a record");
    assert!(log.totals(new.id()).0 >= all, "all of it is copied");
    fs.close().expect("a close");
    expect_new(&target, &[(0, 102)]);
}

/// The new device fails one request of an fsync in place, or of a log, and works again. The power
/// is cut before the next commit. What the fsync made durable is on the new device at the end.
#[test]
fn a_target_that_missed_an_fsync_loses_nothing() {
    let old = filled();
    for only in [Operation::Write, Operation::Flush] {
        for number in 0..3 {
            for logs in [false, true] {
                let (old, new) = (shared(&old), Arc::new(MemoryDevice::new(LEN)));
                let faults = Faults::none();
                let target = FaultDevice::new(Arc::clone(&new) as Arc<dyn Device>, &faults);
                let fs = mount(&old);
                let mut images = None;
                replaced_by_half(&fs, &(target as Arc<dyn Device>), |fs| {
                    fs.sync().expect("a commit with the cursor");
                    faults.strike(number, Some(only), FaultKind::Fails);
                    let file = bare(&fs);
                    file.write_at(1 << 20, &pattern(101, 1 << 20)).expect("a write");
                    if logs {
                        file.set_xattr(b"user.new", b"one", XattrFlags::default())
                            .expect("an attribute");
                    }
                    file.sync().expect("an fsync");
                    images = Some((copy(&*old), copy(&*new)));
                });
                let when = format!("{only:?} {number} {logs}");
                let (old, new) = images.expect("it came to the half");
                let (old, new) = (shared(&old), shared(&new));
                let fs = open(&[&new, &old]);
                let found = fs.resume_replace(&mut |_| true).expect("the rest").expect("a record");
                assert_eq!(found.uncorrectable_errors, 0, "{when}");
                fs.close().expect("a close");
                expect_new(&new, &[(1 << 20, 101)]);
            }
        }
    }
}

/// The target has another history of the volume, and the last commit of both has one generation: it
/// was ahead at a power cut, and then the old device was used alone. The old device decides.
#[test]
fn another_history_with_the_same_generation_counts_for_nothing() {
    let Half { old, new, .. } = half();
    let change = |fs: &Filesystem, seed: u64| {
        for number in 0..20 {
            drop(file_with(&fs.root(), &format!("of-{seed}-{number}"), b"short"));
        }
        bare(fs).write_at(1 << 20, &pattern(seed, 1 << 20)).expect("a write");
        fs.sync().expect("a commit");
    };
    let generation = |device: &Arc<dyn Device>| {
        Volume::read_superblock(&**device).expect("a superblock").generation
    };
    let ahead = shared(&new);
    let fs = open(&[&ahead, &shared(&old)]);
    change(&fs, 103);
    let target: Arc<dyn Device> = Arc::new(copy(&*ahead));
    drop(fs);
    let alone = shared(&old);
    let fs = open(&[&alone]);
    change(&fs, 104);
    let old: Arc<dyn Device> = Arc::new(copy(&*alone));
    drop(fs);
    assert_eq!(generation(&target), generation(&old), "the test needs equal generations");
    let fs = open(&[&target, &old]);
    let found = fs.resume_replace(&mut |_| true).expect("the rest").expect("a record");
    assert_eq!(found.uncorrectable_errors, 0);
    fs.close().expect("a close");
    expect_new(&target, &[(1 << 20, 104)]);
    let fs = mount(&target);
    assert!(fs.resolve("of-104-7").is_ok() && fs.resolve("of-103-7").is_err());
    fs.close().expect("a close");
}

/// Power cuts while a replacement goes on, beside writes in place that an fsync makes durable. A
/// replacement of what a cut left loses none of them, and changes nothing that was read before it.
#[test]
fn power_is_cut_while_a_replacement_goes_on() {
    let Half { old, new, .. } = half();
    let log = Log::new();
    let (first, second) = (log.device(&old, ATOM), log.device(&new, ATOM));
    log.start(&[&first, &second]);
    let as_device = |device: &Arc<buttress_sim::Recorder>| Arc::clone(device) as Arc<dyn Device>;
    let fs = open(&[&as_device(&second), &as_device(&first)]);
    let more = |number: u64| {
        if number.is_multiple_of(3) {
            drop(file_with(&fs.root(), &format!("new-{number}"), b"short"));
            fs.sync().expect("a sync");
        }
    };
    let done = beside_writes(&log, &fs, version, more, || {
        fs.resume_replace(&mut |_| {
            std::thread::sleep(Duration::from_millis(1));
            true
        })
    });
    assert_eq!(done.expect("the rest").expect("a record").uncorrectable_errors, 0);
    fs.close().expect("a close");

    let (mut unfinished, mut ahead) = (0, 0);
    let stride = (log.len() / 15).max(1);
    let shown = log.crashes(&mut Rng::new(11 + campaign::round()), 2, stride, |crash| {
        let mark = crash.mark.unwrap_or(0);
        let when = format!("event {} draw {} mark {mark}", crash.event, crash.draw);
        let (old, new) = (shared(&crash.devices[0]), shared(&crash.devices[1]));
        let is_target = |device: &Arc<dyn Device>| {
            Volume::read_superblock(&**device)
                .is_ok_and(|found| found.dev_item.devid == ReplaceItem::TARGET)
        };
        if !is_target(&new) {
            return;
        }
        let fs = open(&[&new, &old]);
        let status = fs.replace_status().expect("the record").expect("one");
        if status.state != ReplaceState::Suspended {
            return fs.close().expect("a close");
        }
        unfinished += 1;
        ahead += u64::from(status.copied > 0);
        let busy = content(&fs.resolve("busy").expect("it"));
        let done = fs.resume_replace(&mut |_| true).expect("the rest").expect("a record");
        assert_eq!(done.uncorrectable_errors, 0, "{when}");
        fs.close().expect("a close");
        expect_cut_sound(&new, &when);
        let fs = mount(&new);
        assert!(content(&fs.resolve("busy").expect("it")) == busy, "{when}: it went back");
        let atom = |of: &[u8], at: usize| of[at..of.len().min(at + ATOM)].to_vec();
        for at in (0..busy.len()).step_by(ATOM) {
            let is_known = |number| atom(&version(number), at) == atom(&busy, at);
            assert!((mark..mark + 3).any(is_known), "{when}: busy at {at}");
        }
        expect_files(&fs, &when);
        fs.close().expect("a close");
    });
    campaign::count("states", shown);
    assert!(unfinished > 5 && ahead > 5, "{shown} states, {unfinished} {ahead}");
}

#[track_caller]
fn expect_files(fs: &Filesystem, when: &str) {
    for number in 0..FILES {
        let found = content(&fs.resolve(format!("file-{number}")).expect("it"));
        assert!(found == file(number), "{when}: file-{number}");
    }
}

/// The new device alone has all files, with these changes of one file.
#[track_caller]
fn expect_new(new: &Arc<dyn Device>, changes: &[(usize, u64)]) {
    let fs = mount(new);
    expect_files(&fs, "at the end");
    let mut expected = pattern(100, FILE_LEN);
    for (at, seed) in changes {
        expected[*at..at + (1 << 20)].copy_from_slice(&pattern(*seed, 1 << 20));
    }
    assert!(content(&bare(&fs)) == expected, "bare");
    fs.close().expect("a close");
    expect_sound(new);
}
