//! The superblocks of a volume's devices: reading one, writing all.
//!
//! # On disk
//!
//! Each device has copies at 64 KiB, 64 MiB and 256 GiB, if it is long enough. The second and the
//! third copy are used only if the first copy is damaged. Each device's copies carry that device's
//! own item.
//!
//! A superblock is eight sectors, and a power cut can tear it. So a commit never writes all copies
//! between two flushes. The other copies follow with the nodes of the next commit. If the first
//! copy is torn, the other copies still have the preceding commit, and everything that this commit
//! references is intact. A torn copy is rewritten whole before any other write
//! (`mend_torn_superblocks`).
//!
//! # Failure
//!
//! A write that fails on one device may have reached another. Only the next open knows whether the
//! transaction is durable.

use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use buttress_base::activity::{self, Cause};
use buttress_block::{Class, Device, Error as BlockError, Operation, probe};
use buttress_format::limits::{DEVICE_RESERVED, SUPER_OFFSETS, SUPER_SIZE};
use buttress_format::{DeviceItem, Error as FormatError, Superblock};

use crate::device::{DeviceTrust, Fault, VolumeDevice};
use crate::error::Error;
use crate::volume::Volume;

const MAGIC: &[u8] = b"_BHRfS_M";
/// The magic that mkfs writes first, so that an unfinished volume is not taken for a finished one.
const MAGIC_UNFINISHED: &[u8] = b"!BHRfS_M";
const MAGIC_AT: usize = 64;

impl Volume {
    /// Reads the superblock of a device: the first copy, or the newest of the other copies if a
    /// crash tore the first.
    ///
    /// # Errors
    ///
    /// - [`Error::NotBtrfs`] with the format that is there instead.
    /// - [`Error::Superblock`] when all copies are damaged.
    /// - [`Error::Truncated`] when the device is shorter than its superblock says.
    /// - [`Error::Candidate`] when the device cannot be read.
    pub fn read_superblock(device: &dyn Device) -> Result<Superblock, Error> {
        let superblock = match Self::read_superblock_mirror(device, 0) {
            Err(torn @ Error::Superblock { source: FormatError::SuperChecksum, .. }) => {
                Self::newest_copy(device).ok_or(torn)?
            }
            other => other?,
        };
        let (found, expected) = (device.len(), superblock.dev_item.total_bytes);
        if found < expected {
            return Err(Error::Truncated { device: device.name(), found, expected });
        }
        Ok(superblock)
    }

    /// Erases the front of a device and every superblock, so that the device is no part of a
    /// volume.
    ///
    /// # Errors
    ///
    /// [`Error::Candidate`] when the device cannot be written.
    pub fn wipe(device: &dyn Device) -> Result<(), Error> {
        let work = || {
            let zeros = vec![0; DEVICE_RESERVED as usize];
            let front = device.len().min(DEVICE_RESERVED) as usize;
            device.write_at(0, &zeros[..front])?;
            for offset in SUPER_OFFSETS {
                if offset + SUPER_SIZE as u64 <= device.len() {
                    device.write_at(offset, &zeros[..SUPER_SIZE])?;
                }
            }
            device.flush()
        };
        work().map_err(|source| Error::Candidate { device: device.name(), source })
    }

    fn newest_copy(device: &dyn Device) -> Option<Superblock> {
        let copies = 1..SUPER_OFFSETS.len();
        let newest = copies
            .filter_map(|mirror| Self::read_superblock_mirror(device, mirror).ok())
            .max_by_key(|superblock| superblock.generation)?;
        tracing::warn!(
            device = device.name(),
            offset = newest.bytenr,
            generation = %newest.generation,
            "the first superblock is damaged; a copy is used"
        );
        Some(newest)
    }

