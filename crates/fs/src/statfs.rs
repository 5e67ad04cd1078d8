//! Figures about a whole volume.

use buttress_format::{DevStats, DeviceId, DeviceItem, Generation, Superblock, TreeId};
use buttress_txn::Usage;
use buttress_volume::Trust;

/// What `statfs` answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatFs {
    /// Unit of the counts below, in bytes.
    pub block_size: u32,
    /// Size of the volume.
    pub blocks: u64,
    /// Not in use.
    pub blocks_free: u64,
    /// What data may still take, metadata's share set aside.
    pub blocks_available: u64,
    /// Longest name.
    pub name_max: u32,
    /// Identifies the mounted subvolume.
    pub fsid: u64,
}

/// One subvolume, as `ROOT_ITEM` and `ROOT_REF` describe it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubvolumeInfo {
    /// Its tree.
    pub tree: TreeId,
    /// The tree it has a name in, `None` for the top level.
    pub parent: Option<TreeId>,
    /// Its path below the top level; empty for the top level.
    pub path: Vec<u8>,
    /// Last transaction that changed it.
    pub generation: Generation,
    /// Refuses changes.
    pub read_only: bool,
    /// Its own identifier.
    pub uuid: [u8; 16],
    /// What it was a snapshot of; zero if nothing.
    pub parent_uuid: [u8; 16],
}

/// One device of a mounted volume.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// Its number.
    pub id: DeviceId,
    /// As it was given.
    pub name: String,
    /// How long it is, in bytes, whatever the volume uses of it.
    pub len: u64,
    /// Its sizes.
    pub item: DeviceItem,
    /// How far it can be trusted.
    pub trust: Trust,
    /// What it failed at.
    pub stats: DevStats,
}

/// What an operator asks about a mounted volume.
#[derive(Clone, Debug)]
pub struct Info {
    /// As it was read at mount.
    pub superblock: Superblock,
    /// The running transaction.
    pub generation: Generation,
    /// Space by kind.
    pub usage: Usage,
    /// Every subvolume that has a name, the top level first.
    pub subvolumes: Vec<SubvolumeInfo>,
}
