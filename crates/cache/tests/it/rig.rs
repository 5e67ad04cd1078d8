//! Sectors with numbers instead of bytes, so that a model is a list of numbers.

use std::sync::Arc;

use buttress_base::Rng;
use buttress_block::{Device, MemoryDevice};
use buttress_cache::{CacheDevice, CacheOptions, format};

pub(crate) const SECTOR: usize = 512;

/// The content of each sector, by number; 0 is zeroes.
pub(crate) type Model = Vec<u32>;

/// Options for one thread: commits and write-back happen inside the calls.
pub(crate) fn by_hand(list: &str) -> CacheOptions {
    let mut options = CacheOptions::parse(list).expect("the options are right");
    options.background = false;
    options
}

/// A formatted cache of `blocks` blocks, and an origin of `sectors` zero sectors.
pub(crate) fn blank(block_size: u32, blocks: u64, sectors: u64) -> (MemoryDevice, MemoryDevice) {
    let origin = MemoryDevice::named("origin", sectors * SECTOR as u64);
    let size = u64::from(block_size);
    let len = (64 + 16 * blocks).next_multiple_of(size) + blocks * size;
    let cache = Arc::new(MemoryDevice::named("cache", len));
    let device = Arc::clone(&cache) as Arc<dyn Device>;
    let geometry = format(device, Some(&origin), block_size, 0, false).expect("it fits");
    assert!(u64::from(geometry.slots()) >= blocks);
    (origin, cache.fork())
}

pub(crate) fn open(
    origin: Arc<dyn Device>,
    cache: Arc<dyn Device>,
    options: &CacheOptions,
) -> CacheDevice {
    CacheDevice::open(origin, cache, options.clone()).expect("the cache opens")
}

pub(crate) fn sector(value: u32) -> [u8; SECTOR] {
    let mut bytes = [0; SECTOR];
    for (index, place) in bytes.chunks_exact_mut(4).enumerate() {
        let word = if value == 0 { 0 } else { value.wrapping_mul(0x9e37_79b9) ^ index as u32 };
        place.copy_from_slice(&word.to_le_bytes());
    }
    bytes[0..4].copy_from_slice(&value.to_le_bytes());
    bytes
}

pub(crate) fn write(
    device: &dyn Device,
    at: usize,
    values: &[u32],
) -> Result<(), buttress_block::Error> {
    let bytes: Vec<u8> = values.iter().flat_map(|&value| sector(value)).collect();
    device.write_at((at * SECTOR) as u64, &bytes)
}

/// The numbers of all sectors.
pub(crate) fn read(device: &dyn Device) -> Model {
    let mut bytes = vec![0; device.len() as usize];
    device.read_at(0, &mut bytes).expect("it can be read");
    let number = |bytes: &[u8]| {
        let value = u32::from_le_bytes(bytes[..4].try_into().expect("four bytes"));
        assert!(bytes == sector(value), "a sector is torn");
        value
    };
    bytes.chunks_exact(SECTOR).map(number).collect()
}

/// A random range of sectors, mostly short.
pub(crate) fn place(rng: &mut Rng, sectors: usize, longest: usize) -> std::ops::Range<usize> {
    let start = rng.below(sectors as u64) as usize;
    let len = 1 + rng.below(longest.min(sectors - start) as u64) as usize;
    start..start + len
}
