//! Bytes written at a logical address are read back there from every copy, with every profile.

use std::collections::BTreeMap;
use std::sync::Arc;

use buttress_base::Rng;
use buttress_block::{Device, MemoryDevice};
use buttress_format::{BlockGroupFlags, Extent, Logical};
use buttress_volume::{Error, Kind, Volume};

use crate::builders::{CHUNK_AT, FSID, WRITE, chunk, open, pattern, superblock, volume};

const PROFILES: &[(BlockGroupFlags, &[u64])] = &[
    (BlockGroupFlags(0), &[1]),
    (BlockGroupFlags::DUP, &[1, 1]),
    (BlockGroupFlags::RAID0, &[1, 2, 3]),
    (BlockGroupFlags::RAID1, &[2, 1]),
    (BlockGroupFlags::RAID1C3, &[1, 2, 3]),
    (BlockGroupFlags::RAID1C4, &[1, 2, 3, 4]),
    (BlockGroupFlags::RAID10, &[1, 2, 3, 4]),
];

/// W1: any sequence of writes and batches, on every profile, agrees with a plain array when read
/// from every mirror.
#[test]
fn every_mirror_agrees_with_an_array() {
    const LEN: u64 = 6 << 20;
    for &(profile, ids) in PROFILES {
        let (volume, _devices) = volume(profile, ids);
        let mut rng = Rng::new(profile.0);
        let mut model = vec![0; LEN as usize];
        for step in 0..60 {
            let mut writes = Vec::new();
            let mut at = rng.below(64) * 4096;
            for _ in 0..rng.range(1..12) {
                let len = rng.range(1..40) * 4096;
                if at + len > LEN {
                    break;
                }
                writes.push((at, pattern(step, len as usize)));
                at += len + rng.below(3) * rng.below(64) * 4096;
            }
            rng.shuffle(&mut writes);
            for (at, bytes) in &writes {
                model[*at as usize..*at as usize + bytes.len()].copy_from_slice(bytes);
            }
            let batch: Vec<_> =
                writes.iter().map(|(at, bytes)| (CHUNK_AT.end(*at), bytes.as_slice())).collect();
            volume.write_batch(&batch).expect("a good volume");
        }
        for mirror in 0..volume.mirrors(CHUNK_AT) {
            let mut found = vec![1; LEN as usize];
            volume.read_mirror(CHUNK_AT, &mut found, mirror).expect("a good volume");
            assert!(found == model, "{profile}, mirror {mirror}");
        }
        assert_eq!(volume.mirrors(CHUNK_AT), profile.copies(), "{profile}");
    }
}

/// Copies are apart: the devices hold the written bytes as often as the profile says, and no other
/// bytes.
#[test]
fn copies_lie_apart() {
    for &(profile, ids) in PROFILES {
        let (volume, devices) = volume(profile, ids);
        let bytes = vec![0xa5; 1 << 20];
        volume.write(CHUNK_AT, &bytes).expect("a good volume");
        let count = |device: &Arc<MemoryDevice>| {
            let mut all = vec![0; device.len() as usize - (1 << 20)];
            device.read_at(1 << 20, &mut all).expect("memory");
            all.iter().filter(|&&byte| byte == 0xa5).count()
        };
        let total: usize = devices.iter().map(count).sum();
        assert_eq!(total, bytes.len() * profile.copies() as usize, "{profile}");
    }
}

/// Ranges of a batch that are adjacent on the device are one request, up to the limit.
#[test]
fn adjacent_writes_are_joined() {
    let (volume, _devices) = volume(BlockGroupFlags::DUP, &[1, 1]);
    let node = pattern(1, 16384);
    let mut batch: Vec<_> =
        (0..64).map(|index| (CHUNK_AT.end(index * 16384), node.as_slice())).collect();
    Rng::new(3).shuffle(&mut batch);
    volume.write_batch(&batch).expect("a good volume");
    let stats = volume.stats();
    assert_eq!(stats.writes, 2, "one for each copy: {stats}");
    assert_eq!(stats.write_bytes, 2 << 20);

    let big: Vec<_> =
        (0..320).map(|index| (CHUNK_AT.end(index * 16384), node.as_slice())).collect();
    volume.write_batch(&big).expect("a good volume");
    assert_eq!(volume.stats().writes, 2 + 4, "5 MiB do not fit one request of 4 MiB");
}

