//! A good volume, and the places of its nodes.

use std::collections::{BTreeMap, BTreeSet};

use buttress_block::{Device, MemoryDevice};
use buttress_format::header::{HEADER_LEN, ITEM_LEN, PTR_LEN};
use buttress_format::{CsumType, Superblock};

/// The offsets of the first two superblocks.
pub const SUPERBLOCKS: [u64; 2] = [64 << 10, 64 << 20];
/// Bytes of a superblock.
pub const SUPERBLOCK_LEN: usize = 4096;

/// Offsets of fields of a node's header.
pub(crate) const BYTENR: usize = 48;
pub(crate) const GENERATION: usize = 80;
pub(crate) const NRITEMS: usize = 96;
pub(crate) const LEVEL: usize = 100;
/// The type of a key that names a tree.
pub(crate) const ROOT_ITEM: u8 = 132;

/// One node in use, and all its copies.
#[derive(Clone, Debug)]
pub struct Place {
    /// Its address.
    pub bytenr: u64,
    /// The offsets of its copies on the device.
    pub offsets: Vec<u64>,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

impl Place {
    pub(crate) fn level(&self) -> u8 {
        self.bytes[LEVEL]
    }

    pub(crate) fn generation(&self) -> u64 {
        word(&self.bytes, GENERATION)
    }
}

/// A volume on one device, with the information for well-aimed damage.
#[derive(Debug)]
pub struct Image {
    /// Its bytes.
    pub device: MemoryDevice,
    /// Its checksum type.
    pub csum: CsumType,
    /// The nodes that its superblock leads to.
    pub nodes: Vec<Place>,
}

pub(crate) fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn half(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes")) as usize
}

impl Image {
    /// Finds the nodes of a good volume.
    ///
    /// # Panics
    ///
    /// If the device has no good volume.
    #[must_use]
    pub fn scan(device: MemoryDevice) -> Self {
        let (found, superblock) = Self::find(&device);
        let csum = superblock.csum_type;
        let nodes = reachable(&found, &[superblock.root.0, superblock.chunk_root.0]);
        assert!(nodes.len() > 5, "a volume has more trees than that");
        Self { device, csum, nodes }
    }

    /// Finds the nodes of a volume's log, and no others.
    ///
    /// # Panics
    ///
    /// If the volume has no log.
    #[must_use]
    pub fn scan_log(device: MemoryDevice) -> Self {
        let (found, superblock) = Self::find(&device);
        let nodes = reachable(&found, &[superblock.log_root.0]);
        assert!(nodes.len() > 1, "there is a log, and a tree of it");
        Self { device, csum: superblock.csum_type, nodes }
    }

    fn find(device: &MemoryDevice) -> (BTreeMap<u64, Place>, Superblock) {
        let mut bytes = vec![0; SUPERBLOCK_LEN];
        device.read_at(SUPERBLOCKS[0], &mut bytes).expect("a volume has a superblock");
        let superblock = Superblock::parse(&bytes, SUPERBLOCKS[0]).expect("a good superblock");
        let (csum, size) = (superblock.csum_type, superblock.csum_type.size());
        let fsid = superblock.tree_fsid();

        let mut found: BTreeMap<u64, Place> = BTreeMap::new();
        let mut bytes = vec![0; superblock.nodesize as usize];
        for offset in (0..device.len() - bytes.len() as u64).step_by(4096) {
            device.read_at(offset, &mut bytes).expect("within the device");
            if bytes[32..48] != fsid || csum.digest(&bytes[32..])[..size] != bytes[..size] {
                continue;
            }
            let bytenr = word(&bytes, BYTENR);
            let new = Place { bytenr, offsets: vec![offset], bytes: bytes.clone() };
            match found.get_mut(&bytenr) {
                Some(place) if place.bytes == bytes => place.offsets.push(offset),
                Some(place) if place.generation() < new.generation() => *place = new,
                Some(_) => {}
                None => drop(found.insert(bytenr, new)),
            }
        }
        (found, superblock)
    }
}

/// The nodes that can be reached from roots, through pointers and root items.
fn reachable(found: &BTreeMap<u64, Place>, roots: &[u64]) -> Vec<Place> {
    let mut wanted: Vec<u64> = roots.to_vec();
    let mut seen = BTreeSet::new();
    while let Some(bytenr) = wanted.pop() {
        let Some(place) = found.get(&bytenr) else { continue };
        if !seen.insert(bytenr) {
            continue;
        }
        let bytes = &place.bytes;
        for slot in 0..half(bytes, NRITEMS) {
            if place.level() > 0 {
                wanted.push(word(bytes, HEADER_LEN + slot * PTR_LEN + 17));
                continue;
            }
            let at = HEADER_LEN + slot * ITEM_LEN;
            if bytes[at + 8] == ROOT_ITEM {
                wanted.push(word(bytes, HEADER_LEN + half(bytes, at + 17) + 176));
            }
        }
    }
    seen.iter().map(|bytenr| found[bytenr].clone()).collect()
}