    /// Reads one copy of the superblock; the first is 0. Does not check the device's length.
    ///
    /// # Errors
    ///
    /// As [`Volume::read_superblock`]; for a copy past the device's end, [`Error::NotBtrfs`].
    pub fn read_superblock_mirror(device: &dyn Device, mirror: usize) -> Result<Superblock, Error> {
        let not_btrfs = |found| Error::NotBtrfs { device: device.name(), found };
        let failed = |source| Error::Candidate { device: device.name(), source };

        let offset = SUPER_OFFSETS.get(mirror).copied().unwrap_or(u64::MAX);
        if offset.checked_add(SUPER_SIZE as u64).is_none_or(|end| end > device.len()) {
            let found = probe::identify(device).map_err(failed)?;
            return Err(not_btrfs(found));
        }
        let mut bytes = vec![0; SUPER_SIZE];
        device.read_at(offset, &mut bytes).map_err(failed)?;
        let magic = bytes.get(MAGIC_AT..MAGIC_AT + MAGIC.len());
        if magic == Some(MAGIC_UNFINISHED) {
            return Err(not_btrfs(Some("a btrfs that was not finished".to_owned())));
        }
        if magic != Some(MAGIC) {
            return Err(not_btrfs(probe::identify(device).map_err(failed)?));
        }
        Superblock::parse(&bytes, offset).map_err(|source| Error::Superblock {
            device: device.name(),
            offset,
            source,
        })
    }

    /// Writes a superblock to every copy on every device and makes it durable, for a volume at
    /// rest. Everything that the superblock references must be durable: call [`Volume::flush`]
    /// first.
    ///
    /// # Errors
    ///
    /// [`Error::ReadOnly`]; [`Error::Device`] from the first device that failed, after all were
    /// tried.
    ///
    /// # Panics
    ///
    /// When the superblock is another filesystem's: a bug of the caller.
    pub fn write_superblocks(&self, superblock: &Superblock) -> Result<(), Error> {
        self.write_copies(superblock, &SUPER_OFFSETS)?;
        self.flush()
    }

    /// Makes everything written so far durable on every device, then commits as
    /// [`Volume::commit_flushed`] does.
    ///
    /// # Errors
    ///
    /// As [`Volume::flush`], if no superblock was written yet; after that, as
    /// [`Volume::commit_flushed`].
    ///
    /// # Panics
    ///
    /// As [`Volume::write_superblocks`].
    pub fn flush_and_commit(&self, superblock: &Superblock) -> Result<(), Error> {
        self.flush()?;
        self.commit_flushed(superblock)
    }

    /// Writes a superblock to the first copy on each device and makes it durable: this is the
    /// moment of the commit. Everything that the superblock references must be durable already.
    ///
    /// # Errors
    ///
    /// As [`Volume::write_superblocks`] and [`Volume::flush`].
    ///
    /// # Panics
    ///
    /// As [`Volume::write_superblocks`].
    pub fn commit_flushed(&self, superblock: &Superblock) -> Result<(), Error> {
        if let Some(device) = self.only_device() {
            return self.commit_on(&device, superblock);
        }
        self.write_copies(superblock, &SUPER_OFFSETS[..1])?;
        self.flush()
    }

    /// Commits on the only device.
    fn commit_on(&self, device: &VolumeDevice, superblock: &Superblock) -> Result<(), Error> {
        self.check_commit(superblock)?;
        let mut own = superblock.clone();
        own.dev_item = item_of(device, superblock);
        let [first, ..] = SUPER_OFFSETS;
        let bytes = own.to_bytes(first);
        self.counters.write(bytes.len() as u64);
        self.counters.flush();
        let _waiting = activity::wait(Cause::DeviceFlush);
        device.device.write_durably(first, &bytes, Class::Metadata).or_else(|source| {
            self.counters.io_failure();
            let flushing = matches!(source, BlockError::Io { operation: Operation::Flush, .. });
            device.count(if flushing { Fault::Flush } else { Fault::Write });
            self.lose_device(device, Error::Device { device: device.id, source })
        })
    }

    fn check_commit(&self, superblock: &Superblock) -> Result<(), Error> {
        assert_eq!(superblock.fsid, self.fsid(), "a superblock of another filesystem");
        self.check_writable()
    }

