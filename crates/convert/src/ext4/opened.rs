//! An opened file system.
//!
//! What must always be true: the number of groups is that of the superblock.

use std::sync::Arc;

use buttress_block::Device;

use super::BLOCK;
use super::group::{self, Group};
use super::numbers::damaged;
use super::superblock::Superblock;
use crate::error::Result;

/// An opened file system.
#[derive(Debug)]
pub(crate) struct Ext4 {
    pub(super) device: Arc<dyn Device>,
    pub(crate) superblock: Superblock,
    pub(super) groups: Vec<Group>,
}

impl Ext4 {
    /// Opens a file system and reads its groups.
    pub(crate) fn open(device: Arc<dyn Device>) -> Result<Self> {
        let superblock = Superblock::read(&*device)?;
        let groups = group::read_all(&*device, &superblock)?;
        Ok(Self { device, superblock, groups })
    }

    /// Reads one block.
    pub(super) fn block(&self, number: u64) -> Result<Vec<u8>> {
        if number == 0 || number >= self.superblock.blocks {
            return Err(damaged(format!("block {number} is outside of the file system")));
        }
        let mut bytes = vec![0; BLOCK as usize];
        self.device.read_at(number * BLOCK, &mut bytes)?;
        Ok(bytes)
    }
}
