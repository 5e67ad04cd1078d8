//! What can be asked about subvolumes, and what is shown of them: plain data.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A place in a volume.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Spot {
    /// The way to it.
    pub path: Vec<u8>,
    /// It begins at the top of what is mounted, not at the default subvolume's.
    pub is_mounted: bool,
    /// Of what is mounted the top is the top level, whatever subvolume is shown.
    #[serde(default)]
    pub is_from_top: bool,
    /// As the caller wrote it.
    pub text: String,
}

/// What is to be done.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Act {
    Create { at: Spot, uid: u32, gid: u32 },
    Snapshot { source: Spot, target: Spot, read_only: bool },
    Delete { at: Spot, wait: bool },
    List,
    Show { at: Spot },
    GetDefault,
    SetDefault { at: Spot },
    SetDefaultId { id: u64 },
}

/// What is to be shown: to scripts, and to people.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Shown {
    pub document: Value,
    pub lines: Vec<String>,
}
