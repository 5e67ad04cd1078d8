//! One mounted volume.

use std::sync::Arc;

use buttress_block::Device;
use buttress_format::{DeviceId, DeviceItem, limits};
use buttress_maintenance::{
    BalanceOptions, BalanceProgress, ScrubOptions, ScrubProgress, TrimOptions, TrimProgress,
};
use buttress_txn::{HeldCommit, View};
use buttress_volume::{Stats as IoStats, Volume, VolumeDevice};

use crate::attr::InodeId;
use crate::background;
use crate::clock::new_uuid;
use crate::error::Result;
use crate::inode::Inode;
use crate::make::{self, MakeError, MakeOptions, MakeReport};
use crate::mount::Mount;
use crate::open;
use crate::options::MountOptions;
use crate::statfs::{DeviceInfo, Info, StatFs};
use crate::upkeep::{BalanceStatus, Work};

/// One mounted volume. Cheap to clone. If the last clone drops without [`Filesystem::close`], it
/// still commits, and can only log a failure.
#[derive(Clone, Debug)]
pub struct Filesystem {
    mounted: Arc<Mounted>,
}

/// The mount itself: its last owner closes it.
struct Mounted {
    mount: Arc<Mount>,
    root: Option<Inode>,
    root_id: InodeId,
}

impl std::fmt::Debug for Mounted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mounted").field("root", &self.root_id).finish_non_exhaustive()
    }
}

impl Mounted {
    fn close(&self) -> Result<()> {
        let mount = &self.mount;
        if mount.status.is_closed() {
            return Ok(());
        }
        // What was remounted read-only is closed as any other: its threads may have worked on.
        mount.status.freeze(false);
        if mount.status.read_only_reason().is_some() {
            mount.status.close();
            background::stop(mount);
            mount.writeback.forget_all();
            mount.atimes.forget_all();
            return mount.engine.aborted().map_or(Ok(()), |_| mount.status.expect_writable());
        }
        mount.upkeep.stop_work();
        let synced = mount.sync();
        mount.atimes.put_all();
        mount.status.close();
        background::stop(mount);
        // What came between the two is still written.
        mount.writeback.write_all();
        mount.atimes.forget_all();
        let below = mount.options.reclaim_below;
        if synced.is_ok() && below > 0 {
            match mount.maintenance.reclaim_groups(below, &mount.holders(), &|_| true) {
                Ok(groups) => tracing::info!(groups, "mostly empty block groups were emptied"),
                Err(error) => tracing::warn!(%error, "block groups cannot be emptied"),
            }
        }
        let committed = mount.engine.shutdown();
        synced?;
        committed?;
        mount.expect_nothing_lost()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            tracing::error!(%error, "closing a filesystem that was dropped open");
        }
    }
}

impl Filesystem {
    /// Makes an empty volume on `device`; [`make`](make::make) by another name.
    ///
    /// # Errors
    ///
    /// Those of [`make`](make::make).
    pub fn make(device: &dyn Device, options: &MakeOptions) -> Result<MakeReport, MakeError> {
        make::make(device, options)
    }

    /// Mounts the volume that lies on `devices`.
    ///
    /// # Errors
    ///
    /// `Corrupt`, `Unsupported`, `Invalid` for options that do not fit the volume, `Io`.
    pub fn open(devices: Vec<Arc<dyn Device>>, options: MountOptions) -> Result<Self> {
        let (mount, root_id) = open::open(devices, options)?;
        let mut mounted = Mounted { mount, root: None, root_id };
        mounted.root = Some(Inode::of(&mounted.mount, root_id)?);
        Ok(Self { mounted: Arc::new(mounted) })
    }

    pub(crate) fn mount(&self) -> &Arc<Mount> {
        &self.mounted.mount
    }

    /// The directory at the top of the mounted subvolume.
    #[must_use]
    pub fn root(&self) -> Inode {
        self.mounted.root.clone().expect("set before a caller has the filesystem")
    }

    /// Finds an inode by number.
    ///
    /// # Errors
    ///
    /// `NotFound`, also for an inode that has lost its last name and has no user.
    pub fn inode(&self, id: InodeId) -> Result<Inode> {
        Inode::of(self.mount(), id)
    }

    /// Follows a path from the root, names only: no symbolic link is followed, `.` and `..` are
    /// understood.
    ///
    /// # Errors
    ///
    /// `NotFound`, `NotDir`.
    pub fn resolve(&self, path: impl AsRef<[u8]>) -> Result<Inode> {
        let mut at = self.root();
        for name in path.as_ref().split(|byte| *byte == b'/') {
            at = match name {
                b"" | b"." => at,
                b".." if at.id() == self.mounted.root_id => at,
                b".." => self.inode(at.parent()?)?,
                name => at.lookup(name)?,
            };
        }
        Ok(at)
    }

