//! The target of a replacement that was not finished: a device with the number 0.
//!
//! The target counts as no device of the volume: nothing is read from it. It gets writes from the
//! moment at which it is paired with the old device (`replace`).
//!
//! # Invariants
//!
//! - **TA1** The cursor in a superblock passes no byte that was not copied and flushed before this
//!   superblock was written.
//! - **TA2** A target goes on at its cursor only if it is paired before the next write. It must
//!   have the superblock of the last commit, with the same log of fsync. This is no proof that it
//!   has all writes before the cursor: a write in place that failed there leaves no trace. So the
//!   replacement copies data without checksums again, and verifies everything else.

use std::sync::Arc;

use buttress_base::activity::{self, Cause};
use buttress_block::{Class, Device};
use buttress_format::{DeviceId, Extent, ReplaceItem, Superblock, limits};

use crate::device::VolumeDevice;
use crate::error::Error;
use crate::pair::Pair;
use crate::target_item::{as_target, cursor_of};
use crate::volume::Volume;

/// A device that was to replace another when the volume was last in use.
#[derive(Clone, Debug)]
pub struct Target {
    /// The device.
    pub device: Arc<dyn Device>,
    /// Its own identifier.
    pub uuid: [u8; 16],
    /// The pair, if the device gets all writes before the replacement goes on.
    pub pair: Option<Arc<Pair>>,
    /// Whether the device had the superblock of the last commit when the volume was opened (TA2).
    is_current: bool,
    /// The cursor in its superblock.
    cursor: Option<u64>,
}

impl Target {
    /// A device of which nothing counts.
    #[must_use]
    pub fn new(device: Arc<dyn Device>, uuid: [u8; 16]) -> Self {
        Self { device, uuid, pair: None, is_current: false, cursor: None }
    }

    /// A device with the superblock of a target, in a volume with the superblock `newest`.
    pub(crate) fn found(device: Arc<dyn Device>, own: &Superblock, newest: &Superblock) -> Self {
        let place = |it: &Superblock| (it.generation, it.log_root, it.log_root_level);
        // Where the first copy is torn, the others are older and prove nothing.
        let is_current = own.bytenr == limits::SUPER_OFFSETS[0] && place(own) == place(newest);
        let uuid = own.dev_item.uuid;
        Self {
            is_current,
            cursor: cursor_of(&own.dev_item, own.generation),
            ..Self::new(device, uuid)
        }
    }
}

impl Volume {
    /// The target of an unfinished replacement, if the volume was opened with it.
    #[must_use]
    pub fn target(&self) -> Option<Target> {
        self.target.lock().clone()
    }

    /// Forgets the target, because the replacement has ended or begins anew with the device.
    pub fn forget_target(&self) {
        *self.target.lock() = None;
    }

    /// Keeps a device as the target of a replacement that goes on later.
    pub fn keep_target(&self, target: Target) {
        *self.target.lock() = Some(target);
    }

    /// Whether a device holds the superblock of a target of this volume.
    #[must_use]
    pub fn is_target(&self, device: &dyn Device) -> bool {
        let found = Self::read_superblock(device);
        found.is_ok_and(|found| {
            found.dev_item.devid == ReplaceItem::TARGET && found.fsid == self.fsid()
        })
    }

    /// Writes the first superblock of a target in place of a device that is missing. The volume
    /// counts the target as a member that missed all writes. So no commit renews this superblock.
    ///
    /// # Errors
    ///
    /// [`Error::Candidate`] when the device cannot be written.
    pub fn mark_target(&self, target: &Target, superblock: &Superblock) -> Result<(), Error> {
        let [first, ..] = limits::SUPER_OFFSETS;
        let bytes = as_target(superblock, target.uuid, None).to_bytes(first);
        let _waiting = activity::wait(Cause::DeviceFlush);
        let written = target.device.write_durably(first, &bytes, Class::Metadata);
        written.map_err(|source| Error::Candidate { device: target.device.name(), source })
    }

    /// Pairs the target that the volume was opened with, unless the target or the old device has
    /// missed something (TA2). `recorded` is the cursor in the record of the replacement, which
    /// counts if the target has none. Nothing may have been written before.
    pub fn pair_found_target(&self, id: DeviceId, recorded: u64) {
        let Some(mut target) = self.target().filter(|target| target.pair.is_none()) else { return };
        let cursor = target.cursor.unwrap_or(recorded);
        let is_fit = |old: &VolumeDevice| {
            old.trust().has_all() && target.device.len() >= old.item.total_bytes
        };
        let is_fit = self.device(id).is_some_and(|old| is_fit(&old));
        if cursor == 0 || !target.is_current || !is_fit {
            return;
        }
        if let Err(error) = target.device.begin_writing() {
            tracing::warn!(%error, "the new device of a replacement cannot be written");
            return;
        }
        target.pair = self.pair_device(id, &target.device, target.uuid);
        if let Some(pair) = &target.pair {
            pair.set_cursor(cursor);
            pair.set_marked();
        }
        self.keep_target(target);
    }

    /// The places of a range of addresses on a device, with their lengths.
    ///
    /// # Errors
    ///
    /// [`Error::NotMapped`].
    pub fn places_on(&self, id: DeviceId, range: Extent) -> Result<Vec<(u64, u64)>, Error> {
        let mut places = Vec::new();
        self.for_each_copy(range, |device, offset, part, _| {
            if device.id == id {
                places.push((offset, part.len));
            }
        })?;
        Ok(places)
    }
}
