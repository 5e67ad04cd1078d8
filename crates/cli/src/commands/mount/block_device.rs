//! A mount of a whole block device, with the type by which the kernel knows the device (`fuseblk`).
//!
//! # Invariants
//!
//! - **BD1** Until the volume is closed, this program or the kernel has claimed the device. The
//!   exception is the moment between the end of the program's claim and the kernel's claim. This
//!   program holds its lock all the time.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use buttress_fs::Filesystem;
use buttress_fuse::{Listed, Options, Session};
use buttress_remote::Opened;

use crate::exit::{Context, Result};
use crate::names;

/// Mounts a volume. If possible, a block device is mounted as `fuseblk`. Then `sync` reaches the
/// volume, and an unmount waits until the volume is closed.
pub(super) fn mount(
    fs: &Filesystem,
    target: &Path,
    fuse: &mut Options,
    first: Option<&Opened>,
    is_cached: bool,
) -> Result<Session> {
    // A read-only mount is not `fuseblk`: its volume claims the device when it becomes writable. A
    // cached mount is not `fuseblk` either, because the cache uses the device after the volume is
    // closed.
    let device = first.and_then(Opened::file);
    let device =
        device.filter(|_| fuse.may_be_block_device && fuse.shared && !fuse.read_only && !is_cached);
    let claimed = device.filter(|device| device.yield_claim());
    if let Some(device) = claimed {
        let source = device.path().to_string_lossy().into_owned();
        let by_kernel = Options { block_device: true, source, ..fuse.clone() };
        match buttress_fuse::mount(fs.clone(), target, &by_kernel) {
            Ok(session) => {
                *fuse = by_kernel;
                return Ok(session);
            }
            Err(error) => tracing::debug!(%error, "the kernel does not mount the device itself"),
        }
        device.take_claim().context(String::new)?;
    }
    let mounted = buttress_fuse::mount(fs.clone(), target, fuse);
    mounted.map_err(std::io::Error::other).context(String::new)
}

/// Prints where a block device is mounted. A server that was killed leaves such a mount.
pub(super) fn note_mounts_of(image: &Path) {
    let Ok(device) = std::fs::metadata(image) else { return };
    if !device.file_type().is_block_device() {
        return;
    }
    let mounts = Listed::all().unwrap_or_default();
    for mount in mounts.iter().filter(|mount| mount.device_number() == device.rdev()) {
        let (image, point) = (names::of_path(image), names::of_path(&mount.point));
        crate::ui::note(format!("{image} is mounted at {point}: run umount {point} first"));
    }
}
