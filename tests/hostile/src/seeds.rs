//! The first inputs of the fuzzers: parts of real volumes, ours and Linux's, and conversations of
//! clients.
//!
//! The repository keeps none of these inputs: they are made from new volumes each time.

use std::collections::BTreeMap;
use std::path::Path;

use buttress_base::Rng;
use buttress_block::{Device, MemoryDevice};
use buttress_format::{CsumType, Key, Kind};
use buttress_fs::MakeOptions;

use crate::image::{Image, SUPERBLOCK_LEN, SUPERBLOCKS};
use crate::{cache, mutate, sample, targets};

/// The offset of the chunks in a superblock: a key and a payload of one or two stripes each.
const SYSTEM_CHUNKS: usize = 0x32b;
/// Bits of a chunk's type: RAID0, RAID1, DUP, RAID10, RAID5, RAID6, RAID1C3, RAID1C4.
const PROFILES: [u64; 8] = [1 << 3, 1 << 4, 1 << 5, 1 << 6, 1 << 7, 1 << 8, 1 << 9, 1 << 10];
/// At most this many items of one kind and similar length are kept.
const ALIKE: usize = 3;
/// Targets that make their choices from bytes, and the lengths of their inputs.
const CHOICES: [(&str, [usize; 4]); 7] = [
    ("image", [8, 16, 40, 96]),
    ("checker", [8, 16, 40, 96]),
    ("log", [8, 16, 40, 96]),
    ("stream", [12, 40, 100, 200]),
    ("fuse", [60, 200, 600, 1200]),
    ("store", [12, 30, 60, 90]),
    ("rootdir", [30, 120, 400, 900]),
];

/// The first inputs of each target, by its name.
pub type Seeds = BTreeMap<&'static str, Vec<Vec<u8>>>;

/// Volumes with every checksum, made by this program, and by `mkfs.btrfs` if that program is
/// installed.
fn volumes() -> Vec<MemoryDevice> {
    let mut volumes = vec![sample::filled(), sample::logged()];
    for csum in [CsumType::Xxhash64, CsumType::Sha256, CsumType::Blake2b] {
        let device = MemoryDevice::new(targets::IMAGE_LEN);
        let options = MakeOptions { seed: Some(1), csum, ..MakeOptions::default() };
        buttress_fs::make::make(&device, &options).expect("a new volume");
        volumes.push(device);
    }
    for (nodesize, csum) in [(4096, "crc32c"), (16384, "crc32c"), (4096, "xxhash")] {
        volumes.extend(sample::linux(nodesize, csum));
    }
    volumes
}

/// A conversation of a client with the NBD server, from its first byte on.
#[must_use]
pub fn conversation() -> Vec<u8> {
    let mut bytes = 3_u32.to_be_bytes().to_vec();
    let mut option = |option: u32, data: &[u8]| {
        bytes.extend_from_slice(b"IHAVEOPT");
        bytes.extend_from_slice(&option.to_be_bytes());
        bytes.extend_from_slice(&(data.len() as u32).to_be_bytes());
        bytes.extend_from_slice(data);
    };
    option(8, b"");
    option(10, b"\0\0\0\0\0\0\0\x01\0\0\0\x0fbase:allocation");
    option(7, b"\0\0\0\0\0\0");
    for (cookie, command) in [0_u16, 1, 3, 4, 6, 7, 0, 2].into_iter().enumerate() {
        bytes.extend_from_slice(&0x2560_9513_u32.to_be_bytes());
        bytes.extend_from_slice(&0_u16.to_be_bytes());
        bytes.extend_from_slice(&command.to_be_bytes());
        bytes.extend_from_slice(&(cookie as u64).to_be_bytes());
        bytes.extend_from_slice(&4096_u64.to_be_bytes());
        bytes.extend_from_slice(&64_u32.to_be_bytes());
        if command == 1 {
            bytes.extend_from_slice(&[5; 64]);
        }
    }
    bytes
}

