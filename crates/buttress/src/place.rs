//! Devices by name: files and block devices, and with the feature `stores` also parts of a disk and
//! places in a store of objects.
//!
//! # Invariants
//!
//! - **NP1** `Filesystem::close` releases each device that this module opened, and returns an error
//!   of the release. A place in a store acknowledges the last commit only at its release.

use std::path::Path;
use std::sync::Arc;

use buttress_block::{Device, OpenOptions};

use crate::error::{Error, ErrorKind, Result};

#[cfg(feature = "stores")]
use buttress_remote::Opened;

/// A device that was opened by its name, until the volume is closed.
#[cfg(not(feature = "stores"))]
#[derive(Clone, Debug)]
pub(crate) struct Named(Arc<buttress_block::FileDevice>);

/// A device that was opened by its name, until the volume is closed.
#[cfg(feature = "stores")]
#[derive(Clone, Debug)]
pub(crate) struct Named(Opened);

#[cfg(not(feature = "stores"))]
impl Named {
    pub(crate) fn open(path: &Path, how: OpenOptions, _memory: u64) -> Result<Self> {
        let opened = buttress_block::FileDevice::open(path, how);
        opened.map(|device| Self(Arc::new(device))).map_err(|error| of_device(path, error))
    }

    #[cfg(feature = "mkfs")]
    pub(crate) fn create(path: &Path, len: u64, _memory: u64) -> Result<Self> {
        let made = buttress_block::FileDevice::create(path, len);
        made.map(|device| Self(Arc::new(device))).map_err(|error| of_device(path, error))
    }

    pub(crate) fn device(&self) -> Arc<dyn Device> {
        Arc::clone(&self.0) as Arc<dyn Device>
    }

    pub(crate) fn release(&self) -> Result<()> {
        self.0.unlock();
        Ok(())
    }

    /// The memory that is left for the file system.
    pub(crate) fn memory_left(_paths: &[&Path], memory: u64) -> u64 {
        memory
    }

    /// Refuses devices that have no common commit. Files and block devices always have one.
    pub(crate) fn expect_together(_paths: &[&Path], _writes: bool) -> Result<()> {
        Ok(())
    }
}

#[cfg(feature = "stores")]
impl Named {
    pub(crate) fn open(path: &Path, how: OpenOptions, memory: u64) -> Result<Self> {
        let opened = buttress_remote::open(path, how, &asked(memory));
        opened.map(Self).map_err(|error| of_place("open", path, error))
    }

    #[cfg(feature = "mkfs")]
    pub(crate) fn create(path: &Path, len: u64, memory: u64) -> Result<Self> {
        // Making a place takes the volume that is there from its writer.
        if buttress_remote::is_remote(path) && Self::open(path, OpenOptions::READ, memory).is_ok() {
            let why = "there is a volume already";
            return Err(Error::new(ErrorKind::AlreadyExists, "create", Some(path), why));
        }
        let made = buttress_remote::create(path, len, &asked(memory));
        made.map(Self).map_err(|error| of_place("create", path, error))
    }

    pub(crate) fn device(&self) -> Arc<dyn Device> {
        self.0.device()
    }

    pub(crate) fn release(&self) -> Result<()> {
        let name = self.0.device().name();
        self.0.release().map_err(|error| of_place("close", Path::new(&name), error))
    }

    /// The memory that is left for the file system, of what the volume has.
    pub(crate) fn memory_left(paths: &[&Path], memory: u64) -> u64 {
        let is_remote = paths.iter().any(|path| buttress_remote::is_remote(path));
        if is_remote { memory.saturating_sub(store_part(memory)) } else { memory }
    }

    /// Refuses several devices if one of them is in a store, because they have no common commit.
    pub(crate) fn expect_together(paths: &[&Path], writes: bool) -> Result<()> {
        let first = paths.first().copied().unwrap_or(Path::new(""));
        let checked = buttress_remote::check_alone(paths.iter().copied(), writes);
        checked.map_err(|error| of_place("open", first, error))
    }
}

/// The part of a volume's memory that a place in a store has: for its map, a read cache, and
/// content that is on its way, which alone takes two objects.
#[cfg(feature = "stores")]
fn store_part(memory: u64) -> u64 {
    (memory / 2).max(16 << 20)
}

/// An option `memory=` in the name of the place takes precedence.
#[cfg(feature = "stores")]
fn asked(memory: u64) -> buttress_remote::OpenRequest {
    let options = vec![("memory".to_owned(), store_part(memory).to_string())];
    buttress_remote::OpenRequest { options, ..Default::default() }
}

fn of_device(path: &Path, error: buttress_block::Error) -> Error {
    use std::error::Error as _;
    let io = error.source().and_then(|source| source.downcast_ref::<std::io::Error>());
    let kind = match io.map(std::io::Error::kind) {
        Some(std::io::ErrorKind::NotFound) => ErrorKind::NotFound,
        Some(std::io::ErrorKind::PermissionDenied) => ErrorKind::PermissionDenied,
        _ if error.is_in_use() => ErrorKind::Busy,
        _ => ErrorKind::Io,
    };
    Error::new(kind, "open", Some(path), error)
}

#[cfg(feature = "stores")]
fn of_place(operation: &'static str, path: &Path, error: buttress_remote::Error) -> Error {
    use buttress_remote::Error as E;
    let kind = match error {
        E::Block(error) => return of_device(path, error),
        E::NoVolume { .. } => ErrorKind::NotFound,
        E::OtherSize { .. } => ErrorKind::AlreadyExists,
        E::Busy { .. } => ErrorKind::Busy,
        E::Place { .. } | E::Mixed { .. } => ErrorKind::InvalidInput,
        E::Damaged { .. } => ErrorKind::Corrupt,
        E::Version { .. } | E::Unsafe { .. } => ErrorKind::Unsupported,
        E::Encrypted { .. } => ErrorKind::PermissionDenied,
        E::Fenced { .. } => ErrorKind::ReadOnly,
        _ => ErrorKind::Io,
    };
    Error::new(kind, operation, Some(path), error)
}
