//! Caches that are damaged, truncated, or belong to another origin give a clear error and no panic.

use std::sync::Arc;

use buttress_base::Rng;
use buttress_block::{Device, MemoryDevice};
use buttress_cache::layout::{Cut, Geometry, RawEntry, Superblock};
use buttress_cache::units::Epoch;
use buttress_cache::{CacheDevice, Error, format, inspect};

use crate::rig::{SECTOR, blank, by_hand, open, read, write};

fn opened(origin: &MemoryDevice, cache: &MemoryDevice) -> Result<CacheDevice, Error> {
    CacheDevice::open(Arc::new(origin.fork()), Arc::new(cache.fork()), by_hand(""))
}

/// A cache with something in it, and its origin.
fn used() -> (MemoryDevice, MemoryDevice) {
    let (origin, cache) = blank(4096, 60, 800);
    let (origin, cache) = (Arc::new(origin), Arc::new(cache));
    let cached = open(Arc::clone(&origin) as _, Arc::clone(&cache) as _, &by_hand(""));
    write(&cached, 0, &[1; 100]).expect("memory");
    cached.close().expect("memory");
    (origin.fork(), cache.fork())
}

fn entry_at(slot: u64) -> u64 {
    64 + slot * 16
}

#[test]
fn a_blank_device_is_not_a_cache() {
    let (origin, cache) = (MemoryDevice::new(1 << 20), MemoryDevice::new(1 << 20));
    assert!(matches!(opened(&origin, &cache), Err(Error::Blank { .. })));
    cache.write_at(0, b"something").expect("memory");
    assert!(matches!(opened(&origin, &cache), Err(Error::NotACache { .. })));
    assert!(matches!(opened(&origin, &MemoryDevice::new(32)), Err(Error::TooSmall { .. })));
}

#[test]
fn formatting_destroys_nothing_by_accident() {
    let (_, cache) = used();
    let cache = Arc::new(cache);
    let make = |force| format(Arc::clone(&cache) as _, None, 4096, 0, force);
    let error = make(false).expect_err("it is a cache already");
    assert!(error.is_refusal() && matches!(error, Error::NotBlank { .. }), "{error}");
    make(true).expect("by force");
    for size in [0, 256, 3000, 131_072] {
        let error = format(Arc::clone(&cache) as _, None, size, 0, true);
        assert!(matches!(error, Err(Error::BlockSize { .. })), "{size}");
    }
    let small = Arc::new(MemoryDevice::new(4096));
    assert!(matches!(format(small, None, 4096, 0, false), Err(Error::TooSmall { .. })));
}

#[test]
fn a_cut_cache_is_refused() {
    let (origin, cache) = used();
    let cut = cache.fork_resized(cache.len() / 2);
    assert!(matches!(opened(&origin, &cut), Err(Error::Truncated { .. })));
    // A device that grew is fine, since the superblock says how much of it is used.
    opened(&origin, &cache.fork_resized(cache.len() * 2)).expect("longer is fine");
}

#[test]
fn another_block_size_is_refused() {
    let (origin, cache) = used();
    let result = CacheDevice::open(Arc::new(origin), Arc::new(cache), by_hand("block_size=512"));
    assert!(matches!(result, Err(Error::OtherBlockSize { found: 4096, asked: 512 })));
}

/// A filesystem that was made through the cache and drained is recognised by its identity. Another
/// filesystem is refused.
#[test]
fn another_origin_is_refused() {
    let (origin, cache) = blank(4096, 60, 800);
    let (origin, cache) = (Arc::new(origin), Arc::new(cache));
    let cached = open(Arc::clone(&origin) as _, Arc::clone(&cache) as _, &by_hand(""));
    let mut superblock = [0; 4096];
    superblock[0x20..0x30].fill(9);
    superblock[0x40..0x48].copy_from_slice(b"_BHRfS_M");
    cached.write_at(0x10000, &superblock).expect("memory");
    cached.drain(|_| {}).expect("memory");
    cached.close().expect("memory");
    opened(&origin, &cache).expect("the same origin, with its new name");
    {
        let (origin, cache) = (Arc::new(origin.fork()), Arc::new(cache.fork()));
        let cached = open(Arc::clone(&origin) as _, Arc::clone(&cache) as _, &by_hand(""));
        cached.discard(0, 1 << 17).expect("memory");
        opened(&origin, &cache).expect("the same origin, its name discarded");
        cached.flush().expect("memory");
        opened(&origin, &cache).expect("the same origin, its name discarded");
    }
    let other = origin.fork();
    other.write_at(0x10020, &[8; 16]).expect("memory");
    let error = opened(&other, &cache).expect_err("another filesystem");
    assert!(error.is_refusal() && matches!(error, Error::WrongOrigin { .. }), "{error}");
    let mut options = by_hand("");
    options.force = true;
    open(Arc::new(other.fork()), Arc::new(cache.fork()), &options);
    // The consistent state of one origin says nothing about another origin.
    let options = by_hand("consistent_origin=on");
    let cached = open(Arc::clone(&origin) as _, Arc::clone(&cache) as _, &options);
    cached.write_at(8192, &[1; 4096]).expect("memory");
    cached.drain(|_| {}).expect("memory");
    assert!(matches!(cached.status().cut, Cut::Whole(_)));
    cached.close().expect("memory");
    let forced = by_hand("consistent_origin=on,force_cache");
    let cached = open(Arc::new(other), Arc::new(cache.fork()), &forced);
    assert_eq!(cached.status().cut, Cut::None);
    let short = origin.fork_resized(origin.len() - 4096);
    assert!(matches!(opened(&short, &cache), Err(Error::WrongOrigin { .. })));
}

