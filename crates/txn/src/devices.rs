//! Devices and block groups that upper layers add, change and remove: in one step with the running
//! transaction, which records it.

use std::sync::Arc;

use buttress_base::sync::MutexGuard;
use buttress_format::{Chunk, DeviceId, Extent, Logical, Superblock};
use buttress_space::Space;

use crate::device_space::DeviceSpace;
use crate::transaction::DeviceChange;
use crate::{Engine, Result};

impl Engine {
    /// The block groups and accounts below.
    #[must_use]
    pub fn space(&self) -> &Arc<Space> {
        &self.space
    }

    /// What no chunk takes of the devices. A short lock: hold it across no I/O but a discard of
    /// what it protects.
    pub fn devices(&self) -> MutexGuard<'_, DeviceSpace> {
        self.devices.lock()
    }

    /// Puts no new chunks on a device from now on, or does again.
    pub fn use_device(&self, id: DeviceId, usable: bool) {
        let _ = self.know_groups();
        self.devices.lock().set_usable(id, usable);
    }

    /// Has the running transaction record that a device came, changed or went.
    pub fn change_device(&self, change: DeviceChange) {
        let (_inside, running) = self.enter();
        running.devices.lock().push(change);
    }

    /// Gives out again what lies behind `from` on a device, but for what chunks have there: undoes
    /// [`DeviceSpace::hide`].
    pub fn show_device(&self, id: DeviceId, from: u64) {
        // Nothing is frozen: what was removed is durably so, or is in the running transaction.
        let _state = self.commit.lock();
        let (_inside, running) = self.enter();
        let removed = running.removed.lock().clone();
        let chunks = self.volume.chunks();
        let mut devices = self.devices.lock();
        let Ok(item) = devices.item(id) else { return };
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

    /// Removes an empty block group with its chunk, in the running transaction: the next commit
    /// makes it durable. `false` where something in the group is used, reserved or pinned; `true`
    /// also where no group starts there any more.
    ///
    /// # Errors
    ///
    /// When the accounts contradict, or the group has no chunk.
    pub fn remove_group(&self, start: Logical) -> Result<bool> {
        // No transaction is frozen that could still touch the group.
        let _state = self.commit.lock();
        let group = self.space.group_at(start).filter(|group| group.start() == start);
        let Some(group) = group else { return Ok(true) };
        let usage = group.usage();
        if usage.used + usage.reserved + usage.pinned > 0 {
            return Ok(false);
        }
        let (_inside, running) = self.enter();
        self.space.remove_group(start)?;
        self.devices.lock().keep_addresses(group.range());
        let chunk = self.volume.remove_chunk(start)?;
        running.removed.lock().push(Chunk::clone(&chunk));
        self.devices.lock().uncount_group(group.flags());
        Ok(true)
    }

    /// The block groups of the last commit, and how many bytes of each it uses.
    #[must_use]
    pub fn committed_groups(&self) -> Vec<(Extent, u64)> {
        let state = self.commit.lock();
        let groups = state.groups.iter();
        groups.map(|(start, group)| (Extent::new(*start, group.len), group.used)).collect()
    }

    /// Looks at the last superblock while no commit runs.
    pub fn between_commits<R>(&self, look: impl FnOnce(&Superblock) -> R) -> R {
        look(&self.commit.lock().superblock)
    }
}
