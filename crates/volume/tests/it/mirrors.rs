//! Bad copies are skipped, reported and rewritten.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use buttress_block::{Device, Layer, MemoryDevice, Read};
use buttress_format::{BlockGroupFlags, DeviceId};
use buttress_volume::{Error, Kind, Volume};

use crate::builders::{CHUNK_AT, READ, WRITE, chunk, devices, open, pattern, volume};

/// The start of a stripe of the chunk on its device, as the builder places it.
fn stripe_at(index: u64) -> u64 {
    (2 << 20) + index * (16 << 20)
}

fn spoil(device: &MemoryDevice, offset: u64) {
    let mut byte = [0];
    device.read_at(offset, &mut byte).expect("memory");
    device.write_at(offset, &[!byte[0]]).expect("memory");
}

/// A check that passes only bytes equal to `expected`.
fn equals(expected: &[u8]) -> impl Fn(&[u8]) -> Result<(), String> {
    move |bytes| if bytes == expected { Ok(()) } else { Err("it differs".to_owned()) }
}

fn mirrors_equal(volume: &Volume, bytes: &[u8]) -> Vec<bool> {
    let mirror = |mirror| {
        let mut buf = vec![0; bytes.len()];
        volume.read_mirror(CHUNK_AT, &mut buf, mirror).expect("memory");
        buf == bytes
    };
    (0..volume.mirrors(CHUNK_AT)).map(mirror).collect()
}

/// R1 and R2: whichever copies are bad, the good copy is read, and the bad copies are rewritten
/// from it.
#[test]
fn rewrites_bad_copies() {
    for (profile, ids) in [
        (BlockGroupFlags::DUP, &[1_u64, 1] as &[u64]),
        (BlockGroupFlags::RAID1, &[1, 2]),
        (BlockGroupFlags::RAID1C3, &[1, 2, 3]),
        (BlockGroupFlags::RAID1C4, &[1, 2, 3, 4]),
        (BlockGroupFlags::RAID10, &[1, 2, 3, 4]),
    ] {
        let copies = profile.copies();
        for bad in 0..(1_u32 << copies) - 1 {
            let (volume, devices) = volume(profile, ids);
            let node = pattern(u64::from(bad), 16384);
            volume.write(CHUNK_AT, &node).expect("a good volume");
            for mirror in (0..copies as usize).filter(|mirror| bad & (1 << mirror) != 0) {
                let device = &devices[ids[mirror] as usize - 1];
                spoil(device, stripe_at(mirror as u64) + 9000);
            }
            let mut buf = vec![0; node.len()];
            volume.read_verified(CHUNK_AT, &mut buf, equals(&node)).expect("one copy is good");
            assert!(buf == node, "R1");

            let stats = volume.stats();
            assert_eq!(stats.repairs, stats.csum_failures, "{profile}, bad {bad:b}");
            let repaired = mirrors_equal(&volume, &node);
            let untried = bad.count_ones() as u64 - stats.repairs;
            assert_eq!(repaired.iter().filter(|&&good| !good).count() as u64, untried);
            if bad & 1 != 0 {
                assert!(repaired[0], "the copy that is read first was bad, and is good: {profile}");
            }
        }
    }
}

/// A read-only volume reads another copy instead of a bad one, and does not rewrite the bad one.
#[test]
fn a_read_only_volume_repairs_nothing() {
    let chunks = [chunk(BlockGroupFlags::DUP, CHUNK_AT, 6 << 20, &[1, 1])];
    let devices = devices(1, &chunks);
    let (volume, _) = open(&devices, READ).expect("a good volume");
    spoil(&devices[0], stripe_at(0) + 100);
    let mut buf = [1; 4096];
    volume.read_verified(CHUNK_AT, &mut buf, equals(&[0; 4096])).expect("one copy is good");
    let stats = volume.stats();
    assert_eq!((stats.csum_failures, stats.repairs), (1, 0));
    assert_eq!(mirrors_equal(&volume, &[0; 4096]), [false, true]);
}

/// When no copy is good, the error has the address, the number of tried copies, and the reason.
#[test]
fn no_good_copy_is_an_error_with_facts() {
    let (volume, devices) = volume(BlockGroupFlags::RAID1, &[1, 2]);
    spoil(&devices[0], stripe_at(0));
    spoil(&devices[1], stripe_at(1));
    let mut buf = [0; 4096];
    let error = volume
        .read_verified(CHUNK_AT, &mut buf, equals(&[0; 4096]))
        .expect_err("both copies are bad");
    assert_eq!(error.kind(), Kind::Corrupt);
    let Error::NoGoodMirror { logical, len, mirrors_tried, mirror, device, reason, source } = error
    else {
        panic!("{error}")
    };
    assert_eq!((logical, len, mirrors_tried), (CHUNK_AT, 4096, 2));
    assert_eq!((mirror, device, reason.as_str()), (1, DeviceId(2), "it differs"));
    assert!(source.is_none());
    assert_eq!(volume.stats().repairs, 0);
}

