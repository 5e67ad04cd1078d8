//! Reading: dirty data from memory, the rest from its extents, checked.
//!
//! # Invariants
//!
//! - **R1** No byte is returned that failed its checksum on every mirror.
//! - **R2** While extents are read, none of them can be freed and written by somebody else: the file's
//!   `extents` lock is held shared across the I/O, and so is the view that named them.
//!
//! Runs of extents that lie one behind the other on disk are read in one call, straight into the
//! caller's buffer but for ends that are no whole sector.

use std::ops::Range;
use std::sync::Arc;

use buttress_base::AlignedBuf;
use buttress_format::{Body, Compression, Extent, InodeFlags, Logical, Region};
use buttress_txn::{Csums, View};

use crate::compress::{RAM_BYTES_MAX, decompress};
use crate::error::{Error, Result};
use crate::extent_map::{Mapping, disk_extent, extent_error};
use crate::file::File;
use crate::files::Files;
use crate::unpacked::Which;

/// Longest run that is read, and checked, in one go.
const RUN_BYTES_MAX: u64 = 4 << 20;

/// A copy of some sectors does not match its checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("data at {logical} does not match its checksum")]
pub struct DataMismatch {
    /// The first sector that does not.
    pub logical: Logical,
}

/// Sectors that lie one behind the other, in the file and on disk.
struct Run {
    offset: u64,
    disk: u64,
    len: u64,
}

impl Files {
    /// Reads at `offset`; fewer bytes than asked only at the end of the file.
    ///
    /// # Errors
    ///
    /// [`Error::Checksum`] when no mirror is right, or what the volume or the trees met.
    pub fn read(&self, file: &File, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let _extents = file.extents.read();
        let size = file.size();
        let len =
            usize::try_from(size.saturating_sub(offset)).map_or(buf.len(), |n| n.min(buf.len()));
        if len == 0 {
            return Ok(0);
        }
        let buf = &mut buf[..len];
        let mut gaps = Vec::new();
        file.dirty.lock().copy_out(offset, buf, &mut gaps);
        if !gaps.is_empty() {
            let view = self.engine.view();
            for gap in gaps {
                let part = (gap.start - offset) as usize..(gap.end - offset) as usize;
                self.read_extents(&view, file, gap, &mut buf[part])?;
            }
        }
        Ok(len)
    }

    /// Reads a whole compressed extent of a file as it lies on disk.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read); an extent that is too long to be a compressed one is refused.
    pub fn read_stored(&self, file: &File, extent: Extent) -> Result<Vec<u8>> {
        if extent.len > RAM_BYTES_MAX {
            return Err(extent_error(file, 0, "is compressed and too long"));
        }
        let _extents = file.extents.read();
        let view = self.engine.view();
        let checked = !file.with_item(|item| item.flags & InodeFlags::NODATASUM != 0);
        let mut stored = AlignedBuf::zeroed(extent.len as usize);
        self.read_sectors(&view, file, extent.start.0, &mut stored, checked)?;
        Ok(stored.to_vec())
    }

    /// Reads a range as its extents have it, whatever waits in memory.
    ///
    /// The caller holds `file.extents` shared, or is the only one who changes extents.
    pub(crate) fn read_extents(
        &self,
        view: &View,
        file: &File,
        range: Range<u64>,
        buf: &mut [u8],
    ) -> Result<()> {
        assert_eq!(range.end - range.start, buf.len() as u64);
        let checked = !file.with_item(|item| item.flags & InodeFlags::NODATASUM != 0);
        let mut at = range.start;
        let mut pending: Option<Run> = None;
        let part =
            |low: u64, high: u64| (low - range.start) as usize..(high - range.start) as usize;
        self.for_each_mapping(view, file, range.clone(), |mapping| {
            let (low, high) = (mapping.offset.max(range.start), mapping.end.min(range.end));
            buf[part(at, low)].fill(0);
            at = high;
            match &mapping.extent.body {
                Body::Regular(region)
                    if region.disk.0 != 0 && mapping.extent.compression == Compression::None =>
                {
                    let disk = region.disk.0 + region.offset + (low - mapping.offset);
                    match &mut pending {
                        Some(run)
                            if run.disk + run.len == disk
                                && run.offset + run.len == low
                                && run.len + (high - low) <= RUN_BYTES_MAX =>
                        {
                            run.len += high - low;
                        }
                        _ => {
                            let next = Run { offset: low, disk, len: high - low };
                            if let Some(run) = pending.replace(next) {
                                let out = &mut buf[part(run.offset, run.offset + run.len)];
                                self.read_run(view, file, &run, out, checked)?;
                            }
                        }
                    }
                }
                Body::Prealloc(_) => buf[part(low, high)].fill(0),
                Body::Regular(region) if region.disk.0 == 0 => buf[part(low, high)].fill(0),
                Body::Regular(_) | Body::Inline(_) => {
                    let out = &mut buf[part(low, high)];
                    self.read_packed(view, file, &mapping, low, out, checked)?;
                }
            }
            Ok(true)
        })?;
        buf[part(at, range.end)].fill(0);
        if let Some(run) = pending {
            let out = &mut buf[part(run.offset, run.offset + run.len)];
            self.read_run(view, file, &run, out, checked)?;
        }
        Ok(())
    }