    /// Makes everything done before the call durable.
    ///
    /// # Errors
    ///
    /// `Io`, `NoSpace`, `Aborted`; the first failure of writing any inode's data in the background
    /// since the last call, once.
    pub fn sync(&self) -> Result<()> {
        let mount = self.mount();
        if mount.status.read_only_reason().is_some() && mount.engine.aborted().is_none() {
            return Ok(());
        }
        mount.sync()
    }

    /// Makes everything done before the call part of a commit. A loss of some file's data is not
    /// told here: the next [`Filesystem::sync`] tells it. Does nothing where nothing can change.
    ///
    /// # Errors
    ///
    /// `Io`, `NoSpace`, `Aborted`.
    pub fn commit(&self) -> Result<()> {
        let mount = self.mount();
        if mount.status.read_only_reason().is_none() {
            mount.writeback.write_all();
            mount.atimes.put_all();
            mount.engine.commit()?;
        }
        Ok(())
    }

    /// Sizes of the whole volume, as Linux counts them: used is what data and metadata hold, with
    /// all copies, and the global reserve; available is what new data can have.
    ///
    /// # Errors
    ///
    /// Currently infallible; returns `Result` for forward compatibility.
    pub fn statfs(&self) -> Result<StatFs> {
        let mount = self.mount();
        let block_size = mount.superblock.sectorsize;
        let block = u64::from(block_size);
        let room = mount.engine.room();
        let waiting = mount.files.counters().dirty_bytes();
        let blocks = room.device_bytes / u64::from(room.data_copies.max(1)) / block;
        let free = blocks.saturating_sub(room.used.saturating_add(waiting).div_ceil(block));
        // What data can have is less than what is free where metadata has chunks of its own.
        let available = (room.data_available.saturating_sub(waiting) / block).min(free);
        let fsid = mount.superblock.fsid;
        let words = fsid.chunks_exact(8).map(|word| word.try_into().map_or(0, u64::from_le_bytes));
        Ok(StatFs {
            block_size,
            blocks,
            blocks_free: free,
            blocks_available: available,
            name_max: limits::NAME_MAX as u32,
            fsid: words.fold(self.mounted.root_id.tree.0, |sum, word| sum ^ word),
        })
    }

    /// The trees as they are now, for callers that read them themselves. While a view lives, space
    /// that is freed is not used again: drop it before changing anything.
    #[must_use]
    pub fn view(&self) -> Arc<View> {
        self.mount().engine.view()
    }

    /// Keeps the last commit as it is on the devices, for a reader that opens them by itself. Space
    /// that is freed meanwhile is not used again: keep it no longer than needed.
    #[must_use]
    pub fn hold_commit(&self) -> HeldCommit {
        self.mount().engine.hold_commit()
    }

    /// Why nothing can be changed, if nothing can.
    #[must_use]
    pub fn read_only_reason(&self) -> Option<String> {
        self.mount().status.read_only_reason()
    }

    /// Whether it was opened for reading, and [`Filesystem::set_read_only`] may make it writable.
    #[must_use]
    pub fn is_asleep(&self) -> bool {
        let mount = self.mount();
        mount.status.is_asleep() && mount.engine.is_asleep()
    }

    /// Has the volume be read-only from now on, when everything is durable, or writable again.
    ///
    /// # Errors
    ///
    /// As [`Filesystem::sync`]. [`crate::ErrorKind::ReadOnly`] where it is to be writable and
    /// cannot be: it was opened for reading without [`MountOptions::may_wake`], or has failed.
    /// What keeps its devices from being written.
    pub fn set_read_only(&self, read_only: bool) -> Result<()> {
        let mount = self.mount();
        if !read_only {
            if mount.status.is_asleep() && mount.engine.is_asleep() {
                open::wake(mount)?;
            }
            mount.status.freeze(false);
            return mount.status.expect_writable();
        }
        if mount.status.read_only_reason().is_some() {
            return Ok(());
        }
        mount.sync()?;
        mount.status.freeze(true);
        // What came between the two.
        mount.sync()
    }

    /// What an operator asks about the volume.
    ///
    /// # Errors
    ///
    /// What reading the root tree met.
    pub fn info(&self) -> Result<Info> {
        let mount = self.mount();
        Ok(Info {
            superblock: mount.superblock.clone(),
            generation: mount.engine.view().generation(),
            usage: mount.engine.usage(),
            subvolumes: self.subvolumes()?,
        })
    }

