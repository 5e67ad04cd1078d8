//! One device as a part of a volume.

use std::sync::Arc;

use buttress_base::{Rank, Ranked};
use buttress_block::Device;
use buttress_format::{DeviceId, DeviceItem};

/// A device, and which part of the volume it is.
#[derive(Debug)]
pub struct VolumeDevice {
    /// Its number in the volume.
    pub id: DeviceId,
    /// Its own identifier, which chunks name beside the number.
    pub uuid: [u8; 16],
    /// The thing itself.
    pub device: Arc<dyn Device>,
    /// What its superblock said of it when the volume was opened.
    pub item: DeviceItem,
    /// Whether it missed transactions that the others have: its copies are read last.
    pub stale: bool,
    /// What it has been told to say since.
    told: Ranked<Option<DeviceItem>>,
}

impl VolumeDevice {
    pub(crate) fn new(device: Arc<dyn Device>, item: DeviceItem, stale: bool) -> Self {
        let told = Ranked::new(Rank::Leaf, None);
        Self { id: item.devid, uuid: item.uuid, device, item, stale, told }
    }

    /// What the next superblock on this device will say of it.
    #[must_use]
    pub fn current_item(&self) -> DeviceItem {
        self.told().unwrap_or(self.item)
    }

    /// The last item that [`VolumeDevice::tell`] was given.
    pub(crate) fn told(&self) -> Option<DeviceItem> {
        *self.told.lock()
    }

    pub(crate) fn tell(&self, item: DeviceItem) {
        *self.told.lock() = Some(item);
    }
}
