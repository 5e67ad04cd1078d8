//! A cache gives the same answers as a plain array, for any sequence of requests, reopenings and
//! sweeps.

use std::io::IoSlice;
use std::sync::Arc;

use buttress_base::Rng;
use buttress_block::{Class, Device, MemoryDevice};

use crate::rig::{Model, SECTOR, blank, by_hand, open, place, read, write};

fn run(seed: u64, block_size: u32, blocks: u64, list: &str) {
    const SECTORS: usize = 600;
    let mut rng = Rng::new(seed);
    let (origin, cache) = blank(block_size, blocks, SECTORS as u64);
    let (origin, cache) = (Arc::new(origin), Arc::new(cache));
    let devices =
        || (Arc::clone(&origin) as Arc<dyn Device>, Arc::clone(&cache) as Arc<dyn Device>);
    let options = by_hand(list);
    let (first, second) = devices();
    let mut device = Some(open(first, second, &options));
    let mut model: Model = vec![0; SECTORS];
    for step in 1..400 {
        let cached = device.as_ref().expect("it is open");
        let about = format!("seed {seed}, {block_size}, {list}, step {step}");
        match rng.below(20) {
            0..12 => {
                let range = place(&mut rng, SECTORS, 40);
                let values: Vec<u32> = range.clone().map(|_| rng.next_u64() as u32 | 1).collect();
                write(cached, range.start, &values).expect("memory");
                model[range].copy_from_slice(&values);
            }
            12..15 => {
                let range = place(&mut rng, SECTORS, 60);
                let mut bytes = vec![0; range.len() * SECTOR];
                cached.read_at((range.start * SECTOR) as u64, &mut bytes).expect("memory");
                for (bytes, value) in bytes.chunks_exact(SECTOR).zip(&model[range]) {
                    assert!(bytes == crate::rig::sector(*value), "{about}");
                }
            }
            15 => cached.flush().expect("memory"),
            16 => drop(cached.drain_to_low().expect("memory")),
            17 => {
                cached.drain(|_| {}).expect("memory");
                assert_eq!(cached.cached_blocks(), 0, "{about}");
                assert_eq!(read(&*origin), model, "{about}");
            }
            18 => {
                device.take().expect("it is open").close().expect("memory");
                let (first, second) = devices();
                device = Some(open(first, second, &options));
            }
            _ => {
                // Discarded sectors are written again at once: their content is undefined.
                let range = place(&mut rng, SECTORS, 60);
                let (offset, len) = ((range.start * SECTOR) as u64, (range.len() * SECTOR) as u64);
                cached.discard(offset, len).expect("memory");
                let values: Vec<u32> = range.clone().map(|_| rng.next_u64() as u32 | 1).collect();
                write(cached, range.start, &values).expect("memory");
                model[range].copy_from_slice(&values);
            }
        }
        let cached = device.as_ref().expect("it is open");
        if step % 10 == 0 {
            assert_eq!(read(cached), model, "{about}");
        }
    }
}

/// The caches have much room or hardly any, so writes bypass the cache, wait, and supersede older
/// versions. All block sizes and orders are used.
#[test]
fn agrees_with_an_array() {
    let lists = [
        "",
        "writeback=lru",
        "writeback=fifo-unsorted",
        "consistent_origin=on",
        "mode=pmem",
        "fua,autocommit_blocks=3",
        "cleaner",
        "metadata_only",
        "high_watermark=100,low_watermark=90",
    ];
    for (seed, list) in lists.iter().enumerate() {
        for block_size in [512, 1024, 4096] {
            run(seed as u64, block_size, 8, list);
            run(seed as u64 + 100, block_size, 700, list);
        }
    }
}

/// `start_sector` moves everything, and nothing before that sector is touched.
#[test]
fn begins_at_the_start_sector() {
    let origin = Arc::new(MemoryDevice::new(1 << 20));
    let cache = Arc::new(MemoryDevice::new(1 << 20));
    cache.write_at(0, &[7; 64 * SECTOR]).expect("memory");
    let device = Arc::clone(&cache) as Arc<dyn Device>;
    buttress_cache::format(Arc::clone(&device), None, 4096, 64, false).expect("it fits");
    let options = by_hand("start_sector=64");
    let cached = open(Arc::clone(&origin) as _, Arc::clone(&device), &options);
    write(&cached, 8, &[5; 8]).expect("memory");
    cached.close().expect("memory");
    let cached = open(Arc::clone(&origin) as _, device, &options);
    assert_eq!(read(&cached)[8..16], [5; 8]);
    let mut bytes = [0; 64 * SECTOR];
    cache.read_at(0, &mut bytes).expect("memory");
    assert!(bytes.iter().all(|&byte| byte == 7));
}