    /// Reads every copy of everything in use and repairs what is wrong, beside all other work. It
    /// begins with a commit, so that everything that was written before the call is looked at.
    /// `watch` is told the progress, and ends the scrub by returning `false`. Returns what was
    /// found, and whether it came to the end.
    ///
    /// # Errors
    ///
    /// A commit that fails; what reading the extent tree met. Damage of what that names is part of
    /// the result.
    pub fn scrub(
        &self,
        options: ScrubOptions,
        watch: &mut dyn FnMut(&ScrubProgress) -> bool,
    ) -> Result<(ScrubProgress, bool)> {
        self.commit()?;
        Ok(self.mount().maintenance.scrub(options, watch)?)
    }

    /// Tells the devices of everything that is free, beside other work on the volume. `watch` is
    /// told how far it is, and ends it by saying `false`.
    ///
    /// # Errors
    ///
    /// `ReadOnly`; `Io` when a device refuses.
    pub fn trim(
        &self,
        options: TrimOptions,
        watch: &mut dyn FnMut(&TrimProgress) -> bool,
    ) -> Result<TrimProgress> {
        self.sync()?;
        Ok(self.mount().maintenance.trim(options, watch)?)
    }

    /// The devices that are here, and what was counted of their failures.
    #[must_use]
    pub fn devices(&self) -> Vec<DeviceInfo> {
        let devices = self.mount().engine.volume().devices();
        let about = |device: &Arc<VolumeDevice>| DeviceInfo {
            id: device.id,
            name: device.device.name(),
            len: device.device.len(),
            item: device.current_item(),
            trust: device.trust(),
            stats: device.stats(),
        };
        devices.iter().map(about).collect()
    }

    /// Moves what is in the chosen block groups to others and removes them, perhaps with another
    /// profile. Other work on the volume goes on. `watch` is told how far it is, and pauses it
    /// after a group by saying `false`: the options stay on disk then.
    ///
    /// # Errors
    ///
    /// `NoSpace`, also when there are too few devices for a profile; `Busy` when a balance is
    /// paused, or something else is done to the volume as a whole; what moving met. What was moved
    /// until then stays where it is.
    pub fn balance(
        &self,
        options: &BalanceOptions,
        watch: &mut dyn FnMut(&BalanceProgress) -> bool,
    ) -> Result<BalanceProgress> {
        let mount = self.mount();
        let _turn = mount.upkeep.begin_work(Work::Balance)?;
        self.sync()?;
        Ok(mount.maintenance.balance(
            options,
            &mount.holders(),
            &mut mount.upkeep.watched(watch),
        )?)
    }

    /// The balance that was begun and did not end, by us or by Linux; one that is running, too.
    ///
    /// # Errors
    ///
    /// What reading the root tree met.
    pub fn paused_balance(&self) -> Result<Option<BalanceOptions>> {
        Ok(self.mount().maintenance.paused_balance()?)
    }

    /// The balance that is running, or paused.
    ///
    /// # Errors
    ///
    /// What reading the root tree met.
    pub fn balance_status(&self) -> Result<Option<BalanceStatus>> {
        self.mount().upkeep.balance_status()
    }

    /// Goes on with a balance that was begun and did not end.
    ///
    /// # Errors
    ///
    /// `Busy` when there is none; as [`Filesystem::balance`].
    pub fn resume_balance(
        &self,
        watch: &mut dyn FnMut(&BalanceProgress) -> bool,
    ) -> Result<BalanceProgress> {
        let mount = self.mount();
        let _turn = mount.upkeep.begin_work(Work::Balance)?;
        self.sync()?;
        Ok(mount.maintenance.resume_balance(&mount.holders(), &mut mount.upkeep.watched(watch))?)
    }

    /// Has the balance that is running stop behind the group that it is at, and waits for that.
    ///
    /// # Errors
    ///
    /// `Busy` when none is running.
    pub fn pause_balance(&self) -> Result<()> {
        if self.mount().upkeep.stop_balance(false) {
            return Ok(());
        }
        Err(buttress_txn::Error::Busy("no balance is running").into())
    }

    /// Stops a balance that is running, in the middle of a group, and forgets it; or one that was
    /// begun and did not end. What it moved stays where it is.
    ///
    /// # Errors
    ///
    /// `Busy` when there is none.
    pub fn cancel_balance(&self) -> Result<()> {
        let mount = self.mount();
        let ran = mount.upkeep.stop_balance(true);
        let _turn = mount.upkeep.begin_work(Work::Balance)?;
        if ran && mount.maintenance.paused_balance()?.is_none() {
            // It came to its end.
            return Ok(());
        }
        Ok(mount.maintenance.cancel_balance()?)
    }

