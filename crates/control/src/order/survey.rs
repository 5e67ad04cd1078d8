//! The reports of a survey about the space that files take on the devices, as plain data.

use serde::{Deserialize, Serialize};

use super::PathInVolume;

/// A request to a survey.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SurveyRequest {
    /// A row for the place and for each folder below it, down to some depth.
    Folders {
        /// Levels below the place.
        depth: usize,
        /// Stay in the subvolume of the place.
        stay: bool,
    },
    /// A row for each file and folder, as `btrfs filesystem du` counts.
    Shares,
    /// Sums by kind of compression.
    Packing {
        /// Stay in the subvolume of the place.
        stay: bool,
    },
    /// Files of the subvolume of the place that changed since a generation.
    FindNew {
        /// The generation. The changes of this and later generations are reported.
        since: u64,
    },
    /// About how many bytes a stream of the subvolume of the place has.
    ToSend {
        /// The subvolume that the receiver has already.
        parent: Option<PathInVolume>,
        /// Leave compressed data compressed.
        packed: bool,
    },
    /// The places of everything in the volume.
    Map,
    /// The files that hold the byte at an address, and the subvolume of the place.
    Holders {
        /// The address in the volume.
        address: u64,
        /// Report also files that hold only other parts of the byte's extent.
        any_part: bool,
    },
    /// Where the parts of the file lie.
    Parts,
    /// The names of an inode in the subvolume of the place.
    Names {
        /// Its number.
        ino: u64,
    },
}
