//! The plan of a read. A reader makes the plan under the lock of the file's extents. The reader
//! normally releases this lock before it reads from a device. So threads that finish extents,
//! truncate or clone do not wait for a slow device. Readers that find everything in memory do not
//! wait for such threads.
//!
//! # Invariants
//!
//! - **L1** While a plan's view lives, no thread writes to the extents of the plan, with one
//!   exception. An extent of the running transaction is free as soon as its last user drops it. So
//!   a read without the lock is valid only in two cases. Either the file's layout is unchanged, so
//!   the file still uses all extents of the plan. Or no data of the running transaction was freed
//!   since.
//! - **L2** A read without the lock is a trial ([`Validation::Trial`]). It has no side effects. A
//!   checksum that does not match is no device failure in a trial, and nothing is repaired. A
//!   missing checksum fails the trial, because it may have been removed with its extent. After a
//!   failure the reader reads again with the lock held.
//! - **L3** A trial caches the content of an address. A writer to that address makes the page cache
//!   forget the content (`pages::P1`). Unpacked extents are cached under the layout that named
//!   them, and that layout ends when its extents are freed.

use std::ops::Range;

use buttress_format::{Body, Compression, InodeFlags, Logical};
use buttress_txn::{Engine, View};

use crate::error::{Error, Result};
use crate::extent_map::Mapping;
use crate::file::File;
use crate::reader::Reader;

/// Longest run that is read and checked at once, in bytes.
pub(crate) const RUN_BYTES_MAX: u64 = 4 << 20;

/// Sectors that are adjacent both in the file and on disk.
pub(crate) struct Run {
    pub(crate) offset: u64,
    pub(crate) disk: u64,
    pub(crate) len: u64,
    /// Bytes after the run in the same extent.
    pub(crate) room: u64,
}

/// A requested part of a compressed extent, by offsets in the file.
pub(crate) struct PackedPart {
    pub(crate) mapping: Mapping,
    pub(crate) low: u64,
    pub(crate) high: u64,
}

impl PackedPart {
    pub(crate) fn is_whole(&self) -> bool {
        self.high - self.low >= self.mapping.extent.ram_bytes
    }
}

/// The data to read into a buffer. Holes and inline content are in the buffer already.
pub(crate) struct Plan {
    /// The file offset of the buffer's first byte.
    pub(crate) base: u64,
    pub(crate) layout: u64,
    /// Whether the data has checksums at the time of the plan. The file may change before the read,
    /// and even lose its checksums.
    pub(crate) checked: bool,
    pub(crate) runs: Vec<Run>,
    pub(crate) packed: Vec<PackedPart>,
}

/// Whether a read may be wrong because another file owns the extents by now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Validation {
    /// The data is right, because the extents are held.
    Held,
    /// The data may be wrong (L2).
    Trial,
}

/// How a read uses the clean data that is kept in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CachePolicy {
    /// The read goes through the page cache. If bytes are missing, it also reads `window` bytes
    /// that follow in the same extent.
    Kept {
        /// Additional bytes to read.
        window: u64,
    },
    /// The read copies cached data. The other data is read straight into the caller's buffer, once
    /// for all readers that ask for this data meanwhile.
    Long,
    /// The read copies cached data. The other data is read for the caller alone.
    Alone,
}

/// The file and the view that sectors are read from, and how the data is validated.
pub(crate) struct Source<'r> {
    pub(crate) view: &'r View,
    pub(crate) file: &'r File,
    /// Whether the data has checksums.
    pub(crate) checked: bool,
    /// The layout that named the sectors.
    pub(crate) layout: u64,
    pub(crate) validation: Validation,
}

impl<'r> Source<'r> {
    /// The source for callers that hold the extents.
    pub(crate) fn held(view: &'r View, file: &'r File) -> Self {
        Self::now(view, file, Validation::Held)
    }

    /// The source with the present state of the file, while the extents are held.
    pub(crate) fn now(view: &'r View, file: &'r File, validation: Validation) -> Self {
        Self { view, file, checked: is_checked(file), layout: file.layout(), validation }
    }

