//! Administration of a volume, for operators.
//!
//! ```
//! use buttress::BalanceOptions;
//! use buttress::admin::Filter;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let fs = buttress::CreateOptions::new(256 << 20).create(folder.path().join("a.img"))?;
//! // Empties the block groups of data that are at most half full.
//! let half = Filter { usage: Some((0, 50)), ..Filter::default() };
//! let options = BalanceOptions { data: Some(half), ..BalanceOptions::default() };
//! let done = fs.admin().balance(&options, &mut |_| true)?;
//! assert!(done.completed <= done.considered);
//! # Ok(())
//! # }
//! ```

use std::path::Path;
use std::sync::Arc;

use buttress_block::Device;

// The types of the results and their fields, and of the options.
pub use buttress_format::{
    BlockGroupFlags, Chunk, CompatRo, CsumType, DevStats, DeviceId, DeviceItem, Incompat, Key,
    Kind, Profile, RootBackup, Stripe, Superblock,
};
pub use buttress_fs::{
    Account, Accounts, BalanceOptions, BalanceProgress, Cost, DeviceCounts, DeviceInfo,
    DeviceTrust, Filter, FlushState, FlushSteps, Info, KindUsage, Logical, PageStats, Preempt,
    Reach, Refusal, ScrubOptions, ScrubProgress, SpaceKind, SpaceStats, StatFs, Stats, StepFigures,
    Steps, SubvolumeInfo, TrimOptions, TrimProgress, Usage, Uuid, WaitingBytes, Waits,
    WaitsByQueue,
};

use crate::error::{Context, Result};

const TOP: &str = "/";

/// Administration of an open volume, by [`Filesystem::admin`](crate::Filesystem::admin).
#[derive(Clone, Copy, Debug)]
pub struct Admin<'f> {
    fs: &'f buttress_fs::Filesystem,
}

impl<'f> Admin<'f> {
    pub(crate) fn new(fs: &'f buttress_fs::Filesystem) -> Self {
        Self { fs }
    }

    /// Size and free space, as `df` shows them.
    ///
    /// # Errors
    ///
    /// Errors of reading the accounts.
    pub fn usage(&self) -> Result<StatFs> {
        self.fs.statfs().context("statfs", Path::new(TOP))
    }

    /// Superblock, generation, space by kind, subvolumes.
    ///
    /// # Errors
    ///
    /// Errors of reading the root tree.
    pub fn info(&self) -> Result<Info> {
        self.fs.info().context("info", Path::new(TOP))
    }

    /// Space accounts, reservations and waits.
    #[must_use]
    pub fn space(&self) -> SpaceStats {
        self.fs.space_stats()
    }

    /// All subvolumes and snapshots.
    ///
    /// # Errors
    ///
    /// Errors of reading the root tree.
    pub fn subvolumes(&self) -> Result<Vec<SubvolumeInfo>> {
        self.fs.subvolumes().context("list subvolumes", Path::new(TOP))
    }

    /// The devices, and counts of their failures.
    #[must_use]
    pub fn devices(&self) -> Vec<DeviceInfo> {
        self.fs.devices()
    }

    /// Adds a device. The data on the device is lost.
    ///
    /// # Errors
    ///
    /// `Io`, `ReadOnly`.
    pub fn add_device(&self, device: Arc<dyn Device>) -> Result<DeviceId> {
        self.fs.add_device(device).context("add device", Path::new(TOP))
    }

    /// Moves all data off a device, and removes the device from the volume. The device may be
    /// missing. `progress` returns false to stop: the device then stays.
    ///
    /// # Errors
    ///
    /// `StorageFull`; `InvalidInput` if too few devices would be left for the profiles; `Busy`
    /// during other work on the devices, or if `progress` returned false.
    pub fn remove_device(
        &self,
        id: DeviceId,
        progress: &mut dyn FnMut(&BalanceProgress) -> bool,
    ) -> Result<()> {
        self.fs.remove_device(id, progress).context("remove device", Path::new(TOP))
    }

    /// Replaces a device, which may be missing, by a new one. The data on the new device is lost.
    /// Returns the damage that was found. `progress` returns false to stop: the old device then
    /// stays.
    ///
    /// # Errors
    ///
    /// `StorageFull` for a device that is smaller; `Busy` during other work on the devices, or if
    /// `progress` returned false.
    pub fn replace_device(
        &self,
        id: DeviceId,
        new: Arc<dyn Device>,
        progress: &mut dyn FnMut(&BalanceProgress) -> bool,
    ) -> Result<ScrubProgress> {
        self.fs.replace_device(id, new, progress).context("replace device", Path::new(TOP))
    }

    /// Ends a replacement that was interrupted, here or in Linux, if the volume was opened with the
    /// new device. Background threads do so at opening. Returns the damage that was found, or
    /// `None` if there is nothing to do.
    ///
    /// # Errors
    ///
    /// The errors of [`Admin::replace_device`].
    pub fn resume_replace(
        &self,
        progress: &mut dyn FnMut(&BalanceProgress) -> bool,
    ) -> Result<Option<ScrubProgress>> {
        self.fs.resume_replace(progress).context("replace device", Path::new(TOP))
    }

    /// Changes how many bytes of a device the volume uses. Data past a smaller size is moved first.
    /// `progress` returns false to stop: the device then keeps its size.
    ///
    /// # Errors
    ///
    /// `StorageFull`; `InvalidInput` for a size below 16 MiB or past the end of the device; `Busy`
    /// during other work on the devices, or if `progress` returned false.
    pub fn resize_device(
        &self,
        id: DeviceId,
        bytes: u64,
        progress: &mut dyn FnMut(&BalanceProgress) -> bool,
    ) -> Result<()> {
        self.fs.resize_device(id, bytes, progress).context("resize device", Path::new(TOP))
    }

    /// Reads every copy of all space in use and repairs bad copies. `progress` returns false to
    /// stop the scrub. The result says whether the scrub finished.
    ///
    /// # Errors
    ///
    /// Errors of reading the extent tree. Damage is part of the result.
    pub fn scrub(
        &self,
        options: ScrubOptions,
        progress: &mut dyn FnMut(&ScrubProgress) -> bool,
    ) -> Result<(ScrubProgress, bool)> {
        self.fs.scrub(options, progress).context("scrub", Path::new(TOP))
    }

    /// Moves the contents of the chosen block groups. `progress` returns false to pause the
    /// balance. The options of a paused balance stay on disk.
    ///
    /// # Errors
    ///
    /// `StorageFull`, `Busy`.
    pub fn balance(
        &self,
        options: &BalanceOptions,
        progress: &mut dyn FnMut(&BalanceProgress) -> bool,
    ) -> Result<BalanceProgress> {
        self.fs.balance(options, progress).context("balance", Path::new(TOP))
    }

    /// Tells the devices which space is free. `progress` returns false to stop the trim.
    ///
    /// # Errors
    ///
    /// `ReadOnly`, `Io`.
    pub fn trim(
        &self,
        options: TrimOptions,
        progress: &mut dyn FnMut(&TrimProgress) -> bool,
    ) -> Result<TrimProgress> {
        self.fs.trim(options, progress).context("trim", Path::new(TOP))
    }
}
