//! Requests to a volume as a whole, as plain data that processes send each other.
//!
//! # Invariants
//!
//! - **O1** This module only describes orders. `crate::execute` carries them out. `crate::client`
//!   finds the process that has to carry out an order.

mod quota;
mod subvolume;
mod survey;
mod verity;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::names;

pub use quota::{Group, QuotaAct, Quotas, group as quota_group};
pub use subvolume::{Act, PathInVolume, Shown};
pub use survey::SurveyRequest;
pub use verity::{VerityAct, VerityTree};

/// An order, named as on the command line. Paths are absolute.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// Move the content of block groups.
    BalanceStart {
        /// Filters for data, in the syntax of `btrfs balance`.
        data: Option<String>,
        /// Filters for metadata.
        metadata: Option<String>,
        /// Filters for the chunk tree's groups.
        system: Option<String>,
        /// Proceed even if fewer copies of metadata would be left.
        force: bool,
    },
    /// Resume a paused balance.
    BalanceResume,
    /// Pause a balance after the block group that it is moving.
    BalancePause,
    /// Forget a paused balance.
    BalanceCancel,
    /// Report the progress of a balance.
    BalanceStatus,
    /// Commit all that programs have written, for a verb that then reads the device despite the
    /// lock of the mount.
    Commit,
    /// Write fragmented files anew.
    Defragment {
        /// The file, or the directory with files.
        at: PathInVolume,
        /// How to write them.
        how: Defragmenting,
    },
    /// Make a device part of the volume.
    DeviceAdd {
        /// The device.
        #[serde(with = "names::path")]
        new: PathBuf,
        /// Use the device even if it holds data.
        force: bool,
        /// Discard the whole device first.
        #[serde(default)]
        discard: bool,
    },
    /// Move everything off a device.
    DeviceRemove {
        /// The device, as a path or its number.
        called: String,
    },
    /// Put a device in the place of another.
    DeviceReplace {
        /// The old device, as a path or its number.
        called: String,
        /// The new device.
        #[serde(with = "names::path")]
        new: PathBuf,
        /// Use the device even if it holds data.
        force: bool,
    },
    /// Stop removing a device.
    DeviceRemoveCancel,
    /// Stop replacing a device.
    ReplaceCancel,
    /// Report the last replacement of a device.
    ReplaceStatus,
    /// Report the error counters of the devices.
    DeviceStats {
        /// Set the counters to zero.
        reset: bool,
    },
    /// Discard free space on the devices.
    Fstrim {
        /// Bytes to skip.
        offset: u64,
        /// Bytes to examine after the skipped bytes.
        length: u64,
        /// Length of the shortest free range to discard, in bytes.
        minimum: u64,
    },
    /// Give the volume another label.
    Label {
        /// The bytes of the label. If there are none, the label is removed.
        label: Vec<u8>,
    },
    /// Change whether a mount allows writes.
    Remount {
        /// Whether to refuse writes.
        read_only: bool,
    },
    /// Give a device another size.
    Resize {
        /// The new size, in the syntax of `btrfs filesystem resize`.
        size: String,
    },
    /// Stop giving a device another size.
    ResizeCancel,
    /// Report how full the volume is.
    Room,
    /// Show or set properties of a file, a directory or a subvolume.
    Property {
        /// The file, directory or subvolume.
        at: PathInVolume,
        /// What to do.
        act: PropertyAct,
    },
    /// Work on quotas.
    Quota(QuotaAct),
    /// Make subvolumes from the streams that come with the order.
    Receive {
        /// The directory for the new subvolumes.
        dir: PathInVolume,
        /// The number of failed commands at which receiving ends; 0 for no limit.
        #[serde(default = "one")]
        max_errors: u64,
    },
    /// Read every copy of all data and metadata.
    Scrub {
        /// Go on where an interrupted scrub has ended.
        resume: bool,
        /// Repair nothing.
        read_only: bool,
        /// Keep each block group read-only while its data is read.
        #[serde(default)]
        hold_groups: bool,
        /// The folder of the state file. `None` is the default folder.
        #[serde(default, with = "names::path_or_none")]
        state: Option<PathBuf>,
    },
    /// Stop the running scrubs.
    ScrubCancel,
    /// Report the status of the running or last scrub.
    ScrubStatus {
        /// The folder of the state file. `None` is the default folder.
        #[serde(default, with = "names::path_or_none")]
        state: Option<PathBuf>,
    },
    /// Write a subvolume to the stream that comes with the order.
    Send(Sending),
    /// Work on subvolumes.
    Subvolume(Act),
    /// Make a file for the kernel's swap space.
    SwapFile {
        /// The file. It must not exist.
        at: PathInVolume,
        /// The user that owns it.
        uid: u32,
        /// The group that owns it.
        gid: u32,
        /// Its length in bytes, a whole number of pages.
        size: u64,
        /// The UUID of the swap space.
        uuid: [u8; 16],
    },
    /// Report how much space files, folders or the whole volume take on the devices.
    Survey {
        /// The file or folder.
        at: PathInVolume,
        /// What to report.
        #[serde(rename = "wish")]
        request: SurveyRequest,
    },
    /// Work on fs-verity of a file.
    Verity {
        /// The file.
        at: PathInVolume,
        /// What to do.
        act: VerityAct,
    },
}

