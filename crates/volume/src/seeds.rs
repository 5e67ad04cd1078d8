//! Seed devices: volumes grow from them, and go on reading their chunks.
//!
//! A seed is a volume that is only read. A sprout is a volume of new devices that began with the
//! trees of a seed. A sprout reads the seed's chunks on the seed's devices. The chunk tree of a
//! sprout has an item for each device of a seed. That item has the identifier of the seed.
//!
//! # Invariants
//!
//! - **SE1** Nothing is written to a device of a seed: no data, no repair, no superblock, no
//!   discard.
//! - **SE2** A sprout exists on disk when the first superblock on its own device is written. Until
//!   then the new device is not a part of any volume.
//! - **SE3** The chunks in a sprout's superblock are on the sprout's own devices, since Linux reads
//!   these chunks before it looks for seeds. A sprout that was just made is an exception:
//!   `Maintenance::move_system_off_seeds` moves the sprout's chunk tree to the sprout's own
//!   devices.

use std::sync::Arc;

use buttress_block::Device;
use buttress_format::{DeviceItem, Extent, Incompat, Logical, Superblock};

use crate::device::VolumeDevice;
use crate::error::{Error, Uuid};
use crate::open::{OpenOptions, candidates};
use crate::seed_ids::{Candidate, SEEDING, SeedIds, is_seed, newest};
use crate::volume::Volume;

/// Whether a device belongs to a seed. A caller with several devices opens a seed's device for
/// reading only, since several volumes may have grown from it.
#[must_use]
pub fn holds_seed(device: &dyn Device) -> bool {
    Volume::read_superblock(device).is_ok_and(|superblock| is_seed(&superblock))
}

impl Volume {
    /// Joins the devices of a seed and a new device into the sprout that they will make. Returns
    /// the superblock that the sprout has before its first commit. Nothing is written: the caller
    /// wipes the new device before, and makes the first commit (SE2).
    ///
    /// `item` is the device item of the new device. Its `fsid` is the identifier of the sprout.
    ///
    /// # Errors
    ///
    /// As [`Volume::open`]; [`Error::NoSeed`] if the devices make no seed that can grow.
    pub fn open_sprout(
        seeds: Vec<Arc<dyn Device>>,
        new: Arc<dyn Device>,
        item: DeviceItem,
        options: OpenOptions,
    ) -> Result<(Self, Superblock), Error> {
        let mut candidates = candidates(seeds)?;
        let seed = newest(&candidates).cloned().ok_or(Error::NoDevices)?;
        let refused = |why| Err(Error::NoSeed { why });
        if !is_seed(&seed) {
            return refused("its superblock has no seed flag");
        }
        if seed.incompat.has(Incompat::METADATA_UUID) {
            return refused("its identifier was changed, and Linux would not find it");
        }
        if seed.log_root != Logical(0) {
            return refused("it has a log of fsync that was not replayed");
        }
        // `sprout` does not count the new device yet, since the first commit adds it to the count.
        // `joined` counts the new device, for the check at opening.
        let sprout =
            Superblock { fsid: item.fsid, flags: seed.flags & !SEEDING, dev_item: item, ..seed };
        let joined =
            Superblock { num_devices: sprout.num_devices.saturating_add(1), ..sprout.clone() };
        candidates.push(Candidate { device: new, superblock: sprout.clone() });
        candidates.sort_by_key(|candidate| candidate.superblock.dev_item.devid);
        let mut volume = Self::join(candidates, &joined, options)?;
        volume.is_sprouting = true;
        Ok((volume, sprout))
    }

    /// Whether a device of one of the volume's seeds is present.
    #[must_use]
    pub fn has_seeds(&self) -> bool {
        self.seeds.len > 0
    }

    /// Compares the devices of seeds with the items that the chunk tree has for them.
    ///
    /// # Errors
    ///
    /// [`Error::SeedChanged`] if a seed was written after the volume was grown from it.
    pub fn check_seeds(&self, items: &[DeviceItem]) -> Result<(), Error> {
        if self.is_sprouting {
            // The chunk tree is still the seed's own.
            return Ok(());
        }
        for device in self.devices().iter() {
            let item = items.iter().find(|item| item.devid == device.id);
            let Some(found) = device.seed else { continue };
            let Some(item) = item else {
                return Err(Error::ForeignDevice {
                    device: device.device.name(),
                    found: Uuid(device.item.fsid),
                    expected: Uuid(self.fsid()),
                });
            };
            if item.fsid != device.item.fsid || item.generation != found {
                return Err(Error::SeedChanged {
                    device: device.device.name(),
                    found,
                    expected: item.generation,
                });
            }
        }
        Ok(())
    }

    /// The identifiers of the volume's seeds.
    #[must_use]
    pub fn seed_ids(&self) -> SeedIds {
        self.seeds
    }

    /// Whether an address lies in a chunk with a stripe on a device of a seed. Nothing is written
    /// there (SE1).
    #[must_use]
    pub fn is_on_seed(&self, at: Logical) -> bool {
        if self.seeds.len == 0 {
            return false;
        }
        let on_seed = |device: &Arc<VolumeDevice>| device.is_seed();
        let map = self.map_of(Extent::new(at, 1));
        map.find(at).is_ok_and(|entry| entry.devices.iter().flatten().any(on_seed))
    }

    /// Whether nothing is written in place at an address, because its chunk has parity or lies on a
    /// device of a seed.
    #[must_use]
    pub fn is_never_rewritten(&self, at: Logical) -> bool {
        self.has_parity(at) || self.is_on_seed(at)
    }
}
