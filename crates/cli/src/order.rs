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
