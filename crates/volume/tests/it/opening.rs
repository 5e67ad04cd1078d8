//! Which sets of devices make a volume, and which errors other sets give.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use buttress_block::{Device, Layer, MemoryDevice};
use buttress_format::{BlockGroupFlags, CompatRo, DeviceId, Generation, Incompat, Superblock};
use buttress_volume::{DeviceTrust, Error, Kind, OpenOptions, Volume};

use crate::builders::{CHUNK_AT, DEVICE_LEN, READ, WRITE, chunk, devices, open, plant, superblock};

const RAID1: BlockGroupFlags = BlockGroupFlags::RAID1;

fn changed(change: impl FnOnce(&mut Superblock)) -> Vec<Arc<MemoryDevice>> {
    let chunks = [chunk(BlockGroupFlags(0), CHUNK_AT, 6 << 20, &[1])];
    let devices = devices(1, &chunks);
    let mut superblock = superblock(1, 1, &chunks);
    change(&mut superblock);
    plant(&devices[0], &superblock);
    devices
}

/// The chunks of the superblock are mapped, and nothing has been written.
#[test]
fn a_whole_volume_opens() {
    let devices = changed(|_| ());
    let before = devices[0].resident_bytes();
    let (volume, superblock) = open(&devices, WRITE).expect("a good volume");
    assert_eq!(superblock.generation, Generation(7));
    assert_eq!(volume.chunks().len(), 1);
    assert!(volume.writable());
    assert_eq!(volume.read_only_reason(), None);
    assert_eq!(devices[0].resident_bytes(), before, "O1");
    let (volume, _) = open(&devices, READ).expect("a good volume");
    assert!(volume.read_only_reason().is_some(), "V2");
}

/// The error for a truncated device names both lengths.
#[test]
fn a_truncated_image_says_so() {
    let device = Arc::new(changed(|_| ())[0].fork_resized(DEVICE_LEN - 4096));
    let error = Volume::read_superblock(&*device).expect_err("cut");
    let Error::Truncated { found, expected, .. } = error else { panic!("{error}") };
    assert_eq!((found, expected), (DEVICE_LEN - 4096, DEVICE_LEN));
    assert!(matches!(open(&[device], READ), Err(Error::Truncated { .. })));
}

/// The error for a device without btrfs names the format that the device holds.
#[test]
fn something_else_is_named() {
    let device = MemoryDevice::new(DEVICE_LEN);
    let text = |device: &MemoryDevice| {
        let error = Volume::read_superblock(device).expect_err("not btrfs");
        assert!(matches!(error, Error::NotBtrfs { .. }), "{error}");
        error.to_string()
    };
    assert_eq!(text(&device), "memory holds no btrfs");
    device.write_at(0, b"XFSB").expect("memory");
    assert_eq!(text(&device), "memory holds no btrfs, but xfs");
    device.write_at(65536 + 64, b"!BHRfS_M").expect("memory");
    assert!(text(&device).contains("not finished"));
    assert_eq!(text(&MemoryDevice::new(4096)), "memory holds no btrfs");
}

/// The newest whole copy is read instead of a damaged first copy. Without a whole copy the read
/// fails.
#[test]
fn a_damaged_superblock_is_told_from_none() {
    let devices = changed(|_| ());
    let (volume, superblock) = open(&devices, WRITE).expect("a good volume");
    volume.write_superblocks(&superblock).expect("writable");
    drop(volume);
    devices[0].write_at(65536 + 500, b"damage").expect("memory");
    let (_, found) = open(&devices, READ).expect("the copy is whole");
    assert_eq!((found.bytenr, found.generation), (64 << 20, superblock.generation));
    assert!(Volume::read_superblock_mirror(&*devices[0], 2).is_err(), "the device is too short");
    devices[0].write_at((64 << 20) + 500, b"damage").expect("memory");
    let error = open(&devices, READ).expect_err("damaged");
    assert!(matches!(error, Error::Superblock { offset: 65536, .. }), "{error}");
    assert_eq!(error.kind(), Kind::Corrupt);
}

