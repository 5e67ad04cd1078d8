//! Adds, replaces, resizes and removes devices.
//!
//! # Invariants
//!
//! - **D1** A new device is empty. It has no superblock of the volume before the commit that adds
//!   it to the volume.
//! - **D3** A replaced device keeps its number and superblocks, and still gets all writes, until
//!   the new device has everything that can be read. Then the new device takes its place, and a
//!   commit directly after that makes the superblocks of the old device outdated. These superblocks
//!   are erased next.
//! - **D2** A device is removed, or shrunk, only if no chunk lies on the removed part.

use std::sync::Arc;

use buttress_block::Device;
use buttress_format::{Chunk, DeviceId, DeviceItem, Profile};
use buttress_space::SpaceKind;
use buttress_volume::{Pair, Volume};

use buttress_txn::{DeviceChange, Error, Result};

use crate::{Alone, BalanceProgress, Maintenance, ScrubOptions, ScrubProgress};

/// Bytes of one copy from one device to another.
const COPY_BYTES: u64 = 1 << 20;

impl Maintenance {
    /// Adds an empty device to the volume. The volume layer below must already know the device.
    ///
    /// # Errors
    ///
    /// When the volume cannot be written.
    pub fn enroll_device(&self, item: DeviceItem) -> Result<()> {
        self.engine().check_writable()?;
        self.engine().add_device(item);
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
        for group in self.engine().space().groups_of(SpaceKind::System) {
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
        let known = self.engine().device_ids();
        known.into_iter().filter(|id| self.volume().device(*id).is_none()).collect()
    }

    /// A number that no device has.
    #[must_use]
    pub fn next_device(&self) -> DeviceId {
        let _ = self.engine().know_groups();
        self.engine().next_device_id()
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
        let item = self.engine().resize_device(id, total_bytes)?;
        self.volume().update_device(item);
        self.engine().change_device(DeviceChange::Set(item));
        self.engine().commit()?;
        self.engine().settle_superblocks()
    }

    /// Replaces a device, which may be missing, while the volume is in use. The new device gets the
    /// number and all data of the old device. Data that the old device cannot read is rebuilt from
    /// other copies. `watch` is called with the number of copied bytes. If it returns `false`, the
    /// old device stays in the volume, as after a crash during the copy. Returns the errors that no
    /// copy could repair.
    ///
    /// # Errors
    ///
    /// [`Error::NoSpace`] for a smaller device; [`Error::Stopped`] when `watch` stops the copy;
    /// [`Error::Busy`] when one of the two devices fails.
    pub fn replace_device(
        &self,
        id: DeviceId,
        new: Arc<dyn Device>,
        watch: &mut dyn FnMut(&BalanceProgress) -> bool,
    ) -> Result<ScrubProgress> {
        self.engine().check_writable()?;
        self.expect_own(id)?;
        self.expect_no_balance()?;
        let item = self.engine().device_item(id)?;
        if new.len() < item.total_bytes {
            return Err(Error::NoSpace("a device that is smaller than the one it replaces"));
        }
        let here = self.volume().device(id).filter(|old| !old.is_lost());
        self.engine().commit()?;
        Volume::wipe(&*new)?;
        let Some(pair) = here.and_then(|_| self.volume().pair_device(id, Arc::clone(&new))) else {
            return self.fill_device(id, new, item);
        };
        let copied = self.copy_pair(id, &pair, watch).and_then(|()| {
            self.volume().turn_pair(&pair);
            // The scrub finds and repairs data that the old device could not read.
            let (found, _) =
                self.scrub(ScrubOptions::default(), &mut |_| self.expect_pair(id, &pair).is_ok())?;
            self.expect_pair(id, &pair).map(|()| found)
        });
        let found = match copied {
            Ok(found) => found,
            Err(error) => {
                self.volume().end_pair(id, &pair, false);
                return Err(error);
            }
        };
        let old = self.engine().commit_after(|| {
            let old = self.volume().end_pair(id, &pair, true);
            if let Some(device) = self.volume().device(id) {
                device.reset_stats();
            }
            self.engine().reuse_device(id);
            // This change gives the commit something to write. The commit makes the old device
            // outdated, in case it is attached again.
            self.engine().change_device(DeviceChange::Set(item));
            old
        })?;
        self.engine().settle_superblocks()?;
        if let Err(error) = Volume::wipe(&*old) {
            tracing::warn!(%error, "the replaced device keeps its superblocks");
        }
        Ok(found)
    }

    /// Fails for a device of a seed, which can only be removed.
    fn expect_own(&self, id: DeviceId) -> Result<()> {
        match self.engine().is_of_seed(id) {
            true => Err(Error::Busy("the device is a seed's: it can be removed")),
            false => Ok(()),
        }
    }

    /// Fails if a device of the pair has failed, or if the caller stopped the copy.
    fn expect_pair(&self, id: DeviceId, pair: &Pair) -> Result<()> {
        if pair.has_failed() {
            return Err(Error::Busy("the new device fails; the old one stays"));
        }
        if self.volume().device(id).is_none_or(|device| device.is_lost()) {
            return Err(Error::Busy("the old device fails: replace it as one that is missing"));
        }
        if self.turn().is_stopped() { Err(Error::Stopped) } else { Ok(()) }
    }

    /// Replaces a missing device: everything on it is rebuilt from other copies.
    fn fill_device(
        &self,
        id: DeviceId,
        new: Arc<dyn Device>,
        item: DeviceItem,
    ) -> Result<ScrubProgress> {
        let old = self.volume().exchange_device(new, item);
        let (found, _) = self.scrub(ScrubOptions::default(), &mut |_| true)?;
        let device = self.volume().device(id).ok_or(Error::Busy("the device went away"))?;
        device.reset_stats();
        device.heal();
        self.engine().reuse_device(id);
        self.engine().change_device(DeviceChange::Set(item));
        self.volume().flush()?;
        self.engine().commit()?;
        self.engine().settle_superblocks()?;
        if let Some(old) = old
            && let Err(error) = Volume::wipe(&*old.device)
        {
            tracing::warn!(%error, "the replaced device keeps its superblocks");
        }
        Ok(found)
    }

    /// Copies all data of chunks from one device to the same places of the other device, beside
    /// writers. New chunks are written to both devices meanwhile.
    fn copy_pair(
        &self,
        id: DeviceId,
        pair: &Pair,
        watch: &mut dyn FnMut(&BalanceProgress) -> bool,
    ) -> Result<()> {
        let chunks = self.volume().chunks();
        let stripes = chunks.iter().flat_map(|chunk| {
            let mine = chunk.stripes.iter().filter(|stripe| stripe.device == id);
            mine.map(|stripe| (stripe.offset, chunk.stripe_bytes()))
        });
        let mut stripes: Vec<(u64, u64)> = stripes.collect();
        stripes.sort_unstable();
        let mut progress = BalanceProgress {
            expected: stripes.len() as u64,
            bytes: stripes.iter().map(|(_, len)| len).sum(),
            ..BalanceProgress::default()
        };
        let mut bytes = vec![0; COPY_BYTES as usize];
        for (offset, len) in stripes {
            for within in (0..len).step_by(COPY_BYTES as usize) {
                let part = &mut bytes[..(len - within).min(COPY_BYTES) as usize];
                self.volume().copy_pair(pair, offset + within, part);
                progress.moved += part.len() as u64;
                self.expect_pair(id, pair)?;
                if !watch(&progress) {
                    return Err(Error::Stopped);
                }
            }
            progress.completed += 1;
        }
        Ok(())
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
        let in_use =
            self.volume().chunks().iter().any(|chunk| chunk.stripes.iter().any(|s| s.device == id));
        if in_use {
            return Err(Error::NoSpace("chunks on the device that is to go"));
        }
        self.engine().forget_device(id)?;
        self.volume().remove_device(id);
        self.engine().change_device(DeviceChange::Gone(id));
        self.engine().commit()?;
        self.engine().settle_superblocks()
    }
}
