//! Replacing a device while the volume is in use: for a time two devices hold the same bytes.
//!
//! # Invariants
//!
//! - **R1** From [`Volume::pair_device`] on, every write goes to both devices. Superblocks go to
//!   the old device as they are. On the new device they have the number 0, by which Linux
//!   recognizes the target of a replacement. Until the replacement ends, the old device is a full
//!   member of the volume, and the new device is not a member.
//! - **R2** Writers are excluded while a range is copied, so old bytes never overwrite new ones.
//! - **R3** When everything was copied, reads go to the new device. Ranges that the old device
//!   could not read give errors on the new device, until a repair from another copy has written
//!   them.
//! - **R4** If the new device fails a write, it is not a valid copy any more. The volume continues
//!   with the old device.
//! - **R5** While a device leads (`VolumeDevice::leads`), its superblock is durable before another
//!   device gets one. So if any device has the commit that begins or ends a replacement, the
//!   leading device has it, too.
//! - **R6** Within a pair, the first superblock of the target is durable before that of the old
//!   device: Linux refuses a volume with an active replacement and no target. After that the old
//!   device comes first. So no target is ahead of a member that is written alone meanwhile.
//!
//! A replacement that was found on the devices goes on with its target (`target`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use buttress_base::{RangeSet, Rank, Ranked};
use buttress_block::Device;
use buttress_format::{DeviceId, limits};

use crate::device::{DeviceTrust, VolumeDevice};
use crate::pair::Pair;
use crate::volume::Volume;

impl Volume {
    /// From now on writes to the device `id` also go to the target (R1), which is at least as long
    /// as the old device. Returns `None` when there is no such device, or the device was lost.
    pub fn pair_device(
        &self,
        id: DeviceId,
        target: &Arc<dyn Device>,
        uuid: [u8; 16],
    ) -> Option<Arc<Pair>> {
        let old = self.device(id).filter(|device| !device.is_lost())?;
        let pair = Arc::new(Pair {
            old: Arc::clone(&old.device),
            new: Arc::clone(target),
            uuid,
            turned: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            unread: Ranked::new(Rank::Leaf, RangeSet::default()),
            cursor: AtomicU64::new(0),
            is_marked: AtomicBool::new(false),
        });
        self.put_in_place(&old, Arc::clone(&pair) as Arc<dyn Device>, old.trust(), true);
        Some(pair)
    }

    /// Copies a range of the old device to the new one, with writers excluded (R2).
    pub fn copy_pair(&self, pair: &Pair, offset: u64, buf: &mut [u8]) {
        let _alone = self.repairs.write();
        // One bad sector must not make its neighbours unreadable.
        let whole = buf.len();
        let unit =
            if pair.old.read_at(offset, buf).is_ok() { whole } else { limits::SECTOR as usize };
        let mut at = offset;
        for part in buf.chunks_mut(unit.max(1)) {
            let end = at + part.len() as u64;
            if unit < whole && pair.old.read_at(at, part).is_err() {
                pair.unread.lock().insert(at..end);
            } else if let Err(error) = pair.new.write_at(at, part) {
                tracing::error!(device = pair.new.name(), %error, "the new device fails");
                pair.failed.store(true, Ordering::SeqCst);
            } else {
                pair.unread.lock().remove(at..end);
            }
            at = end;
        }
    }

    /// Notes that everything was copied: reads go to the new device from now on (R3).
    pub fn turn_pair(&self, pair: &Pair) {
        let _alone = self.repairs.write();
        pair.turned.store(true, Ordering::SeqCst);
    }

    /// Undoes [`Volume::turn_pair`]: reads go to the old device again.
    pub fn turn_pair_back(&self, pair: &Pair) {
        let _alone = self.repairs.write();
        pair.turned.store(false, Ordering::SeqCst);
    }

    /// Ends a pair: the new device stays in the volume, and leads until [`Volume::end_leading`]
    /// (R5). Returns the old device. `None` if the new device missed a write (R4): the pair goes on
    /// then.
    pub fn keep_new(&self, id: DeviceId, pair: &Pair) -> Option<Arc<dyn Device>> {
        let there = self.device(id)?;
        // Writes that are under way may still fail on the new device.
        let _alone = self.repairs.write();
        if pair.has_failed() {
            return None;
        }
        self.put_alone(&there, Arc::clone(&pair.new), DeviceTrust::Whole, true);
        Some(Arc::clone(&pair.old))
    }

    /// Ends a pair: the old device stays in the volume.
    pub fn keep_old(&self, id: DeviceId, pair: &Pair) {
        if let Some(there) = self.device(id) {
            self.put_in_place(&there, Arc::clone(&pair.old), there.trust(), false);
        }
    }

    /// From now on a device leads (R5).
    pub fn lead_with(&self, id: DeviceId) {
        if let Some(device) = self.device(id) {
            device.leads.store(true, Ordering::SeqCst);
        }
    }

    /// From now on the superblocks of all devices are written at once again (R5).
    pub fn end_leading(&self) {
        for device in self.devices().iter() {
            device.leads.store(false, Ordering::SeqCst);
        }
    }

    /// Puts another device under the same number and identifier. Waits until running writes have
    /// finished; later writes use the new device.
    fn put_in_place(
        &self,
        old: &VolumeDevice,
        device: Arc<dyn Device>,
        trust: DeviceTrust,
        leads: bool,
    ) {
        let _alone = self.repairs.write();
        self.put_alone(old, device, trust, leads);
    }

    /// As [`Volume::put_in_place`], for a caller that excludes writes.
    fn put_alone(
        &self,
        old: &VolumeDevice,
        device: Arc<dyn Device>,
        trust: DeviceTrust,
        leads: bool,
    ) {
        let put = old.with_device(device, trust);
        put.leads.store(leads, Ordering::SeqCst);
        self.exchange_held(Arc::new(put));
    }
}
