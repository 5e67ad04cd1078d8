//! The last commit of a mounted volume, for a verb that reads the devices by itself.
//!
//! # Invariants
//!
//! - **HD1** The superblock that a reader finds on each device is that of the held commit, without
//!   a log. A later commit may have overwritten the superblock on the device. The later superblock
//!   may refer to nodes that the server does not keep.
//! - **HD2** A read fails if the server no longer held the commit after the read. The bytes may
//!   then belong to a later commit.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use buttress_block::{Device, Error as BlockError, Layer, OpenOptions, Operation};
use buttress_format::Superblock;
use buttress_format::limits::{SUPER_OFFSETS, SUPER_SIZE};
use buttress_remote::{OpenRequest, is_remote};
use buttress_volume::Volume;

use super::{Hold, give, hold, place};
use crate::exit::{Context, Exit, Failure, Result};
use crate::order::Order;
use crate::{closing, ui};

/// A device of a held commit.
#[derive(Debug)]
struct Held {
    inner: Arc<dyn Device>,
    /// The superblock of the commit, as it lies on this device.
    superblock: Superblock,
    hold: Arc<Hold>,
}

impl Layer for Held {
    type Inner = dyn Device;

    fn inner(&self) -> &(dyn Device + 'static) {
        &*self.inner
    }

    fn is_writable(&self) -> bool {
        false
    }

    fn on_read(&self, offset: u64, buf: &mut [u8]) -> Result<(), BlockError> {
        self.inner.read_at(offset, buf)?;
        let end = offset + buf.len() as u64;
        for start in SUPER_OFFSETS {
            let (from, to) = (start.max(offset), (start + SUPER_SIZE as u64).min(end));
            if from < to {
                let bytes = self.superblock.to_bytes(start);
                let part = &bytes[(from - start) as usize..(to - start) as usize];
                buf[(from - offset) as usize..(to - offset) as usize].copy_from_slice(part);
            }
        }
        if self.hold.is_kept() {
            return Ok(());
        }
        let source = std::io::Error::other("it was unmounted meanwhile, or its server ended");
        let (operation, len) = (Operation::Read, buf.len() as u64);
        Err(BlockError::Io { device: self.title(), operation, offset, len, source })
    }
}

/// Opens the devices of the volume that is mounted at a folder, with all data that programs have
/// written so far. Returns `None` if no mount of this user has the folder.
///
/// # Errors
///
/// The mount is closing its volume, or has a write-back cache in front of its device. A device
/// cannot be opened.
pub fn held_devices(folder: &Path) -> Result<Option<Vec<Arc<dyn Device>>>> {
    let Some(served) = place::served(folder)? else { return Ok(None) };
    let subject = &served.answer.subject;
    let open = |path: &Path| -> Result<Arc<dyn Device>> {
        let how = OpenOptions { lock: false, ..OpenOptions::READ };
        Ok(closing::open_asked(path, how, &OpenRequest::default())?.device())
    };
    if is_remote(&subject.image) {
        // A reader of a store keeps the commit that it opened, so no server has to hold it.
        give(&served.socket, &Order::Commit, &AtomicBool::new(false), &mut |_| true)?;
        return Ok(Some(vec![open(&subject.image)?]));
    }
    if subject.cache.is_some() {
        let what = format!("{}: mounted with a cache: read its files there", folder.display());
        return Err(Failure::new(Exit::Unsupported, what));
    }
    let Some(hold) = hold(&served.socket)? else {
        let (folder, image) = (folder.display(), subject.image.display());
        let what = format!("{folder}: is being unmounted: name its image, {image}");
        return Err(Failure::new(Exit::Failure, what));
    };
    if let Some(why) = &hold.left_out {
        ui::note(format!("{}: what was written last is left out: {why}", folder.display()));
    }
    let hold = Arc::new(hold);
    let held = |path: &PathBuf| -> Result<Arc<dyn Device>> {
        let inner = open(path)?;
        let own = Volume::read_superblock(&*inner).context(|| path.display().to_string())?;
        let mut superblock = hold.superblock.clone();
        // A commit is whole without its log, and the server adds to the log meanwhile.
        (superblock.log_root, superblock.log_root_level) = Default::default();
        superblock.dev_item = own.dev_item;
        Ok(Arc::new(Held { inner, superblock, hold: Arc::clone(&hold) }))
    };
    hold.devices.iter().map(held).collect::<Result<_>>().map(Some)
}
