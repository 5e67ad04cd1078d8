//! One device as a part of a volume: its identity, how far it can be trusted, and its failures.
//!
//! # Invariants
//!
//! - **D1** A lost device gets no writes, not even of its superblocks. So the superblock still
//!   shows how old the device's content is.
//! - **D2** A device that missed more than one transaction keeps its old superblock until
//!   everything on it was compared: see [`VolumeDevice::heal`].

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use buttress_base::{Rank, Ranked};
use buttress_block::Device;
use buttress_format::{DevStats, DeviceId, DeviceItem, Generation};

/// How far a device can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum DeviceTrust {
    /// The device has all data.
    Whole = 0,
    /// The device's superblock is one transaction behind, as after a power cut between two
    /// superblocks. Reads prefer other devices; writes go to this device, too.
    Behind = 1,
    /// The device missed transactions. Reads prefer other devices. Writes go to this device, except
    /// superblocks.
    Stale = 2,
    /// The device failed a write in this session, and every byte has a copy on another device.
    Lost = 3,
}

impl DeviceTrust {
    /// Whether the device has all data that the other devices have.
    #[must_use]
    pub fn has_all(self) -> bool {
        self <= Self::Behind
    }
}

/// The kinds of failure that are counted for a device, in the order of its item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A write failed.
    Write = 0,
    /// A read failed.
    Read = 1,
    /// A flush failed.
    Flush = 2,
    /// A copy was read, and its content is wrong.
    Corruption = 3,
    /// A copy was read, and it is older than it should be.
    Generation = 4,
}

/// A device and its role in the volume.
#[derive(Debug)]
pub struct VolumeDevice {
    /// The number of the device in the volume.
    pub id: DeviceId,
    /// The device's identifier, which chunks name together with its number.
    pub uuid: [u8; 16],
    /// The device.
    pub device: Arc<dyn Device>,
    /// The item in the device's superblock when the volume was opened.
    pub item: DeviceItem,
    /// The generation of the device's superblock, if the device belongs to a seed (`seeds::SE1`).
    pub seed: Option<Generation>,
    /// Whether the first copy of the device's superblock was torn at the opening, so that another
    /// copy was read.
    pub(crate) torn: AtomicBool,
    /// Whether the device's superblock is durable before that of another device is written
    /// (`replace::R5`).
    pub(crate) leads: AtomicBool,
    trust: AtomicU8,
    faults: [AtomicU64; 5],
    faults_changed: AtomicBool,
    /// The last item given to [`VolumeDevice::set_current_item`].
    changed_item: Ranked<Option<DeviceItem>>,
}

impl VolumeDevice {
    pub(crate) fn new(device: Arc<dyn Device>, item: DeviceItem, trust: DeviceTrust) -> Self {
        let changed_item = Ranked::new(Rank::Leaf, None);
        Self {
            id: item.devid,
            uuid: item.uuid,
            device,
            item,
            seed: None,
            torn: AtomicBool::new(false),
            leads: AtomicBool::new(false),
            trust: AtomicU8::new(trust as u8),
            faults: Default::default(),
            faults_changed: AtomicBool::new(false),
            changed_item,
        }
    }

    /// Makes an entry with the same number and item on another device.
    pub(crate) fn with_device(&self, device: Arc<dyn Device>, trust: DeviceTrust) -> Self {
        let copy = Self::new(device, self.item, trust);
        copy.load_stats(&self.stats());
        copy.faults_changed.store(self.stats_changed(), Ordering::Relaxed);
        let changed = *self.changed_item.lock();
        if let Some(item) = changed {
            copy.set_current_item(item);
        }
        copy
    }

    /// How far the device can be trusted now.
    #[must_use]
    pub fn trust(&self) -> DeviceTrust {
        match self.trust.load(Ordering::Relaxed) {
            0 => DeviceTrust::Whole,
            1 => DeviceTrust::Behind,
            2 => DeviceTrust::Stale,
            _ => DeviceTrust::Lost,
        }
    }

    /// Whether the device missed transactions: copies on it are read last.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        self.trust() != DeviceTrust::Whole
    }

    /// Whether this is a device of a seed. Such a device never gets a write.
    #[must_use]
    pub fn is_seed(&self) -> bool {
        self.seed.is_some()
    }

    /// Whether the device gets no writes any more.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.trust() == DeviceTrust::Lost
    }

    pub(crate) fn lose(&self) {
        self.trust.store(DeviceTrust::Lost as u8, Ordering::Relaxed);
    }

    /// Marks the device as trusted again, after everything on it was compared with the other copies
    /// and is right. A device that was lost in this session stays lost.
    pub fn heal(&self) {
        let lost = DeviceTrust::Lost as u8;
        let _ = self.trust.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |trust| {
            (trust != lost).then_some(DeviceTrust::Whole as u8)
        });
    }

    /// Counts a failure.
    pub fn count(&self, fault: Fault) {
        self.faults[fault as usize].fetch_add(1, Ordering::Relaxed);
        self.faults_changed.store(true, Ordering::Relaxed);
    }

    /// The failure counts. They include earlier sessions once [`VolumeDevice::load_stats`] was
    /// called.
    #[must_use]
    pub fn stats(&self) -> DevStats {
        DevStats { counts: self.faults.each_ref().map(|count| count.load(Ordering::Relaxed)) }
    }

    /// Adds the counts that earlier sessions recorded.
    pub fn load_stats(&self, stats: &DevStats) {
        for (count, before) in self.faults.iter().zip(stats.counts) {
            count.fetch_add(before, Ordering::Relaxed);
        }
    }

    /// Forgets all failures.
    pub fn reset_stats(&self) {
        for count in &self.faults {
            count.store(0, Ordering::Relaxed);
        }
        self.faults_changed.store(true, Ordering::Relaxed);
    }

    /// Whether the counts changed since they were last recorded.
    #[must_use]
    pub fn stats_changed(&self) -> bool {
        self.faults_changed.load(Ordering::Relaxed)
    }

    /// Returns the counts to record, if they changed, and marks them as recorded.
    pub fn take_changed_stats(&self) -> Option<DevStats> {
        self.faults_changed.swap(false, Ordering::Relaxed).then(|| self.stats())
    }

    /// The device item in the next superblock of this device.
    #[must_use]
    pub fn current_item(&self) -> DeviceItem {
        self.changed_item().unwrap_or(self.item)
    }

    /// The last item that [`VolumeDevice::set_current_item`] was given.
    pub(crate) fn changed_item(&self) -> Option<DeviceItem> {
        *self.changed_item.lock()
    }

    pub(crate) fn set_current_item(&self, item: DeviceItem) {
        *self.changed_item.lock() = Some(item);
    }
}
