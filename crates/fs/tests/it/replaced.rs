//! Replacements of devices that do not run to their end: power cuts, unmounts, cancellations.

use std::sync::Arc;
use std::time::Duration;

use buttress_base::Rng;
use buttress_block::{Device, MemoryDevice};
use buttress_format::{DeviceId, Profile, ReplaceItem, Superblock};
use buttress_fs::make::make_on;
use buttress_fs::{Filesystem, MakeOptions, MountOptions, ReplaceState};
use buttress_sim::campaign;
use buttress_volume::Volume;

use crate::checker::{expect_cut_sound, expect_sound, find_faults_of};
use crate::moving::beside_writes;
use crate::volume::{
    content, copy, file_with, mount, nocow, pattern, recorded, wait_until_closing,
};

const LEN: u64 = 256 << 20;
/// Bytes that a power cut leaves or loses together ([`recorded`]).
const ATOM: usize = 512;

fn as_device(device: &MemoryDevice) -> Arc<dyn Device> {
    Arc::new(device.fork())
}

fn open(devices: &[&Arc<dyn Device>], options: &str) -> Filesystem {
    let options = MountOptions::parse(options).expect("options");
    Filesystem::open(devices.iter().map(|device| Arc::clone(device)).collect(), options)
        .expect("a mount")
}

fn state(fs: &Filesystem) -> Option<ReplaceState> {
    fs.replace_status().expect("the record").map(|status| status.state)
}

fn superblock(device: &Arc<dyn Device>) -> Option<Superblock> {
    Volume::read_superblock(&**device).ok()
}

fn is_target(device: &Arc<dyn Device>) -> bool {
    superblock(device).is_some_and(|found| found.dev_item.devid == ReplaceItem::TARGET)
}

/// A volume with some files, one of them overwritten in place.
fn filled() -> MemoryDevice {
    let base = MemoryDevice::new(LEN);
    Filesystem::make(&base, &MakeOptions::default()).expect("a volume");
    let shared = as_device(&base);
    let fs = mount(&shared);
    for file in 0..6 {
        drop(file_with(&fs.root(), &format!("still-{file}"), &still(file)));
    }
    nocow(&fs, "busy").write_at(0, &version(0)).expect("a write");
    fs.close().expect("a close");
    copy(&*shared)
}

fn still(file: u64) -> Vec<u8> {
    pattern(file, 1 + 150_000 * file as usize)
}

fn version(number: u64) -> Vec<u8> {
    pattern(1000 + number, 60_000)
}

fn expect_still(fs: &Filesystem, when: &str) {
    for file in 0..6 {
        let found = fs.resolve(format!("still-{file}")).expect("it");
        assert!(content(&found) == still(file), "{when}: still-{file}");
    }
}