/// When sectors are checked, two copies with one bad sector each are as good as a copy without bad
/// sectors.
#[test]
fn units_come_from_whichever_copy_is_good() {
    let (volume, devices) = volume(BlockGroupFlags::RAID1, &[1, 2]);
    let data = pattern(4, 256 << 10);
    volume.write(CHUNK_AT, &data).expect("a good volume");
    spoil(&devices[0], stripe_at(0) + 5 * 4096 + 1);
    spoil(&devices[0], stripe_at(0) + 17 * 4096);
    spoil(&devices[1], stripe_at(1) + 40 * 4096);
    let mut buf = vec![0; data.len()];
    volume
        .read_verified_by(CHUNK_AT, &mut buf, 4096, |at, bytes| equals(&data[at..at + 4096])(bytes))
        .expect("every sector has a good copy");
    assert!(buf == data, "R1");
    assert_eq!(volume.stats().repairs, 2);
    assert_eq!(mirrors_equal(&volume, &data), [true, false], "the other one was not looked at");

    spoil(&devices[0], stripe_at(0) + 40 * 4096);
    let error = volume
        .read_verified_by(CHUNK_AT, &mut buf, 4096, |at, bytes| equals(&data[at..at + 4096])(bytes))
        .expect_err("one sector has no good copy");
    let Error::NoGoodMirror { logical, len: 4096, .. } = error else { panic!("{error}") };
    assert_eq!(logical, CHUNK_AT.end(40 * 4096), "and it is named");
}

/// If reads of a device fail, another copy is read, and the bytes of the device are rewritten.
#[test]
fn reads_around_a_device_that_fails() {
    let broken = Arc::new(Broken { inner: MemoryDevice::new(crate::builders::DEVICE_LEN) });
    let chunks = [chunk(BlockGroupFlags::RAID1, CHUNK_AT, 6 << 20, &[1, 2])];
    let whole = devices(2, &chunks);
    crate::builders::plant(&broken.inner, &crate::builders::superblock(1, 2, &chunks));
    let parts: Vec<Arc<dyn Device>> = vec![broken, whole[1].clone()];
    let (volume, _) = Volume::open(parts, WRITE).expect("superblocks can be read");
    let mut buf = [1; 8192];
    volume.read_verified(CHUNK_AT, &mut buf, equals(&[0; 8192])).expect("one copy is good");
    assert_eq!(volume.stats().repairs, 0, "some chunks may be unknown");
    volume.has_all_chunks();
    let stats = volume.stats();
    assert_eq!((stats.io_failures, stats.csum_failures, stats.repairs), (1, 0, 1));

    let error = volume.read_mirror(CHUNK_AT, &mut buf, 0).expect_err("broken");
    let Error::Mirror { logical, mirror: 0, device, .. } = error else { panic!("{error}") };
    assert_eq!((logical, device), (CHUNK_AT, DeviceId(1)));
}

/// Without another copy, the error is that of the device.
#[test]
fn a_lone_copy_that_fails_keeps_its_cause() {
    let broken = Arc::new(Broken { inner: MemoryDevice::new(crate::builders::DEVICE_LEN) });
    let chunks = [chunk(BlockGroupFlags(0), CHUNK_AT, 6 << 20, &[1])];
    crate::builders::plant(&broken.inner, &crate::builders::superblock(1, 1, &chunks));
    let (volume, _) = Volume::open(vec![broken], WRITE).expect("superblocks can be read");
    for unit in [4096, 8192] {
        let mut buf = [0; 8192];
        let error = volume
            .read_verified_by(CHUNK_AT, &mut buf, unit, |_, _| Ok::<(), String>(()))
            .expect_err("broken");
        assert_eq!(error.kind(), Kind::Io, "{error}");
        let Error::NoGoodMirror { source: Some(source), .. } = error else { panic!("{error}") };
        assert!(matches!(*source, Error::Mirror { .. }), "{source}");
    }
}

/// A device of which only the first two megabytes can be read.
#[derive(Debug)]
struct Broken {
    inner: MemoryDevice,
}

impl Layer for Broken {
    type Inner = MemoryDevice;

    fn inner(&self) -> &Self::Inner {
        &self.inner
    }

    fn on_read(&self, offset: u64, buf: &mut [u8]) -> Result<(), buttress_block::Error> {
        if offset < 2 << 20 {
            return self.inner.read_at(offset, buf);
        }
        Err(buttress_block::Error::Io {
            device: self.name(),
            operation: buttress_block::Operation::Read,
            offset,
            len: buf.len() as u64,
            source: std::io::Error::other("it is broken"),
        })
    }
}