/// W2: a batch that writes a byte twice is a bug, and panics.
#[test]
#[should_panic(expected = "W2")]
fn overlapping_writes_panic() {
    let (volume, _devices) = volume(BlockGroupFlags(0), &[1]);
    let node = [0; 16384];
    let _ = volume.write_batch(&[(CHUNK_AT, &node), (CHUNK_AT.end(4096), &node)]);
}

/// Requests across the end of a chunk go on in the next chunk, and stop where there is no chunk.
#[test]
fn requests_cross_chunks() {
    let (volume, _devices) = volume(BlockGroupFlags(0), &[1]);
    let next = CHUNK_AT.end(6 << 20);
    let mut second = chunk(BlockGroupFlags::DUP, next, 1 << 20, &[1, 1]);
    second.stripes[0].offset = 40 << 20;
    second.stripes[1].offset = 50 << 20;
    volume.add_chunk(second).expect("room for it");

    let at = Logical(next.0 - 8192);
    let bytes = pattern(9, 65536);
    volume.write(at, &bytes).expect("mapped");
    let mut found = vec![0; bytes.len()];
    volume.read_mirror(at, &mut found, 0).expect("mapped");
    assert_eq!(found, bytes);
    let error = volume.read_mirror(at, &mut found, 1).expect_err("the first chunk has one copy");
    assert!(matches!(error, Error::NoSuchMirror { mirrors: 1, .. }), "{error}");

    let end = next.end(1 << 20);
    for at in [Logical(0), Logical(CHUNK_AT.0 - 1), Logical(end.0 - 4096), Logical(u64::MAX)] {
        let error = volume.read_mirror(at, &mut found, 0).expect_err("not mapped");
        assert!(matches!(error, Error::NotMapped { .. }), "{error}");
        volume.write(at, &bytes).expect_err("not mapped");
    }
}

/// V3: if chunks of a volume claim the same bytes of a device, the volume is opened read-only, and
/// no copy is repaired. Chunks that only touch are fine.
#[test]
fn bytes_of_a_device_are_one_chunks() {
    let next = CHUNK_AT.end(6 << 20);
    for (offset, is_shared) in
        [(2, true), (4, true), (7, true), (8, false), (1, false), (40, false)]
    {
        let (volume, devices) = volume(BlockGroupFlags(0), &[1]);
        let mut second = chunk(BlockGroupFlags::DUP, next, 1 << 20, &[1, 1]);
        second.stripes[0].offset = offset << 20;
        second.stripes[1].offset = 50 << 20;
        volume.add_chunks(vec![second]).expect("it can be read");
        assert_eq!(volume.read_only_reason().is_some(), is_shared, "at {offset} MiB");
        if !is_shared {
            continue;
        }
        devices[0].write_at(50 << 20, b"right").expect("memory");
        devices[0].write_at(offset << 20, b"other").expect("memory");
        let error = volume.write(next, b"bytes").expect_err("one of them would lose");
        assert!(matches!(error, Error::ReadOnly { .. }), "{error}");
        let mut buf = [0; 5];
        let right = |bytes: &[u8]| if bytes == b"right" { Ok(()) } else { Err(String::new()) };
        volume.read_verified(next, &mut buf, right).expect("one copy is right");
        devices[0].read_at(offset << 20, &mut buf).expect("memory");
        assert_eq!(&buf, b"other", "it may be the other chunk's");
    }
    // Two stripes of one chunk can share bytes, too.
    let (volume, _devices) = volume(BlockGroupFlags(0), &[1]);
    let mut second = chunk(BlockGroupFlags::DUP, next, 1 << 20, &[1, 1]);
    second.stripes[0].offset = 40 << 20;
    second.stripes[1].offset = 40 << 20;
    volume.add_chunks(vec![second]).expect("it can be read");
    assert!(volume.read_only_reason().is_some_and(|why| why.contains("device 1")));
}

