//! What can be asked about subvolumes, and what is shown of them: plain data.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A place in a volume.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Spot {
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
pub enum Act {
    /// Make an empty subvolume.
    Create {
        /// Where.
        at: Spot,
        /// The user that owns it.
        uid: u32,
        /// The group that owns it.
        gid: u32,
    },
    /// Make a snapshot.
    Snapshot {
        /// What is copied.
        source: Spot,
        /// Its place, or a directory for it.
        target: Spot,
        /// Whether it refuses changes.
        read_only: bool,
    },
    /// Delete a subvolume.
    Delete {
        /// Which.
        at: Spot,
        /// Answer when all that it held is given back.
        wait: bool,
    },
    /// List all subvolumes.
    List,
    /// Say everything about one.
    Show {
        /// Which.
        at: Spot,
    },
    /// Say which deleted ones still hold space.
    Dying,
    /// Say which is mounted by default.
    GetDefault,
    /// Have another mounted by default.
    SetDefault {
        /// Which.
        at: Spot,
    },
    /// The same, by number.
    SetDefaultId {
        /// Its number.
        id: u64,
    },
}

/// What is to be shown: to scripts, and to people.
#[derive(Debug, Serialize, Deserialize)]
pub struct Shown {
    /// As JSON.
    pub document: Value,
    /// As lines.
    pub lines: Vec<String>,
}