#[test]
fn equal_sequences_are_refused() {
    let (origin, cache) = used();
    for slot in [40, 41] {
        let entry = RawEntry { sector: 400, epoch: Epoch(0) };
        cache.write_at(entry_at(slot), &entry.to_bytes()).expect("memory");
    }
    let error = opened(&origin, &cache).expect_err("two newest");
    assert!(error.is_corrupt() && matches!(error, Error::EqualSequence { .. }), "{error}");
    let scan = inspect::scan(Arc::new(cache), None, 0).expect("it can be looked at");
    assert_eq!(scan.faults.len(), 1);
}

#[test]
fn the_newest_of_two_wins_and_the_uncommitted_are_erased() {
    let (origin, cache) = used();
    let geometry = Geometry::largest(4096, "cache", cache.len()).expect("it fits");
    let header = Superblock { geometry, epoch: Epoch(10), stamp: None };
    cache.write_at(0, &header.to_bytes()).expect("memory");
    let put = |slot: u64, block: u64, epoch: u64| {
        let entry = RawEntry { sector: block * 8, epoch: Epoch(epoch) };
        cache.write_at(entry_at(slot), &entry.to_bytes()).expect("memory");
        let at = geometry.slot_offset(buttress_cache::units::Slot(slot as u32));
        let bytes = crate::rig::sector(slot as u32).repeat(8);
        cache.write_at(at, &bytes).expect("memory");
    };
    for (slot, block, epoch) in [(33, 50, 5), (37, 50, 9), (38, 51, 8), (40, 51, 7), (41, 52, 10)] {
        put(slot, block, epoch);
    }
    let cache = Arc::new(cache);
    let cached = open(Arc::new(origin), Arc::clone(&cache) as _, &by_hand(""));
    let found = read(&cached);
    assert_eq!([found[400], found[408], found[416]], [37, 38, 0]);
    for slot in [33, 40, 41] {
        let mut entry = [0; 16];
        cache.read_at(entry_at(slot), &mut entry).expect("memory");
        assert_eq!(
            RawEntry::parse(&entry).epoch,
            Epoch::FREE,
            "slot {slot} is erased on the device"
        );
    }
}

#[test]
fn entries_in_the_wrong_place_are_refused() {
    let (origin, cache) = used();
    let put = |sector: u64| {
        let cache = cache.fork();
        let entry = RawEntry { sector, epoch: Epoch(0) };
        cache.write_at(entry_at(40), &entry.to_bytes()).expect("memory");
        opened(&origin, &cache).expect_err("not a place for a block")
    };
    assert!(matches!(put(401), Error::Misaligned { .. }));
    assert!(matches!(put(800), Error::PastOrigin { .. }));
    assert!(matches!(put((u64::MAX / 8) * 8), Error::PastOrigin { .. }));
}

/// With any damage to superblock and entries, opening succeeds or is refused, and reads succeed or
/// fail. Nothing panics.
#[test]
fn random_damage_never_panics() {
    let (origin, cache) = used();
    let mut rng = Rng::new(12);
    let (mut opens, mut refusals) = (0, 0);
    for _ in 0..1500 {
        let damaged = cache.fork();
        for _ in 0..rng.range(1..5) {
            let at = if rng.chance(1, 2) { rng.below(64) } else { rng.below(64 + 60 * 16) };
            let mut bytes = [0; 8];
            if rng.chance(1, 2) {
                damaged.read_at(at, &mut bytes).expect("memory");
                bytes[rng.below(8) as usize] ^= 1 << rng.below(8);
            } else {
                rng.fill(&mut bytes);
            }
            damaged.write_at(at, &bytes).expect("memory");
        }
        // A scan never panics either.
        let _ = inspect::scan(Arc::new(damaged.fork()), Some(&origin), 0);
        match opened(&origin, &damaged) {
            Ok(cached) => {
                opens += 1;
                let mut buf = vec![0; 800 * SECTOR];
                cached.read_at(0, &mut buf).expect("memory");
                write(&cached, 5, &[9; 30]).expect("memory");
                cached.drain(|_| {}).expect("memory");
            }
            Err(error) => {
                refusals += 1;
                assert!(!error.to_string().is_empty());
            }
        }
    }
    assert!(opens > 100 && refusals > 100, "{opens} {refusals}");
}
