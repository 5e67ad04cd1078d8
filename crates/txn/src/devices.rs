//! Adds, changes and removes devices and block groups for upper layers. The running transaction
//! records each change in the same step.

use buttress_format::{
    BlockGroupFlags, Chunk, DeviceId, DeviceItem, Extent, Logical, Profile, Stripe, Superblock,
};
use buttress_volume::DeviceSpace;

use crate::reserve::Reservations;
use crate::transaction::DeviceChange;
use crate::{Commits, Error, Result, Storage};

/// A device's item, as of the last commit.
pub(crate) fn known_item(devices: &DeviceSpace, id: DeviceId) -> Result<DeviceItem> {
    let unknown = || Error::Malformed(format!("the chunk tree knows no device {id}"));
    devices.item(id).ok_or_else(unknown)
}

impl Storage {
    /// The devices of the volume, by number.
    #[must_use]
    pub fn device_ids(&self) -> Vec<DeviceId> {
        self.devices().ids()
    }

    /// A free device number.
    #[must_use]
    pub fn next_device_id(&self) -> DeviceId {
        self.devices().next_id()
    }

    /// A device's item as it is now.
    ///
    /// # Errors
    ///
    /// When there is no such device.
    pub fn device_item(&self, id: DeviceId) -> Result<DeviceItem> {
        known_item(&self.devices(), id)
    }

    /// The bytes of all devices together that belong to no chunk.
    #[must_use]
    pub fn unallocated(&self) -> u64 {
        self.devices().unallocated()
    }

    /// Whether the devices in use can have chunks of this kind and profile. With a stripe tree,
    /// there is no parity (`writable`).
    #[must_use]
    pub fn can_have(&self, commits: &Commits, kind: BlockGroupFlags, profile: Profile) -> bool {
        let is_ruled = profile.spread().parity == 0 || !commits.has_stripe_tree();
        is_ruled && self.devices().can_have(kind, profile)
    }

    /// Sets the profile that new chunks of these kinds get. `None` restores the usual profile.
    pub fn set_targets(&self, targets: &[(BlockGroupFlags, Option<Profile>)]) {
        let mut devices = self.devices();
        targets.iter().for_each(|(kind, profile)| devices.set_target(*kind, *profile));
    }

    /// Adds an empty device to the volume. The running transaction records it.
    pub fn add_device(&self, commits: &Commits, item: DeviceItem) {
        self.devices().add_device(item, true);
        commits.change_device(DeviceChange::Set(item));
    }

    /// Allows new chunks again on a device that replaces another. The caller may hold the commit
    /// lock.
    pub fn reuse_device(&self, id: DeviceId) {
        self.devices().set_usable(id, true);
    }

    /// Stops the allocation of space on a device at and after `from`. With `from` 0, no space on
    /// the device is allocated any more.
    pub fn hide_device(&self, id: DeviceId, from: u64) {
        self.devices().hide(id, from);
    }

    /// Forgets a device that has no chunk.
    ///
    /// # Errors
    ///
    /// When it is the last device.
    pub fn forget_device(&self, id: DeviceId) -> Result<()> {
        let is_removed = self.devices().remove_device(id);
        if is_removed { Ok(()) } else { Err(Error::NoSpace("a volume without devices")) }
    }

    /// Sets the size of a device, in bytes, and returns its item. The change is not recorded yet.
    ///
    /// # Errors
    ///
    /// [`Error::NoSpace`] when a chunk lies after the new end. Fails also when there is no such
    /// device.
    pub fn resize_device(&self, id: DeviceId, total_bytes: u64) -> Result<DeviceItem> {
        let mut devices = self.devices();
        let mut item = known_item(&devices, id)?;
        let before = item.total_bytes;
        item.total_bytes = total_bytes;
        let chunks = self.volume().chunks();
        let is_past = chunks.iter().any(|chunk| {
            let end = |stripe: &Stripe| stripe.offset + chunk.stripe_bytes();
            chunk.stripes.iter().any(|stripe| stripe.device == id && end(stripe) > total_bytes)
        });
        if is_past {
            return Err(Error::NoSpace("chunks behind the new end of the device"));
        }
        devices.show(id);
        if total_bytes >= before {
            devices.give(id, before, total_bytes - before);
        } else {
            devices.take(id, total_bytes, before - total_bytes);
        }
        devices.set_item(item);
        Ok(item)
    }