/// O2: a volume with unknown features is refused with their names. Unknown features that only
/// forbid writing make the volume read-only.
#[test]
fn unknown_features_are_named() {
    let devices = changed(|superblock| superblock.incompat.0 |= Incompat::ZONED.0 | 1 << 50);
    let error = open(&devices, READ).expect_err("unknown");
    assert_eq!(error.kind(), Kind::Unsupported);
    let text = error.to_string();
    assert!(text.contains("zoned") && text.contains("0x4000000000000"), "{text}");

    let reason = |change: fn(&mut Superblock)| {
        let (volume, _) = open(&changed(change), WRITE).expect("it can be read");
        assert!(!volume.writable());
        volume.read_only_reason().expect("read-only")
    };
    let why = reason(|superblock| superblock.compat_ro = CompatRo(1 << 40));
    assert!(why.contains("0x10000000000"), "{why}");
    let why = reason(|superblock| superblock.flags |= 1 << 32);
    assert!(why.contains("seed"), "{why}");
}

/// A missing device is reported with its number and its filesystem's identifier.
#[test]
fn a_missing_device_is_named() {
    let all = devices(2, &[chunk(RAID1, CHUNK_AT, 6 << 20, &[1, 2])]);
    open(&all, WRITE).expect("both are here");
    let error = open(&all[..1], WRITE).expect_err("one is missing");
    let text = error.to_string();
    assert!(text.contains("30313233-3435-3637-3839-616263646566"), "{text}");
    let Error::MissingDevices { expected, found, missing, .. } = error else { panic!("{text}") };
    assert_eq!((expected, found, missing), (2, vec![DeviceId(1)], vec![DeviceId(2)]));
    assert!(matches!(open(&[], READ), Err(Error::NoDevices)));
}

/// A degraded volume is read and written if every byte is readable. If some bytes are unreadable,
/// the volume is only read.
#[test]
fn degraded_goes_on_with_what_is_left() {
    let degraded = OpenOptions { writable: true, degraded: true, ..OpenOptions::default() };
    let all = devices(2, &[chunk(RAID1, CHUNK_AT, 6 << 20, &[1, 2])]);
    all[1].write_at((2 << 20) + (16 << 20), b"alive").expect("memory");
    let (volume, _) = open(&all[1..], degraded).expect("each chunk has a copy here");
    assert_eq!(volume.read_only_reason(), None);
    let mut buf = [0; 5];
    volume.read_verified(CHUNK_AT, &mut buf, |_| Ok::<(), String>(())).expect("one copy is here");
    assert_eq!(&buf, b"alive");
    volume.write(CHUNK_AT, b"wrote").expect("one copy is here");
    volume.read_verified(CHUNK_AT, &mut buf, |_| Ok::<(), String>(())).expect("one copy is here");
    assert_eq!(&buf, b"wrote");
    let error = volume.read_mirror(CHUNK_AT, &mut buf, 0).expect_err("it is not here");
    assert!(matches!(error, Error::MissingStripe { device: DeviceId(1), .. }), "{error}");

    let striped = devices(2, &[chunk(BlockGroupFlags::RAID0, CHUNK_AT, 6 << 20, &[1, 2])]);
    let (volume, _) = open(&striped[..1], degraded).expect("half of it is here");
    let reason = volume.read_only_reason().expect("half of it is missing");
    assert!(reason.contains("device 2"), "{reason}");
}

/// A device that fails its writes gets no more writes. Its old superblock later shows that it
/// missed writes. Without another copy the write fails.
#[test]
fn a_failing_device_is_left_behind() {
    let all = devices(2, &[chunk(RAID1, CHUNK_AT, 6 << 20, &[1, 2])]);
    let broken = Arc::new(Broken { inner: Arc::clone(&all[1]), on: AtomicBool::new(false) });
    let parts: Vec<Arc<dyn Device>> = vec![all[0].clone(), broken.clone()];
    let (volume, mut superblock) = Volume::open(parts, WRITE).expect("both are here");
    volume.write(CHUNK_AT, b"on both").expect("both work");
    broken.on.store(true, Ordering::Relaxed);
    volume.write(CHUNK_AT, b"on one!").expect("one works");
    assert!(volume.device(DeviceId(2)).expect("here").is_lost());
    assert_eq!(volume.device(DeviceId(2)).expect("here").stats().counts[0], 1);
    broken.on.store(false, Ordering::Relaxed);
    superblock.generation = Generation(superblock.generation.0 + 2);
    volume.write_superblocks(&superblock).expect("on what is left");
    drop(volume);

    let (volume, newest) = open(&all, WRITE).expect("both are here again");
    assert_eq!(newest.generation, superblock.generation);
    assert_eq!(volume.device(DeviceId(2)).expect("here").trust(), DeviceTrust::Stale);
    let mut buf = [0; 7];
    volume.read_verified(CHUNK_AT, &mut buf, |_| Ok::<(), String>(())).expect("a copy");
    assert_eq!(&buf, b"on one!");
    // Until the device is healed, its superblock stays old.
    volume.write_superblocks(&superblock).expect("written");
    let kept = Volume::read_superblock(&*all[1]).expect("a superblock");
    assert!(kept.generation < superblock.generation);
    volume.device(DeviceId(2)).expect("here").heal();
    volume.write_superblocks(&superblock).expect("written");
    let healed = Volume::read_superblock(&*all[1]).expect("a superblock");
    assert_eq!(healed.generation, superblock.generation);

    let striped = devices(2, &[chunk(BlockGroupFlags::RAID0, CHUNK_AT, 6 << 20, &[1, 2])]);
    let broken = Arc::new(Broken { inner: Arc::clone(&striped[1]), on: AtomicBool::new(true) });
    let parts: Vec<Arc<dyn Device>> = vec![striped[0].clone(), broken];
    let (volume, _) = Volume::open(parts, WRITE).expect("both are here");
    assert!(volume.write(CHUNK_AT, &[1; 128 << 10]).is_err(), "half of it was not written");
}

