//! Adding a device to a volume, and growing a volume from a seed.
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
use buttress_items::{Error, Result};
use buttress_maintenance::Maintenance;
use buttress_make::clock::new_uuid;
use buttress_tree::{Geometry, Store, boot};
use buttress_txn::{Engine, EngineOptions, GroupsRead};
use buttress_volume::{OpenOptions, Volume};

use crate::mount::Mount;
use crate::upkeep::UpkeepTask;

/// The smallest device that a volume takes, in bytes.
const DEVICE_MIN: u64 = 16 << 20;

/// The item of a device that will become part of a volume with this identifier.
///
/// # Errors
///
/// `Invalid` if the device is too small.
fn new_item(
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

/// Adds a device to a volume, or grows a volume on it if the volume is a seed.
pub(crate) fn add(mount: &Mount, device: Arc<dyn Device>, discard: bool) -> Result<DeviceId> {
    if buttress_volume::is_seed(&mount.superblock) {
        let seeds = mount.engine.volume().devices();
        let seeds = seeds.iter().map(|seed| Arc::clone(&seed.device)).collect();
        return grow(seeds, device, discard);
    }
    let _turn = mount.upkeep.begin_work(UpkeepTask::Devices)?;
    let devid = mount.maintenance.next_device();
    let item = new_item(devid, &*device, &mount.superblock, mount.superblock.tree_fsid())?;
    empty(&*device, discard)?;
    mount.engine.volume().add_device(device, item);
    mount.maintenance.enroll_device(item)?;
    Ok(item.devid)
}

/// Removes what a device holds. All checks come before: a device that is refused keeps its content.
fn empty(device: &dyn Device, discard: bool) -> Result<()> {
    if discard {
        let failed = |source| buttress_volume::Error::Candidate { device: device.name(), source };
        device.discard(0, device.len()).map_err(failed)?;
    }
    Ok(Volume::wipe(device)?)
}

/// Makes a volume on a new device. The volume shows the whole content of a seed, and reads
/// unchanged content from the seed. Returns the number of the new device. The former content of the
/// device is lost.
fn grow(seeds: Vec<Arc<dyn Device>>, new: Arc<dyn Device>, discard: bool) -> Result<DeviceId> {
    let (volume, superblock) = Volume::open(seeds.clone(), OpenOptions::default())?;
    let store = Store::new(Arc::new(volume), Geometry::of(&superblock), 0);
    let items = boot::load_devices(&store, &superblock)?;
    let last = items.iter().map(|item| item.devid.0).max().unwrap_or(0);
    let item = new_item(DeviceId(last.saturating_add(1)), &*new, &superblock, new_uuid())?;
    empty(&*new, discard)?;
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
