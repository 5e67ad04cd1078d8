//! What a survey can report about the space that files take on the devices, as plain data.

use serde::{Deserialize, Serialize};

/// What a survey is to say.
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
        /// The generation. What it and later ones wrote is reported.
        since: u64,
    },
    /// Where everything of the volume lies.
    Map,
    /// The files that hold the byte at an address, and the subvolume of the place.
    Holders {
        /// The address in the volume.
        address: u64,
        /// Also files that hold only other parts of its extent.
        any_part: bool,
    },
    /// The names of an inode in the subvolume of the place.
    Names {
        /// Its number.
        ino: u64,
    },
}
