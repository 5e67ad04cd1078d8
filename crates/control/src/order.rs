//! What can be asked of a volume as a whole, as plain data that processes send each other.
//!
//! # Invariants
//!
//! - **O1** Nothing here acts. `crate::execute` carries an order out; `crate::client` finds the
//!   process that does.

mod subvolume;
mod survey;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::names;

pub use subvolume::{Act, Shown, Spot};
pub use survey::Wish;

/// What is asked for, in the words of the command line. Paths are whole ones.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// Move block groups.
    BalanceStart {
        /// Filters for data, as `btrfs balance` has them.
        data: Option<String>,
        /// Filters for metadata.
        metadata: Option<String>,
        /// Filters for the chunk tree's groups.
        system: Option<String>,
        /// Go on where fewer copies would be left.
        force: bool,
    },
    /// Go on with a balance that was paused.
    BalanceResume,
    /// Have a balance stop behind the group that it is at.
    BalancePause,
    /// Forget a paused balance.
    BalanceCancel,
    /// Say how far a balance is.
    BalanceStatus,
    /// Make all that programs have written part of a commit, for a verb that then looks past the
    /// lock of the mount.
    Commit,
    /// Make a device part of the volume.
    DeviceAdd {
        /// The device.
        #[serde(with = "names::path")]
        new: PathBuf,
        /// Take it though something is on it.
        force: bool,
    },
    /// Move everything off a device.
    DeviceRemove {
        /// The device, as a path or its number.
        called: String,
    },
    /// Put a device in the place of another.
    DeviceReplace {
        /// The old one, as a path or its number.
        called: String,
        /// The new one.
        #[serde(with = "names::path")]
        new: PathBuf,
        /// Take it though something is on it.
        force: bool,
    },
    /// Say how often devices failed.
    DeviceStats {
        /// Set the counters to zero.
        reset: bool,
    },
    /// Tell the devices what is free.
    Fstrim {
        /// Bytes to pass over.
        offset: u64,
        /// Bytes to look at.
        length: u64,
        /// Bytes that a free range needs.
        minimum: u64,
    },
    /// Give the volume another label.
    Label {
        /// Its bytes; none take the label away.
        label: Vec<u8>,
    },
    /// Change what a mount allows.
    Remount {
        /// Whether to refuse writes.
        read_only: bool,
    },
    /// Give a device another size.
    Resize {
        /// As `btrfs filesystem resize` takes it.
        size: String,
    },
    /// How full the volume is.
    Room,
    /// Show or set what a file, a directory or a subvolume says about itself.
    Property {
        /// Which.
        at: Spot,
        /// What to do.
        act: PropertyAct,
    },
    /// Make subvolumes from the streams that come with the order.
    Receive {
        /// The directory for them.
        dir: Spot,
    },
    /// Read every copy of everything.
    Scrub {
        /// Go on where the last one ended.
        resume: bool,
        /// Mend nothing.
        read_only: bool,
        /// Keep writers out of each group that it reads.
        #[serde(default)]
        hold_groups: bool,
        /// The file that keeps its state.
        #[serde(default, with = "names::path_or_none")]
        state: Option<PathBuf>,
    },
    /// Write a subvolume to the stream that comes with the order.
    Send(Sending),
    /// Work on subvolumes.
    Subvolume(Act),
    /// Say what files, folders or the whole volume take on the devices.
    Survey {
        /// Of which file or folder.
        at: Spot,
        /// What to say.
        wish: Wish,
    },
}

impl Order {
    /// Whether it reads or moves the volume as a whole, so that it begins with a commit. Others
    /// only say how far something is, or begin with what they need themselves.
    pub fn begins_with_commit(&self) -> bool {
        match self {
            Self::BalanceStart { .. }
            | Self::BalanceResume
            | Self::Commit
            | Self::DeviceAdd { .. }
            | Self::DeviceRemove { .. }
            | Self::DeviceReplace { .. }
            | Self::Fstrim { .. }
            | Self::Resize { .. }
            | Self::Room
            | Self::Scrub { .. }
            | Self::Send(_)
            | Self::Survey { .. } => true,
            Self::BalancePause
            | Self::BalanceCancel
            | Self::BalanceStatus
            | Self::DeviceStats { .. }
            | Self::Label { .. }
            | Self::Property { .. }
            | Self::Receive { .. }
            | Self::Remount { .. }
            | Self::Subvolume(_) => false,
        }
    }
}

/// What is done with properties.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PropertyAct {
    /// Show one, or all that are set.
    Get {
        /// Its name.
        name: Option<String>,
    },
    /// Set one.
    Set {
        /// Its name.
        name: String,
        /// Nothing takes it away.
        value: String,
        /// Clear `ro` of what was received.
        force: bool,
    },
    /// Say which there are.
    List,
}

/// What is sent, and how.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sending {
    /// The subvolume.
    pub subvolume: Spot,
    /// One that the receiver has, and that differences are told from.
    pub parent: Option<Spot>,
    /// Others that the receiver has.
    pub clone_sources: Vec<Spot>,
    /// Version of the stream.
    pub proto: u32,
    /// Whether compressed data goes as it is.
    pub compressed_data: bool,
    /// Whether the stream says where data is in its place.
    pub no_data: bool,
}

/// How far an order is, for a bar.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Step {
    /// Bytes.
    pub done: u64,
    /// Bytes in all.
    pub total: u64,
    /// What else there is to say.
    pub text: String,
}

/// Is told how far an order is, and says whether to go on.
pub type Watch<'w> = &'w mut dyn FnMut(&Step) -> bool;
