//! Errors that prevent the restoration of any file.

/// The result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failure of the whole restoration. Damage of a single file is in its entry of the report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No device was given.
    #[error("no device was given")]
    NoDevices,
    /// Neither a superblock nor a node of a tree was found.
    #[error("there is no superblock and no tree node of btrfs on these devices")]
    NothingFound,
    /// Devices of several volumes were given.
    #[error("{device} belongs to another filesystem than the first device")]
    Foreign {
        /// The device.
        device: String,
    },
    /// No root can be read, and the remaining nodes hold no files.
    #[error("no tree with files was found")]
    NoFiles,
    /// The requested root does not exist.
    #[error("there is no root {0}: --list-roots shows those that there are")]
    NoRoot(u64),
    /// The requested node does not exist.
    #[error("there is no node of a subvolume at {0}")]
    NoTree(u64),
    /// The damage cannot be repaired.
    #[error("{0}")]
    NotRepairable(&'static str),
    /// A device cannot be written.
    #[error("{device} cannot be written")]
    Device {
        /// The device.
        device: String,
        /// The error of its driver.
        source: buttress_block::Error,
    },
    /// The requested subvolume does not exist.
    #[error("there is no subvolume {0}")]
    NoSubvolume(String),
    /// The folder for the files cannot be used.
    #[error("{path}")]
    Target {
        /// The folder.
        path: String,
        /// The error of the system.
        source: std::io::Error,
    },
}