    /// Adds a device. Whatever was on it is gone.
    ///
    /// # Errors
    ///
    /// When it or the volume cannot be written.
    pub fn add_device(&self, device: Arc<dyn Device>) -> Result<DeviceId> {
        let mount = self.mount();
        let _turn = mount.upkeep.begin_work(Work::Devices)?;
        let sector = u64::from(mount.superblock.sectorsize);
        let total_bytes = device.len() / sector * sector;
        if total_bytes < 16 << 20 {
            return Err(crate::Error::invalid("a device smaller than 16 MiB"));
        }
        Volume::wipe(&*device)?;
        let item = DeviceItem {
            devid: mount.maintenance.next_device(),
            total_bytes,
            io_align: limits::SECTOR,
            io_width: limits::SECTOR,
            sector_size: limits::SECTOR,
            uuid: new_uuid(),
            fsid: mount.superblock.fsid,
            ..DeviceItem::default()
        };
        mount.engine.volume().add_device(device, item);
        mount.maintenance.enroll_device(item)?;
        Ok(item.devid)
    }

    /// Puts a new device in the place of another, which may be missing. Other work on the volume
    /// goes on. Whatever was on the new device is gone. Returns what was found wrong on the way.
    ///
    /// # Errors
    ///
    /// `NoSpace` for a device that is smaller, `Busy` when a balance is paused or `watch` said
    /// `false`.
    pub fn replace_device(
        &self,
        id: DeviceId,
        new: Arc<dyn Device>,
        watch: &mut dyn FnMut(&BalanceProgress) -> bool,
    ) -> Result<ScrubProgress> {
        let mount = self.mount();
        let _turn = mount.upkeep.begin_work(Work::Devices)?;
        self.sync()?;
        Ok(mount.maintenance.replace_device(id, new, &mut mount.upkeep.watched(watch))?)
    }

    /// The numbers of devices that the volume has and that are not here.
    ///
    /// # Errors
    ///
    /// None today.
    pub fn missing_devices(&self) -> Result<Vec<DeviceId>> {
        Ok(self.mount().maintenance.missing_devices())
    }

    /// Moves everything off a device, which may be missing, and takes it out of the volume. Other
    /// work on the volume goes on.
    ///
    /// # Errors
    ///
    /// As [`Filesystem::balance`].
    pub fn remove_device(
        &self,
        id: DeviceId,
        watch: &mut dyn FnMut(&BalanceProgress) -> bool,
    ) -> Result<()> {
        let mount = self.mount();
        let _turn = mount.upkeep.begin_work(Work::Devices)?;
        self.sync()?;
        let engine = &mount.engine;
        mount.maintenance.vacate(id, 0, &mount.holders(), &mut mount.upkeep.watched(watch))?;
        let device = engine.volume().device(id);
        mount.maintenance.remove_device(id)?;
        if let Some(device) = device {
            Volume::wipe(&*device.device)?;
        }
        Ok(())
    }

    /// Gives a device another size. What lies behind a new end is moved first. Other work on the
    /// volume goes on.
    ///
    /// # Errors
    ///
    /// As [`Filesystem::balance`].
    pub fn resize_device(
        &self,
        id: DeviceId,
        total_bytes: u64,
        watch: &mut dyn FnMut(&BalanceProgress) -> bool,
    ) -> Result<()> {
        let mount = self.mount();
        let _turn = mount.upkeep.begin_work(Work::Devices)?;
        if total_bytes < 16 << 20 {
            return Err(crate::Error::invalid("a device smaller than 16 MiB"));
        }
        self.sync()?;
        let engine = &mount.engine;
        let device = engine.volume().device(id).ok_or(crate::Error::invalid("no such device"))?;
        if total_bytes < device.current_item().total_bytes {
            mount.maintenance.vacate(
                id,
                total_bytes,
                &mount.holders(),
                &mut mount.upkeep.watched(watch),
            )?;
        }
        Ok(mount.maintenance.resize_device(id, total_bytes)?)
    }

    /// What the devices were asked for since the volume was mounted.
    #[must_use]
    pub fn io_stats(&self) -> IoStats {
        self.mount().engine.volume().stats()
    }

    /// Forgets the failures that were counted, and makes that durable.
    ///
    /// # Errors
    ///
    /// As [`Filesystem::sync`]; [`crate::ErrorKind::ReadOnly`].
    pub fn reset_device_stats(&self) -> Result<()> {
        self.mount().status.expect_writable()?;
        for device in self.mount().engine.volume().devices().iter() {
            device.reset_stats();
        }
        self.sync()
    }

    /// Writes everything, commits, stops the threads. Later calls through other clones fail.
    ///
    /// # Errors
    ///
    /// What the last commit met, or what [`Filesystem::sync`] would tell; the volume is closed all
    /// the same, and later calls answer `Ok`.
    pub fn close(self) -> Result<()> {
        self.mounted.close()
    }
}