    /// Reads a run, of which the first and the last sector may be asked for in part.
    fn read_run(
        &self,
        view: &View,
        file: &File,
        run: &Run,
        out: &mut [u8],
        checked: bool,
    ) -> Result<()> {
        let end = run.disk + run.len;
        let (inner, inner_end) = (self.ceil(run.disk), self.floor(end));
        if inner > run.disk || inner_end < end {
            let (low, high) = (self.floor(run.disk), self.ceil(end));
            if inner >= inner_end || high - low <= 16 * self.sector {
                let mut bounce = AlignedBuf::zeroed((high - low) as usize);
                self.read_sectors(view, file, low, &mut bounce, checked)?;
                let from = (run.disk - low) as usize;
                out.copy_from_slice(&bounce[from..from + out.len()]);
                return Ok(());
            }
        }
        let mut step = run.disk;
        while step < end {
            let stop = if step < inner {
                inner
            } else if step < inner_end {
                inner_end.min(step + RUN_BYTES_MAX)
            } else {
                end
            };
            let part = (step - run.disk) as usize..(stop - run.disk) as usize;
            if step >= inner && stop <= inner_end {
                self.read_sectors(view, file, step, &mut out[part], checked)?;
            } else {
                let low = self.floor(step);
                let mut bounce = AlignedBuf::zeroed(self.sector as usize);
                self.read_sectors(view, file, low, &mut bounce, checked)?;
                let from = (step - low) as usize;
                out[part.clone()].copy_from_slice(&bounce[from..from + part.len()]);
            }
            step = stop;
        }
        Ok(())
    }

    /// Reads whole sectors and checks them (R1).
    fn read_sectors(
        &self,
        view: &View,
        file: &File,
        disk: u64,
        out: &mut [u8],
        checked: bool,
    ) -> Result<()> {
        let extent = Extent { start: Logical(disk), len: out.len() as u64 };
        let csums = if checked { Some(self.engine.read_csums(view, extent)?) } else { None };
        let csums = csums.filter(|csums| !csums.is_empty());
        let sector = self.sector as usize;
        let verify = |at: usize, bytes: &[u8]| match &csums {
            Some(csums) => self.verify(extent.start, at, bytes, csums),
            None => Ok(()),
        };
        self.volume.read_verified_by(extent.start, out, sector, verify).map_err(|error| match error
        {
            buttress_volume::Error::NoGoodMirror { logical, source: None, .. } => {
                Error::Checksum { tree: file.tree, ino: file.ino, logical }
            }
            error => error.into(),
        })
    }

    /// Checks one sector, which lies `at` bytes behind the start of the sums.
    fn verify(
        &self,
        start: Logical,
        at: usize,
        bytes: &[u8],
        csums: &Csums,
    ) -> Result<(), DataMismatch> {
        let size = self.csum_type.size();
        match csums.sector(at / self.sector as usize) {
            Some(expected) if self.csum_type.digest(bytes)[..size] != *expected => {
                Err(DataMismatch { logical: Logical(start.0 + at as u64) })
            }
            _ => Ok(()),
        }
    }

    fn read_packed(
        &self,
        view: &View,
        file: &File,
        mapping: &Mapping,
        low: u64,
        out: &mut [u8],
        checked: bool,
    ) -> Result<()> {
        let skip = low - mapping.offset;
        let (content, start) = match &mapping.extent.body {
            Body::Inline(_) => (Arc::new(self.inline_content(mapping)?), skip),
            Body::Regular(region) | Body::Prealloc(region) => {
                let content = self.unpack(view, file, mapping, region, out.len(), checked)?;
                (content, region.offset + skip)
            }
        };
        let start = usize::try_from(start).unwrap_or(usize::MAX).min(content.len());
        let have = &content[start..content.len().min(start.saturating_add(out.len()))];
        let (head, tail) = out.split_at_mut(have.len());
        head.copy_from_slice(have);
        tail.fill(0);
        Ok(())
    }

    /// Reads and unpacks a whole extent, of which `wanted` bytes are asked for now: who reads a file in
    /// order asks for the rest of it next.
    fn unpack(
        &self,
        view: &View,
        file: &File,
        mapping: &Mapping,
        region: &Region,
        wanted: usize,
        checked: bool,
    ) -> Result<Arc<Vec<u8>>> {
        let which = Which { layout: file.layout(), disk: region.disk };
        let is_part = (wanted as u64) < mapping.extent.ram_bytes;
        if is_part && let Some(content) = self.unpacked.find(which) {
            return Ok(content);
        }
        let extent = disk_extent(region);
        if extent.len > RAM_BYTES_MAX {
            return Err(extent_error(file, mapping.offset, "is compressed and too long"));
        }
        let mut packed = AlignedBuf::zeroed(extent.len as usize);
        self.read_sectors(view, file, extent.start.0, &mut packed, checked)?;
        let content = Arc::new(decompress(
            mapping.extent.compression,
            extent.start,
            &packed,
            mapping.extent.ram_bytes,
            self.sector as usize,
        )?);
        if is_part {
            self.unpacked.keep(which, &content);
        }
        Ok(content)
    }

    /// What an inline extent holds; empty for one that is not inline.
    pub(crate) fn inline_content(&self, mapping: &Mapping) -> Result<Vec<u8>> {
        let Body::Inline(data) = &mapping.extent.body else { return Ok(Vec::new()) };
        decompress(
            mapping.extent.compression,
            Logical(0),
            data,
            mapping.extent.ram_bytes,
            self.sector as usize,
        )
    }
}
