//! Figures about a whole volume.

use buttress_format::{DevStats, DeviceId, DeviceItem, Generation, Superblock, TreeId};
use buttress_txn::Usage;
use buttress_volume::{DeviceTrust, Uuid};

/// The result of `statfs`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatFs {
    /// Unit of the counts below, in bytes.
    pub block_size: u32,
    /// Size of the volume, in blocks.
    pub blocks: u64,
    /// Blocks that are not in use.
    pub blocks_free: u64,
    /// Blocks that data may still use, without metadata's share.
    pub blocks_available: u64,
    /// Longest name, in bytes.
    pub name_max: u32,
    /// Identifies the mounted subvolume.
    pub fsid: u64,
}

/// One subvolume, as `ROOT_ITEM` and `ROOT_REF` describe it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubvolumeInfo {
    /// The subvolume's tree.
    pub tree: TreeId,
    /// The tree with the subvolume's name. `None` for the top level.
    pub parent: Option<TreeId>,
    /// The subvolume's path below the top level. Empty for the top level.
    pub path: Vec<u8>,
    /// Last transaction that changed the subvolume.
    pub generation: Generation,
    /// Whether the subvolume refuses changes.
    pub read_only: bool,
    /// The subvolume's uuid.
    pub uuid: Uuid,
    /// Uuid of the source if this subvolume was made as a snapshot.
    pub parent_uuid: Option<Uuid>,
}

/// One device of a mounted volume.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// The device's number.
    pub id: DeviceId,
    /// The device's name, as the caller gave it.
    pub name: String,
    /// Length of the whole device in bytes, even if the volume uses less.
    pub len: u64,
    /// Whether the device gets longer when a larger size is asked for. Such a device does not
    /// shrink.
    pub can_grow: bool,
    /// The device's item, with its sizes.
    pub item: DeviceItem,
    /// The trust in the device's data.
    pub trust: DeviceTrust,
    /// The device's error counts.
    pub stats: DevStats,
}

/// Information about a mounted volume for an operator.
#[derive(Clone, Debug)]
pub struct Info {
    /// The superblock, as it was read at mount.
    pub superblock: Superblock,
    /// The generation of the running transaction.
    pub generation: Generation,
    /// Space by kind.
    pub usage: Usage,
    /// Every subvolume that has a name, the top level first.
    pub subvolumes: Vec<SubvolumeInfo>,
}
