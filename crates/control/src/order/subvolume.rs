//! Requests about subvolumes, and their results: plain data.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A place in a volume.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Spot {
    /// Its path.
    pub path: Vec<u8>,
    /// Whether the path begins at the top of the mount instead of the default subvolume.
    pub is_mounted: bool,
    /// Whether the path of a mount begins at the top level, whatever subvolume the mount shows.
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
        /// Answer only after all space of the subvolume is freed.
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

/// A result to show, for scripts and for people.
#[derive(Debug, Serialize, Deserialize)]
pub struct Shown {
    /// As JSON.
    pub document: Value,
    /// As lines.
    pub lines: Vec<String>,
}
