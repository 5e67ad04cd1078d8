//! Replaces devices, continues replacements that Linux began, and records the progress of a
//! replacement.
//!
//! # Invariants
//!
//! - **DP1** A replaced device keeps its number and superblocks, and still gets all writes, until
//!   the new device has everything that can be read. Then the new device takes its place, and a
//!   commit directly after that makes the superblocks of the old device outdated. These superblocks
//!   are erased next.
//! - **DP2** While the copy of a present device is not ended, one commit makes two things durable:
//!   the record, and the superblock that marks the new device as target. The record of the end is
//!   durable before that superblock is erased. So after a crash Linux finds both or neither. There
//!   are two exceptions: between the end and the erasing, and before the target of a missing device
//!   is marked.
//! - **DP3** A replacement that is continued goes on at its cursor if the opening has paired the
//!   devices (`volume::target::TA2`). Otherwise the whole old device is copied, and nothing that
//!   the new device held before counts.
//! - **DP4** When an unmount suspends the copy, the devices stay a pair until the volume is closed.
//!   So the new device has the last superblock, and the next mount can go on.

use std::sync::Arc;

use buttress_block::Device;
use buttress_format::{DeviceId, DeviceItem, ReplaceItem, ReplacePhase};
use buttress_volume::{Target, Volume};

use buttress_txn::{DeviceChange, Error, Result};

use crate::{BalanceProgress, Maintenance, ScrubOptions, ScrubProgress};

/// What a replacement asks of its caller.
pub struct Replacing<'r> {
    /// The identifier that the new device has until it takes over that of the old device.
    pub uuid: [u8; 16],
    /// The present time, in seconds since 1970.
    pub now: &'r dyn Fn() -> i64,
    /// Whether a stopped replacement goes on at the next mount. Otherwise it is cancelled.
    pub is_suspended: &'r dyn Fn() -> bool,
    /// Gets the number of copied bytes, and stops the replacement by returning `false`.
    pub watch: &'r mut dyn FnMut(&BalanceProgress) -> bool,
}

impl Replacing<'_> {
    fn seconds(&self) -> u64 {
        u64::try_from((self.now)()).unwrap_or(0)
    }
}

impl Maintenance {
    /// Replaces a device, which may be missing, while the volume is in use. The new device gets the
    /// number and all data of the old device. Data that the old device cannot read is rebuilt from
    /// other copies. Returns the errors that no copy could repair.
    ///
    /// If the same replacement was begun before and not ended, here or by Linux, this call ends it.
    /// If it is stopped, the old device stays in the volume, as after a crash during the copy.
    ///
    /// # Errors
    ///
    /// [`Error::NoSpace`] for a smaller device; [`Error::Stopped`] when the caller stops the copy;
    /// [`Error::Busy`] when one of the two devices fails, or another replacement has not ended.
    pub fn replace_device(
        &self,
        id: DeviceId,
        new: Arc<dyn Device>,
        mut how: Replacing<'_>,
    ) -> Result<ScrubProgress> {
        self.engine().check_writable()?;
        self.expect_own(id)?;
        self.expect_no_balance()?;
        let item = self.engine().storage().device_item(id)?;
        if new.len() < item.total_bytes {
            return Err(Error::NoSpace("a device that is smaller than the one it replaces"));
        }
        let found = self.engine().commits().unfinished_replacement(self.engine().store())?;
        let is_anothers =
            |found: &ReplaceItem| found.source != id || !self.volume().is_target(&*new);
        if found.as_ref().is_some_and(is_anothers) {
            return Err(Error::Busy("another replacement has not ended: finish it, or cancel it"));
        }
        let failed = |source| buttress_volume::Error::Candidate { device: new.name(), source };
        new.begin_writing().map_err(failed)?;
        let is_here = self.volume().device(id).is_some_and(|old| !old.is_lost());
        self.engine().commit()?;
        let mut target = self.target_of(id, new, how.uuid, found.is_some())?;
        let mut record = ReplaceItem {
            source: id,
            phase: ReplacePhase::Started,
            started: found.map_or_else(|| how.seconds(), |found| found.started),
            ..ReplaceItem::default()
        };
        let replaced = match is_here {
            true => self.copy_device(&mut target, item, &mut record, &mut how),
            false => self.fill_device(&target, item, record, &mut how),
        };
        if replaced.is_ok() || self.engine().commits().aborted().is_some() {
            return replaced;
        }
        let is_suspended = matches!(replaced, Err(Error::Stopped)) && (how.is_suspended)();
        record.stopped = how.seconds();
        record.phase = match is_suspended {
            true => ReplacePhase::Suspended,
            false => ReplacePhase::Canceled,
        };
        self.end_replacement(&target, record)?;
        replaced
    }

