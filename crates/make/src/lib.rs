//! Makes an empty volume, as `mkfs` does. It also provides the clock for new inodes and the
//! identifiers of new subvolumes. A repeatable volume needs control of these times and identifiers.
//!
//! # Place
//!
//! This crate uses `format`, the chunk placement of `volume`, and [`Device`]s. It needs no
//! transaction, because the volume is still empty. It lays out each tree directly, with as few
//! nodes as the items need, and writes each node once.
//!
//! # Invariants
//!
//! - **K1** Every byte that the trees name as used belongs to a node that is written. The extent
//!   tree names every node once.
//! - **K2** No node lies where a copy of it would cover a superblock.
//! - **K3** All unused space is free in the free-space tree, whole block groups included. Linux
//!   keeps the stripes under superblock copies in that tree, and skips them when it loads the tree.
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
//! The superblock is written last, after a flush. An unfinished volume has no magic number, so no
//! program takes it for btrfs.

mod around;
pub mod clock;
mod error;
mod features;
mod layout;
mod nodes;
mod options;
mod trees;
mod write;

use buttress_block::Device;
use buttress_format::{Profile, limits};

pub use self::error::MakeError;
pub use self::features::{FEATURES, Feature, Features};
use self::layout::{Layout, Profiles};
use self::options::Identity;
pub use self::options::MakeOptions;
use self::options::seeded_uuid;

/// The properties of a new volume.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MakeReport {
    /// The volume's identifier.
    pub fsid: [u8; 16],
    /// Bytes of all devices that the volume uses.
    pub size: u64,
    /// The profile of metadata and system chunks.
    pub metadata: Profile,
    /// The profile of data chunks.
    pub data: Profile,
    /// Bytes in use by the new trees, one copy counted.
    pub bytes_used: u64,
    /// Length of the first system chunk, one copy counted.
    pub system_len: u64,
    /// Length of the first metadata chunk; see [`MakeReport::system_len`].
    pub metadata_len: u64,
    /// Length of the first data chunk; see [`MakeReport::system_len`].
    pub data_len: u64,
}

impl MakeReport {
    /// What users should know about the chosen profiles.
    #[must_use]
    pub fn warning(&self) -> Option<&'static str> {
        (self.metadata.spread().parity > 0).then_some(
            "warning: Linux changes metadata with parity in place. A power cut under Linux, and a device lost \
             later, can lose the volume. raid1 and raid1c3 have no such risk.",
        )
    }
}

/// Makes an empty volume on `device`. The former content of the device is lost.
///
/// # Errors
///
/// [`MakeError`] names the impossible option, or has the error of the device.
pub fn make(device: &dyn Device, options: &MakeOptions) -> Result<MakeReport, MakeError> {
    make_on(&[device], options)
}

/// Makes an empty volume on several devices, numbered from 1 as they are given.
///
/// # Errors
///
/// The errors of [`make`].
pub fn make_on(devices: &[&dyn Device], options: &MakeOptions) -> Result<MakeReport, MakeError> {
    if devices.is_empty() {
        return Err(MakeError::NoDevices);
    }
    let sizes = devices
        .iter()
        .map(|device| checked_size(*device, options))
        .collect::<Result<Vec<u64>, MakeError>>()?;
    let identity = Identity::draw(options, devices.len());
    let plan = if options.kept.is_empty() { Layout::plan } else { around::plan };
    let layout = plan(&sizes, &identity.device_uuids, options)?;
    let trees = trees::build(&layout, &identity, options)?;
    if options.kept.is_empty() {
        for (device, size) in devices.iter().zip(&sizes) {
            write::wipe(*device, *size, options.discard)?;
        }
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
        data_len: layout.data.first().map_or(0, |data| data.chunk.len),
    })
}

/// Checks all options before the device is changed. Returns the size of the volume in bytes.
fn checked_size(device: &dyn Device, options: &MakeOptions) -> Result<u64, MakeError> {
    if !device.writable() {
        return Err(MakeError::ReadOnly { device: device.name() });
    }
    if options.label.len() > 255 || options.label.iter().any(|&b| b == b'\n' || b == 0) {
        return Err(MakeError::Label { len: options.label.len() });
    }
    let (nodesize, sectorsize) = (options.nodesize, options.sectorsize);
    if !sectorsize.is_power_of_two() || !(limits::SECTOR..=limits::NODE_MAX).contains(&sectorsize) {
        return Err(MakeError::Sectorsize { found: sectorsize });
    }
    if !nodesize.is_power_of_two() || !(limits::NODE_MIN..=limits::NODE_MAX).contains(&nodesize) {
        return Err(MakeError::Nodesize { found: nodesize });
    }
    if nodesize < sectorsize {
        return Err(MakeError::NodeBelowSector { nodesize, sectorsize });
    }
    if options.mixed && nodesize != sectorsize {
        return Err(MakeError::MixedNodesize { found: nodesize, sectorsize });
    }
    options.features.check()?;
    let size = options.size.unwrap_or_else(|| device.len());
    if size > device.len() {
        return Err(MakeError::LargerThanDevice { size, device_len: device.len() });
    }
    let sector = u64::from(sectorsize);
    Ok(size / sector * sector)
}

#[cfg(test)]
mod tests;