    /// Discards one piece of a device that belongs to no chunk. The piece starts at or after
    /// `from`. It lies in a hole of at least `least` bytes and has at most `most` bytes. Returns
    /// its offset and length, or `None` after the last hole. The allocation of a new chunk waits
    /// meanwhile.
    ///
    /// # Errors
    ///
    /// When the device refuses the discard.
    pub fn discard_unallocated(
        &self,
        id: DeviceId,
        from: u64,
        least: u64,
        most: u64,
    ) -> Result<Option<(u64, u64)>> {
        let devices = self.devices();
        let Some((offset, len)) = devices.unallocated_behind(id, from, least, most) else {
            return Ok(None);
        };
        self.volume().discard_unallocated(id, offset, len)?;
        Ok(Some((offset, len)))
    }

    /// Whether a device belongs to a seed, and so gets no writes. A missing device is recognized by
    /// its item.
    #[must_use]
    pub fn is_of_seed(&self, id: DeviceId) -> bool {
        match self.volume().device(id) {
            Some(device) => device.is_seed(),
            None => self.device_item(id).is_ok_and(|item| item.fsid != self.volume().tree_fsid()),
        }
    }

    /// Allows or forbids new chunks on a device. A seed's device and a missing device never get new
    /// chunks.
    pub fn use_device(
        &self,
        commits: &Commits,
        reservations: &Reservations,
        id: DeviceId,
        usable: bool,
    ) {
        let _ = self.know_groups(commits, reservations);
        let is_fit = self.volume().device(id).is_some_and(|device| !device.is_seed());
        self.devices().set_usable(id, usable && is_fit);
    }

    /// Allows allocation again on a device after `from`, except where chunks lie. This call undoes
    /// [`hide_device`](Self::hide_device).
    pub fn show_device(&self, commits: &Commits, id: DeviceId, from: u64) {
        // While the commit lock is held, no transaction is frozen. So each removal is durable or is
        // in the running transaction.
        let _state = commits.lock();
        let (_inside, running) = commits.enter();
        let removed = running.removed.lock().clone();
        let chunks = self.volume().chunks();
        // `is_of_seed` takes the lock of the devices itself, so it is called first.
        let is_of_seed = self.is_of_seed(id);
        let mut devices = self.devices();
        let Some(item) = devices.item(id).filter(|_| !is_of_seed) else { return };
        devices.show(id);
        if from == 0 || from >= item.total_bytes {
            return;
        }
        devices.give(id, from, item.total_bytes - from);
        for chunk in chunks.iter().map(|chunk| &**chunk).chain(&removed) {
            for stripe in chunk.stripes.iter().filter(|stripe| stripe.device == id) {
                devices.take(id, stripe.offset, chunk.stripe_bytes());
            }
        }
    }

    /// Removes an empty block group and its chunk in the running transaction; the next commit makes
    /// the removal durable. Returns `false` when space in the group is used, reserved or pinned.
    /// Returns `true` also when no group starts at `start` any more.
    ///
    /// # Errors
    ///
    /// When the accounts contradict each other, or the group has no chunk.
    pub fn remove_group(&self, commits: &Commits, start: Logical) -> Result<bool> {
        // While the commit lock is held, there is no frozen transaction that could still change the
        // group.
        let _state = commits.lock();
        let group = self.space().group_at(start).filter(|group| group.start() == start);
        let Some(group) = group else { return Ok(true) };
        let usage = group.usage();
        if usage.used + usage.reserved + usage.pinned > 0 {
            return Ok(false);
        }
        let (_inside, running) = commits.enter();
        self.space().remove_group(start)?;
        self.devices().keep_addresses(group.range());
        let chunk = self.volume().remove_chunk(start)?;
        running.removed.lock().push(Chunk::clone(&chunk));
        self.devices().uncount_group(group.flags());
        Ok(true)
    }
}

impl Commits {
    /// Makes the running transaction record that a device was added, changed or removed.
    pub fn change_device(&self, change: DeviceChange) {
        let (_inside, running) = self.enter();
        running.devices.lock().push(change);
    }

    /// The block groups of the last commit, each with its number of used bytes.
    #[must_use]
    pub fn committed_groups(&self) -> Vec<(Extent, u64)> {
        let state = self.lock();
        let groups = state.groups.iter();
        groups.map(|(start, group)| (Extent::new(*start, group.len), group.used)).collect()
    }

    /// Looks at the last superblock while no commit runs.
    pub fn between_commits<R>(&self, look: impl FnOnce(&Superblock) -> R) -> R {
        look(&self.lock().superblock)
    }
}
