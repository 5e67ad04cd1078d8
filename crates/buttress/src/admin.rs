//! Administration of a volume: what an operator does, not a program.

use std::path::Path;
use std::sync::Arc;

use buttress_block::Device;
use buttress_format::DeviceId;
use buttress_fs::{
    BalanceOptions, BalanceProgress, DeviceInfo, Info, ScrubOptions, ScrubProgress, SpaceStats,
    StatFs, SubvolumeInfo, TrimOptions, TrimProgress,
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

    /// Size and free space, as `df` has them.
    ///
    /// # Errors
    ///
    /// What reading the accounts met.
    pub fn usage(&self) -> Result<StatFs> {
        self.fs.statfs().context("statfs", Path::new(TOP))
    }

    /// Superblock, generation, space by kind, subvolumes.
    ///
    /// # Errors
    ///
    /// What reading the root tree met.
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
    /// What reading the root tree met.
    pub fn subvolumes(&self) -> Result<Vec<SubvolumeInfo>> {
        self.fs.subvolumes().context("list subvolumes", Path::new(TOP))
    }

    /// The devices, and counts of their failures.
    #[must_use]
    pub fn devices(&self) -> Vec<DeviceInfo> {
        self.fs.devices()
    }

    /// Adds a device. What was on it is gone.
    ///
    /// # Errors
    ///
    /// `Io`, `ReadOnly`.
    pub fn add_device(&self, device: Arc<dyn Device>) -> Result<DeviceId> {
        self.fs.add_device(device).context("add device", Path::new(TOP))
    }

    /// Reads every copy of everything in use and repairs what is wrong. `progress` returns false to
    /// end it; the result says whether it came to its end.
    ///
    /// # Errors
    ///
    /// What reading the extent tree met. Damage is part of the result.
    pub fn scrub(
        &self,
        options: ScrubOptions,
        progress: &mut dyn FnMut(&ScrubProgress) -> bool,
    ) -> Result<(ScrubProgress, bool)> {
        self.fs.scrub(options, progress).context("scrub", Path::new(TOP))
    }

    /// Moves what is in the chosen block groups. `progress` returns false to pause it.
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

    /// Tells the devices of free space. `progress` returns false to end it.
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
