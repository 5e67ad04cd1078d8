//! Devices that come, go, or change their size.
//!
//! # Invariants
//!
//! - **D1** A device that comes has nothing on it, and holds no superblock of the volume before the
//!   commit that makes it one of its devices.
//! - **D3** A device that is replaced stays the one with its number, written and with its superblocks, until
//!   the new one has everything that can be read; then one commit, before which nothing else is committed, makes
//!   it the older of the two, and its superblocks go.
//! - **D2** A device goes, and a device is cut, only when no chunk lies on what goes.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use buttress_block::Device;
use buttress_format::{DeviceId, DeviceItem};
use buttress_volume::{Pair, Volume};

use crate::{BalanceProgress, Engine, Error, Result, ScrubOptions, ScrubProgress};

/// Bytes copied from one device to another in one go.
const COPY_BYTES: u64 = 1 << 20;

/// What a transaction does to one device.
#[derive(Clone, Copy, Debug)]
pub(crate) enum DeviceChange {
    /// This is its item now.
    Set(DeviceItem),
    /// It is no part of the volume any more.
    Gone(DeviceId),
}

impl Engine {
    /// Makes a device part of the volume: one that the volume below was told of, with nothing on it.
    ///
    /// # Errors
    ///
    /// When the volume cannot be written.
    pub fn enroll_device(&self, item: DeviceItem) -> Result<()> {
        self.check_writable()?;
        self.devices.lock().add_device(item, true);
        self.change_device(DeviceChange::Set(item));
        self.commit()?;
        self.settle_superblocks()
    }

    /// The devices of the volume that are not here.
    #[must_use]
    pub fn missing_devices(&self) -> Vec<DeviceId> {
        // Who is closing the volume is told of none, here and below.
        let _ = self.know_groups();
        let known = self.devices.lock().ids();
        known.into_iter().filter(|id| self.volume.device(*id).is_none()).collect()
    }

    /// A number that no device has.
    #[must_use]
    pub fn next_device(&self) -> DeviceId {
        let _ = self.know_groups();
        self.devices.lock().next_id()
    }

    /// Gives a device another size, in bytes.
    ///
    /// # Errors
    ///
    /// [`Error::NoSpace`] when a chunk lies behind the new end: relocate it before; `Malformed` for a
    /// device that there is none of.
    pub fn resize_device(&self, id: DeviceId, total_bytes: u64) -> Result<()> {
        self.check_writable()?;
        let sector = u64::from(self.store.geometry().sectorsize);
        let total_bytes = total_bytes / sector * sector;
        let device = self.volume.device(id);
        if device.is_some_and(|device| device.device.len() < total_bytes) {
            return Err(Error::NoSpace("a device as large as that"));
        }
        let item = {
            let mut devices = self.devices.lock();
            let mut item = devices.item(id)?;
            let before = item.total_bytes;
            item.total_bytes = total_bytes;
            let chunks = self.volume.chunks();
            let past = chunks.iter().any(|chunk| {
                let end = |stripe: &buttress_format::Stripe| stripe.offset + chunk.stripe_bytes();
                chunk.stripes.iter().any(|stripe| stripe.device == id && end(stripe) > total_bytes)
            });
            if past {
                return Err(Error::NoSpace("chunks behind the new end of the device"));
            }
            devices.show(id);
            if total_bytes >= before {
                devices.give(id, before, total_bytes - before);
            } else {
                devices.take(id, total_bytes, before - total_bytes);
            }
            devices.set_item(item);
            item
        };
        self.volume.update_device(item);
        self.change_device(DeviceChange::Set(item));
        self.commit()?;
        self.settle_superblocks()
    }

