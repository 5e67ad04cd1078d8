//! Requests about subvolumes, and their results: plain data.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A place in a volume.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PathInVolume {
    /// Its path.
    pub path: Vec<u8>,
    /// Whether the path begins at the root of a mount. Otherwise it begins at the default
    /// subvolume.
    pub is_mounted: bool,
    /// Whether the path begins at the top-level subvolume instead, whichever subvolume is mounted
    /// or default.
    #[serde(default)]
    pub is_from_top: bool,
    /// The place as the caller wrote it.
    pub text: String,
}

/// An action on subvolumes.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Act {
    /// Make an empty subvolume.
    Create {
        /// The place of the new subvolume.
        at: PathInVolume,
        /// The user that owns it.
        uid: u32,
        /// The group that owns it.
        gid: u32,
        /// The quota groups that it joins.
        #[serde(default)]
        groups: Vec<u64>,
    },
    /// Make a snapshot.
    Snapshot {
        /// The subvolume to copy.
        source: PathInVolume,
        /// The place of the snapshot, or an existing directory in which the snapshot gets the name
        /// of its source.
        target: PathInVolume,
        /// Whether the snapshot refuses changes.
        read_only: bool,
        /// The quota groups that it joins.
        #[serde(default)]
        groups: Vec<u64>,
    },
    /// Delete a subvolume.
    Delete {
        /// The subvolume.
        at: PathInVolume,
        /// Answer only after all space of the subvolume is freed.
        wait: bool,
    },
    /// List all subvolumes.
    List,
    /// Report everything about one subvolume.
    Show {
        /// The subvolume.
        at: PathInVolume,
    },
    /// Report the number of the subvolume that a place is in.
    Within {
        /// A file or a directory.
        at: PathInVolume,
    },
    /// Report the deleted subvolumes that still take space.
    Dying,
    /// Report which subvolume is mounted by default.
    GetDefault,
    /// Make another subvolume the default one.
    SetDefault {
        /// The subvolume.
        at: PathInVolume,
    },
    /// Make the subvolume with this number the default one.
    SetDefaultId {
        /// The number; 0 is the top level.
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
