//! The places of a file's content: maps by extents, and by indirect blocks.

use super::BLOCK;
use super::inode::Inode;
use super::numbers::{damaged, le16, le32, split};
use super::opened::Ext4;
use crate::error::Result;

/// The mark of a node of extents, and the greatest depth of a tree of such nodes.
const MAGIC: u16 = 0xf30a;
const DEPTH_MAX: u16 = 5;

/// An extent with a greater length field is allocated, but was never written.
const WRITTEN_MAX: u16 = 0x8000;

/// The most nodes of a map: the nodes of the longest file in the older form.
const NODES_MAX: u64 = 1 + 1024 + (1 << 20) + 4;

/// The most blocks of a file that a map can hold.
const BLOCKS_MAX: u64 = 1 << 32;

/// Written blocks of a file that lie together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// The first block of the file.
    pub(crate) offset: u64,
    /// The first block on the device.
    pub(crate) at: u64,
    /// The number of blocks.
    pub(crate) len: u64,
}

/// The runs found so far, ascending.
#[derive(Default)]
struct Found {
    runs: Vec<Run>,
    /// The number of nodes that were read so far.
    nodes: u64,
}

impl Found {
    fn add(&mut self, run: Run, blocks: u64) -> Result<()> {
        let end = run.at.checked_add(run.len).filter(|end| run.at > 0 && *end <= blocks);
        let last = self.runs.last_mut();
        let is_next = last.as_ref().is_none_or(|last| last.offset + last.len <= run.offset);
        if end.is_none() || !is_next || run.offset + run.len > BLOCKS_MAX {
            return Err(damaged("a map of blocks contradicts itself"));
        }
        match last {
            Some(last) if last.offset + last.len == run.offset && last.at + last.len == run.at => {
                last.len += run.len;
            }
            _ => self.runs.push(run),
        }
        Ok(())
    }
}

impl Ext4 {
    /// Reads a node of a map. A map has no more nodes than the file system has blocks.
    fn map_node(&self, at: u64, found: &mut Found) -> Result<Vec<u8>> {
        found.nodes += 1;
        if found.nodes > NODES_MAX.min(self.superblock.blocks) {
            return Err(damaged("a map of blocks has too many nodes"));
        }
        self.block(at)
    }

    /// The written blocks of a file, ascending. Blocks that were allocated and not written are
    /// holes.
    pub(crate) fn runs(&self, inode: &Inode) -> Result<Vec<Run>> {
        let mut found = Found::default();
        if inode.short_target().is_some() {
            return Ok(Vec::new());
        }
        if inode.has_extents() {
            self.extents(&inode.map, None, &mut found)?;
        } else {
            for index in 0..12 {
                self.pointer(le32(&inode.map, index * 4)?, 0, index as u64, &mut found)?;
            }
            let (mut first, mut span) = (12, 1024);
            for level in 1..=3 {
                let block = le32(&inode.map, 44 + level as usize * 4)?;
                self.pointer(block, level, first, &mut found)?;
                first += span;
                span *= 1024;
            }
        }
        Ok(found.runs)
    }

    fn extents(&self, node: &[u8], depth: Option<u16>, found: &mut Found) -> Result<()> {
        let (entries, own) = (le16(node, 2)?, le16(node, 6)?);
        let room = (node.len() - 12) / 12;
        let is_right = depth.is_none_or(|depth| depth == own) && own <= DEPTH_MAX;
        if le16(node, 0)? != MAGIC || usize::from(entries) > room || !is_right {
            return Err(damaged("a node of extents is damaged"));
        }
        for entry in node[12..].chunks_exact(12).take(entries.into()) {
            if own > 0 {
                let at = split(le32(entry, 4)?, le16(entry, 8)?);
                let block = self.map_node(at, found)?;
                self.extents(&block, Some(own - 1), found)?;
                continue;
            }
            let len = le16(entry, 4)?;
            if len <= WRITTEN_MAX {
                let run = Run {
                    offset: le32(entry, 0)?.into(),
                    at: split(le32(entry, 8)?, le16(entry, 6)?),
                    len: len.into(),
                };
                found.add(run, self.superblock.blocks)?;
            }
        }
        Ok(())
    }

    /// Follows a pointer of the older map: at level zero to content, at other levels to a block of
    /// pointers.
    fn pointer(&self, block: u32, level: u32, first: u64, found: &mut Found) -> Result<()> {
        if block == 0 {
            return Ok(());
        }
        if level == 0 {
            let run = Run { offset: first, at: block.into(), len: 1 };
            return found.add(run, self.superblock.blocks);
        }
        let span = 1024_u64.pow(level - 1);
        let bytes = self.map_node(block.into(), found)?;
        for index in 0..1024 {
            let below = le32(&bytes, index * 4)?;
            self.pointer(below, level - 1, first + index as u64 * span, found)?;
        }
        Ok(())
    }

    /// Reads a whole file of at most `most` bytes.
    pub(super) fn content(&self, inode: &Inode, most: u64) -> Result<Vec<u8>> {
        if inode.size > most {
            return Err(damaged(format!("inode {} is too long for its type", inode.number)));
        }
        let mut bytes = vec![0; inode.size.next_multiple_of(BLOCK) as usize];
        for run in self.runs(inode)? {
            let start = run.offset * BLOCK;
            let end = (start + run.len * BLOCK).min(bytes.len() as u64);
            if start < end {
                self.device.read_at(run.at * BLOCK, &mut bytes[start as usize..end as usize])?;
            }
        }
        bytes.truncate(inode.size as usize);
        Ok(bytes)
    }

    /// The target of a symbolic link.
    pub(crate) fn target(&self, inode: &Inode) -> Result<Vec<u8>> {
        match inode.short_target() {
            Some(target) => Ok(target.to_vec()),
            None => self.content(inode, BLOCK),
        }
    }
}
