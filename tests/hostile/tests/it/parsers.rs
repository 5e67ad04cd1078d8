//! Targets that take the bytes of one structure.

use std::sync::{Arc, OnceLock};

use buttress_base::Rng;
use buttress_block::Device;
use buttress_hostile::image::{Image, SUPERBLOCKS};
use buttress_hostile::{cache, requests, seeds, small, stores, streams, targets, trees};

use crate::{choices, each};

/// Superblocks that are almost valid.
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

/// Chunks of a good superblock, edited: they overlap, or have the addresses of each other.
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

/// One of the seeds of a target.
fn one(target: &str, seed: u64) -> &'static [u8] {
    static SEEDS: OnceLock<seeds::Seeds> = OnceLock::new();
    let seeds = &SEEDS.get_or_init(seeds::all)[target];
    &seeds[(seed % seeds.len() as u64) as usize]
}

/// Nodes of good volumes, edited.
#[test]
fn nodes() {
    each(
        "node",
        (0, 3000),
        |seed| match seed % 5 {
            0 => one("node", seed).to_vec(),
            _ => targets::edited(one("node", seed), &choices(seed, 12)),
        },
        targets::node,
    );
}

/// Items of good volumes, edited.
#[test]
fn items() {
    each(
        "item",
        (0, 6000),
        |seed| targets::edited(one("item", seed), &choices(seed, 16)),
        targets::item,
    );
}

/// Superblocks and entries of write-back caches, edited. Half of the runs edit any bytes; half
/// write likely sectors and epochs into entries.
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
    let good = seeds::conversation();
    each("nbd", (0, 3000), |seed| targets::edited(&good, &choices(seed, 12)), targets::nbd);
}

/// Logs of fsync: a log has one to four faults, and a mount replays it.
#[test]
fn logs() {
    let image = Arc::new(Image::scan_log(small::logged()));
    each(
        "log",
        (0, 600),
        |seed| choices(seed, 96),
        move |bytes| {
            targets::log(&image, bytes);
        },
    );
}

/// Streams of subvolumes.
#[test]
fn streams_of_subvolumes() {
    let large = streams::good(&buttress_hostile::sample::filled());
    let good = streams::good(&small::filled(small::Make::PLAIN));
    // A good stream is received.
    for good in [&large, &good] {
        streams::stream(targets::fresh(), good, &[]);
    }
    each(
        "stream",
        (0, 300),
        |seed| choices(seed, 200),
        move |bytes| {
            streams::stream(targets::fresh_small(), &good, bytes);
        },
    );
}

/// Requests that no kernel would send.
#[test]
fn requests_of_fuse() {
    let base = small::filled(small::Make::PLAIN);
    each("fuse", (0, 200), |seed| choices(seed, 1200), move |bytes| requests::fuse(&base, bytes));
}

/// Volumes in stores with wrong manifests, envelopes, maps, tables and extents.
#[test]
fn volumes_in_stores() {
    each("store", (0, 150), |seed| choices(seed, 16 + seed as usize % 80), stores::store);
}

/// Folders for `mkfs --rootdir`.
#[test]
fn trees_of_files() {
    each("rootdir", (0, 40), |seed| choices(seed, 100 + seed as usize % 500), trees::rootdir);
}