/// Chunks in the form that [`targets::chunk_map`] takes, one after the other.
fn chunk_map(chunks: &[(u64, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (logical, payload) in chunks {
        bytes.extend_from_slice(&logical.to_le_bytes());
        bytes.extend_from_slice(&(payload.len() as u16).to_le_bytes());
        bytes.extend_from_slice(payload);
    }
    bytes
}

/// A chunk with copies of its first stripe, as many as a profile needs.
fn with_profile(payload: &[u8], profile: u64, stripes: u16) -> Vec<u8> {
    let mut bytes = payload[..48].to_vec();
    bytes[24..32].copy_from_slice(&(1 | profile).to_le_bytes());
    bytes[44..46].copy_from_slice(&stripes.to_le_bytes());
    for number in 0..u64::from(stripes) {
        let mut stripe = payload[48..80].to_vec();
        stripe[8..16].copy_from_slice(&((1 << 20) + (number << 23)).to_le_bytes());
        bytes.extend(stripe);
    }
    bytes
}

/// Makes the seeds of every target.
///
/// # Panics
///
/// If a volume cannot be made.
#[must_use]
pub fn all() -> Seeds {
    let mut seeds = Seeds::new();
    let mut alike: BTreeMap<(u8, usize), usize> = BTreeMap::new();
    for device in volumes() {
        let mut superblock = vec![0; SUPERBLOCK_LEN];
        device.read_at(SUPERBLOCKS[0], &mut superblock).expect("within the device");
        let end = superblock.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        seeds.entry("superblock").or_default().push(superblock[..end].to_vec());

        let mut chunks = Vec::new();
        let mut nodes = Image::scan(device.fork()).nodes;
        if superblock[0x60..0x68] != [0; 8] {
            nodes.extend(Image::scan_log(device).nodes);
        }
        for place in nodes {
            let items = mutate::leaf_items(&place.bytes);
            let mut has_new = place.bytes.len() == 4096 && items.is_empty();
            for item in items {
                let key = Key::parse(&item).expect("it has one");
                let seen = alike.entry((item[8], item.len() / 32)).or_default();
                *seen += 1;
                if *seen <= ALIKE {
                    has_new = true;
                    seeds.entry("item").or_default().push(item.clone());
                }
                if key.kind == Kind::CHUNK_ITEM {
                    chunks.push((key.offset, item[Key::LEN..].to_vec()));
                }
            }
            if has_new {
                seeds.entry("node").or_default().push(mutate::small(&place.bytes, 4096));
            }
        }
        let maps = seeds.entry("chunk_map").or_default();
        maps.push(chunk_map(&chunks));
        let Some((logical, payload)) = chunks.first() else { continue };
        for (number, profile) in PROFILES.into_iter().enumerate() {
            let chunk = with_profile(payload, profile, 2 + number as u16 % 5);
            maps.push(chunk_map(&[(*logical, chunk)]));
        }
    }
    for at in (SYSTEM_CHUNKS..0x400).step_by(0x40) {
        // A part of the table of chunks, as a truncation leaves it.
        let part = seeds["superblock"][0][..at].to_vec();
        seeds.entry("superblock").or_default().push(part);
    }
    for choice in 0..=u8::MAX {
        seeds.entry("cache").or_default().push([&[choice], &cache::front()[..]].concat());
    }
    seeds.insert("nbd", vec![conversation()]);
    for (target, lengths) in CHOICES {
        let mut rng = Rng::new(target.len() as u64);
        for number in 0..120 {
            let mut bytes = vec![0; lengths[number % lengths.len()]];
            rng.fill(&mut bytes);
            seeds.entry(target).or_default().push(bytes);
        }
    }
    seeds
}

/// Writes the seeds of every target into a folder with the target's name. Returns the number of
/// seeds of each target.
///
/// # Errors
///
/// When a folder or a file cannot be made.
///
/// # Panics
///
/// If a volume cannot be made.
pub fn write(folder: &Path) -> std::io::Result<Vec<(&'static str, usize)>> {
    let mut written = Vec::new();
    for (target, inputs) in all() {
        let folder = folder.join(target);
        std::fs::create_dir_all(&folder)?;
        for (number, input) in inputs.iter().enumerate() {
            std::fs::write(folder.join(format!("seed-{number:04}")), input)?;
        }
        written.push((target, inputs.len()));
    }
    Ok(written)
}
