//! Why a volume could not be mounted, or its mount could not be served.

use std::io;
use std::path::PathBuf;

/// Why a volume could not be mounted, served or unmounted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// `/dev/fuse` does not exist: the kernel has no FUSE, or its module is not loaded.
    #[error("/dev/fuse does not exist: load the kernel's fuse module (modprobe fuse)")]
    NoFuse,
    /// `/dev/fuse` exists, but this process may not open it.
    #[error(
        "/dev/fuse may not be opened by this user: give read and write permission on it, or run as root"
    )]
    FuseForbidden(#[source] io::Error),
    /// This user may not mount, and the helper `fusermount3` was not found.
    #[error(
        "mounting without root rights needs fusermount3, which was not found: install the fuse3 package"
    )]
    NoHelper(#[source] io::Error),
    /// The helper refused.
    #[error("fusermount3 could not mount on {}: {message}", target.display())]
    Helper {
        /// The directory to mount on.
        target: PathBuf,
        /// The message of the helper.
        message: String,
    },
    /// The place to mount on is not a directory that can be used.
    #[error("cannot mount on {}", target.display())]
    Target {
        /// The place asked for.
        target: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The target still has the mount of a server that was killed.
    #[error("{} still has a mount without a server: unmount it first (umount, or fusermount3 -u)", target.display())]
    DeadMount {
        /// The place asked for.
        target: PathBuf,
    },
    /// The kernel refused the mount.
    #[error("the kernel refused to mount on {} with options {options}", target.display())]
    Mount {
        /// The directory to mount on.
        target: PathBuf,
        /// The mount options that the kernel got.
        options: String,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// The mount could not be removed.
    #[error("cannot unmount {}", target.display())]
    Unmount {
        /// Where the mount is.
        target: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The exchange of messages with the kernel failed.
    #[error("the kernel's FUSE session failed")]
    Session(#[source] io::Error),
    /// Closing the volume of a block device failed when the kernel ended the mount.
    #[error("closing the volume")]
    Closing(#[source] std::sync::Arc<buttress_fs::Error>),
    /// A mount option has a value that makes no sense.
    #[error("mount option {option} needs {expected}")]
    Option {
        /// The option as it was given.
        option: String,
        /// The values that the option accepts.
        expected: &'static str,
    },
}
