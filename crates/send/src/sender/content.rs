//! Sends the changed content of a regular file, as clones, holes, compressed extents or bytes.
//!
//! # Invariants
//!
//! - **C1** A command writes only before the file's end. A file that became shorter is truncated
//!   before anything is written to it, so that a clone may end at the end of the file.
//! - **C2** A range that shows the same part of the same extent in both trees is not sent. The
//!   extents of a read-only subvolume are never overwritten, so equal addresses mean equal bytes.

use std::io::Write;
use std::ops::Range;

use buttress_format::{Body, Compression, Ino, InodeFlags, InodeItem};
use buttress_fs::InodeId;

use super::Sender;
use super::diff::Change;
use super::paths::path;
use super::sharing::{Piece, common};
use super::tree::Mapping;
use crate::error::Result;
use crate::stream::{Command, Encoded, Version};

/// Mode of fallocate(2): keep the length and punch a hole.
const PUNCH_HOLE: u32 = 3;
/// Mode of fallocate(2): allocate and keep the length.
const ALLOCATE: u32 = 1;

/// Bytes read in one go.
const READ_BYTES: u64 = 4 << 20;

/// The most bytes of a compressed extent that is sent compressed.
const PACKED_BYTES_MAX: u64 = 128 << 10;

/// The most pieces of a file that are gathered before they are sent.
const PIECES_MAX: usize = 1024;

/// The kind of content of a range.
#[derive(Clone, Debug)]
enum Made {
    Hole,
    Allocated,
    Data(Mapping),
}

/// A file that is being sent.
struct Target<'a> {
    at: &'a [u8],
    ino: Ino,
    size: u64,
    /// The length up to which the receiver still has the old content: the smaller of both lengths.
    /// `None` for a new file.
    old_size: Option<u64>,
    /// The file's current length at the receiver.
    reached: u64,
    written: bool,
    /// The range that is still to be read and sent.
    pending: Range<u64>,
    /// Whether each byte is compared with a Merkle tree before it is sent.
    has_verity: bool,
}

impl<W: Write> Sender<'_, '_, W> {
    /// Sends the differences; returns whether anything was written.
    pub(super) fn content(
        &mut self,
        at: &[u8],
        ino: Ino,
        item: &InodeItem,
        old: Option<&InodeItem>,
        change: &Change,
    ) -> Result<bool> {
        let has_verity = |item: &InodeItem| item.flags & InodeFlags::RO_VERITY != 0;
        if self.options.version >= Version::Three && has_verity(item) && old.is_some_and(has_verity)
        {
            // The content is the same, and a defragmentation may have moved it. The receiver's file
            // has a tree and refuses writes.
            return Ok(false);
        }
        let mut target = Target {
            at,
            ino,
            size: item.size,
            old_size: old.map(|old| old.size.min(item.size)),
            reached: old.map_or(0, |old| old.size),
            written: false,
            pending: 0..0,
            has_verity: has_verity(item),
        };
        if target.reached > target.size {
            self.truncate(&mut target, item.size)?;
        }
        let end = item.size.next_multiple_of(self.new.sector());
        // Without an older version, the whole file differs.
        let whole = Range { start: 0, end };
        let ranges = if old.is_none() { vec![whole] } else { change.ranges.clone() };
        for range in ranges {
            let mut range = range.start.min(end)..range.end.min(end);
            while !range.is_empty() {
                for (part, made) in pieces(self.new, ino, &range)? {
                    range.start = part.end;
                    self.differing(&mut target, part, &made)?;
                }
            }
        }
        self.flush(&mut target)?;
        if target.reached != item.size {
            self.truncate(&mut target, item.size)?;
        }
        Ok(target.written)
    }

    fn truncate(&mut self, target: &mut Target<'_>, size: u64) -> Result<()> {
        target.reached = size;
        target.written = true;
        self.emit(&Command::Truncate { path: path(target.at)?, size })
    }

    /// Sends the parts of a piece that differ from the old tree.
    fn differing(
        &mut self,
        target: &mut Target<'_>,
        mut range: Range<u64>,
        made: &Made,
    ) -> Result<()> {
        let Some((old, old_size)) = self.old.zip(target.old_size) else {
            return self.piece(target, range, made, true);
        };
        while !range.is_empty() {
            for (part, before) in pieces(old, target.ino, &range)? {
                range.start = part.end;
                let empty = !matches!(before, Made::Data(_)) || part.start >= old_size;
                match (made, &before) {
                    (Made::Hole, _) if empty => {}
                    (Made::Allocated, Made::Allocated) => {}
                    (Made::Data(new), Made::Data(old)) if is_same(new, old) => {}
                    _ => self.piece(target, part, made, empty)?,
                }
            }
        }
        Ok(())
    }