/// M1: a batch with a chunk that overlaps is refused as a whole. The addresses of a removed chunk
/// can be used again.
#[test]
fn the_map_refuses_overlaps() {
    let (volume, _devices) = volume(BlockGroupFlags(0), &[1]);
    let at = |start: u64| chunk(BlockGroupFlags(0), Logical(start), 1 << 20, &[1]);
    let start = CHUNK_AT.0;
    for bad in [start, start - 4096, start + (6 << 20) - 4096, start + (2 << 20)] {
        let error = volume.add_chunk(at(bad)).expect_err("taken");
        assert!(matches!(error, Error::Overlap { .. }), "{error}");
        assert_eq!(error.kind(), Kind::Corrupt);
    }
    let good = at(start + (6 << 20));
    volume.add_chunks(vec![good.clone(), at(start)]).expect_err("one of them is taken");
    assert_eq!(volume.chunks().len(), 1, "all or none");
    volume.add_chunks(vec![good.clone(), at(start - (1 << 20))]).expect("both fit");
    let starts: Vec<_> = volume.chunks().iter().map(|chunk| chunk.logical).collect();
    assert!(starts.is_sorted(), "M1");
    assert_eq!(*volume.chunk_at(good.logical.end(5)).expect("added"), good);
    volume.remove_chunk(good.logical).expect("it is there");
    assert!(volume.chunk_at(good.logical).is_none());
    assert_eq!(volume.mirrors(good.logical), 0);
    volume.remove_chunk(good.logical).expect_err("it is gone");
}

/// M1, M2: chunks are added and removed, one by one and many at once, near other chunks and over
/// them. Every address is found in the chunk that the model has there. Overlaps are refused as a
/// whole. The last chunk of the map is the last chunk of the model.
#[test]
fn the_map_agrees_with_a_model() {
    const SLOT: u64 = 1 << 20;
    for seed in 0..6 {
        let mut rng = Rng::new(seed);
        let (volume, _devices) = volume(BlockGroupFlags(0), &[1]);
        let first = CHUNK_AT.0 + (64 << 20);
        let mut model: BTreeMap<u64, u64> =
            volume.chunks().iter().map(|chunk| (chunk.logical.0, chunk.len)).collect();
        for step in 0..1500 {
            if (step / 250) % 3 == 2 && rng.chance(3, 4) {
                for _ in 0..1 + rng.below(20) {
                    let at = model.range(first + rng.below(4000 * SLOT)..).next();
                    let Some(at) = at.map(|(at, _)| *at) else { continue };
                    let removed = volume.remove_chunk(Logical(at)).expect("it is there");
                    assert_eq!(Some(removed.len), model.remove(&at));
                    volume.remove_chunk(Logical(at)).expect_err("it is gone");
                }
                continue;
            }
            // Adds few chunks, which may overlap, or many chunks without overlap.
            let large = rng.chance(1, 50);
            let (mut grown, mut added, mut fits) = (model.clone(), Vec::new(), true);
            for _ in 0..if large { 400 } else { 1 + rng.below(3) } {
                let at = first + rng.below(8000) * (SLOT / 2);
                let len = (1 + rng.below(2)) * (SLOT / 2);
                let before = grown.range(..at + len).next_back();
                let overlaps = before.is_some_and(|(start, len)| start + len > at);
                if overlaps && large {
                    continue;
                }
                fits &= !overlaps;
                added.push(chunk(BlockGroupFlags(0), Logical(at), len, &[1]));
                grown.insert(at, len);
            }
            assert_eq!(volume.add_chunks(added).is_ok(), fits, "step {step}");
            if fits {
                model = grown;
            }
            for _ in 0..8 {
                let at = first + rng.below(4010 * SLOT);
                let found = volume.chunk_at(Logical(at)).map(|chunk| chunk.logical.0);
                let expected =
                    model.range(..=at).next_back().filter(|(start, len)| at - **start < **len);
                assert_eq!(found, expected.map(|(start, _)| *start));
            }
            let last = volume.last_chunk().map(|chunk| chunk.logical.0);
            assert_eq!(last, model.last_key_value().map(|(at, _)| *at));
        }
        let all = volume.chunks();
        assert!(all.iter().map(|chunk| (&chunk.logical.0, &chunk.len)).eq(model.iter()));
        assert_eq!(volume.map_size().0, model.len());
    }
}

