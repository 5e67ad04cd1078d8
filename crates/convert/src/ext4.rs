//! Reads ext2, ext3 and ext4: what is in use, inodes, where files lie, names and attributes.
//!
//! # Invariants
//!
//! - **E1** Nothing is written. Every number of the device is checked before it is used as a place.
//! - **E2** A file system that is mounted, was not unmounted, or has known errors is refused.
//!
//! # Place
//!
//! The facts are those of the format's documentation in Linux (`filesystems/ext4`).

mod dir;
mod group;
mod inode;
mod numbers;
mod opened;
mod runs;
mod superblock;
mod used;
mod xattr;

pub(crate) use self::dir::Entry;
pub(crate) use self::inode::{Inode, Kind};
pub(crate) use self::opened::Ext4;
pub(crate) use self::runs::Run;
pub(crate) use self::xattr::DEFAULT_ACL;

/// The only size of blocks that is converted: that of a sector of the new volume.
pub(crate) const BLOCK: u64 = 4096;

/// The first number of an inode that is not the file system's own.
pub(crate) const FIRST_INODE: u32 = 11;

/// The number of the top directory.
pub(crate) const ROOT: u32 = 2;