impl Order {
    /// Whether the order begins with a commit. Such an order reads committed trees, moves data, or
    /// adds or removes device space. Other orders need no commit before them, or commit by
    /// themselves.
    pub fn begins_with_commit(&self) -> bool {
        match self {
            Self::BalanceStart { .. }
            | Self::BalanceResume
            | Self::Commit
            | Self::Defragment { .. }
            | Self::DeviceAdd { .. }
            | Self::DeviceRemove { .. }
            | Self::DeviceReplace { .. }
            | Self::Fstrim { .. }
            // A quota order counts all data that programs have written so far.
            | Self::Quota(_)
            | Self::Resize { .. }
            | Self::Room
            | Self::Scrub { .. }
            | Self::Send(_)
            | Self::Survey { .. } => true,
            Self::BalancePause
            | Self::BalanceCancel
            | Self::BalanceStatus
            | Self::DeviceRemoveCancel
            | Self::DeviceStats { .. }
            | Self::Label { .. }
            | Self::Property { .. }
            | Self::Receive { .. }
            | Self::Remount { .. }
            | Self::ReplaceCancel
            | Self::ResizeCancel
            | Self::ScrubCancel
            | Self::ScrubStatus { .. }
            | Self::ReplaceStatus
            | Self::Subvolume(_)
            | Self::SwapFile { .. }
            | Self::Verity { .. } => false,
        }
    }
}

/// Which parts of files to defragment, and how to write them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Defragmenting {
    /// Take all files below a directory. Without it, a directory is refused.
    pub recursive: bool,
    /// A codec for all rewritten data, as in `zstd:9`. `None` keeps the settings of each file.
    pub codec: Option<String>,
    /// The first byte in each file.
    pub start: u64,
    /// Number of bytes in each file. `None` is up to the end of the file.
    pub len: Option<u64>,
    /// Extents of at least this length, in bytes, stay as they are.
    pub extent_bytes: u64,
    /// Write each file to the devices before the next file.
    pub flush: bool,
    /// List the examined files in the answer.
    pub lists: bool,
}

/// An action on properties.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PropertyAct {
    /// Show one property, or all that are set.
    Get {
        /// Its name.
        name: Option<String>,
    },
    /// Set a property.
    Set {
        /// Its name.
        name: String,
        /// The value; an empty value removes the property.
        value: String,
        /// Allow clearing `ro` of a received subvolume.
        force: bool,
    },
    /// List the known properties.
    List,
}

/// A subvolume to send, and the options of its stream.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sending {
    /// The subvolume.
    pub subvolume: PathInVolume,
    /// A subvolume that the receiver has; the stream contains the differences from that subvolume.
    pub parent: Option<PathInVolume>,
    /// Further subvolumes that the receiver has. The stream may clone data from them.
    pub clone_sources: Vec<PathInVolume>,
    /// Version of the stream.
    pub proto: u32,
    /// Whether compressed data is sent compressed.
    pub compressed_data: bool,
    /// Whether the stream names the changed ranges only, without their data.
    pub no_data: bool,
    /// Whether the stream continues a stream of other subvolumes.
    #[serde(default)]
    pub continues: bool,
    /// Whether the stream stays open for other subvolumes.
    #[serde(default)]
    pub stays_open: bool,
}

/// An older client does not say how many commands may fail: the first one ends its order.
fn one() -> u64 {
    1
}

/// Progress of an order, for a progress bar.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Step {
    /// Bytes.
    pub done: u64,
    /// Bytes in all.
    pub total: u64,
    /// Further text to show.
    pub text: String,
}

/// A callback that gets the progress of an order. It returns whether to continue.
pub type Watch<'w> = &'w mut dyn FnMut(&Step) -> bool;
