//! One mounted volume.

use std::sync::Arc;

use buttress_base::sync::RwLock;
use buttress_block::Device;
use buttress_format::{DeviceId, limits};
use buttress_items::{Attr, Error, InodeId, Result};
use buttress_maintenance::{BalanceOptions, BalanceProgress, TrimOptions, TrimProgress};
use buttress_txn::{HeldCommit, View};
use buttress_volume::{Stats as IoStats, VolumeDevice};

use crate::aside::aside;
use crate::background;
use crate::inode::Inode;
use crate::make::{self, MakeError, MakeOptions, MakeReport};
use crate::mount::Mount;
use crate::open;
use crate::options::MountOptions;
use crate::sprout;
use crate::statfs::{DeviceInfo, Info, StatFs};
use crate::upkeep::{BalanceStatus, Stopped, UpkeepTask};

/// One mounted volume. Cheap to clone; all clones show the same state. If the last clone drops
/// without [`Filesystem::close`], the drop still commits, and can only log a failure.
/// [`Filesystem::renew`] moves all clones to a newer state.
#[derive(Clone, Debug)]
pub struct Filesystem {
    /// Unranked: no lock is taken under it.
    pub(crate) current: Arc<RwLock<Arc<Mounted>>>,
}

/// The mount itself. The drop of the last reference closes the mount.
pub(crate) struct Mounted {
    pub(crate) mount: Arc<Mount>,
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
        // A volume that was remounted read-only is closed like any other, because its threads may
        // still run.
        mount.status.freeze(false);
        if mount.status.read_only_reason().is_some() {
            mount.status.close();
            background::stop(mount);
            mount.writeback.forget_all();
            mount.times.forget_all();
            return mount
                .engine
                .commits()
                .aborted()
                .map_or(Ok(()), |_| mount.status.expect_writable());
        }
        mount.upkeep.stop_work();
        let synced = mount.sync();
        mount.times.put_all();
        mount.status.close();
        background::stop(mount);
        // Write changes that came after the sync and before the close.
        mount.writeback.write_all();
        mount.times.put_set();
        mount.times.forget_all();
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
    /// Makes an empty volume on `device`.
    ///
    /// # Errors
    ///
    /// As [`make`](make::make).
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
        Ok(Self { current: Arc::new(RwLock::new(Arc::new(mounted))) })
    }

    /// The directory at the top of the mounted subvolume.
    #[must_use]
    pub fn root(&self) -> Inode {
        self.mounted().root.clone().expect("set before a caller has the filesystem")
    }

    /// Finds an inode by number.
    ///
    /// # Errors
    ///
    /// `NotFound`, also for an inode that has neither a name nor a user.
    pub fn inode(&self, id: InodeId) -> Result<Inode> {
        Inode::of(&self.mount(), id)
    }

    /// Copies the attributes of an inode that nothing in memory uses, without an [`Inode`]. For a
    /// listing of many files this takes less time and memory. `None` if the inode is in use, or if
    /// only [`inode`](Self::inode) can say what is wrong with it.
    ///
    /// # Errors
    ///
    /// When the tree cannot be read.
    pub fn attr_of_unused(&self, id: InodeId) -> Result<Option<Attr>> {
        let mount = self.mount();
        mount.inodes.attr_without_cell(id, mount.files.sector())
    }

    /// Follows a path from the root. It follows no symbolic link, and understands `.` and `..`.
    ///
    /// # Errors
    ///
    /// `NotFound`, `NotDir`.
    pub fn resolve(&self, path: impl AsRef<[u8]>) -> Result<Inode> {
        let mut at = self.root();
        for name in path.as_ref().split(|byte| *byte == b'/') {
            at = match name {
                b"" | b"." => at,
                b".." if at.id() == self.mounted().root_id => at,
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
    /// `Io`, `NoSpace`, `Aborted`. Also reports, once, the first failure of writeback in the
    /// background since the last call.
    pub fn sync(&self) -> Result<()> {
        let mount = self.mount();
        if mount.status.read_only_reason().is_some() && mount.engine.commits().aborted().is_none() {
            return Ok(());
        }
        let engine = Arc::clone(&mount.engine);
        let files = Arc::clone(&mount);
        let unwanted = move |result| {
            if let Err(Error::Data(buttress_data::Error::Lost(cause))) = result {
                files.files.counters().keep_error(&cause);
            }
        };
        aside(&engine, move || mount.sync(), unwanted)
    }

    /// Makes everything done before the call part of a commit. Does not report lost data of files;
    /// the next [`Filesystem::sync`] reports it. Does nothing on a read-only mount. If a failed
    /// commit made the mount read-only, the call fails, because no commit has the changes made
    /// before the call.
    ///
    /// # Errors
    ///
    /// `Io`, `NoSpace`, `Aborted`.
    pub fn commit(&self) -> Result<()> {
        let mount = self.mount();
        if let Some(cause) = mount.engine.commits().aborted() {
            return Err(buttress_txn::Error::Aborted(cause).into());
        }
        if mount.status.read_only_reason().is_none() {
            mount.writeback.write_all();
            mount.times.put_all();
            mount.engine.commit()?;
            mount.engine.volume().upload()?;
        }
        Ok(())
    }

    /// Sizes of the whole volume, as Linux counts them. Used space includes data and metadata, with
    /// all copies, and the global reserve. Available space is the space that new data may take.
    ///
    /// # Errors
    ///
    /// Currently infallible; returns `Result` for forward compatibility.
    pub fn statfs(&self) -> Result<StatFs> {
        let mount = self.mount();
        let block_size = mount.superblock.sectorsize;
        let block = u64::from(block_size);
        let figures = mount.engine.statfs_figures();
        let waiting = mount.files.counters().dirty_bytes();
        let blocks = figures.device_bytes / u64::from(figures.data_copies.max(1)) / block;
        let free = blocks.saturating_sub(figures.used.saturating_add(waiting).div_ceil(block));
        // If metadata has its own chunks, less space is available for data than is free.
        let available = (figures.data_available.saturating_sub(waiting) / block).min(free);
        let fsid = mount.superblock.fsid;
        let words = fsid.chunks_exact(8).map(|word| word.try_into().map_or(0, u64::from_le_bytes));
        Ok(StatFs {
            block_size,
            blocks,
            blocks_free: free,
            blocks_available: available,
            name_max: limits::NAME_MAX as u32,
            fsid: words.fold(self.mounted().root_id.tree.0, |sum, word| sum ^ word),
        })
    }

    /// The present trees, for callers that read them directly. While a view lives, freed space is
    /// not reused: drop the view before changing anything.
    #[must_use]
    pub fn view(&self) -> Arc<View> {
        self.mount().engine.view()
    }

    /// Keeps the last commit as it is on the devices, for a reader that opens them by itself. Space
    /// that is freed meanwhile is not used again, so hold the commit no longer than needed.
    #[must_use]
    pub fn hold_commit(&self) -> HeldCommit {
        self.mount().engine.commits().hold_commit(self.mount().engine.storage())
    }

    /// The reason why the volume cannot be changed. `None` if it can be changed.
    #[must_use]
    pub fn read_only_reason(&self) -> Option<String> {
        self.mount().status.read_only_reason()
    }

    /// Whether [`Filesystem::set_read_only`] may make a volume opened for reading writable.
    #[must_use]
    pub fn can_begin_writing(&self) -> bool {
        let mount = self.mount();
        mount.status.is_opened_for_reading() && mount.engine.can_begin_writing()
    }

    /// Makes the volume read-only once everything is durable, or makes it writable again.
    ///
    /// # Errors
    ///
    /// As [`Filesystem::sync`]. [`crate::ErrorKind::ReadOnly`] if the volume should become writable
    /// but cannot. This is the case if the volume was opened for reading without
    /// [`MountOptions::may_begin_writing`], or has failed. Also the error of a device that cannot
    /// be written.
    pub fn set_read_only(&self, read_only: bool) -> Result<()> {
        let mount = self.mount();
        if !read_only {
            if mount.status.is_opened_for_reading() && mount.engine.can_begin_writing() {
                open::begin_writing(&mount)?;
            }
            mount.status.freeze(false);
            return mount.status.expect_writable();
        }
        if mount.status.read_only_reason().is_some() {
            return Ok(());
        }
        mount.sync()?;
        mount.status.freeze(true);
        // Write changes that came between the sync and the freeze.
        mount.sync()
    }

    /// Information about the volume for an operator.
    ///
    /// # Errors
    ///
    /// An error from reading the root tree.
    pub fn info(&self) -> Result<Info> {
        let mount = self.mount();
        Ok(Info {
            superblock: mount.superblock.clone(),
            generation: mount.engine.view().generation(),
            usage: mount.engine.usage(),
            subvolumes: self.subvolumes()?,
        })
    }

    /// Discards all free space on the devices, while other work goes on. The call reports its
    /// progress to `watch`, which ends the trim by returning `false`.
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

    /// The present devices, and their error counts.
    #[must_use]
    pub fn devices(&self) -> Vec<DeviceInfo> {
        let about = |device: &Arc<VolumeDevice>| DeviceInfo {
            id: device.id,
            name: device.device.name(),
            len: device.device.len(),
            can_grow: device.device.can_grow(),
            item: device.current_item(),
            trust: device.trust(),
            stats: device.stats(),
        };
        self.mount().engine.volume().devices().iter().map(about).collect()
    }

    /// Returns the least size in bytes that a device can get without moving anything: up to the end
    /// of its last chunk.
    ///
    /// # Errors
    ///
    /// The errors of reading the list of chunks.
    pub fn least_device_len(&self, id: DeviceId) -> Result<u64> {
        let engine = &self.mount().engine;
        engine.know_groups()?;
        let mut least = limits::DEVICE_RESERVED;
        for chunk in engine.volume().chunks().iter() {
            let here = chunk.stripes.iter().filter(|stripe| stripe.device == id);
            let end = here.map(|stripe| stripe.offset + chunk.stripe_bytes()).max();
            least = least.max(end.unwrap_or(0));
        }
        Ok(least)
    }

    /// Moves the content of the selected block groups to other groups and removes the selected
    /// groups. The new groups may have another profile. Other work on the volume goes on. The
    /// balance reports its progress to `watch`, which pauses the balance after a group by returning
    /// `false`. The options then stay on disk.
    ///
    /// # Errors
    ///
    /// `NoSpace`, also when there are too few devices for a profile. `Busy` when a balance is
    /// paused, or another operation on the whole volume runs. Otherwise an error from moving. Moved
    /// extents stay at their new addresses.
    pub fn balance(
        &self,
        options: &BalanceOptions,
        watch: &mut dyn FnMut(&BalanceProgress) -> bool,
    ) -> Result<BalanceProgress> {
        let mount = self.mount();
        let _turn = mount.upkeep.begin_work(UpkeepTask::Balance)?;
        self.sync()?;
        Ok(mount.maintenance.balance(
            options,
            &mount.holders(),
            &mut mount.upkeep.watched(watch),
        )?)
    }

    /// The options of a balance that has begun and not ended, whether Buttress or Linux started it.
    /// This includes a running balance.
    ///
    /// # Errors
    ///
    /// An error from reading the root tree.
    pub fn paused_balance(&self) -> Result<Option<BalanceOptions>> {
        Ok(self.mount().maintenance.paused_balance()?)
    }

    /// The status of the running or paused balance.
    ///
    /// # Errors
    ///
    /// An error from reading the root tree.
    pub fn balance_status(&self) -> Result<Option<BalanceStatus>> {
        self.mount().upkeep.balance_status()
    }

    /// Continues a balance that has begun and not ended.
    ///
    /// # Errors
    ///
    /// `Busy` when there is no such balance. Otherwise as [`Filesystem::balance`].
    pub fn resume_balance(
        &self,
        watch: &mut dyn FnMut(&BalanceProgress) -> bool,
    ) -> Result<BalanceProgress> {
        let mount = self.mount();
        let _turn = mount.upkeep.begin_work(UpkeepTask::Balance)?;
        self.sync()?;
        Ok(mount.maintenance.resume_balance(&mount.holders(), &mut mount.upkeep.watched(watch))?)
    }

    /// Makes the running balance stop after its present group, and waits until it has stopped.
    ///
    /// # Errors
    ///
    /// `Busy` when no balance is running.
    pub fn pause_balance(&self) -> Result<()> {
        if self.mount().upkeep.pause_balance() {
            return Ok(());
        }
        Err(buttress_txn::Error::Busy("no balance is running").into())
    }

    /// Stops a running balance, even within a group, and removes its options. Also removes the
    /// options of a paused balance. Moved extents stay at their new addresses.
    ///
    /// # Errors
    ///
    /// `Busy` when there is no balance.
    pub fn cancel_balance(&self) -> Result<()> {
        let mount = self.mount();
        let ran = mount.upkeep.cancel(UpkeepTask::Balance) == Stopped::Work;
        let _turn = mount.upkeep.begin_work(UpkeepTask::Balance)?;
        if ran && mount.maintenance.paused_balance()?.is_none() {
            // The balance has completed.
            return Ok(());
        }
        Ok(mount.maintenance.cancel_balance()?)
    }

    /// Whether the volume is a seed. A seed is only read, and other volumes grow from it.
    #[must_use]
    pub fn is_seed(&self) -> bool {
        buttress_volume::is_seed(&self.mount().superblock)
    }

    /// Adds a device. The former content of the device is lost.
    ///
    /// If this volume is a seed, a new volume grows from the seed on the device. This handle goes
    /// on showing the seed. The new volume is opened with its device and the seed's devices.
    ///
    /// # Errors
    ///
    /// If the device or the volume cannot be written.
    pub fn add_device(&self, device: Arc<dyn Device>) -> Result<DeviceId> {
        sprout::add(&self.mount(), device, false)
    }

    /// Adds a device as [`Filesystem::add_device`] does, and discards its whole content first. A
    /// device that the volume refuses keeps its content.
    ///
    /// # Errors
    ///
    /// As [`Filesystem::add_device`].
    pub fn add_discarded_device(&self, device: Arc<dyn Device>) -> Result<DeviceId> {
        sprout::add(&self.mount(), device, true)
    }

    /// Changes the size of a device. Data past a smaller size is moved first. Other work on the
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
        let _turn = mount.upkeep.begin_work(UpkeepTask::Resize)?;
        if total_bytes < 16 << 20 {
            return Err(Error::invalid("a device smaller than 16 MiB"));
        }
        self.sync()?;
        let engine = &mount.engine;
        let device = engine.volume().device(id).ok_or(Error::invalid("no such device"))?;
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

    /// Counts of the requests to the devices since the volume was mounted.
    #[must_use]
    pub fn io_stats(&self) -> IoStats {
        self.mount().engine.volume().stats()
    }

    /// Resets the error counts of one device, or of all devices, and makes the reset durable.
    ///
    /// # Errors
    ///
    /// As [`Filesystem::sync`]; [`crate::ErrorKind::ReadOnly`].
    pub fn reset_device_stats(&self, only: Option<DeviceId>) -> Result<()> {
        self.mount().status.expect_writable()?;
        for device in self.mount().engine.volume().devices().iter() {
            if only.is_none_or(|id| id == device.id) {
                device.reset_stats();
            }
        }
        self.sync()
    }

    /// Writes everything, commits, stops the threads. Later calls through other clones fail.
    ///
    /// # Errors
    ///
    /// An error of the last commit, or an error that [`Filesystem::sync`] would report. The volume
    /// is closed in any case, and later calls return `Ok`.
    pub fn close(self) -> Result<()> {
        self.mounted().close()
    }
}
