//! Reads ext2, ext3 and ext4: blocks in use, inodes, the places of files, names and attributes.
//!
//! # Invariants
//!
//! - **E1** Nothing is written. Every number from the device is checked before it is used as an
//!   address.
//! - **E2** A file system that is mounted, was not unmounted, or has known errors is refused.
//!
//! # Place
//!
//! The layouts follow the documentation of the format in Linux (`filesystems/ext4`).

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

/// The only block size that is converted. It is the sector size of the new volume.
pub(crate) const BLOCK: u64 = 4096;

/// The first inode number that the file system does not use for itself.
pub(crate) const FIRST_INODE: u32 = 11;

/// The number of the top directory.
pub(crate) const ROOT: u32 = 2;