    /// Cancels a replacement that was begun before and does not run. Returns `false` if there is
    /// none. The new device loses its superblocks, if it is here.
    ///
    /// # Errors
    ///
    /// As a commit.
    pub fn cancel_replacement(&self, now: i64) -> Result<bool> {
        let Some(found) = self.engine().commits().unfinished_replacement(self.engine().store())?
        else {
            return Ok(false);
        };
        self.engine().check_writable()?;
        let stopped = u64::try_from(now).unwrap_or(0);
        let record = ReplaceItem { phase: ReplacePhase::Canceled, stopped, ..found };
        let target = self.volume().target();
        self.engine().commit_after(|| {
            if let Some(pair) = target.as_ref().and_then(|target| target.pair.as_ref()) {
                self.volume().keep_old(found.source, pair);
            }
            self.record(record);
        })?;
        self.engine().settle_superblocks()?;
        if let Some(target) = target {
            self.volume().forget_target();
            let begun = target.device.begin_writing().map_err(|source| {
                buttress_volume::Error::Candidate { device: target.device.name(), source }
            });
            erase(&*target.device, begun.and_then(|()| Volume::wipe(&*target.device)));
        }
        Ok(true)
    }

    /// Fails for a device that is being replaced.
    pub(crate) fn expect_not_replaced(&self, id: DeviceId) -> Result<()> {
        match self.engine().commits().unfinished_replacement(self.engine().store())? {
            Some(found) if found.source == id => {
                Err(Error::Busy("the device is being replaced: finish that, or cancel it"))
            }
            _ => Ok(()),
        }
    }

    fn record(&self, record: ReplaceItem) {
        self.engine().commits().change_device(DeviceChange::Replacement(record));
    }

    /// The new device with its own identifier. What it held is erased, unless it holds the
    /// superblock by which Linux finds it. A pair that failed counts no more.
    fn target_of(
        &self,
        id: DeviceId,
        device: Arc<dyn Device>,
        uuid: [u8; 16],
        is_found: bool,
    ) -> Result<Target> {
        if !is_found {
            Volume::wipe(&*device)?;
            return Ok(Target::new(device, uuid));
        }
        let uuid = Volume::read_superblock(&*device)?.dev_item.uuid;
        let kept = self.volume().target().filter(|kept| kept.pair.is_some());
        match kept.as_ref().and_then(|kept| kept.pair.as_ref()) {
            Some(pair) if pair.has_failed() => self.volume().keep_old(id, pair),
            Some(_) => return Ok(kept.unwrap_or_else(|| Target::new(device, uuid))),
            None => {}
        }
        Ok(Target::new(device, uuid))
    }

    /// Records that a replacement ended early. The new device is no target any more, unless the
    /// replacement goes on later (DP2).
    fn end_replacement(&self, target: &Target, record: ReplaceItem) -> Result<()> {
        if record.is_active() {
            self.volume().keep_target(target.clone());
        } else {
            self.volume().forget_target();
        }
        self.engine().commit_after(|| self.record(record))?;
        self.engine().settle_superblocks()?;
        if !record.is_active() {
            erase(&*target.device, Volume::wipe(&*target.device));
        }
        Ok(())
    }

