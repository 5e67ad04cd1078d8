//! One mounted volume.

use std::sync::Arc;

use buttress_block::Device;

use crate::attr::InodeId;
use crate::error::{Error, Result};
use crate::inode::Inode;
use crate::options::MountOptions;
use crate::statfs::{Info, StatFs};

/// One mounted volume. Cheap to clone; the last clone that drops without [`Filesystem::close`] still
/// commits, but has nobody to tell about a failure.
#[derive(Clone, Debug)]
pub struct Filesystem {
    shared: Arc<()>,
}

impl Filesystem {
    /// Mounts the volume that lies on `devices`.
    ///
    /// # Errors
    ///
    /// `Corrupt`, `Unsupported`, `Invalid` for options that do not fit the volume, `Io`.
    pub fn open(_devices: Vec<Arc<dyn Device>>, _options: MountOptions) -> Result<Self> {
        Err(Error::unsupported("open"))
    }

    /// The directory at the top of the mounted subvolume.
    #[must_use]
    pub fn root(&self) -> Inode {
        unreachable!("no filesystem can be had yet: {:?}", self.shared)
    }

    /// Finds an inode by number.
    ///
    /// # Errors
    ///
    /// `NotFound`.
    pub fn inode(&self, _id: InodeId) -> Result<Inode> {
        Err(Error::unsupported("inode"))
    }

    /// Follows a path from the root, names only: no symbolic link is followed, `.` and `..` are understood.
    ///
    /// # Errors
    ///
    /// `NotFound`, `NotDir`.
    pub fn resolve(&self, _path: impl AsRef<[u8]>) -> Result<Inode> {
        Err(Error::unsupported("resolve"))
    }

    /// Makes everything done before the call durable.
    ///
    /// # Errors
    ///
    /// `Io`, `NoSpace`, `Aborted`.
    pub fn sync(&self) -> Result<()> {
        Err(Error::unsupported("sync"))
    }

    /// Sizes of the whole volume.
    ///
    /// # Errors
    ///
    /// None today; the door must be ready for some.
    pub fn statfs(&self) -> Result<StatFs> {
        Err(Error::unsupported("statfs"))
    }

    /// Why nothing can be changed, if nothing can.
    #[must_use]
    pub fn read_only_reason(&self) -> Option<String> {
        None
    }

    /// What an operator asks about the volume.
    ///
    /// # Errors
    ///
    /// What reading the root tree met.
    pub fn info(&self) -> Result<Info> {
        Err(Error::unsupported("info"))
    }

    /// Writes everything, commits, stops the threads. Later calls through other clones fail.
    ///
    /// # Errors
    ///
    /// What the last commit met; the volume is closed all the same.
    pub fn close(self) -> Result<()> {
        Err(Error::unsupported("close"))
    }
}
