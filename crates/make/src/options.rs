//! The options of a new volume, and the identifiers that all its structures share.

use std::ops::Range;

use buttress_format::{CsumType, Generation, Profile, Timespec, limits};

use super::features::Features;
use crate::clock::{new_uuid, now};

/// The generation of all items of a new volume: its first and only transaction.
pub(super) const FIRST: Generation = Generation(1);

/// The options of a new volume.
#[derive(Clone, Debug)]
pub struct MakeOptions {
    /// Bytes of each device to use. `None` for the whole device.
    pub size: Option<u64>,
    /// The volume's name, at most 255 bytes and without a newline.
    pub label: Vec<u8>,
    /// The checksum of nodes and data.
    pub csum: CsumType,
    /// The profile of metadata and system chunks. `None` chooses as mkfs.btrfs does: two copies, on
    /// two devices if there are two, and one copy for a mixed volume.
    pub metadata: Option<Profile>,
    /// The profile of data chunks. `None` means one copy, or the profile of metadata in a mixed
    /// volume.
    pub data: Option<Profile>,
    /// Data and metadata share block groups, for very small volumes. Needs nodes of one sector.
    pub mixed: bool,
    /// Bytes of a sector, the smallest piece of data: a power of two from 4 KiB to 64 KiB.
    pub sectorsize: u32,
    /// Bytes of a tree node: a power of two from the sector to 64 KiB.
    pub nodesize: u32,
    /// The optional features of the format.
    pub features: Features,
    /// The volume's identifier; random when absent.
    pub fsid: Option<[u8; 16]>,
    /// The identifier of the first device; random when absent.
    pub device_uuid: Option<[u8; 16]>,
    /// Whether the devices are told that their former content is not needed.
    pub discard: bool,
    /// The seed of all other identifiers, so that two runs make equal volumes.
    pub seed: Option<u64>,
    /// The time of all inodes. `None` for the present time.
    pub time: Option<Timespec>,
    /// Ranges of bytes on the only device that keep their content, ascending. Data chunks cover
    /// these ranges, and logical addresses in them equal offsets on the device. With kept ranges,
    /// no part of the device is discarded or overwritten with zeros.
    pub kept: Vec<Range<u64>>,
}

impl Default for MakeOptions {
    fn default() -> Self {
        Self {
            size: None,
            label: Vec::new(),
            csum: CsumType::Crc32c,
            metadata: None,
            data: None,
            mixed: false,
            sectorsize: limits::SECTOR,
            nodesize: 16 * 1024,
            features: Features::default(),
            fsid: None,
            device_uuid: None,
            discard: true,
            seed: None,
            time: None,
            kept: Vec::new(),
        }
    }
}

/// The identifiers and the time that the new structures share.
pub(super) struct Identity {
    pub(super) fsid: [u8; 16],
    pub(super) chunk_tree_uuid: [u8; 16],
    pub(super) device_uuids: Vec<[u8; 16]>,
    pub(super) fs_tree_uuid: [u8; 16],
    pub(super) now: Timespec,
}

impl Identity {
    pub(super) fn draw(options: &MakeOptions, devices: usize) -> Self {
        let mut drawn = 0_u64;
        let mut uuid = || {
            drawn += 1;
            match options.seed {
                Some(seed) => seeded_uuid(seed, drawn),
                None => new_uuid(),
            }
        };
        let (fsid, chunk_tree_uuid) = (uuid(), uuid());
        let first = uuid();
        let first = options.device_uuid.unwrap_or(first);
        let fs_tree_uuid = uuid();
        let device_uuids = std::iter::once(first).chain((1..devices).map(|_| uuid())).collect();
        Self {
            fsid: options.fsid.unwrap_or(fsid),
            chunk_tree_uuid,
            device_uuids,
            fs_tree_uuid,
            now: options.time.unwrap_or_else(now),
        }
    }
}

/// A version-4 identifier from a seed and an index, made with a digest.
pub(crate) fn seeded_uuid(seed: u64, index: u64) -> [u8; 16] {
    let mut input = [0_u8; 16];
    input[..8].copy_from_slice(&seed.to_le_bytes());
    input[8..].copy_from_slice(&index.to_le_bytes());
    let digest = CsumType::Sha256.digest(&input);
    let mut bytes = [0_u8; 16];
    bytes.copy_from_slice(&digest[..16]);
    uuid::Builder::from_random_bytes(bytes).into_uuid().into_bytes()
}