    /// Copies a present device to the new device, and puts the new device in its place.
    fn copy_device(
        &self,
        target: &mut Target,
        item: DeviceItem,
        record: &mut ReplaceItem,
        how: &mut Replacing<'_>,
    ) -> Result<ScrubProgress> {
        let id = item.devid;
        let lost = Error::Busy("the old device fails: replace it as one that is missing");
        let pair = self.engine().commit_after(|| {
            let pair = target
                .pair
                .take()
                .or_else(|| self.volume().pair_device(id, &target.device, target.uuid));
            self.record(*record);
            pair
        })?;
        let pair = pair.ok_or(lost)?;
        self.volume().forget_target();
        let copied = self.copy_and_verify(id, &pair, how.watch);
        let found = match copied {
            Ok(found) => found,
            Err(Error::Stopped) if (how.is_suspended)() => {
                self.volume().turn_pair_back(&pair);
                target.pair = Some(pair);
                return Err(Error::Stopped);
            }
            Err(error) => {
                record.cursor_left = pair.cursor();
                self.volume().keep_old(id, &pair);
                return Err(error);
            }
        };
        let done = finished(*record, &item, how, &found);
        let old = self.engine().commit_after(|| {
            let old = self.volume().keep_new(id, &pair)?;
            if let Some(device) = self.volume().device(id) {
                device.reset_stats();
            }
            self.engine().storage().reuse_device(id);
            self.record(done);
            // The commit makes the old device outdated, in case it is attached again.
            self.engine().commits().change_device(DeviceChange::Set(item));
            Some(old)
        })?;
        let Some(old) = old else {
            record.cursor_left = pair.cursor();
            self.volume().keep_old(id, &pair);
            return Err(Error::Busy("the new device fails; the old one stays"));
        };
        self.engine().settle_superblocks()?;
        self.volume().end_leading();
        erase(&*old, Volume::wipe(&*old));
        Ok(found)
    }

    /// Replaces a missing device: everything on it is rebuilt from other copies. If that is
    /// stopped, the device is missing again.
    fn fill_device(
        &self,
        target: &Target,
        item: DeviceItem,
        record: ReplaceItem,
        how: &mut Replacing<'_>,
    ) -> Result<ScrubProgress> {
        let id = item.devid;
        self.engine().commit_after(|| self.record(record))?;
        // The record becomes durable before the target's superblock. After a crash in between,
        // Linux still mounts the degraded volume.
        let superblock = self.engine().commits().between_commits(Clone::clone);
        self.volume().mark_target(target, &superblock)?;
        self.volume().forget_target();
        let old = self.volume().exchange_device(Arc::clone(&target.device), item);
        let mut is_stopped = false;
        let scrubbed = self.scrub(ScrubOptions::default(), &mut |found| {
            let progress = BalanceProgress {
                moved: found.done,
                bytes: found.total,
                ..BalanceProgress::default()
            };
            is_stopped |= self.turn().is_stopped() || !(how.watch)(&progress);
            !is_stopped
        });
        let filled = scrubbed.and_then(|(found, _)| {
            let device = self.volume().device(id).ok_or(Error::Busy("the device went away"))?;
            match device.is_lost() {
                true => Err(Error::Busy("the new device fails")),
                false if is_stopped => Err(Error::Stopped),
                false => Ok((found, device)),
            }
        });
        let (found, device) = match filled {
            Ok(filled) => filled,
            Err(error) => {
                self.volume().withdraw_device(id);
                return Err(error);
            }
        };
        device.reset_stats();
        device.heal();
        self.engine().storage().reuse_device(id);
        self.record(finished(record, &item, how, &found));
        self.engine().commits().change_device(DeviceChange::Set(item));
        self.volume().flush()?;
        self.volume().lead_with(id);
        self.engine().commit()?;
        self.engine().settle_superblocks()?;
        self.volume().end_leading();
        if let Some(old) = old {
            erase(&*old.device, Volume::wipe(&*old.device));
        }
        Ok(found)
    }
}

/// The record of a replacement that succeeded. The cursor is at the end, as Linux leaves it.
fn finished(
    record: ReplaceItem,
    item: &DeviceItem,
    how: &Replacing<'_>,
    found: &ScrubProgress,
) -> ReplaceItem {
    ReplaceItem {
        phase: ReplacePhase::Finished,
        cursor_left: item.total_bytes,
        cursor_right: item.total_bytes,
        stopped: how.seconds(),
        read_errors: found.uncorrectable_errors,
        ..record
    }
}

/// Tells that a device keeps its superblocks, if erasing them failed.
fn erase(device: &dyn Device, erased: std::result::Result<(), buttress_volume::Error>) {
    if let Err(error) = erased {
        tracing::warn!(device = device.name(), %error, "the device keeps its superblocks");
    }
}
