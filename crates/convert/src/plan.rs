//! The extents of the new volume that cover the bytes that the file system uses.
//!
//! # Invariants
//!
//! - **P1** Each used block outside of the reserved ranges is in exactly one extent. No extent
//!   crosses the end of a chunk.
//! - **P2** An extent begins and ends at a boundary of a file's content. So the space of a file is
//!   free when the file and the image of the file system are gone.

use std::ops::Range;

use buttress_base::RangeSet;
use buttress_format::{Extent, Logical};
use buttress_fs::Piece;

use crate::error::{Error, Result};
use crate::ext4::{BLOCK, Ext4, FIRST_INODE, Inode, Kind, ROOT, Run};
use crate::guard::reserved;

/// The longest extent, in bytes. One handle puts the checksums of a whole extent, so short extents
/// bound the size of a handle.
const EXTENT_MAX: u64 = 8 << 20;

/// The bytes in use.
#[derive(Debug)]
pub(crate) struct Used {
    /// Used bytes outside of the reserved ranges. They stay where they are.
    pub(crate) stays: RangeSet,
    /// Used bytes within the reserved ranges. They are copied.
    pub(crate) moves: RangeSet,
    /// The boundaries of files' content, ascending.
    edges: Vec<u64>,
}

impl Used {
    /// Finds the bytes in use. Checks that no block belongs to two files, and that no file has a
    /// free block.
    pub(crate) fn find(ext4: &Ext4, len: u64) -> Result<Self> {
        let mut stays = RangeSet::new();
        let blocks = ext4.used()?;
        ext4.keep_to(&blocks);
        for range in blocks.iter() {
            stays.insert(range.start * BLOCK..range.end * BLOCK);
        }
        let mut runs: Vec<Range<u64>> = Vec::new();
        ext4.each_inode(|number| {
            // Skips the file system's own inodes. For example, the map of inode 7 lists blocks that
            // are reserved for more group descriptors.
            let is_own = number < FIRST_INODE && number != ROOT;
            let inode = if is_own { None } else { ext4.inode(number)? };
            let has_map = |inode: &Inode| {
                matches!(inode.kind, Kind::Regular | Kind::Directory | Kind::Symlink)
            };
            if let Some(inode) = inode.filter(has_map) {
                runs.extend(ext4.runs(&inode)?.iter().map(bytes_of));
            }
            Ok(())
        })?;
        runs.sort_unstable_by_key(|run| run.start);
        if runs.windows(2).any(|pair| pair[0].end > pair[1].start) {
            return Err(Error::NotClean("a block belongs to two files".to_owned()));
        }
        if !runs.iter().all(|run| stays.contains_all(run)) {
            return Err(Error::NotClean("a file has a block that counts as free".to_owned()));
        }
        let mut edges: Vec<u64> = runs.into_iter().flat_map(|run| [run.start, run.end]).collect();
        edges.dedup();
        let mut moves = RangeSet::new();
        for area in reserved(len) {
            let mut at = area.start;
            while let Some(range) = stays.next_from(at).filter(|range| range.start < area.end) {
                let both = range.start.max(area.start)..range.end.min(area.end);
                at = both.end;
                stays.remove(both.clone());
                moves.insert(both);
            }
        }
        Ok(Self { stays, moves, edges })
    }

    /// Divides the bytes that stay into extents, given the chunks of data (P1, P2).
    pub(crate) fn extents(&self, chunks: &[Extent]) -> Result<Vec<Extent>> {
        let mut extents = Vec::new();
        let mut edges = self.edges.iter().copied().peekable();
        let mut chunks = chunks.iter().peekable();
        for range in self.stays.iter() {
            let mut at = range.start;
            while at < range.end {
                while chunks.next_if(|chunk| chunk.end().0 <= at).is_some() {}
                while edges.next_if(|edge| *edge <= at).is_some() {}
                let Some(chunk) = chunks.peek().filter(|chunk| chunk.start.0 <= at) else {
                    return Err(Error::Damaged(format!("no chunk covers the byte {at}")));
                };
                let mut end = range.end.min(chunk.end().0).min(at + EXTENT_MAX);
                end = edges.peek().map_or(end, |edge| end.min(*edge));
                extents.push(Extent::new(Logical(at), end - at));
                at = end;
            }
        }
        Ok(extents)
    }
}

/// The bytes of a run on the device.
fn bytes_of(run: &Run) -> Range<u64> {
    run.at * BLOCK..(run.at + run.len) * BLOCK
}

/// The content of a file: pieces that stay where they are, and ranges to copy.
#[derive(Debug, Default)]
pub(crate) struct Content {
    pub(crate) pieces: Vec<Piece>,
    /// Offsets in the file, and the bytes on the device.
    pub(crate) copies: Vec<(u64, Range<u64>)>,
}

impl Content {
    /// Finds the content of a file among the extents.
    pub(crate) fn of(runs: &[Run], extents: &[Extent]) -> Self {
        let mut content = Self::default();
        for run in runs {
            content.add(run.offset * BLOCK, bytes_of(run), extents);
        }
        content
    }

    /// Adds bytes of the device at an offset of the file.
    pub(crate) fn add(&mut self, offset: u64, bytes: Range<u64>, extents: &[Extent]) {
        let mut at = bytes.start;
        let mut index = extents.partition_point(|extent| extent.end().0 <= at);
        while at < bytes.end {
            let next = extents.get(index).filter(|extent| extent.start.0 < bytes.end);
            let start = next.map_or(bytes.end, |extent| extent.start.0.max(at));
            if at < start {
                // Bytes in no extent lie in a reserved range.
                self.copies.push((offset + at - bytes.start, at..start));
                at = start;
                continue;
            }
            let Some(&extent) = next else { break };
            let end = extent.end().0.min(bytes.end);
            let (skip, len) = (at - extent.start.0, end - at);
            self.pieces.push(Piece { offset: offset + at - bytes.start, extent, skip, len });
            at = end;
            index += 1;
        }
    }
}
