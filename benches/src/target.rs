//! The file systems that are measured, by name.
//!
//! # What must hold
//!
//! - A word of the command line names at most one target.

use std::fmt;
use std::path::Path;

/// A file system under measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// Buttress as a library, on the image itself.
    Library,
    /// Buttress as a library, on a loop device.
    Loop,
    /// Buttress mounted through FUSE.
    Mount,
    /// Buttress mounted through FUSE, on a loop device.
    MountLoop,
    /// The kernel's btrfs on a loop device.
    Btrfs,
    /// The kernel's ext4 on a loop device.
    Ext4,
    /// ext4 through FUSE.
    Fuse2fs,
    /// A FUSE server that answers from memory.
    Empty,
    /// A loop device with nothing on it.
    Raw,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Library => "buttress library",
            Self::Loop => "buttress on loop",
            Self::Mount => "buttress mount",
            Self::MountLoop => "mount on loop",
            Self::Btrfs => "kernel btrfs",
            Self::Ext4 => "kernel ext4",
            Self::Fuse2fs => "fuse2fs",
            Self::Empty => "empty server",
            Self::Raw => "device",
        })
    }
}

impl Target {
    /// Parses the word that names a target on a command line.
    ///
    /// # Errors
    ///
    /// When there is no such target.
    pub fn parse(name: &str) -> Result<Self, String> {
        Ok(match name {
            "library" => Self::Library,
            "loop" => Self::Loop,
            "mount" => Self::Mount,
            "mount-loop" => Self::MountLoop,
            "btrfs" => Self::Btrfs,
            "ext4" => Self::Ext4,
            "fuse2fs" => Self::Fuse2fs,
            other => return Err(format!("no target {other}")),
        })
    }

    /// Whether the target uses a loop device, which only root has.
    pub(crate) fn needs_loop(self) -> bool {
        matches!(self, Self::Loop | Self::MountLoop | Self::Btrfs | Self::Ext4 | Self::Raw)
    }

    /// Whether the target is a mount of ours.
    pub(crate) fn is_mount(self) -> bool {
        matches!(self, Self::Mount | Self::MountLoop)
    }

    /// Whether the target is used through the library, not through a folder.
    pub(crate) fn is_library(self) -> bool {
        matches!(self, Self::Library | Self::Loop)
    }
}

/// Whether there are loop devices, and the right to use them.
pub(crate) fn has_loops() -> bool {
    rustix::process::geteuid().is_root() && Path::new("/dev/loop-control").exists()
}
