//! Makes an empty volume: what `mkfs` does.
//!
//! # Place
//!
//! Rests on `format`, the placing of chunks of `volume`, and [`Device`]s; needs no transaction,
//! since nothing is there yet. The trees are laid out by hand, each as few nodes as its items need,
//! and written once.
//!
//! # Invariants
//!
//! - **K1** Every byte that the trees name as used belongs to a node that is written. The extent
//!   tree names every node once.
//! - **K2** No node lies where a copy of it would cover a superblock.
//! - **K3** What is not used is free in the free-space tree, whole block groups included; Linux
//!   keeps the stripes under superblock copies in that tree and leaves them out when it loads it.
//!
//! # On disk
//!
//! ```text
//! physical  0        1 MiB      + 8 MiB   + 8 MiB   + 8 MiB      + metadata    + metadata
//!           reserved | system 1 | system 2 | data    | metadata 1 | metadata 2 | free ...
//! logical            | system              | metadata             | data
//! ```
//!
//! # Failure
//!
//! The superblock is written last, after a flush: a volume that was not finished has no magic
//! number, so nothing takes it for one.

mod error;
mod features;
mod layout;
mod nodes;
mod trees;
mod write;

use buttress_block::Device;
use buttress_format::{CsumType, Generation, Profile, Timespec, limits};

pub use self::error::MakeError;
pub use self::features::{FEATURES, Feature, Features};
use self::layout::{Layout, Profiles};
use crate::clock::{new_uuid, now};

/// The generation of everything a new volume holds: its first and only transaction.
const FIRST: Generation = Generation(1);

/// What a new volume shall be.
#[derive(Clone, Debug)]
pub struct MakeOptions {
    /// Bytes of each device to use; all of it when absent.
    pub size: Option<u64>,
    /// The volume's name, at most 255 bytes and without a newline.
    pub label: Vec<u8>,
    /// The checksum of nodes and data.
    pub csum: CsumType,
    /// How metadata and system chunks are spread. When absent, as mkfs.btrfs does: twice, on two
    /// devices where there are two; once when mixed.
    pub metadata: Option<Profile>,
    /// How data chunks are spread: once when absent; like metadata when mixed.
    pub data: Option<Profile>,
    /// Data and metadata share block groups, for very small volumes. Needs nodes of 4 KiB.
    pub mixed: bool,
    /// Bytes of a tree node: a power of two from 4 KiB to 64 KiB.
    pub nodesize: u32,
    /// The format's switches.
    pub features: Features,
    /// The volume's identifier; random when absent.
    pub fsid: Option<[u8; 16]>,
    /// Makes every other identifier follow from this number, so that two runs are equal.
    pub seed: Option<u64>,
    /// The time that inodes carry; now when absent.
    pub time: Option<Timespec>,
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
            nodesize: 16 * 1024,
            features: Features::default(),
            fsid: None,
            seed: None,
            time: None,
        }
    }
}

/// What was made.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MakeReport {
    /// The volume's identifier.
    pub fsid: [u8; 16],
    /// Bytes of all devices that the volume uses.
    pub size: u64,
    /// How metadata and system chunks are spread.
    pub metadata: Profile,
    /// How data chunks are spread.
    pub data: Profile,
    /// Bytes in use by the new trees, one copy counted.
    pub bytes_used: u64,
    /// Length of the first chunk of each kind, one copy counted.
    pub system_len: u64,
    /// See [`MakeReport::system_len`].
    pub metadata_len: u64,
    /// See [`MakeReport::system_len`].
    pub data_len: u64,
}

/// The identifiers and the time that the new structures share.
struct Identity {
    fsid: [u8; 16],
    chunk_tree_uuid: [u8; 16],
    device_uuids: Vec<[u8; 16]>,
    fs_tree_uuid: [u8; 16],
    now: Timespec,
}

/// Makes an empty volume on `device`. Whatever was there is gone.
///
/// # Errors
///
/// [`MakeError`] names the option that cannot be, or what the device said.
pub fn make(device: &dyn Device, options: &MakeOptions) -> Result<MakeReport, MakeError> {
    make_on(&[device], options)
}

/// Makes an empty volume on several devices, numbered from 1 as they are given.
///
/// # Errors
///
/// As [`make`].
pub fn make_on(devices: &[&dyn Device], options: &MakeOptions) -> Result<MakeReport, MakeError> {
    if devices.is_empty() {
        return Err(MakeError::NoDevices);
    }
    let sizes = devices
        .iter()
        .map(|device| checked_size(*device, options))
        .collect::<Result<Vec<u64>, MakeError>>()?;
    let identity = Identity::draw(options, devices.len());
    let layout = Layout::plan(&sizes, &identity.device_uuids, options)?;
    let trees = trees::build(&layout, &identity, options)?;
    for (device, size) in devices.iter().zip(&sizes) {
        write::wipe(*device, *size)?;
    }
    let bytes_used = write::volume(devices, &layout, &identity, options, &trees)?;
    let profiles = Profiles::of(options, devices.len())?;
    Ok(MakeReport {
        fsid: identity.fsid,
        size: sizes.iter().sum(),
        metadata: profiles.metadata,
        data: profiles.data,
        bytes_used,
        system_len: layout.system.chunk.len,
        metadata_len: layout.metadata.chunk.len,
        data_len: layout.data.as_ref().map_or(0, |data| data.chunk.len),
    })
}

/// Looks at everything that can be wrong before the device is touched.
fn checked_size(device: &dyn Device, options: &MakeOptions) -> Result<u64, MakeError> {
    if !device.writable() {
        return Err(MakeError::ReadOnly { device: device.name() });
    }
    if options.label.len() > 255 || options.label.iter().any(|&b| b == b'\n' || b == 0) {
        return Err(MakeError::Label { len: options.label.len() });
    }
    let nodesize = options.nodesize;
    if !nodesize.is_power_of_two() || !(limits::NODE_MIN..=limits::NODE_MAX).contains(&nodesize) {
        return Err(MakeError::Nodesize { found: nodesize });
    }
    if options.mixed && nodesize != limits::SECTOR {
        return Err(MakeError::MixedNodesize { found: nodesize });
    }
    options.features.check()?;
    let size = options.size.unwrap_or_else(|| device.len());
    if size > device.len() {
        return Err(MakeError::LargerThanDevice { size, device_len: device.len() });
    }
    let sector = u64::from(limits::SECTOR);
    Ok(size / sector * sector)
}

impl Identity {
    fn draw(options: &MakeOptions, devices: usize) -> Self {
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

/// A version-4 identifier that follows from a seed: a digest is as good a stream as any.
fn seeded_uuid(seed: u64, index: u64) -> [u8; 16] {
    let mut input = [0_u8; 16];
    input[..8].copy_from_slice(&seed.to_le_bytes());
    input[8..].copy_from_slice(&index.to_le_bytes());
    let digest = CsumType::Sha256.digest(&input);
    let mut bytes = [0_u8; 16];
    bytes.copy_from_slice(&digest[..16]);
    uuid::Builder::from_random_bytes(bytes).into_uuid().into_bytes()
}

#[cfg(test)]
mod tests;
