//! Devices that come, go, or change their size.
//!
//! # Invariants
//!
//! - **D1** A device that comes has nothing on it, and holds no superblock of the volume before the
//!   commit that makes it one of its devices.
//! - **D2** A device goes, and a device is cut, only when no chunk lies on what goes.

use buttress_format::{DeviceId, DeviceItem};

use crate::{Engine, Error, Result};

/// What a transaction does to one device.
#[derive(Clone, Copy, Debug)]
pub(crate) enum DeviceChange {
    /// This is its item now.
    Set(DeviceItem),
    /// It is no part of the volume any more.
    Gone(DeviceId),
}

impl Engine {
    /// Makes a device part of the volume: one that the volume below was told of, with nothing on it.
    ///
    /// # Errors
    ///
    /// When the volume cannot be written.
    pub fn enroll_device(&self, item: DeviceItem) -> Result<()> {
        self.check_writable()?;
        self.devices.lock().add_device(item, true);
        self.change_device(DeviceChange::Set(item));
        self.commit()?;
        self.settle_superblocks()
    }

    /// The devices of the volume that are not here.
    #[must_use]
    pub fn missing_devices(&self) -> Vec<DeviceId> {
        let known = self.devices.lock().ids();
        known.into_iter().filter(|id| self.volume.device(*id).is_none()).collect()
    }

    /// A number that no device has.
    #[must_use]
    pub fn next_device(&self) -> DeviceId {
        self.devices.lock().next_id()
    }

    /// Gives a device another size, in bytes.
    ///
    /// # Errors
    ///
    /// [`Error::NoSpace`] when a chunk lies behind the new end: relocate it before; `Malformed` for a
    /// device that there is none of.
    pub fn resize_device(&self, id: DeviceId, total_bytes: u64) -> Result<()> {
        self.check_writable()?;
        let sector = u64::from(self.store.geometry().sectorsize);
        let total_bytes = total_bytes / sector * sector;
        let device = self.volume.device(id);
        if device.is_some_and(|device| device.device.len() < total_bytes) {
            return Err(Error::NoSpace("a device as large as that"));
        }
        let item = {
            let mut devices = self.devices.lock();
            let mut item = devices.item(id)?;
            let before = item.total_bytes;
            item.total_bytes = total_bytes;
            let chunks = self.volume.chunks();
            let past = chunks.iter().any(|chunk| {
                let end = |stripe: &buttress_format::Stripe| stripe.offset + chunk.stripe_bytes();
                chunk.stripes.iter().any(|stripe| stripe.device == id && end(stripe) > total_bytes)
            });
            if past {
                return Err(Error::NoSpace("chunks behind the new end of the device"));
            }
            devices.show(id);
            if total_bytes >= before {
                devices.give(id, before, total_bytes - before);
            } else {
                devices.take(id, total_bytes, before - total_bytes);
            }
            devices.set_item(item);
            item
        };
        self.volume.update_device(item);
        self.change_device(DeviceChange::Set(item));
        self.commit()?;
        self.settle_superblocks()
    }

    /// Takes no new chunks on a device from now on, or again.
    pub fn use_device(&self, id: DeviceId, usable: bool) {
        self.devices.lock().set_usable(id, usable);
    }

    /// Makes a device that no chunk lies on no part of the volume any more. Its superblocks are the
    /// caller's.
    ///
    /// # Errors
    ///
    /// [`Error::NoSpace`] when a chunk still lies on it; when it is the last one.
    pub fn remove_device(&self, id: DeviceId) -> Result<()> {
        self.check_writable()?;
        let in_use =
            self.volume.chunks().iter().any(|chunk| chunk.stripes.iter().any(|s| s.device == id));
        if in_use {
            return Err(Error::NoSpace("chunks on the device that is to go"));
        }
        self.devices.lock().remove_device(id)?;
        self.volume.remove_device(id);
        self.change_device(DeviceChange::Gone(id));
        self.commit()?;
        self.settle_superblocks()
    }

    fn change_device(&self, change: DeviceChange) {
        let _gate = self.gate.read();
        self.view.load().running().devices.lock().push(change);
    }
}