    /// The error of a failed trial; only its caller sees it.
    pub(crate) fn stale(&self, logical: Logical) -> Error {
        Error::Checksum { tree: self.file.tree, ino: self.file.ino, logical }
    }
}

/// Whether data of a file has checksums.
pub(super) fn is_checked(file: &File) -> bool {
    file.with_item(|item| item.flags & InodeFlags::NODATASUM == 0)
}

/// The values that must be unchanged for a trial to be valid (L1).
pub(crate) struct Stamp {
    layout: u64,
    freed_at_once: u64,
}

impl Stamp {
    pub(crate) fn is_valid(&self, file: &File, engine: &Engine) -> bool {
        file.layout() == self.layout || engine.allocation().freed_at_once() == self.freed_at_once
    }
}

impl Plan {
    /// Whether the plan has no more data to read.
    pub(crate) fn is_done(&self) -> bool {
        self.runs.is_empty() && self.packed.is_empty()
    }

    /// The values that validate this plan (L1). The caller takes these values before it releases
    /// the extents.
    pub(crate) fn stamp(&self, engine: &Engine) -> Stamp {
        Stamp { layout: self.layout, freed_at_once: engine.allocation().freed_at_once() }
    }
}

impl Reader {
    /// Finds the extents that make up ranges of a file, and fills in holes and inline content.
    /// `buf` begins at the offset `base`.
    ///
    /// The caller holds `file.extents` shared, or is the only thread that changes extents.
    pub(crate) fn plan(
        &self,
        view: &View,
        file: &File,
        ranges: &[Range<u64>],
        base: u64,
        buf: &mut [u8],
    ) -> Result<Plan> {
        let (layout, checked) = (file.layout(), is_checked(file));
        let mut plan = Plan { base, layout, checked, runs: Vec::new(), packed: Vec::new() };
        let part = |low: u64, high: u64| (low - base) as usize..(high - base) as usize;
        for range in ranges {
            let mut at = range.start;
            self.params.for_each_mapping(view, file, range.clone(), |mapping| {
                let (low, high) = (mapping.offset.max(range.start), mapping.end.min(range.end));
                buf[part(at, low)].fill(0);
                at = high;
                match &mapping.extent.body {
                    Body::Regular(region)
                        if region.disk.0 != 0
                            && mapping.extent.compression == Compression::None =>
                    {
                        let disk = region.disk.0 + region.offset + (low - mapping.offset);
                        let room = mapping.end - high;
                        plan.add(Run { offset: low, disk, len: high - low, room });
                    }
                    Body::Prealloc(_) => buf[part(low, high)].fill(0),
                    Body::Regular(region) if region.disk.0 == 0 => buf[part(low, high)].fill(0),
                    Body::Regular(_) => {
                        buf[part(low, high)].fill(0);
                        plan.packed.push(PackedPart { mapping, low, high });
                    }
                    Body::Inline(_) => {
                        let content = self.params.inline_content(&mapping)?;
                        let skip = (low - mapping.offset) as usize;
                        copy_front(&mut buf[part(low, high)], content.get(skip..).unwrap_or(&[]));
                    }
                }
                Ok(true)
            })?;
            buf[part(at, range.end)].fill(0);
        }
        Ok(plan)
    }
}

impl Plan {
    /// Adds a run. Joins it to the last run if it continues that run.
    fn add(&mut self, run: Run) {
        match self.runs.last_mut() {
            Some(last)
                if last.disk + last.len == run.disk
                    && last.offset + last.len == run.offset
                    && last.len + run.len <= RUN_BYTES_MAX =>
            {
                last.len += run.len;
                last.room = run.room;
            }
            _ => self.runs.push(run),
        }
    }
}

/// Copies `content` to the front of `out`, and zeroes the rest.
pub(crate) fn copy_front(out: &mut [u8], content: &[u8]) {
    let (head, tail) = out.split_at_mut(content.len().min(out.len()));
    head.copy_from_slice(&content[..head.len()]);
    tail.fill(0);
}
