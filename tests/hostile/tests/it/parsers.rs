//! Bytes of one structure.

use std::sync::Arc;

use buttress_base::Rng;
use buttress_block::Device;
use buttress_format::header::{HEADER_LEN, ITEM_LEN};
use buttress_hostile::image::{Image, SUPERBLOCKS};
use buttress_hostile::{cache, requests, streams, targets};

use crate::{choices, each};

/// Superblocks that almost are.
#[test]
fn superblocks() {
    let mut good = vec![0; 4096];
    targets::fresh().read_at(SUPERBLOCKS[0], &mut good).expect("within the device");
    each(
        "superblock",
        (0, 1500),
        |seed| targets::edited(&good[..0x32b + 400], &choices(seed, 16)),
        targets::superblock,
    );
}

/// Chunks from a good superblock, edited, overlapping, with each other's addresses.
#[test]
fn chunk_maps() {
    let mut good = vec![0; 4096];
    targets::fresh().read_at(SUPERBLOCKS[0], &mut good).expect("within the device");
    let payload = &good[0x32b + 17..0x32b + 17 + 112];
    each(
        "chunk map",
        (0, 1000),
        |seed| {
            let mut rng = Rng::new(seed);
            let mut data = Vec::new();
            for _ in 0..rng.range(1..12) {
                let edited = targets::edited(payload, &choices(rng.next_u64(), 12));
                let logical = rng.below(64) << rng.range(12..58);
                data.extend_from_slice(&logical.to_le_bytes());
                data.extend_from_slice(&(edited.len() as u16).to_le_bytes());
                data.extend_from_slice(&edited);
            }
            data
        },
        targets::chunk_map,
    );
}

/// Nodes of a good volume, and their items, edited.
#[test]
fn nodes_and_items() {
    let image = Image::scan(targets::fresh().fork());
    let nodes: Vec<Vec<u8>> = image.nodes.iter().map(|place| place.bytes.clone()).collect();
    let node = |seed: u64| &nodes[(seed % nodes.len() as u64) as usize];
    each(
        "node",
        (0, 3000),
        |seed| {
            // The front of a large node with its items pulled in: a small node.
            let large = node(seed);
            let mut small = vec![0; 4096];
            let table = 1500;
            small[..table].copy_from_slice(&large[..table]);
            small[table..].copy_from_slice(&large[large.len() - 4096 + table..]);
            let shift = (large.len() - 4096) as u32;
            for at in (HEADER_LEN + 17..table - ITEM_LEN).step_by(ITEM_LEN) {
                let offset = u32::from_le_bytes(small[at..at + 4].try_into().expect("four"));
                small[at..at + 4].copy_from_slice(&offset.wrapping_sub(shift).to_le_bytes());
            }
            if seed % 5 == 0 { small } else { targets::edited(&small, &choices(seed, 12)) }
        },
        targets::node,
    );
    each(
        "item",
        (0, 6000),
        |seed| {
            let node = node(seed);
            let at = HEADER_LEN + (seed as usize % 7) * ITEM_LEN;
            let word =
                |at: usize| u32::from_le_bytes(node[at..at + 4].try_into().expect("four")) as usize;
            let (start, len) = (HEADER_LEN + word(at + 17), word(at + 21));
            let mut data = node[at..at + 17].to_vec();
            data.extend_from_slice(node.get(start..start + len).unwrap_or(&[1; 60]));
            targets::edited(&data, &choices(seed, 16))
        },
        targets::item,
    );
}

/// Superblock and entries of write-back caches, edited: half of them anywhere, half of them in numbers of entries
/// that are likely to mean something.
#[test]
fn caches() {
    let good = cache::front();
    each(
        "cache",
        (0, 3000),
        |seed| {
            let mut rng = Rng::new(seed);
            let mut front = good.clone();
            if rng.chance(1, 2) {
                front = targets::edited(&good, &choices(seed, 12));
            } else {
                for _ in 0..rng.range(1..6) {
                    let slot = rng.below(((front.len() - 64) / 16) as u64) as usize;
                    let at = 64 + slot * 16;
                    let epochs = [0, 1, 2, 3, 4, 5, 6, u64::MAX];
                    let epoch = epochs[rng.below(8) as usize];
                    let sector = rng.below(220);
                    front[at..at + 8].copy_from_slice(&sector.to_le_bytes());
                    front[at + 8..at + 16].copy_from_slice(&epoch.to_le_bytes());
                }
            }
            [&[rng.below(256) as u8], &front[..]].concat()
        },
        cache::cache,
    );
}

/// A client's whole conversation, edited.
#[test]
fn nbd_clients() {
    let mut good = 3_u32.to_be_bytes().to_vec();
    let mut option = |option: u32, data: &[u8]| {
        good.extend_from_slice(b"IHAVEOPT");
        good.extend_from_slice(&option.to_be_bytes());
        good.extend_from_slice(&(data.len() as u32).to_be_bytes());
        good.extend_from_slice(data);
    };
    option(8, b"");
    option(10, b"\0\0\0\0\0\0\0\x01\0\0\0\x0fbase:allocation");
    option(7, b"\0\0\0\0\0\0");
    for (cookie, command) in [0_u16, 1, 3, 4, 6, 7, 0, 2].into_iter().enumerate() {
        good.extend_from_slice(&0x2560_9513_u32.to_be_bytes());
        good.extend_from_slice(&0_u16.to_be_bytes());
        good.extend_from_slice(&command.to_be_bytes());
        good.extend_from_slice(&(cookie as u64).to_be_bytes());
        good.extend_from_slice(&4096_u64.to_be_bytes());
        good.extend_from_slice(&64_u32.to_be_bytes());
        if command == 1 {
            good.extend_from_slice(&[5; 64]);
        }
    }
    each("nbd", (0, 3000), |seed| targets::edited(&good, &choices(seed, 12)), targets::nbd);
}

/// Logs of fsync: one to four things wrong in a log, and a mount that replays it.
#[test]
fn logs() {
    let image = Arc::new(Image::scan_log(buttress_hostile::sample::logged()));
    each(
        "log",
        (0, 250),
        |seed| choices(seed, 96),
        move |bytes| {
            targets::log(&image, bytes);
        },
    );
}

/// Streams of subvolumes.
#[test]
fn streams_of_subvolumes() {
    let base = buttress_hostile::sample::filled();
    let good = streams::good(&base);
    // One that is right is received.
    streams::stream(targets::fresh(), &good, &[]);
    each(
        "stream",
        (0, 60),
        |seed| choices(seed, 200),
        move |bytes| {
            streams::stream(targets::fresh(), &good, bytes);
        },
    );
}

/// What no kernel would ask.
#[test]
fn requests_of_fuse() {
    let base = buttress_hostile::sample::filled();
    each("fuse", (0, 80), |seed| choices(seed, 1200), move |bytes| requests::fuse(&base, bytes));
}