/// A device that refuses writes while a flag is set.
#[derive(Debug)]
struct Broken {
    inner: Arc<MemoryDevice>,
    on: AtomicBool,
}

impl Layer for Broken {
    type Inner = MemoryDevice;

    fn inner(&self) -> &Self::Inner {
        &self.inner
    }

    fn on_write(&self, offset: u64, buf: &[u8]) -> Result<(), buttress_block::Error> {
        if self.on.load(Ordering::Relaxed) {
            // Makes the device fail by a write past its end.
            return self.inner.write_at(u64::MAX, buf);
        }
        self.inner.write_at(offset, buf)
    }
}

/// Devices of two filesystems, or one device twice, do not make a volume.
#[test]
fn strangers_and_twins_are_refused() {
    let chunks = [chunk(RAID1, CHUNK_AT, 6 << 20, &[1, 2])];
    let mut all = devices(2, &chunks);
    let mut foreign = superblock(2, 2, &chunks);
    foreign.fsid = *b"another one's id";
    foreign.generation = Generation(3);
    plant(&all[1], &foreign);
    let error = open(&all, READ).expect_err("a stranger");
    assert!(matches!(error, Error::ForeignDevice { .. }), "{error}");
    assert!(error.to_string().contains("device-2"), "{error}");

    all[1] = Arc::new(all[0].fork());
    let error = open(&all, READ).expect_err("a twin");
    assert!(matches!(error, Error::DuplicateDevice { id: DeviceId(1), .. }), "{error}");

    let mut three = devices(3, &chunks);
    for (id, device) in (1..).zip(&three) {
        plant(device, &superblock(id, 2, &chunks));
    }
    let error = open(&three, READ).expect_err("one too many");
    assert!(matches!(error, Error::TooManyDevices { expected: 2, given: 3, .. }), "{error}");
    three.pop();
    open(&three, READ).expect("as many as there are");
}

/// A device that missed transactions is read last, and the newest superblock is used.
#[test]
fn a_stale_device_is_read_last() {
    let chunks = [chunk(RAID1, CHUNK_AT, 6 << 20, &[1, 2])];
    let all = devices(2, &chunks);
    let mut newer = superblock(2, 2, &chunks);
    newer.generation = Generation(9);
    plant(&all[1], &newer);
    all[0].write_at(2 << 20, b"old").expect("memory");
    all[1].write_at((2 << 20) + (16 << 20), b"new").expect("memory");
    let (volume, superblock) = open(&all, WRITE).expect("as Linux does");
    assert_eq!(superblock.generation, Generation(9));
    assert_eq!(
        volume.devices().iter().map(|device| device.is_stale()).collect::<Vec<_>>(),
        [true, false]
    );
    let mut buf = [0; 3];
    volume.read_verified(CHUNK_AT, &mut buf, |_| Ok::<(), String>(())).expect("both are here");
    assert_eq!(&buf, b"new");
}

/// A device that is open for reading only makes its volume read-only.
#[test]
fn a_read_only_device_makes_the_volume_so() {
    let device = changed(|_| ())[0].fork().read_only();
    let (volume, _) = open(&[Arc::new(device)], WRITE).expect("it can be read");
    assert!(volume.read_only_reason().expect("read-only").contains("device-1"));
}