/// A device that counts requests for several reads, and may fail.
#[derive(Debug)]
struct Batching {
    inner: Arc<MemoryDevice>,
    at_once: bool,
    batches: AtomicU64,
    singles: AtomicU64,
    fails: AtomicBool,
}

impl Batching {
    fn check(&self) -> Result<(), buttress_block::Error> {
        if !self.fails.load(Ordering::SeqCst) {
            return Ok(());
        }
        let (device, operation) = (self.name(), buttress_block::Operation::Read);
        let source = std::io::Error::other("it is broken");
        Err(buttress_block::Error::Io { device, operation, offset: 0, len: 0, source })
    }
}

impl Layer for Batching {
    type Inner = MemoryDevice;

    fn inner(&self) -> &Self::Inner {
        &self.inner
    }

    fn on_read(&self, offset: u64, buf: &mut [u8]) -> Result<(), buttress_block::Error> {
        self.singles.fetch_add(1, Ordering::SeqCst);
        self.check()?;
        self.inner.read_at(offset, buf)
    }

    fn on_read_many(&self, reads: &mut [Read<'_>]) -> Result<(), buttress_block::Error> {
        self.batches.fetch_add(1, Ordering::SeqCst);
        self.check()?;
        reads.iter_mut().try_for_each(|read| self.inner.read_at(read.offset, read.buf))
    }

    fn reads_many(&self) -> bool {
        self.at_once
    }
}

/// M2: several reads are one batch only where the device gains by it. Each read is counted once,
/// and a device that gains nothing is asked once for a read that fails.
#[test]
fn reads_are_a_batch_only_where_the_device_gains() {
    const COUNT: u64 = 5;
    for at_once in [false, true] {
        let chunks = [chunk(BlockGroupFlags(0), CHUNK_AT, 6 << 20, &[1])];
        let inner = Arc::clone(&devices(1, &chunks)[0]);
        let (batches, singles, fails) = Default::default();
        let device = Arc::new(Batching { inner, at_once, batches, singles, fails });
        let (volume, _) = Volume::open(vec![Arc::clone(&device) as _], WRITE).expect("good");
        volume.has_all_chunks();
        let node = pattern(1, 4096 * COUNT as usize);
        volume.write(CHUNK_AT, &node).expect("a good volume");
        let read = || {
            let (before, singles) = (volume.stats(), device.singles.load(Ordering::SeqCst));
            let mut buf = vec![0; node.len()];
            let places = (0..COUNT).map(|number| CHUNK_AT.end(number * 4096));
            let mut wants: Vec<_> = places.zip(buf.chunks_exact_mut(4096)).collect();
            let answers = volume.read_mirror_many(&mut wants, 0);
            let (after, batches) = (volume.stats(), device.batches.swap(0, Ordering::SeqCst));
            let good = answers.iter().filter(|answer| answer.is_ok()).count() as u64;
            let singles = device.singles.load(Ordering::SeqCst) - singles;
            (good, buf == node, batches, singles, after.reads - before.reads)
        };
        let (batches, singles) = if at_once { (1, 0) } else { (0, COUNT) };
        assert_eq!(read(), (COUNT, true, batches, singles, COUNT));
        device.fails.store(true, Ordering::SeqCst);
        assert_eq!(read(), (0, false, batches, COUNT, COUNT));
    }
}

/// R2: while one thread writes ever newer bytes and another thread repairs, no copy ever goes back
/// to older bytes.
#[test]
fn a_repair_never_brings_old_bytes_back() {
    const ROUNDS: u64 = 2000;
    let (volume, devices) = volume(BlockGroupFlags::RAID1, &[1, 2]);
    let version = |bytes: &[u8]| {
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight"));
        if number(0) == !number(8) { Ok(number(0)) } else { Err("it is torn") }
    };
    let stamp = |number: u64| {
        let mut bytes = vec![0; 4096];
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        bytes[8..16].copy_from_slice(&(!number).to_le_bytes());
        bytes
    };
    volume.write(CHUNK_AT, &stamp(0)).expect("a good volume");
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut buf = vec![0; 4096];
            let mut last = 0;
            while last < ROUNDS {
                spoil(&devices[0], stripe_at(0) + 3);
                let check = |bytes: &[u8]| version(bytes).map(drop);
                if volume.read_verified(CHUNK_AT, &mut buf, check).is_ok() {
                    last = version(&buf).expect("R1");
                }
            }
        });
        for number in 1..=ROUNDS {
            volume.write(CHUNK_AT, &stamp(number)).expect("a good volume");
            let mut copy = vec![0; 4096];
            for mirror in 0..2 {
                volume.read_mirror(CHUNK_AT, &mut copy, mirror).expect("memory");
                if let Ok(found) = version(&copy) {
                    assert_eq!(found, number, "R2: mirror {mirror} went back");
                }
            }
        }
        reader.join().expect("R1");
    });
    assert!(volume.stats().repairs > 0);
}
