//! Growing a volume from a seed.
//!
//! # Invariants
//!
//! - **SP1** The devices of the seed are only read. The seed may be mounted meanwhile, here or in
//!   other processes, and several volumes can grow from it.
//! - **SP2** One write of a superblock makes the new volume exist on its device. A crash before
//!   this write leaves a device without a volume.

use std::sync::Arc;

use buttress_block::Device;
use buttress_format::{DeviceId, DeviceItem, Superblock};
use buttress_maintenance::Maintenance;
use buttress_make::clock::new_uuid;
use buttress_tree::{Geometry, Store, boot};
use buttress_txn::{Engine, EngineOptions, GroupsRead};
use buttress_volume::{OpenOptions, Volume};

use crate::error::{Error, Result};

/// The smallest device that a volume takes, in bytes.
const DEVICE_MIN: u64 = 16 << 20;

/// The item of a device that will become part of a volume with this identifier.
///
/// # Errors
///
/// `Invalid` if the device is too small.
pub(crate) fn new_item(
    devid: DeviceId,
    device: &dyn Device,
    superblock: &Superblock,
    fsid: [u8; 16],
) -> Result<DeviceItem> {
    let sector = u64::from(superblock.sectorsize);
    let total_bytes = device.len() / sector * sector;
    if total_bytes < DEVICE_MIN {
        return Err(Error::invalid("a device smaller than 16 MiB"));
    }
    Ok(DeviceItem {
        devid,
        total_bytes,
        io_align: superblock.sectorsize,
        io_width: superblock.sectorsize,
        sector_size: superblock.sectorsize,
        uuid: new_uuid(),
        fsid,
        ..DeviceItem::default()
    })
}

/// Makes a volume on a new device. The volume shows the whole content of a seed, and reads
/// unchanged content from the seed. Returns the number of the new device. The former content of the
/// device is lost.
pub(crate) fn grow(seeds: Vec<Arc<dyn Device>>, new: Arc<dyn Device>) -> Result<DeviceId> {
    let (volume, superblock) = Volume::open(seeds.clone(), OpenOptions::default())?;
    let store = Store::new(Arc::new(volume), Geometry::of(&superblock), 0);
    let items = boot::load_devices(&store, &superblock)?;
    let last = items.iter().map(|item| item.devid.0).max().unwrap_or(0);
    let item = new_item(DeviceId(last.saturating_add(1)), &*new, &superblock, new_uuid())?;
    Volume::wipe(&*new)?;
    let options = OpenOptions { writable: true, ..OpenOptions::default() };
    let (volume, superblock) = Volume::open_sprout(seeds, new, item, options)?;
    let options =
        EngineOptions { sprout: Some(item), groups: GroupsRead::First, ..EngineOptions::default() };
    let engine = Engine::open(Arc::new(volume), superblock, options)?;
    if let Some(why) = engine.read_only() {
        return Err(buttress_txn::Error::ReadOnly(why.to_string()).into());
    }
    Maintenance::new(Arc::clone(&engine)).move_system_off_seeds()?;
    engine.settle_superblocks()?;
    Ok(item.devid)
}