/// After a power cut at any moment of a replacement, the volume is whole. It is on the old device,
/// or on the new device alone. The replacement can be ended or cancelled.
#[test]
fn power_is_cut_while_a_device_is_replaced() {
    let base = filled();
    let (log, recorder, fs) = recorded(&base);
    let second = log.device(&MemoryDevice::new(LEN), ATOM);
    log.start(&[&recorder, &second]);
    let more = |number: u64| {
        drop(file_with(&fs.root(), &format!("new-{number}"), b"short"));
        fs.sync().expect("a sync");
    };
    let done = beside_writes(&log, &fs, version, more, || {
        let new: Arc<dyn Device> = Arc::clone(&second) as Arc<dyn Device>;
        fs.replace_device(DeviceId(1), new, &mut |_| true)
    });
    assert_eq!(done.expect("a replacement").uncorrectable_errors, 0);
    fs.close().expect("a close");

    let (mut ended, mut unfinished) = (0, 0);
    let stride = (log.len() / 60).max(1);
    let shown = log.crashes(&mut Rng::new(7 + campaign::round()), 2, stride, |crash| {
        let mark = crash.mark.unwrap_or(0);
        let when = format!("event {} draw {} mark {mark}", crash.event, crash.draw);
        let (old, new) = (as_device(&crash.devices[0]), as_device(&crash.devices[1]));
        let generation = |device| superblock(device).map(|found| found.generation);
        let devices = match superblock(&new).map(|found| found.dev_item.devid) {
            Some(ReplaceItem::TARGET) => vec![&old, &new],
            // The new device has everything, and the old one is erased next. If the first
            // superblock of the last commit is torn, another copy has the commit before.
            Some(_) if generation(&new) >= generation(&old) => vec![&new],
            _ => vec![&old],
        };
        let fs = open(&devices, "rw");
        assert_eq!(fs.read_only_reason(), None, "{when}");
        expect_still(&fs, &when);
        let found = state(&fs);
        assert!(found != Some(ReplaceState::Running), "{when}");
        let mut last = Arc::clone(devices[0]);
        if found == Some(ReplaceState::Suspended) {
            unfinished += 1;
            let is_alone = devices.len() == 1;
            assert!(superblock(&new).is_some(), "{when}: a record without its device");
            if is_alone || crash.event % 3 == 0 {
                assert!(fs.cancel_replace().expect("a cancellation"), "{when}");
                assert_eq!(state(&fs), Some(ReplaceState::Canceled), "{when}");
            } else {
                let done = fs.resume_replace(&mut |_| true).expect("the rest").expect("a record");
                assert_eq!(done.uncorrectable_errors, 0, "{when}");
                last = Arc::clone(&new);
            }
        } else {
            ended += u64::from(found == Some(ReplaceState::Finished));
            assert!(fs.resume_replace(&mut |_| true).expect("nothing").is_none(), "{when}");
        }
        expect_still(&fs, &when);
        fs.close().expect("a close");
        expect_cut_sound(&last, &when);
        let fs = mount(&last);
        expect_still(&fs, &when);
        let busy = content(&fs.resolve("busy").expect("it"));
        // It is overwritten in place, so a cut may leave a part of the next version.
        let atom = |of: &[u8], at: usize| of[at..of.len().min(at + ATOM)].to_vec();
        for at in (0..busy.len()).step_by(ATOM) {
            let is_known = |number| atom(&version(number), at) == atom(&busy, at);
            assert!((mark..mark + 3).any(is_known), "{when}: busy at {at}");
        }
        fs.close().expect("a close");
    });
    campaign::count("states", shown);
    assert!(shown > 40 && unfinished > 5, "{shown} states, {unfinished} {ended}");
}

/// The volume tells after an unmount how its last replacement ended.
#[test]
fn the_end_of_a_replacement_is_kept() {
    let old = as_device(&filled());
    let fs = mount(&old);
    assert_eq!(state(&fs), None);
    let new: Arc<dyn Device> = Arc::new(MemoryDevice::new(LEN));
    let stopped = fs.replace_device(DeviceId(1), Arc::clone(&new), &mut |_| false);
    assert!(stopped.is_err(), "it was told to stop");
    assert!(superblock(&new).is_none(), "the new device is empty again");
    fs.close().expect("a close");
    let fs = mount(&old);
    assert_eq!(state(&fs), Some(ReplaceState::Canceled));
    assert!(!fs.cancel_replace().expect("the record"), "there is none");
    fs.replace_device(DeviceId(1), Arc::clone(&new), &mut |_| true).expect("a replacement");
    fs.close().expect("a close");
    assert!(superblock(&old).is_none(), "the old device is erased");
    let fs = mount(&new);
    let status = fs.replace_status().expect("the record").expect("one");
    assert_eq!((status.state, status.lost), (ReplaceState::Finished, 0));
    assert!(status.started > 0 && status.ended >= status.started, "{status:?}");
    expect_still(&fs, "at the end");
    fs.close().expect("a close");
    expect_sound(&new);
}

/// Begins a replacement, and unmounts the volume in the middle of it.
fn suspended() -> (Arc<dyn Device>, Arc<dyn Device>) {
    let old = as_device(&filled());
    let new: Arc<dyn Device> = Arc::new(MemoryDevice::new(LEN));
    let fs = mount(&old);
    std::thread::scope(|scope| {
        let (begun, begins) = std::sync::mpsc::channel();
        let (fs, new) = (fs.clone(), Arc::clone(&new));
        let closing = fs.clone();
        let work = scope.spawn(move || {
            fs.replace_device(DeviceId(1), new, &mut |_| {
                let _ = begun.send(());
                // The copy must not end before the close begins.
                wait_until_closing(&fs);
                true
            })
        });
        begins.recv().expect("it begins");
        closing.close().expect("a close");
        assert!(work.join().expect("no panic").is_err(), "it ended before the unmount");
    });
    assert!(is_target(&new));
    (old, new)
}

