//! What can be asked of a volume as a whole, as plain data that processes send each other.
//!
//! # Invariants
//!
//! - **O1** Nothing here acts. `crate::execute` carries an order out; `crate::client` finds the
//!   process that does.

mod subvolume;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::names;

pub(crate) use subvolume::{Act, Shown, Spot};

/// What is asked for, in the words of the command line. Paths are whole ones.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Order {
    BalanceStart {
        data: Option<String>,
        metadata: Option<String>,
        system: Option<String>,
        force: bool,
    },
    BalanceResume,
    BalancePause,
    BalanceCancel,
    BalanceStatus,
    /// Make all that programs have written part of a commit, for a verb that then looks past the
    /// lock of the mount.
    Commit,
    DeviceAdd {
        #[serde(with = "names::path")]
        new: PathBuf,
        force: bool,
    },
    DeviceRemove {
        called: String,
    },
    DeviceReplace {
        called: String,
        #[serde(with = "names::path")]
        new: PathBuf,
        force: bool,
    },
    DeviceStats {
        reset: bool,
    },
    Fstrim {
        offset: u64,
        length: u64,
        minimum: u64,
    },
    Remount {
        read_only: bool,
    },
    Resize {
        size: String,
    },
    /// How full the volume is.
    Room,
    Scrub {
        resume: bool,
        read_only: bool,
        #[serde(default)]
        hold_groups: bool,
        #[serde(default, with = "names::path_or_none")]
        state: Option<PathBuf>,
    },
    Subvolume(Act),
}

impl Order {
    /// Whether it reads or moves the volume as a whole, so that it begins with a commit. Others
    /// only say how far something is, or begin with what they need themselves.
    pub(crate) fn begins_with_commit(&self) -> bool {
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
            | Self::Scrub { .. } => true,
            Self::BalancePause
            | Self::BalanceCancel
            | Self::BalanceStatus
            | Self::DeviceStats { .. }
            | Self::Remount { .. }
            | Self::Subvolume(_) => false,
        }
    }
}

/// How far an order is, for a bar.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Step {
    /// Bytes.
    pub done: u64,
    pub total: u64,
    /// What else there is to say.
    pub text: String,
}

/// Is told how far an order is, and says whether to go on.
pub(crate) type Watch<'w> = &'w mut dyn FnMut(&Step) -> bool;
