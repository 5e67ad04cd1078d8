//! The blocks and inodes that are in use.
//!
//! What must always be true: the file system's own tables count as used, whatever the bitmaps say.

use buttress_base::RangeSet;

use super::BLOCK;
use super::group::{BLOCKS_UNINIT, INODES_UNINIT, inode_blocks};
use super::numbers::damaged;
use super::opened::Ext4;
use crate::error::Result;

impl Ext4 {
    /// The blocks in use, including the file system's own tables. The first block counts as used,
    /// since programs that start the machine may lie there.
    pub(crate) fn used(&self) -> Result<RangeSet> {
        let superblock = &self.superblock;
        let mut used = RangeSet::new();
        used.insert(0..1);
        for (number, group) in (0..).zip(&self.groups) {
            let start = number * superblock.group_blocks;
            let len = superblock.group_blocks.min(superblock.blocks - start);
            let copy = superblock.copy_blocks(number).min(len);
            let table = group.inodes..group.inodes + inode_blocks(superblock);
            for range in [
                start..start + copy,
                group.block_bitmap..group.block_bitmap + 1,
                group.inode_bitmap..group.inode_bitmap + 1,
                table,
            ] {
                used.insert(range);
            }
            if group.flags & BLOCKS_UNINIT == 0 {
                let bitmap = self.block(group.block_bitmap)?;
                insert_bits(&mut used, &bitmap, start, len);
            }
        }
        Ok(used)
    }

    /// Calls `visit` with the number of each inode in use.
    pub(crate) fn each_inode(&self, mut visit: impl FnMut(u32) -> Result<()>) -> Result<()> {
        let each = self.superblock.group_inodes;
        for (number, group) in (0_u32..).zip(&self.groups) {
            if group.flags & INODES_UNINIT != 0 {
                continue;
            }
            let bitmap = self.block(group.inode_bitmap)?;
            for index in (0..each).filter(|&index| is_set(&bitmap, index.into())) {
                visit(number * each + index + 1)?;
            }
        }
        Ok(())
    }

    /// The place of an inode, in bytes.
    pub(super) fn inode_offset(&self, number: u32) -> Result<u64> {
        let each = self.superblock.group_inodes;
        if number == 0 || number > self.superblock.inodes {
            return Err(damaged(format!("there is no inode {number}")));
        }
        let (group, index) = ((number - 1) / each, (number - 1) % each);
        let group = self.groups.get(group as usize);
        let group = group.ok_or_else(|| damaged(format!("there is no inode {number}")))?;
        Ok(group.inodes * BLOCK + u64::from(index) * self.superblock.inode_len as u64)
    }
}

fn is_set(bitmap: &[u8], index: u64) -> bool {
    bitmap.get((index / 8) as usize).is_some_and(|byte| byte >> (index % 8) & 1 == 1)
}

fn insert_bits(used: &mut RangeSet, bitmap: &[u8], start: u64, len: u64) {
    let mut at = 0;
    while at < len {
        let begin = at;
        while at < len && is_set(bitmap, at) {
            at += 1;
        }
        if begin < at {
            used.insert(start + begin..start + at);
        }
        at += 1;
    }
}