/// An unmount suspends a replacement. The next mount ends it, also after a mount without the new
/// device has written.
#[test]
fn an_unmount_suspends_a_replacement() {
    let (old, new) = suspended();
    let fs = open(&[&old], "rw");
    assert_eq!((fs.read_only_reason(), state(&fs)), (None, Some(ReplaceState::Suspended)));
    let refused = fs.replace_device(DeviceId(1), as_device(&MemoryDevice::new(LEN)), &mut |_| true);
    assert!(refused.is_err(), "another replacement has not ended");
    assert!(fs.resume_replace(&mut |_| true).expect("nothing").is_none());
    fs.resize_device(DeviceId(1), LEN / 2, &mut |_| true).expect_err("it is being replaced");
    drop(file_with(&fs.root(), "between", &still(5)));
    fs.resolve("busy").expect("it").write_at(0, &version(1)).expect("a write");
    fs.close().expect("a close");

    let mut options = MountOptions::parse("rw").expect("options");
    options.resumes_replace = true;
    let fs = Filesystem::open(vec![Arc::clone(&new), Arc::clone(&old)], options).expect("a mount");
    while state(&fs) != Some(ReplaceState::Finished) {
        std::thread::sleep(Duration::from_millis(1));
    }
    fs.close().expect("a close");
    assert!(!is_target(&new), "it is the device now");
    let fs = mount(&new);
    expect_still(&fs, "resumed");
    assert!(content(&fs.resolve("between").expect("it")) == still(5));
    assert!(content(&fs.resolve("busy").expect("it")) == version(1));
    fs.close().expect("a close");
    expect_sound(&new);
}

/// A suspended replacement can be cancelled with and without the new device.
#[test]
fn a_suspended_replacement_is_cancelled() {
    for is_here in [true, false] {
        let (old, new) = suspended();
        let devices = if is_here { vec![&old, &new] } else { vec![&old] };
        let fs = open(&devices, "rw");
        assert!(fs.cancel_replace().expect("a cancellation"));
        assert_eq!(state(&fs), Some(ReplaceState::Canceled));
        fs.close().expect("a close");
        assert_eq!(superblock(&new).is_none(), is_here);
        // A device that was away is no part of the volume, even if it is attached again.
        let again = if is_here { vec![&old] } else { vec![&old, &new] };
        let fs = open(&again, "rw");
        assert_eq!((fs.read_only_reason(), state(&fs)), (None, Some(ReplaceState::Canceled)));
        expect_still(&fs, "cancelled");
        fs.close().expect("a close");
        expect_sound(&old);
    }
}

/// The replacement of a missing device can be stopped. The device is missing again, and the next
/// replacement ends.
#[test]
fn the_replacement_of_a_missing_device_is_cancelled() {
    let bases: Vec<_> = (0..3).map(|_| Arc::new(MemoryDevice::new(1 << 30))).collect();
    let device = |number: usize| Arc::clone(&bases[number]) as Arc<dyn Device>;
    let raid1 = Some(Profile::Raid1);
    let options = MakeOptions { metadata: raid1, data: raid1, ..MakeOptions::default() };
    make_on(&[&*bases[0], &*bases[1]], &options).expect("a volume");
    let fs = open(&[&device(0), &device(1)], "rw");
    for file in 0..6 {
        drop(file_with(&fs.root(), &format!("still-{file}"), &still(file)));
    }
    fs.close().expect("a close");

    let fs = open(&[&device(0)], "rw,degraded");
    let missing = [DeviceId(2)];
    let stopped = fs.replace_device(missing[0], device(2), &mut |_| false);
    assert!(stopped.is_err(), "it was told to stop");
    assert_eq!(fs.missing_devices().expect("the devices"), missing);
    assert_eq!(state(&fs), Some(ReplaceState::Canceled));
    assert!(superblock(&device(2)).is_none(), "the new device is empty again");
    drop(file_with(&fs.root(), "between", &still(5)));
    fs.sync().expect("written to the device that is there");
    fs.replace_device(missing[0], device(2), &mut |_| true).expect("a replacement");
    assert_eq!(fs.missing_devices().expect("the devices"), []);
    fs.close().expect("a close");
    find_faults_of(vec![device(0), device(2)]).expect("no faults");

    // The new device alone has all data.
    let fs = open(&[&device(2)], "ro,degraded");
    expect_still(&fs, "the new one");
    assert!(content(&fs.resolve("between").expect("it")) == still(5));
    assert_eq!(state(&fs), Some(ReplaceState::Finished));
    fs.close().expect("a close");
}
