//! Directories. A directory with an index is read as a plain list, as older kernels do.

use super::BLOCK;
use super::inode::Inode;
use super::numbers::{damaged, le16, le32};
use super::opened::Ext4;
use crate::error::Result;

/// A name in a directory.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) name: Vec<u8>,
    pub(crate) inode: u32,
}

/// The longest directory that is read, in bytes.
const LEN_MAX: u64 = 8 << 30;

impl Ext4 {
    /// Lists a directory, without `.` and `..`.
    pub(crate) fn list(&self, dir: &Inode) -> Result<Vec<Entry>> {
        if dir.size > LEN_MAX {
            return Err(damaged(format!("directory {} is too long", dir.number)));
        }
        let mut entries = Vec::new();
        for run in self.runs(dir)? {
            for index in 0..run.len {
                if (run.offset + index) * BLOCK < dir.size {
                    parse(&self.block(run.at + index)?, &mut entries, dir.number)?;
                }
            }
        }
        Ok(entries)
    }
}

fn parse(block: &[u8], entries: &mut Vec<Entry>, dir: u32) -> Result<()> {
    let mut at = 0;
    while at < block.len() {
        let (inode, len) = (le32(block, at)?, usize::from(le16(block, at + 4)?));
        let name_len = block.get(at + 6).copied().map_or(0, usize::from);
        let is_sound = len >= 8 && len.is_multiple_of(4) && at + len <= block.len();
        if !is_sound || (inode != 0 && 8 + name_len > len) {
            return Err(damaged(format!("directory {dir} is damaged")));
        }
        let name = &block[at + 8..at + 8 + name_len.min(len - 8)];
        if inode != 0 && name != b"." && name != b".." {
            if name.is_empty() || name.iter().any(|&byte| byte == 0 || byte == b'/') {
                return Err(damaged(format!("directory {dir} has a name that cannot be")));
            }
            entries.push(Entry { name: name.to_vec(), inode });
        }
        at += len;
    }
    Ok(())
}
