//! Write-back caches made to do harm.

use std::sync::{Arc, OnceLock};

use buttress_base::Rng;
use buttress_block::{Class, Device, MemoryDevice, Space};
use buttress_cache::inspect::{self, Fate};
use buttress_cache::layout::Cut;
use buttress_cache::{CacheDevice, CacheOptions, Mode, Writeback, format};

/// Bytes of the origin, not a whole number of blocks.
const ORIGIN_LEN: u64 = (96 << 10) + 512;
/// Blocks of the cache.
const BLOCKS: u64 = 40;
/// Bytes of superblock and entries.
pub const FRONT_LEN: usize = 64 + 16 * BLOCKS as usize;
/// The number of requests to a cache that opened.
const STEPS: u32 = 24;

/// A cache with committed blocks, superseded blocks, and blocks that are not committed.
fn base() -> &'static (MemoryDevice, MemoryDevice) {
    static MADE: OnceLock<(MemoryDevice, MemoryDevice)> = OnceLock::new();
    MADE.get_or_init(|| {
        let origin = Arc::new(MemoryDevice::named("origin", ORIGIN_LEN));
        let len = (FRONT_LEN as u64).next_multiple_of(1024) + BLOCKS * 1024;
        let cache = Arc::new(MemoryDevice::named("cache", len));
        format(Arc::clone(&cache) as _, Some(&*origin), 1024, 0, false).expect("it fits");
        let options = options(0);
        let opened = CacheDevice::open(Arc::clone(&origin) as _, Arc::clone(&cache) as _, options);
        let device = opened.expect("a new cache");
        for (at, byte) in [(0, 1), (4096, 2), (4096, 3), (90_000, 4)] {
            device.write_at(at, &[byte; 3000]).expect("memory");
            device.flush().expect("memory");
        }
        device.write_at(50_000, &[5; 2000]).expect("memory");
        // The cache is not closed, so its last writes are not committed.
        std::mem::forget(device);
        (origin.fork(), cache.fork())
    })
}

/// Superblock and entries of a good cache, for callers that damage them.
///
/// # Panics
///
/// If the cache cannot be made.
#[must_use]
pub fn front() -> Vec<u8> {
    let mut bytes = vec![0; FRONT_LEN];
    base().1.read_at(0, &mut bytes).expect("within the device");
    bytes
}

fn options(choice: u8) -> CacheOptions {
    CacheOptions {
        background: false,
        force: choice & 1 != 0,
        mode: if choice & 2 == 0 { Mode::Ssd } else { Mode::Pmem },
        consistent_origin: choice & 4 != 0,
        writeback: match choice & 0b1_1100 {
            0b0_1000 => Writeback::Lru,
            0b1_0000 => Writeback::FifoUnsorted,
            _ => Writeback::Sorted,
        },
        cleaner: choice & 32 != 0,
        metadata_only: choice & 64 != 0,
        ..CacheOptions::default()
    }
}

/// The input is a byte of options, then superblock and entries. The cache is scanned, opened, used,
/// drained and opened again. A cache that opens is a device like any other: it keeps the data that
/// was written to it.
///
/// # Panics
///
/// If there is a bug.
pub fn cache(data: &[u8]) {
    let Some((&choice, front)) = data.split_first() else { return };
    let (origin, cache) = base();
    let (origin, cache) = (Arc::new(origin.fork()), Arc::new(cache.fork()));
    let front = &front[..front.len().min(cache.len() as usize)];
    cache.write_at(0, front).expect("within the device");
    let options = options(choice);
    let scan = inspect::scan(Arc::clone(&cache) as _, Some(&*origin), options.start_sector);
    let open = |options: &CacheOptions| {
        CacheDevice::open(Arc::clone(&origin) as _, Arc::clone(&cache) as _, options.clone())
    };
    let device = match open(&options) {
        Ok(device) => device,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    let scan = scan.expect("what opens can be looked at");
    let kept = scan.entries.iter().filter(|(_, fate)| *fate == Fate::Kept).count();
    assert_eq!(device.cached_blocks(), kept as u64, "what is seen is what is there");

    let mut rng =
        Rng::new(data.iter().fold(1, |sum, &byte| sum * 31 % 0xffff_fffb + u64::from(byte)));
    let mut model = content(&device);
    for step in 0..STEPS {
        let at = rng.below(ORIGIN_LEN) as usize;
        let len = 1 + rng.below(9000.min(ORIGIN_LEN - at as u64)) as usize;
        let bytes = vec![step as u8 ^ choice; len];
        match rng.below(8) {
            0..4 => {
                device.write_at(at as u64, &bytes).expect("memory");
                model[at..at + len].copy_from_slice(&bytes);
            }
            4 => {
                let bufs = [std::io::IoSlice::new(&bytes)];
                device.write_classed_at(at as u64, &bufs, Class::Metadata).expect("memory");
                model[at..at + len].copy_from_slice(&bytes);
            }
            5 => {
                device.write_zeroes(at as u64, len as u64, Space::Free).expect("memory");
                model[at..at + len].fill(0);
            }
            6 => device.flush().expect("memory"),
            _ => drop(device.drain_step().expect("memory")),
        }
    }
    assert!(content(&device) == model, "it holds what was written");
    device.close().expect("memory");
    drop(device);

    let device = open(&options).expect("what was closed can be opened");
    assert!(content(&device) == model, "it holds what was written before");
    device.drain(|_| {}).expect("memory");
    assert_eq!(device.cached_blocks(), 0);
    assert_eq!(matches!(device.status().cut, Cut::Whole(_)), options.consistent_origin);
    assert!(content(&*origin) == model, "and so does its origin in the end");
}

fn content(device: &dyn Device) -> Vec<u8> {
    let mut bytes = vec![0; device.len() as usize];
    device.read_at(0, &mut bytes).expect("memory");
    bytes
}
