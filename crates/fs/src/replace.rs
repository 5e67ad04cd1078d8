//! Replaces devices, and tells how far a replacement has come.

use std::sync::Arc;

use buttress_block::Device;
use buttress_format::{DeviceId, ReplaceItem, ReplacePhase};
use buttress_items::Result;
use buttress_maintenance::{BalanceProgress, Replacing, ScrubProgress};
use buttress_make::clock::{new_uuid, now};

use crate::filesystem::Filesystem;
use crate::mount::Mount;
use crate::upkeep::{ReplaceState, ReplaceStatus, UpkeepTask};

impl Filesystem {
    /// Replaces a device, which may be missing, by a new one. Other work on the volume goes on. The
    /// former content of the new device is lost. Returns the damage that was found.
    ///
    /// If this replacement was begun before, here or by Linux, and has not ended, the call ends it.
    /// If the volume is closed meanwhile, the replacement is suspended.
    ///
    /// # Errors
    ///
    /// `NoSpace` for a device that is smaller. `Busy` when a balance is paused, another replacement
    /// has not ended, or `watch` returned `false`.
    pub fn replace_device(
        &self,
        id: DeviceId,
        new: Arc<dyn Device>,
        watch: &mut dyn FnMut(&BalanceProgress) -> bool,
    ) -> Result<ScrubProgress> {
        replace(&self.mount(), id, new, watch)
    }

    /// Ends a replacement that was begun before, here or by Linux. Its new device must be one of
    /// the devices that the volume was opened with. Returns the damage that was found, or `None` if
    /// there is nothing to do.
    ///
    /// # Errors
    ///
    /// As [`Filesystem::replace_device`].
    pub fn resume_replace(
        &self,
        watch: &mut dyn FnMut(&BalanceProgress) -> bool,
    ) -> Result<Option<ScrubProgress>> {
        resume(&self.mount(), watch)
    }

    /// The new device of a replacement that was begun before, if the volume was opened with it and
    /// the replacement does not run.
    #[must_use]
    pub fn replace_target(&self) -> Option<Arc<dyn Device>> {
        self.mount().engine.volume().target().map(|target| target.device)
    }

    /// Whether a device is the new device of a replacement of this volume that has not ended.
    #[must_use]
    pub fn is_replace_target(&self, device: &dyn Device) -> bool {
        let engine = &self.mount().engine;
        let is_unfinished =
            matches!(engine.commits().unfinished_replacement(engine.store()), Ok(Some(_)));
        is_unfinished && engine.volume().is_target(device)
    }

    /// The status of the running or last replacement of a device. The volume keeps it, in the
    /// record that Linux uses, too.
    ///
    /// # Errors
    ///
    /// An error from reading the device tree.
    pub fn replace_status(&self) -> Result<Option<ReplaceStatus>> {
        let mount = self.mount();
        // The record says how a replacement ended, whatever failed afterwards.
        if let Some(status) = mount.upkeep.running_replacement() {
            return Ok(Some(status));
        }
        let Some(item) = mount.engine.commits().replacement(mount.engine.store())? else {
            return Ok(None);
        };
        let total =
            mount.engine.storage().device_item(item.source).map_or(0, |item| item.total_bytes);
        // The new device knows how far the copy has come; the record of an unfinished one does not.
        let pair = mount.engine.volume().target().and_then(|target| target.pair);
        let cursor_left = pair.map_or(item.cursor_left, |pair| pair.cursor());
        Ok(status_of(&ReplaceItem { cursor_left, ..item }, total))
    }

    /// Stops the replacement of a device, and waits until it has stopped. The old device stays. A
    /// suspended replacement is cancelled, too. Returns `false` if there was no replacement, or if
    /// it was completed.
    ///
    /// # Errors
    ///
    /// `ReadOnly`; an error of the commit that records the end.
    pub fn cancel_replace(&self) -> Result<bool> {
        let mount = self.mount();
        if let Some(is_cancelled) = mount.upkeep.cancel_replace() {
            return Ok(is_cancelled);
        }
        if mount.engine.commits().unfinished_replacement(mount.engine.store())?.is_none() {
            return Ok(false);
        }
        let _turn = mount.upkeep.begin_work(UpkeepTask::Replace)?;
        Ok(mount.maintenance.cancel_replacement(now().sec)?)
    }
}

/// The status that a record describes. `total` is the length of the old device.
fn status_of(item: &ReplaceItem, total: u64) -> Option<ReplaceStatus> {
    let state = match item.phase {
        ReplacePhase::Never => return None,
        // It does not run in this mount.
        ReplacePhase::Started | ReplacePhase::Suspended => ReplaceState::Suspended,
        ReplacePhase::Finished => ReplaceState::Finished,
        ReplacePhase::Canceled => ReplaceState::Canceled,
    };
    let seconds = |time: u64| i64::try_from(time).unwrap_or(i64::MAX);
    Some(ReplaceStatus {
        state,
        started: seconds(item.started),
        ended: seconds(item.stopped),
        copied: item.cursor_left.min(total),
        total,
        lost: item.read_errors,
        write_errors: item.write_errors,
    })
}

fn replace(
    mount: &Mount,
    id: DeviceId,
    new: Arc<dyn Device>,
    watch: &mut dyn FnMut(&BalanceProgress) -> bool,
) -> Result<ScrubProgress> {
    let work = || {
        mount.sync()?;
        let how = Replacing {
            uuid: new_uuid(),
            now: &|| now().sec,
            is_suspended: &|| mount.upkeep.is_closing(),
            watch: &mut mount.upkeep.watched(watch),
        };
        Ok(mount.maintenance.replace_device(id, new, how)?)
    };
    mount.upkeep.replace(|| now().sec, work)
}

/// Ends a replacement that was found, if its new device is here.
pub(crate) fn resume(
    mount: &Mount,
    watch: &mut dyn FnMut(&BalanceProgress) -> bool,
) -> Result<Option<ScrubProgress>> {
    let Some(item) = mount.engine.commits().unfinished_replacement(mount.engine.store())? else {
        return Ok(None);
    };
    let Some(target) = mount.engine.volume().target() else { return Ok(None) };
    replace(mount, item.source, target.device, watch).map(Some)
}

/// Resumes a replacement in the background, as Linux does at a mount.
pub(crate) fn resume_at_mount(mount: &Mount) {
    match resume(mount, &mut |_| !mount.stop.is_set()) {
        Ok(Some(found)) if found.uncorrectable_errors == 0 => {
            tracing::info!("the replacement of a device has finished");
        }
        Ok(Some(found)) => {
            let lost = found.uncorrectable_errors;
            tracing::warn!(lost, "the replacement of a device has finished, with errors");
        }
        Ok(None) => {}
        Err(error) => tracing::warn!(%error, "the replacement of a device did not finish"),
    }
}
