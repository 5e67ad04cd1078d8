//! Removal of devices, and how running changes of devices are cancelled.
//!
//! # Invariants
//!
//! - A device is removed only if the remaining devices are enough for at least one present profile
//!   of each kind of block group. So a removal never makes new chunks have fewer copies.

use buttress_format::DeviceId;
use buttress_items::{Error, Result};
use buttress_maintenance::BalanceProgress;
use buttress_volume::Volume;

use crate::filesystem::Filesystem;
use crate::upkeep::{Stopped, UpkeepTask};

/// The rule that a removal breaks.
const TOO_FEW: &str = "too few devices would be left for the profiles: add one first, or convert";

impl Filesystem {
    /// The numbers of the volume's missing devices.
    ///
    /// # Errors
    ///
    /// None today.
    pub fn missing_devices(&self) -> Result<Vec<DeviceId>> {
        Ok(self.mount().maintenance.missing_devices())
    }

    /// Stops the running removal of a device, and waits until it has stopped. The device stays, and
    /// moved content stays at its new place.
    #[must_use]
    pub fn cancel_removal(&self) -> Stopped {
        self.mount().upkeep.cancel(UpkeepTask::Remove)
    }

    /// Stops the running change of a device's size as [`Filesystem::cancel_removal`] does. Unless
    /// the change was over, the device keeps its size.
    #[must_use]
    pub fn cancel_resize(&self) -> Stopped {
        self.mount().upkeep.cancel(UpkeepTask::Resize)
    }

    /// Moves all data off a device, which may be missing, and removes the device from the volume.
    /// Other work on the volume goes on.
    ///
    /// # Errors
    ///
    /// As [`Filesystem::balance`]; `Invalid` when too few devices would be left for the profiles.
    pub fn remove_device(
        &self,
        id: DeviceId,
        watch: &mut dyn FnMut(&BalanceProgress) -> bool,
    ) -> Result<()> {
        let mount = self.mount();
        let _turn = mount.upkeep.begin_work(UpkeepTask::Remove)?;
        if !mount.maintenance.can_lose_device(id) {
            return Err(Error::invalid(TOO_FEW));
        }
        self.sync()?;
        mount.maintenance.vacate(id, 0, &mount.holders(), &mut mount.upkeep.watched(watch))?;
        let device = mount.engine.volume().device(id);
        mount.maintenance.remove_device(id)?;
        if let Some(device) = device.filter(|device| !device.is_seed()) {
            Volume::wipe(&*device.device)?;
        }
        Ok(())
    }
}