/// The status line has the fourteen fields of Linux's target, and each message has its effect.
#[test]
fn speaks_the_words_of_the_target() {
    let (origin, cache) = blank(4096, 100, 800);
    let cached = open(Arc::new(origin), Arc::new(cache), &by_hand(""));
    write(&cached, 0, &[1; 24]).expect("memory");
    write(&cached, 0, &[2; 8]).expect("memory");
    cached.flush().expect("memory");
    let total = cached.status().blocks;
    let free = total - 3;
    assert_eq!(cached.status().to_string(), format!("0 {total} {free} 0 0 0 2 1 0 0 3 0 1 0"));
    cached.message("clear_stats").expect("known");
    assert_eq!(cached.status().to_string(), format!("0 {total} {free} 0 0 0 0 0 0 0 0 0 0 0"));
    cached.message("flush").expect("known");
    assert_eq!(cached.status().free, total);
    cached.message("cleaner").expect("known");
    write(&cached, 16, &[3; 8]).expect("memory");
    assert_eq!(cached.status().writes_around, 1);
    cached.message("flush_on_suspend").expect("known");
    cached.message("defrost").expect_err("unknown");
}

/// With `metadata_only`, new blocks of metadata are cached, other new blocks are not, and cached
/// blocks stay.
#[test]
fn metadata_only_caches_what_is_metadata() {
    let (origin, cache) = blank(4096, 100, 1600);
    let origin = Arc::new(origin);
    let options = by_hand("metadata_only,high_watermark=100,low_watermark=90");
    let cached = open(Arc::clone(&origin) as _, Arc::new(cache), &options);
    let block = |value: u32| crate::rig::sector(value).repeat(8);
    let metadata = |at: u64, value: u32| {
        let (first, second) = (block(value), block(value + 1));
        let bufs = [IoSlice::new(&first), IoSlice::new(&second)];
        cached.write_classed_at(at * 4096, &bufs, Class::Metadata).expect("memory");
    };
    metadata(10, 1);
    write(&cached, 400, &[5; 16]).expect("memory");
    assert_eq!((cached.cached_blocks(), cached.status().writes_around), (2, 1));
    assert_eq!(read(&*origin)[400..416], [5; 16], "data went by");
    write(&cached, 80, &[6; 8]).expect("memory");
    assert_eq!(cached.cached_blocks(), 2, "a cached block stays where it is");
    metadata(50, 7);
    let expected: Vec<u32> = [[6; 8], [2; 8]].concat();
    assert_eq!(read(&cached)[80..96], expected);
    assert_eq!(read(&cached)[400..416], [[7; 8], [8; 8]].concat());
    cached.drain(|_| {}).expect("memory");
    assert_eq!(read(&*origin), read(&cached));
}

/// Many zeroes cost the origin one request. Cached blocks and parts of blocks become zeroes too.
#[test]
fn zeroes_are_not_written_one_by_one() {
    let (origin, cache) = blank(4096, 300, 80_000);
    let log = buttress_sim::Log::new();
    let (origin, cache) = (log.device(&origin, 512), log.device(&cache, 512));
    let cached = open(Arc::clone(&origin) as _, Arc::clone(&cache) as _, &by_hand(""));
    let mut model: Model = vec![0; 80_000];
    let mut rng = Rng::new(8);
    for step in 1..60 {
        let range = place(&mut rng, 80_000, 40);
        model[range.clone()].fill(step);
        write(&cached, range.start, &model[range]).expect("memory");
        if step % 7 == 0 {
            cached.flush().expect("memory");
        }
    }
    log.start(&[&origin, &cache]);
    let range = 101..75_003;
    model[range.clone()].fill(0);
    let (offset, len) = ((range.start * SECTOR) as u64, (range.len() * SECTOR) as u64);
    cached.write_zeroes(offset, len, buttress_block::device::Space::Free).expect("memory");
    assert_eq!(read(&cached), model);
    let (bytes, _) = log.totals(cache.id());
    assert!(bytes < 300_000, "{bytes} bytes of cache for zeroes");
    cached.drain(|_| {}).expect("memory");
    assert_eq!(read(&*origin), model);
}