    /// Puts a new device in the place of another, which may be missing: under its number, with all that is
    /// on it, beside those who use the volume. What cannot be read there is made from other copies. `watch` is
    /// told how many bytes were copied, and gives up by saying `false`: then, as after a
    /// crash, everything is as before. Returns what could be read nowhere.
    ///
    /// # Errors
    ///
    /// [`Error::NoSpace`] for a device that is smaller; [`Error::Stopped`] when it was given up; [`Error::Busy`] when one of the two fails.
    pub fn replace_device(
        self: &Arc<Self>,
        id: DeviceId,
        new: Arc<dyn Device>,
        watch: &mut dyn FnMut(&BalanceProgress) -> bool,
    ) -> Result<ScrubProgress> {
        self.check_writable()?;
        self.expect_no_balance()?;
        let item = self.devices.lock().item(id)?;
        if new.len() < item.total_bytes {
            return Err(Error::NoSpace("a device that is smaller than the one it replaces"));
        }
        let here = self.volume.device(id).filter(|old| !old.is_lost());
        self.commit()?;
        Volume::wipe(&*new)?;
        let Some(pair) = here.and_then(|_| self.volume.pair_device(id, Arc::clone(&new))) else {
            return self.fill_device(id, new, item);
        };
        let copied = self.copy_pair(id, &pair, watch).and_then(|()| {
            self.volume.turn_pair(&pair);
            // What the old one could not tell is found and made now.
            let (found, _) =
                self.scrub(ScrubOptions::default(), &mut |_| self.expect_pair(id, &pair).is_ok())?;
            self.expect_pair(id, &pair).map(|()| found)
        });
        let found = match copied {
            Ok(found) => found,
            Err(error) => {
                self.volume.end_pair(id, &pair, false);
                return Err(error);
            }
        };
        let old = self.commit_after(|| {
            let old = self.volume.end_pair(id, &pair, true);
            if let Some(device) = self.volume.device(id) {
                device.reset_stats();
            }
            self.devices.lock().set_usable(id, true);
            // Something to commit, so that the old one is older if it ever comes back.
            self.change_device(DeviceChange::Set(item));
            old
        })?;
        self.settle_superblocks()?;
        if let Err(error) = Volume::wipe(&*old) {
            tracing::warn!(%error, "the replaced device keeps its superblocks");
        }
        Ok(found)
    }

    /// Whether both devices of a pair have what was written, and nobody wants it to end.
    fn expect_pair(&self, id: DeviceId, pair: &Pair) -> Result<()> {
        if pair.has_failed() {
            return Err(Error::Busy("the new device fails; the old one stays"));
        }
        if self.volume.device(id).is_none_or(|device| device.is_lost()) {
            return Err(Error::Busy("the old device fails: replace it as one that is missing"));
        }
        if self.stop_moving.load(Ordering::SeqCst) { Err(Error::Stopped) } else { Ok(()) }
    }

    /// Puts a new device in the place of one that is missing: everything on it is made from other copies.
    fn fill_device(
        self: &Arc<Self>,
        id: DeviceId,
        new: Arc<dyn Device>,
        item: DeviceItem,
    ) -> Result<ScrubProgress> {
        let old = self.volume.exchange_device(new, item);
        let (found, _) = self.scrub(ScrubOptions::default(), &mut |_| true)?;
        let device = self.volume.device(id).ok_or(Error::Busy("the device went away"))?;
        device.reset_stats();
        device.heal();
        self.devices.lock().set_usable(id, true);
        self.change_device(DeviceChange::Set(item));
        self.volume.flush()?;
        self.commit()?;
        self.settle_superblocks()?;
        if let Some(old) = old
            && let Err(error) = Volume::wipe(&*old.device)
        {
            tracing::warn!(%error, "the replaced device keeps its superblocks");
        }
        Ok(found)
    }

    /// Copies what chunks have on a device to the same places of the other, beside those who write; chunks
    /// that come later are written to both.
    fn copy_pair(
        &self,
        id: DeviceId,
        pair: &Pair,
        watch: &mut dyn FnMut(&BalanceProgress) -> bool,
    ) -> Result<()> {
        let chunks = self.volume.chunks();
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
                self.volume.copy_pair(pair, offset + within, part);
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

    /// Takes no new chunks on a device from now on, or again.
    pub fn use_device(&self, id: DeviceId, usable: bool) {
        let _ = self.know_groups();
        self.devices.lock().set_usable(id, usable);
    }

    /// Makes a device that no chunk lies on no part of the volume any more. Its superblocks are the
    /// caller's.
    ///
    /// # Errors
    ///
    /// [`Error::NoSpace`] when a chunk still lies on it; when it is the last one.
    pub fn remove_device(&self, id: DeviceId) -> Result<()> {
        self.check_writable()?;
        let in_use =
            self.volume.chunks().iter().any(|chunk| chunk.stripes.iter().any(|s| s.device == id));
        if in_use {
            return Err(Error::NoSpace("chunks on the device that is to go"));
        }
        self.devices.lock().remove_device(id)?;
        self.volume.remove_device(id);
        self.change_device(DeviceChange::Gone(id));
        self.commit()?;
        self.settle_superblocks()
    }

    fn change_device(&self, change: DeviceChange) {
        let (_inside, running) = self.enter();
        running.devices.lock().push(change);
    }
}
