//! The errors of making a volume.

use buttress_format::Profile;

/// An option that is impossible, or a device that failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MakeError {
    /// The device was opened for reading, or cannot be written.
    #[error("{device} cannot be written")]
    ReadOnly {
        /// The device's name.
        device: String,
    },
    /// The label is longer than the superblock's field, or contains a byte that Linux refuses.
    #[error("a label of {len} bytes: at most 255, without newlines and zero bytes")]
    Label {
        /// Bytes of the label.
        len: usize,
    },
    /// The node size is not one of the format's sizes.
    #[error("node size {found}: a power of two from 4096 to 65536 is needed")]
    Nodesize {
        /// The size that was asked for.
        found: u32,
    },
    /// The sector size is not one of the format's sizes.
    #[error("sector size {found}: a power of two from 4096 to 65536 is needed")]
    Sectorsize {
        /// The size that was asked for.
        found: u32,
    },
    /// Nodes are smaller than sectors.
    #[error("nodes of {nodesize} bytes are smaller than sectors of {sectorsize}")]
    NodeBelowSector {
        /// Bytes of a node.
        nodesize: u32,
        /// Bytes of a sector.
        sectorsize: u32,
    },
    /// The device is shorter than the volume.
    #[error("a volume of {size} bytes does not fit on a device of {device_len}")]
    LargerThanDevice {
        /// Bytes asked for.
        size: u64,
        /// Bytes of the device.
        device_len: u64,
    },
    /// The volume is too small for the first chunks.
    #[error(
        "{size} bytes are too few for a volume with these options: at least {least} are needed"
    )]
    TooSmall {
        /// Bytes of the volume asked for.
        size: u64,
        /// The smallest size in bytes that works.
        least: u64,
    },
    /// Parity in mixed block groups.
    #[error(
        "{profile} is not written in mixed block groups: choose one of single, dup, raid0, raid1, raid1c3, \
         raid1c4, raid10"
    )]
    Parity {
        /// The requested profile.
        profile: Profile,
    },
    /// Parity together with the stripe tree, of which no released Linux has the rules.
    #[error("{profile} is impossible with raid-stripe-tree: choose a profile without parity")]
    StripeTree {
        /// The requested profile.
        profile: Profile,
    },
    /// A profile that needs more devices than were given.
    #[error("{profile} needs at least {needs} devices, and {devices} were given")]
    TooFewDevices {
        /// The requested profile.
        profile: Profile,
        /// Devices that it needs.
        needs: usize,
        /// Devices given.
        devices: usize,
    },
    /// Mixed block groups with one profile for data and another for metadata.
    #[error("mixed block groups have one profile for data and metadata")]
    MixedProfiles,
    /// Linux reads mixed block groups only if nodes have the size of a sector.
    #[error("mixed block groups need nodes of {sectorsize} bytes, as sectors have, not of {found}")]
    MixedNodesize {
        /// The size that was asked for.
        found: u32,
        /// Bytes of a sector.
        sectorsize: u32,
    },
    /// No device was given.
    #[error("no device given")]
    NoDevices,
    /// A feature that is unknown, or is not optional for a new volume.
    #[error("unknown feature `{name}`; known: {known}")]
    UnknownFeature {
        /// The name as the caller wrote it.
        name: String,
        /// The names that can be chosen, separated by blanks.
        known: String,
    },
    /// A feature needs another feature that is off.
    #[error("feature {feature} needs {needs}")]
    FeatureNeeds {
        /// The feature that is on.
        feature: &'static str,
        /// The feature that is off.
        needs: &'static str,
    },
    /// The sizes of the first trees did not become stable, which is a bug of this program.
    #[error("the first trees did not settle in {rounds} rounds")]
    Unsettled {
        /// Rounds tried.
        rounds: u32,
    },
    /// Content is kept, but the options ask for several devices, mixed block groups, or another
    /// profile than single.
    #[error("a volume around content has one device, and chunks of the profile single")]
    KeptOptions,
    /// Content is kept, and no free range between kept ranges has room for the first trees.
    #[error("no {needed} free bytes lie together")]
    NoGap {
        /// Bytes of the range that is needed.
        needed: u64,
    },
    /// The device failed.
    #[error("writing the new volume")]
    Device(#[from] buttress_block::Error),
}
