//! An opened file system.
//!
//! What must always be true: the number of groups equals the number that the superblock gives.

use std::sync::{Arc, OnceLock};

use buttress_base::RangeSet;
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
    /// The used blocks, once they are known. From then on, all other blocks may be overwritten.
    used: OnceLock<RangeSet>,
}

impl Ext4 {
    /// Opens a file system and reads its groups.
    pub(crate) fn open(device: Arc<dyn Device>) -> Result<Self> {
        let superblock = Superblock::read(&*device)?;
        let groups = group::read_all(&*device, &superblock)?;
        Ok(Self { device, superblock, groups, used: OnceLock::new() })
    }

    /// From now on, refuses to read blocks outside of `used`.
    pub(crate) fn keep_to(&self, used: &RangeSet) {
        let _ = self.used.set(used.clone());
    }

    /// Reads one block.
    pub(super) fn block(&self, number: u64) -> Result<Vec<u8>> {
        let is_used = self.used.get().is_none_or(|used| used.contains(number));
        if number == 0 || number >= self.superblock.blocks || !is_used {
            return Err(damaged(format!("block {number} is free, or outside of the file system")));
        }
        let mut bytes = vec![0; BLOCK as usize];
        self.device.read_at(number * BLOCK, &mut bytes)?;
        Ok(bytes)
    }
}
