//! Lets one process at a time mount a volume. Of several processes that begin together, one serves
//! and the others join it.
//!
//! # Invariants
//!
//! - **T1** A process that has the lock of an image either finds a server of the image or becomes
//!   the server.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use buttress_block::LockFile;

/// The lock that a process takes to mount an image. Dropping this value ends the lock.
#[derive(Debug)]
pub struct MountLock {
    _file: LockFile,
}

impl MountLock {
    /// Waits for the lock. Returns `None` at once if there is no folder for the lock.
    pub fn wait(image: &Path) -> Option<Self> {
        let taken = || -> std::io::Result<LockFile> {
            let found = buttress_remote::host_file(image).metadata()?;
            let (device, number) = (found.dev(), found.ino());
            let path = super::folder::folder()?.join(format!("{device:x}-{number:x}.turn"));
            let file = File::options().create(true).append(true).open(path)?;
            LockFile::wait(file)
        };
        let file = taken().inspect_err(|error| {
            tracing::debug!(%error, "mounts of the volume take no turns");
        });
        Some(Self { _file: file.ok()? })
    }
}
