//! Groups of blocks, and the places of their tables.
//!
//! What must always be true: the tables of a group lie within the file system.

use buttress_block::Device;

use super::BLOCK;
use super::numbers::{damaged, le16};
use super::superblock::{Superblock, descriptor_block, halves};
use crate::error::Result;

/// The flag of a group with a bitmap of blocks that was never written.
pub(super) const BLOCKS_UNINIT: u16 = 0x2;
/// The flag of a group with inodes that were never used.
pub(super) const INODES_UNINIT: u16 = 0x1;

/// The descriptor of a group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group {
    pub(super) block_bitmap: u64,
    pub(super) inode_bitmap: u64,
    /// The first block of its inodes.
    pub(super) inodes: u64,
    pub(super) flags: u16,
}

/// Reads all descriptors.
pub(super) fn read_all(device: &dyn Device, superblock: &Superblock) -> Result<Vec<Group>> {
    let each = superblock.descriptors_each();
    let mut groups = Vec::new();
    let mut bytes = vec![0; BLOCK as usize];
    for index in 0..superblock.groups().div_ceil(each) {
        let block = descriptor_block(superblock, index);
        if block >= superblock.blocks {
            return Err(damaged("a descriptor of groups is outside of the file system"));
        }
        device.read_at(block * BLOCK, &mut bytes)?;
        let left = superblock.groups() - groups.len() as u64;
        for found in bytes.chunks_exact(superblock.descriptor_len).take(left.min(each) as usize) {
            groups.push(parse(found, superblock)?);
        }
    }
    Ok(groups)
}

fn parse(bytes: &[u8], superblock: &Superblock) -> Result<Group> {
    let group = Group {
        block_bitmap: halves(bytes, 0x0, 0x20)?,
        inode_bitmap: halves(bytes, 0x4, 0x24)?,
        inodes: halves(bytes, 0x8, 0x28)?,
        flags: if superblock.has_group_sums { le16(bytes, 0x12)? } else { 0 },
    };
    let table = inode_blocks(superblock);
    let is_within = |at: u64, len: u64| at > 0 && at.saturating_add(len) <= superblock.blocks;
    let places = [(group.block_bitmap, 1), (group.inode_bitmap, 1), (group.inodes, table)];
    match places.iter().all(|&(at, len)| is_within(at, len)) {
        true => Ok(group),
        false => Err(damaged("a table of a group is outside of the file system")),
    }
}

/// Blocks of a group's inodes.
pub(super) fn inode_blocks(superblock: &Superblock) -> u64 {
    (u64::from(superblock.group_inodes) * superblock.inode_len as u64).div_ceil(BLOCK)
}