/// V1: a chunk past the end of its device, or on a missing device, is refused.
#[test]
fn chunks_lie_within_devices() {
    let (volume, _devices) = volume(BlockGroupFlags(0), &[1]);
    let at = Logical(8 << 30);
    let mut long = chunk(BlockGroupFlags(0), at, 1 << 20, &[1]);
    long.stripes[0].offset = crate::builders::DEVICE_LEN - (1 << 20) + 4096;
    let error = volume.add_chunk(long).expect_err("past the end");
    assert!(matches!(error, Error::ChunkPastEnd { .. }), "{error}");
    let error = volume
        .add_chunk(chunk(BlockGroupFlags(0), at, 1 << 20, &[9]))
        .expect_err("there is no device 9");
    assert!(matches!(error, Error::MissingStripe { .. }), "{error}");
    assert!(error.to_string().contains("device 9"), "{error}");
    let mut impostor = chunk(BlockGroupFlags(0), at, 1 << 20, &[1]);
    impostor.stripes[0].dev_uuid = [77; 16];
    volume.add_chunk(impostor).expect_err("the number of a device, and not the device");
}

/// A discard reaches every copy and no other bytes.
#[test]
fn discards_every_copy() {
    for &(profile, ids) in PROFILES {
        let (volume, _devices) = volume(profile, ids);
        volume.write(CHUNK_AT, &vec![1; 2 << 20]).expect("a good volume");
        volume.discard(Extent::new(CHUNK_AT.end(300 << 10), 1 << 20)).expect("a good volume");
        for mirror in 0..volume.mirrors(CHUNK_AT) {
            let mut found = vec![9; 2 << 20];
            volume.read_mirror(CHUNK_AT, &mut found, mirror).expect("a good volume");
            let gap = (300 << 10)..(300 << 10) + (1 << 20);
            assert!(found[gap.clone()].iter().all(|&byte| byte == 0), "{profile}");
            assert!(found[..gap.start].iter().all(|&byte| byte == 1), "{profile}");
            assert!(found[gap.end..].iter().all(|&byte| byte == 1), "{profile}");
        }
        assert_eq!(volume.stats().discard_bytes, (1 << 20) * u64::from(profile.copies()));
    }
}

/// A volume for mkfs has the chunks of its superblock before the device holds anything.
#[test]
fn a_new_volume_can_be_written() {
    let device = Arc::new(MemoryDevice::new(crate::builders::DEVICE_LEN));
    let chunk = chunk(BlockGroupFlags::DUP, CHUNK_AT, 6 << 20, &[1, 1]);
    let superblock = superblock(1, 1, &[chunk]);
    let volume = Volume::new_for_make(device.clone(), &superblock).expect("a good superblock");
    assert_eq!(volume.fsid(), FSID);
    assert_eq!((volume.nodesize(), volume.sectorsize()), (16384, 4096));
    volume.write(CHUNK_AT, &[5; 16384]).expect("writable");
    volume.write_superblocks(&superblock).expect("writable");
    drop(volume);
    let (volume, found) = open(&[device], WRITE).expect("it has been made");
    assert_eq!(found, superblock);
    let mut buf = [0; 16384];
    volume.read_mirror(CHUNK_AT, &mut buf, 1).expect("written");
    assert_eq!(buf, [5; 16384]);
}