    /// Sends a part of a file; `empty` says that the receiver reads zeros in that part.
    fn piece(
        &mut self,
        target: &mut Target<'_>,
        range: Range<u64>,
        made: &Made,
        empty: bool,
    ) -> Result<()> {
        match made {
            Made::Data(mapping) => self.data(target, range, mapping),
            Made::Hole | Made::Allocated => {
                self.flush(target)?;
                if !empty {
                    self.zeros(target, range.clone())?;
                }
                if matches!(made, Made::Allocated) {
                    self.allocate(target, &range)?;
                }
                Ok(())
            }
        }
    }

    /// Makes a range read as zeros, if it does not read as zeros already.
    fn zeros(&mut self, target: &mut Target<'_>, range: Range<u64>) -> Result<()> {
        if range.start >= target.reached {
            return Ok(());
        }
        target.written = true;
        if self.options.no_data {
            return self.update(target, &range);
        }
        let (at, offset) = (path(target.at)?, range.start);
        if range.end >= target.size {
            // At the end of the file, truncating is enough: growing the file again leaves a hole.
            return self.truncate(target, offset);
        }
        if self.options.version >= Version::Two {
            let len = range.end - offset;
            return self.emit(&Command::Fallocate { path: at, mode: PUNCH_HOLE, offset, len });
        }
        let end = range.end.min(target.size);
        let zeros = vec![0; Version::One.write_bytes_max()];
        let mut offset = offset;
        while offset < end {
            let len = (end - offset).min(zeros.len() as u64);
            self.emit(&Command::Write { path: at, offset, data: &zeros[..len as usize] })?;
            offset += len;
        }
        target.reached = target.reached.max(end);
        Ok(())
    }

    /// Sends an allocation. Older streams have no command for an allocation, and are correct
    /// without it.
    fn allocate(&mut self, target: &mut Target<'_>, range: &Range<u64>) -> Result<()> {
        if self.options.version < Version::Two || self.options.no_data {
            return Ok(());
        }
        target.written = true;
        let (offset, len) = (range.start, range.end - range.start);
        self.emit(&Command::Fallocate { path: path(target.at)?, mode: ALLOCATE, offset, len })
    }

    fn data(
        &mut self,
        target: &mut Target<'_>,
        mut range: Range<u64>,
        mapping: &Mapping,
    ) -> Result<()> {
        range.end = range.end.min(target.size);
        if range.is_empty() {
            return Ok(());
        }
        if self.options.no_data {
            return self.update(target, &range);
        }
        if let Body::Regular(region) = &mapping.extent.body {
            while !range.is_empty() {
                let piece = Piece {
                    ino: target.ino,
                    offset: range.start,
                    len: range.end - range.start,
                    extent: region.extent(),
                    compression: mapping.extent.compression,
                    skip: region.offset + (range.start - mapping.start),
                    size: target.size,
                };
                let Some(shared) = self.sharing.find(&piece)? else { break };
                self.flush(target)?;
                self.emit(&Command::Clone {
                    path: path(target.at)?,
                    offset: range.start,
                    len: shared.len,
                    source: shared.source,
                    source_path: path(&shared.path)?,
                    source_offset: shared.offset,
                })?;
                range.start += shared.len;
                target.reached = target.reached.max(range.start);
                target.written = true;
            }
        }
        if range.is_empty() || self.packed(target, &range, mapping)? {
            return Ok(());
        }
        if target.pending.end != range.start {
            self.flush(target)?;
            target.pending = range;
        } else {
            target.pending.end = range.end;
        }
        Ok(())
    }

