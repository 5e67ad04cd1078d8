//! Adds, resizes and removes devices. `device_replace` replaces them.
//!
//! # Invariants
//!
//! - **D1** A new device is empty. It has no superblock of the volume before the commit that adds
//!   it to the volume.
//! - **D2** A device is removed, or shrunk, only if no chunk lies on the removed part.

use std::sync::Arc;

use buttress_format::{Chunk, DeviceId, DeviceItem, Profile};
use buttress_space::SpaceKind;

use buttress_txn::{DeviceChange, Error, Result};

use crate::{Alone, Maintenance};

impl Maintenance {
    /// Adds an empty device to the volume. The volume layer below must already know the device.
    ///
    /// # Errors
    ///
    /// When the volume cannot be written.
    pub fn enroll_device(&self, item: DeviceItem) -> Result<()> {
        self.engine().check_writable()?;
        self.engine().storage().add_device(self.engine().commits(), item);
        self.engine().commit()?;
        self.engine().settle_superblocks()
    }

    /// Moves the nodes of the chunk tree from the devices of seeds to the volume's own devices. The
    /// superblock names the chunks of the chunk tree, and Linux reads these chunks before it looks
    /// for seeds.
    ///
    /// # Errors
    ///
    /// As [`relocate_group`](Self::relocate_group).
    pub fn move_system_off_seeds(&self) -> Result<()> {
        for group in self.engine().storage().space().groups_of(SpaceKind::System) {
            if self.volume().is_on_seed(group.start()) {
                self.relocate_group(group.start(), &Alone, &mut |_| {})?;
            }
        }
        Ok(())
    }

    /// The devices of the volume that are missing.
    #[must_use]
    pub fn missing_devices(&self) -> Vec<DeviceId> {
        // `know_groups` fails only while the volume is being closed. An empty answer is right in
        // that case.
        let _ = self.engine().know_groups();
        let known = self.engine().storage().device_ids();
        known.into_iter().filter(|id| self.volume().device(*id).is_none()).collect()
    }

    /// If devices are missing, makes two commits that change nothing. Then a missing device is two
    /// transactions behind before it lacks anything. So it is not taken for a device that a power
    /// cut left between two superblocks. Must come before the first change and the first log of
    /// fsync. The replay of a log comes before it: the first transaction leaves a generation out.
    ///
    /// # Errors
    ///
    /// As a commit.
    pub fn leave_missing_behind(&self) -> Result<()> {
        if self.volume().is_degraded() && !self.missing_devices().is_empty() {
            for _ in 0..2 {
                self.engine().commit_after(|| ())?;
            }
        }
        Ok(())
    }

    /// A number that no device has.
    #[must_use]
    pub fn next_device(&self) -> DeviceId {
        let _ = self.engine().know_groups();
        self.engine().storage().next_device_id()
    }

    /// Gives a device another size, in bytes. A device that can grow is lengthened first, so a
    /// crash may leave the device longer than the file system on it.
    ///
    /// # Errors
    ///
    /// [`Error::NoSpace`] when a chunk lies past the new end, because the caller must relocate this
    /// chunk first. [`Error::NoSpace`] also when the device is shorter and cannot grow. `Malformed`
    /// for an unknown device; the errors of [`Device::grow`].
    pub fn resize_device(&self, id: DeviceId, total_bytes: u64) -> Result<()> {
        self.engine().check_writable()?;
        self.expect_own(id)?;
        self.expect_not_replaced(id)?;
        let sector = u64::from(self.geometry().sectorsize);
        let total_bytes = total_bytes / sector * sector;
        let device = self.volume().device(id);
        if let Some(device) = device.filter(|device| device.device.len() < total_bytes) {
            if !device.device.can_grow() {
                return Err(Error::NoSpace("a device as large as that"));
            }
            let failed = |source| buttress_volume::Error::Device { device: id, source };
            device.device.grow(total_bytes).map_err(failed)?;
        }
        let item = self.engine().storage().resize_device(id, total_bytes)?;
        self.volume().update_device(item);
        self.engine().commits().change_device(DeviceChange::Set(item));
        self.engine().commit()?;
        self.engine().settle_superblocks()
    }

    /// Fails for a device of a seed, which can only be removed.
    pub(crate) fn expect_own(&self, id: DeviceId) -> Result<()> {
        match self.engine().storage().is_of_seed(id) {
            true => Err(Error::Busy("the device is a seed's: it can be removed")),
            false => Ok(()),
        }
    }

    /// Whether the volume can do without a device. For each kind of block group, the other writable
    /// devices must be enough for a profile that groups of this kind have now. Otherwise chunks
    /// moved off the device would get fewer copies.
    #[must_use]
    pub fn can_lose_device(&self, id: DeviceId) -> bool {
        let devices = self.volume().devices();
        let left = devices.iter().filter(|device| device.id != id && !device.is_seed()).count();
        let chunks = self.volume().chunks();
        left > 0
            && SpaceKind::ALL.into_iter().all(|kind| {
                let of_kind =
                    |chunk: &&Arc<Chunk>| SpaceKind::from_flags(chunk.flags) == Some(kind);
                let present = chunks.iter().filter(of_kind);
                let mut least = present.filter_map(|chunk| Profile::of(chunk.flags)).peekable();
                least.peek().is_none() || least.any(|profile| profile.spread().least <= left)
            })
    }

    /// Removes a device without chunks from the volume. The caller erases its superblocks.
    ///
    /// # Errors
    ///
    /// [`Error::NoSpace`] when a chunk still lies on the device, or when it is the last device.
    pub fn remove_device(&self, id: DeviceId) -> Result<()> {
        self.engine().check_writable()?;
        self.expect_not_replaced(id)?;
        let in_use =
            self.volume().chunks().iter().any(|chunk| chunk.stripes.iter().any(|s| s.device == id));
        if in_use {
            return Err(Error::NoSpace("chunks on the device that is to go"));
        }
        self.engine().storage().forget_device(id)?;
        self.volume().remove_device(id);
        self.engine().commits().change_device(DeviceChange::Gone(id));
        self.engine().commit()?;
        self.engine().settle_superblocks()
    }
}
