//! Counts the requests of discarding and zeroing on both devices. The number depends on runs, not
//! on blocks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use buttress_block::{Content, Device, Error, Layer, MemoryDevice, Space};
use buttress_cache::CacheDevice;
use buttress_cache::layout::{ENTRY_LEN, HEADER_LEN, RawEntry};
use buttress_cache::units::Epoch;

use crate::rig::{blank, by_hand, open};

const GIB: u64 = 1 << 30;
const BLOCK: u64 = 4096;

/// A device that counts requests. Its content is that of a [`MemoryDevice`], except for zeroes,
/// which it only counts.
#[derive(Debug)]
struct Counted {
    device: MemoryDevice,
    writes: AtomicU64,
    flushes: AtomicU64,
    discards: AtomicU64,
    zeroes: AtomicU64,
}

impl Counted {
    fn new(device: MemoryDevice) -> Arc<Self> {
        let [writes, flushes, discards, zeroes] = Default::default();
        Arc::new(Self { device, writes, flushes, discards, zeroes })
    }

    /// Writes, flushes, discards and zeroings since the last call.
    fn take(&self) -> [u64; 4] {
        let take = |count: &AtomicU64| count.swap(0, Ordering::Relaxed);
        [take(&self.writes), take(&self.flushes), take(&self.discards), take(&self.zeroes)]
    }
}

impl Layer for Counted {
    type Inner = MemoryDevice;

    fn inner(&self) -> &Self::Inner {
        &self.device
    }

    fn on_write(&self, offset: u64, buf: &[u8]) -> Result<(), Error> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.device.write_at(offset, buf)
    }

    fn on_flush(&self) -> Result<(), Error> {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn on_discard(&self, _offset: u64, _len: u64) -> Result<(), Error> {
        self.discards.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn on_write_zeroes(&self, _offset: u64, _len: u64, _space: Space) -> Result<(), Error> {
        self.zeroes.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// A cache in front of an origin of one gibibyte. The cache holds all blocks of the origin or none.
/// Neighbouring blocks are far apart in the cache.
fn gibibyte(is_cached: bool) -> (CacheDevice, Arc<Counted>, Arc<Counted>) {
    let blocks = GIB / BLOCK;
    let (origin, cache) = blank(BLOCK as u32, blocks, GIB / 512);
    // The open epoch is 1, so epoch 0 is committed.
    cache.write_at(24, &1_u64.to_le_bytes()).expect("memory");
    let entry = |slot: u64| {
        let block = (slot * 4099) % blocks;
        RawEntry { sector: block * (BLOCK / 512), epoch: Epoch(0) }.to_bytes()
    };
    if is_cached {
        let table: Vec<u8> = (0..blocks).flat_map(entry).collect();
        assert_eq!(table.len(), blocks as usize * ENTRY_LEN);
        cache.write_at(HEADER_LEN as u64, &table).expect("memory");
    }
    let (origin, cache) = (Counted::new(origin), Counted::new(cache));
    let device = open(Arc::clone(&origin) as _, Arc::clone(&cache) as _, &by_hand(""));
    assert_eq!(device.cached_blocks(), if is_cached { blocks } else { 0 });
    origin.take();
    cache.take();
    (device, origin, cache)
}

/// Discarding a gibibyte takes one request to the origin and no request to the cache. The next
/// flush writes the changed part of the table (4 MiB, in requests of a mebibyte) and the
/// superblock.
#[test]
fn a_discard_is_one_request() {
    for (is_cached, of_the_flush) in [(true, [6, 2, 0, 0]), (false, [0, 0, 0, 0])] {
        let (device, origin, cache) = gibibyte(is_cached);
        device.discard(0, GIB).expect("memory");
        assert_eq!((origin.take(), cache.take()), ([0, 0, 1, 0], [0; 4]), "{is_cached}");
        device.flush().expect("memory");
        assert_eq!((origin.take(), cache.take()), ([0, 1, 0, 0], of_the_flush), "{is_cached}");
        assert_eq!((device.cached_blocks(), device.status().free), (0, GIB / BLOCK));
    }
}

/// A query for extents returns runs, not blocks.
#[test]
fn extents_are_runs() {
    let (device, _, _) = gibibyte(true);
    device.discard(5 * BLOCK, 2 * BLOCK).expect("memory");
    device.flush().expect("memory");
    let (mut runs, mut at) = (Vec::new(), 100);
    while at < GIB {
        let extent = device.extent_at(at, GIB - at).expect("memory");
        runs.push((at, extent.content));
        at += extent.len;
    }
    assert_eq!(at, GIB);
    // The origin answers for the ranges between the cached blocks.
    assert_eq!([runs[0], runs[2]], [(100, Content::Data), (7 * BLOCK, Content::Data)]);
    assert_eq!(runs[1].0, 5 * BLOCK);
    assert!(runs.len() < 100, "{}", runs.len());
}

/// A gibibyte of zeroes takes one request to the origin and a flush of the origin
/// (`discard::Z1`). Then the changed part of the table is written.
#[test]
fn zeroes_are_one_request() {
    for (is_cached, of_the_cache) in [(true, [5, 2, 0, 0]), (false, [0, 2, 0, 0])] {
        let (device, origin, cache) = gibibyte(is_cached);
        device.write_zeroes(0, GIB, Space::Free).expect("memory");
        assert_eq!((origin.take(), cache.take()), ([0, 1, 0, 1], of_the_cache), "{is_cached}");
        assert_eq!((device.cached_blocks(), device.status().free), (0, GIB / BLOCK));
    }
}