    /// Sends an extent in compressed form, if that is shorter than its content.
    fn packed(
        &mut self,
        target: &mut Target<'_>,
        range: &Range<u64>,
        mapping: &Mapping,
    ) -> Result<bool> {
        let compression = match mapping.extent.compression {
            Compression::None => return Ok(false),
            Compression::Zlib => 1,
            Compression::Zstd => 2,
            // LZO segments have the length of a sector: 3 stands for 4 KiB, 7 for 64 KiB.
            Compression::Lzo => 3 + self.new.sector().trailing_zeros().saturating_sub(12),
        };
        // With verity, each byte is compared with a Merkle tree, which has hashes of unpacked
        // bytes.
        let is_off = !self.options.compressed_data || target.has_verity;
        if is_off || self.options.version < Version::Two {
            return Ok(false);
        }
        let file_len = range.end - range.start;
        let (data, offset) = match &mapping.extent.body {
            // An inline extent shorter than its range has zeros after it, which the command cannot
            // express.
            Body::Inline(data) if mapping.extent.ram_bytes == file_len => (data.clone(), 0),
            Body::Regular(region)
                if region.disk_len <= file_len && region.disk_len <= PACKED_BYTES_MAX =>
            {
                let id = InodeId { tree: self.new.id, ino: target.ino };
                let data = self.fs.inode(id)?.read_encoded(region.extent())?;
                (data, region.offset + (range.start - mapping.start))
            }
            _ => return Ok(false),
        };
        self.flush(target)?;
        let ram_bytes = mapping.extent.ram_bytes;
        let encoded = Encoded { file_len, ram_bytes, offset, compression, encryption: 0 };
        let command = Command::EncodedWrite {
            path: path(target.at)?,
            offset: range.start,
            encoded,
            data: &data,
        };
        self.emit(&command)?;
        target.reached = target.reached.max(range.end);
        target.written = true;
        Ok(true)
    }

    /// Sends the range of data without the data.
    fn update(&mut self, target: &mut Target<'_>, range: &Range<u64>) -> Result<()> {
        let (offset, end) = (range.start, range.end.min(target.size));
        let len = end.saturating_sub(offset);
        target.written = true;
        self.emit(&Command::UpdateExtent { path: path(target.at)?, offset, len })
    }

    /// Reads and sends the bytes that were gathered.
    fn flush(&mut self, target: &mut Target<'_>) -> Result<()> {
        let range = std::mem::replace(&mut target.pending, 0..0);
        if range.is_empty() {
            return Ok(());
        }
        let inode = self.fs.inode(InodeId { tree: self.new.id, ino: target.ino })?;
        let mut buffer = std::mem::take(&mut self.buffer);
        let step = self.options.version.write_bytes_max();
        let mut at = range.start;
        while at < range.end {
            let len = (range.end - at).min(READ_BYTES) as usize;
            if buffer.len() < len {
                buffer.resize(len, 0);
            }
            let read = inode.read_at(at, &mut buffer[..len])?;
            if read < len {
                return Err(self.new.damaged(target.ino, "it ends before its item says"));
            }
            for (index, data) in buffer[..len].chunks(step).enumerate() {
                let offset = at + (index * step) as u64;
                self.emit(&Command::Write { path: path(target.at)?, offset, data })?;
            }
            at += len as u64;
        }
        self.buffer = buffer;
        target.reached = target.reached.max(range.end);
        target.written = true;
        Ok(())
    }
}

/// Whether two mappings show the same bytes at the same offset.
fn is_same(new: &Mapping, old: &Mapping) -> bool {
    if new.extent.compression != old.extent.compression {
        return false;
    }
    match (&new.extent.body, &old.extent.body) {
        (Body::Regular(new_region), Body::Regular(old_region)) => {
            // Each difference says where the extent would begin in the file. The difference can be
            // below zero, so the subtraction wraps.
            new_region.extent() == old_region.extent()
                && new.start.wrapping_sub(new_region.offset)
                    == old.start.wrapping_sub(old_region.offset)
        }
        (Body::Inline(new_data), Body::Inline(old_data)) => {
            new_data == old_data && new.extent.ram_bytes == old.extent.ram_bytes
        }
        _ => false,
    }
}

/// The pieces of a range, without gaps: the whole range, or its first [`PIECES_MAX`] pieces.
/// Returns at least one piece if the range is not empty.
fn pieces(tree: &super::Tree<'_>, ino: Ino, range: &Range<u64>) -> Result<Vec<(Range<u64>, Made)>> {
    let mut found = Vec::new();
    let mut at = range.start;
    tree.mappings(ino, range.start, |mapping| {
        if mapping.start >= range.end {
            return Ok(false);
        }
        let part = common(range, &(mapping.start..mapping.end));
        if part.start > at {
            found.push((at..part.start, Made::Hole));
        }
        at = part.end;
        let made = match &mapping.extent.body {
            Body::Regular(region) if region.is_hole() => Made::Hole,
            Body::Prealloc(_) => Made::Allocated,
            Body::Regular(_) | Body::Inline(_) => Made::Data(mapping),
        };
        found.push((part, made));
        Ok(at < range.end && found.len() < PIECES_MAX)
    })?;
    if at < range.end && found.len() < PIECES_MAX {
        found.push((at..range.end, Made::Hole));
    }
    Ok(found)
}