    /// Writes the superblock `found` over each first copy that a power cut tore, and on each device
    /// that is one transaction behind. Then makes it durable. This must be the first write.
    ///
    /// A torn copy names trees that stay intact only until something overwrites them. Some sectors
    /// of the next superblock may be equal to the sectors that the torn copy lacks. If a second
    /// power cut ends the write after these sectors, the torn copy may become valid. An older
    /// superblock names such trees, too. It would be the newest one after a second power cut and
    /// the loss of the devices with `found`.
    ///
    /// # Errors
    ///
    /// As [`Volume::write_superblocks`].
    ///
    /// # Panics
    ///
    /// As [`Volume::write_superblocks`].
    pub fn mend_torn_superblocks(&self, found: &Superblock) -> Result<(), Error> {
        let devices = self.devices();
        let is_torn = |device: &VolumeDevice| {
            device.torn.load(Ordering::Relaxed) || device.trust() == DeviceTrust::Behind
        };
        if !devices.iter().any(|device| is_torn(device)) {
            return Ok(());
        }
        self.write_copies_to(found, &SUPER_OFFSETS[..1], is_torn)?;
        self.flush()?;
        devices.iter().for_each(|device| device.torn.store(false, Ordering::Relaxed));
        Ok(())
    }

    /// Writes a superblock to the other copies, once its first copy is durable. Does not flush.
    ///
    /// # Errors
    ///
    /// As [`Volume::write_superblocks`].
    ///
    /// # Panics
    ///
    /// As [`Volume::write_superblocks`].
    pub fn write_other_superblocks(&self, superblock: &Superblock) -> Result<(), Error> {
        self.write_copies(superblock, &SUPER_OFFSETS[1..])
    }

    fn write_copies(&self, superblock: &Superblock, offsets: &[u64]) -> Result<(), Error> {
        self.write_copies_to(superblock, offsets, |_| true)
    }

    fn write_copies_to(
        &self,
        superblock: &Superblock,
        offsets: &[u64],
        is_meant: impl Fn(&VolumeDevice) -> bool,
    ) -> Result<(), Error> {
        self.check_commit(superblock)?;
        let mut outcome = Ok(());
        let is_meant = |device: &VolumeDevice| {
            device.trust() < DeviceTrust::Stale && !device.is_seed() && is_meant(device)
        };
        let devices = self.devices();
        let leads = |device: &&Arc<VolumeDevice>| device.leads.load(Ordering::SeqCst);
        let (first, others): (Vec<_>, Vec<_>) =
            devices.iter().filter(|device| is_meant(device)).partition(leads);
        for device in first.iter().chain(&others) {
            let mut own = superblock.clone();
            own.dev_item = item_of(device, superblock);
            let mut written = self.write_copies_of(device, &own, offsets);
            if leads(device) && written.is_ok() {
                let failed = |source| Error::Device { device: device.id, source };
                let _waiting = activity::wait(Cause::DeviceFlush);
                written = device.device.flush().map_err(failed);
            }
            let written = written.or_else(|error| {
                device.count(Fault::Write);
                self.lose_device(device, error)
            });
            outcome = outcome.and(written);
        }
        outcome
    }

    fn write_copies_of(
        &self,
        device: &VolumeDevice,
        superblock: &Superblock,
        offsets: &[u64],
    ) -> Result<(), Error> {
        let end = superblock.dev_item.total_bytes.min(device.device.len());
        for offset in offsets {
            // A copy that would end exactly at the device's end is left out, as in Linux.
            if offset + (SUPER_SIZE as u64) < end {
                let bytes = superblock.to_bytes(*offset);
                self.counters.write(bytes.len() as u64);
                let bufs = [IoSlice::new(&bytes)];
                let waiting = activity::wait(Cause::DeviceWrite);
                let written = device.device.write_classed_at(*offset, &bufs, Class::Metadata);
                drop(waiting);
                written.map_err(|source| {
                    self.counters.io_failure();
                    Error::Device { device: device.id, source }
                })?;
            }
        }
        Ok(())
    }
}

/// The device item for a device's superblock. This is the item that was set last. If none was set,
/// it is the item in `superblock`, if that item is for this device. In all other cases it is the
/// item from the opening.
fn item_of(device: &VolumeDevice, superblock: &Superblock) -> DeviceItem {
    let authors = Some(superblock.dev_item).filter(|item| item.devid == device.id);
    device.changed_item().or(authors).unwrap_or(device.item)
}
