//! Objects with fixed numbers.

use crate::{Kind, TreeId};

/// Device items, in the chunk tree.
pub const DEV_ITEMS: u64 = 1;
/// Chunk items, in the chunk tree.
pub const FIRST_CHUNK_TREE: u64 = 256;
/// Statistics of devices, in the device tree.
pub const DEV_STATS: u64 = 0;
/// An interrupted balance, in the root tree.
pub const BALANCE: u64 = -4_i64 as u64;
/// Orphans: files without a name, in each subvolume, and deleted subvolumes, in the root tree.
pub const ORPHAN: u64 = -5_i64 as u64;
/// Logs of fsync.
pub const TREE_LOG: u64 = -6_i64 as u64;
/// Data checksums, in the checksum tree.
pub const EXTENT_CSUM: u64 = -10_i64 as u64;
/// Version 1 free space, in the root tree.
pub const FREE_SPACE_V1: u64 = -11_i64 as u64;
/// Cached free inode numbers of old kernels.
pub const FREE_INO: u64 = -12_i64 as u64;
/// A placeholder that stands for several object ids.
pub const MULTIPLE_OBJECTIDS: u64 = -255_i64 as u64;

/// The name of an objectid in the output of `btrfs inspect-internal dump-tree`.
#[must_use]
pub fn objectid_name(objectid: u64, kind: Kind) -> String {
    match kind {
        Kind::PERSISTENT_ITEM if objectid == DEV_STATS => return "DEV_STATS".into(),
        Kind::DEV_EXTENT => return objectid.to_string(),
        Kind::QGROUP_RELATION | Kind::QGROUP_INFO | Kind::QGROUP_LIMIT => {
            return format!("{}/{}", objectid >> 48, objectid & ((1 << 48) - 1));
        }
        Kind::UUID_KEY_SUBVOL | Kind::UUID_KEY_RECEIVED_SUBVOL => {
            return format!("0x{objectid:016x}");
        }
        Kind::DEV_ITEM if objectid == DEV_ITEMS => return "DEV_ITEMS".into(),
        Kind::CHUNK_ITEM if objectid == FIRST_CHUNK_TREE => return "FIRST_CHUNK_TREE".into(),
        _ => {}
    }
    let name = match objectid {
        BALANCE => "BALANCE",
        ORPHAN => "ORPHAN",
        TREE_LOG => "TREE_LOG",
        EXTENT_CSUM => "EXTENT_CSUM",
        FREE_SPACE_V1 => "FREE_SPACE",
        FREE_INO => "FREE_INO",
        MULTIPLE_OBJECTIDS => "MULTIPLE",
        u64::MAX => "-1",
        _ => return TreeId(objectid).to_string(),
    };
    name.into()
}
