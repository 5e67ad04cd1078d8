//! Reading: dirty data from memory, the rest from its extents, checked.
//!
//! # Invariants
//!
//! - **R1** No byte is returned that failed its checksum on every mirror.
//! - **R2** While extents are read, none of them can be freed and written by somebody else: the file's
//!   `extents` lock is held shared across the I/O, and so is the view that named them.
//!
//! Runs of extents that lie one behind the other on disk are read in one call. Long ones go straight into
//! the caller's buffer but for ends that are no whole sector, and leave nothing behind; what is read in
//! short pieces is read ahead and kept ([`Pages`](crate::pages::Pages)).

use std::ops::Range;
use std::sync::Arc;

use buttress_base::AlignedBuf;
use buttress_format::{Body, Compression, Extent, InodeFlags, Logical};
use buttress_txn::{Csums, View};

use crate::ahead::Ahead;
use crate::compress::{RAM_BYTES_MAX, decompress};
use crate::error::{Error, Result};
use crate::extent_map::{Mapping, extent_error};
use crate::file::File;
use crate::files::Files;
use crate::pages::{Claim, For, Found, REGION, ReadBatch};
use crate::read_packed::Packed;

/// Longest run that is read, and checked, in one go.
const RUN_BYTES_MAX: u64 = 4 << 20;

/// Reads of so many bytes are long requests by themselves: a copy in memory costs more than it saves.
const DIRECT_BYTES_MIN: usize = 512 << 10;

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
    /// Bytes behind it in the same extent.
    room: u64,
}

impl Files {
    /// Reads at `offset`; fewer bytes than asked only at the end of the file.
    ///
    /// # Errors
    ///
    /// [`Error::Checksum`] when no mirror is right, or what the volume or the trees met.
    pub fn read(&self, file: &File, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.read_in_stream(file, offset, buf).map(|(len, _)| len)
    }

    /// As [`read`](Self::read), for one who has somebody else at hand: says what is worth reading meanwhile, to
    /// be given to [`read_ahead`](Self::read_ahead).
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub fn read_in_stream(
        &self,
        file: &File,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<(usize, Ahead)> {
        let _extents = file.extents.read();
        let size = file.size();
        let len =
            usize::try_from(size.saturating_sub(offset)).map_or(buf.len(), |n| n.min(buf.len()));
        if len == 0 {
            return Ok((0, Ahead::default()));
        }
        let buf = &mut buf[..len];
        let mut gaps = Vec::new();
        file.dirty.lock().copy_out(offset, buf, &mut gaps);
        if gaps.is_empty() {
            return Ok((len, Ahead::default()));
        }
        let reader = self.reading.enter();
        let view = self.engine.view();
        let keeps = self.pages.is_on() && len < DIRECT_BYTES_MIN;
        let (window, ahead) = if keeps {
            let read = offset..offset + len as u64;
            let advice = file.streams.lock().note(&read, self.pages.widest_window());
            // The baselines of 2012 read by themselves, as Linux did.
            let is_ours = self.options.read_batch == ReadBatch::Run;
            // Readers who keep all processors busy help each other, and one of them who is helped leaves the others
            // behind, until what he read is gone when they come.
            let helps = is_ours && self.helpers.are_idle_beside(reader.count());
            (Some(advice.window), Ahead(if helps { advice.ahead } else { Vec::new() }))
        } else {
            (None, Ahead::default())
        };
        for gap in gaps {
            let part = (gap.start - offset) as usize..(gap.end - offset) as usize;
            self.read_window(&view, file, gap, &mut buf[part], window)?;
        }
        Ok((len, ahead))
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
        self.read_window(view, file, range, buf, None)
    }

    /// As [`read_extents`](Self::read_extents); with a window, through what is kept in memory, and reading
    /// that many bytes more where they are missing and lie in the same extent.
    fn read_window(
        &self,
        view: &View,
        file: &File,
        range: Range<u64>,
        buf: &mut [u8],
        window: Option<u64>,
    ) -> Result<()> {
        assert_eq!(range.end - range.start, buf.len() as u64);
        let checked = !file.with_item(|item| item.flags & InodeFlags::NODATASUM != 0);
        let mut at = range.start;
        let mut pending: Option<Run> = None;
        let mut packed = Vec::new();
        let part =
            |low: u64, high: u64| (low - range.start) as usize..(high - range.start) as usize;
        let read = |run: &Run, out: &mut [u8]| match window {
            Some(window) => self.read_kept(view, file, run, out, checked, window),
            None => self.read_around(view, file, run, out, checked),
        };
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
                            run.room = mapping.end - high;
                        }
                        _ => {
                            let room = mapping.end - high;
                            let next = Run { offset: low, disk, len: high - low, room };
                            if let Some(run) = pending.replace(next) {
                                let out = &mut buf[part(run.offset, run.offset + run.len)];
                                read(&run, out)?;
                            }
                        }
                    }
                }
                Body::Prealloc(_) => buf[part(low, high)].fill(0),
                Body::Regular(region) if region.disk.0 == 0 => buf[part(low, high)].fill(0),
                Body::Regular(_) => {
                    buf[part(low, high)].fill(0);
                    packed.push(Packed { mapping, low, high });
                }
                Body::Inline(_) => {
                    let content = self.inline_content(&mapping)?;
                    let skip = (low - mapping.offset) as usize;
                    copy_front(&mut buf[part(low, high)], content.get(skip..).unwrap_or(&[]));
                }
            }
            Ok(true)
        })?;
        buf[part(at, range.end)].fill(0);
        self.read_packed(view, file, &packed, checked, |one, content| {
            copy_front(&mut buf[part(one.low, one.high)], content);
        })?;
        if let Some(run) = pending {
            let out = &mut buf[part(run.offset, run.offset + run.len)];
            read(&run, out)?;
        }
        Ok(())
    }

    /// Reads a run through what is kept, and keeps what was missing.
    fn read_kept(
        &self,
        view: &View,
        file: &File,
        run: &Run,
        out: &mut [u8],
        checked: bool,
        window: u64,
    ) -> Result<()> {
        let end = run.disk + run.len;
        let batch = self.options.read_batch.bytes(self.sector);
        // Extents end with a sector, and so does what is asked for of the last.
        let reach = self.ceil(end + run.room);
        let limit = self.ceil(end + window).min(reach);
        let mut at = run.disk;
        while at < end {
            let first = self.floor(at);
            let (bytes, from) = match self.pages.find(Logical(first), (limit - first).min(batch)) {
                Found::Ready { bytes, from } => (bytes, from),
                Found::Claimed(claim) => {
                    let stop = claim.extent().end().0.min(end);
                    match self.load(view, file, claim, checked, For::Now) {
                        Ok(bytes) => (bytes, 0),
                        // It may be what nobody asked for that is bad.
                        Err(_) => {
                            let (low, high) = (at - run.disk, stop - run.disk);
                            let part = Run {
                                offset: run.offset + low,
                                disk: at,
                                len: high - low,
                                room: 0,
                            };
                            let out = &mut out[low as usize..high as usize];
                            self.read_run(view, file, &part, out, checked)?;
                            at = stop;
                            continue;
                        }
                    }
                }
                Found::Loading { end: busy } => {
                    // Somebody reads this; what comes behind is read meanwhile, as far as one reads here.
                    if window > 0 && batch == REGION && busy.0 < limit {
                        let want = (reach - busy.0).min(REGION);
                        if let Ok(next) = self.pages.claim(busy, want) {
                            // Who needs it and does not find it is told why.
                            let _ = self.load(view, file, next, checked, For::Later);
                        }
                    }
                    self.pages.wait(Logical(first));
                    continue;
                }
            };
            let skip = from + (at - first) as usize;
            let len = (bytes.len() - skip).min((end - at) as usize);
            let place = (at - run.disk) as usize;
            out[place..place + len].copy_from_slice(&bytes[skip..skip + len]);
            at += len as u64;
        }
        Ok(())
    }

    /// Reads what was claimed, and gives it to everybody.
    pub(crate) fn load(
        &self,
        view: &View,
        file: &File,
        claim: Claim<'_>,
        checked: bool,
        whom: For,
    ) -> Result<Arc<AlignedBuf>> {
        let extent = claim.extent();
        let mut bytes = self.pages.buffer(extent.len);
        self.read_sectors(view, file, extent.start.0, &mut bytes, checked)?;
        let bytes = Arc::new(bytes);
        claim.publish(&bytes, whom);
        Ok(bytes)
    }

    /// Reads a run, what is kept of it from memory, and keeps nothing.
    fn read_around(
        &self,
        view: &View,
        file: &File,
        run: &Run,
        out: &mut [u8],
        checked: bool,
    ) -> Result<()> {
        if !self.pages.is_on() {
            return self.read_run(view, file, run, out, checked);
        }
        let end = run.disk + run.len;
        let (mut missing, mut at) = (run.disk, run.disk);
        let place = |low: u64, high: u64| (low - run.disk) as usize..(high - run.disk) as usize;
        loop {
            let found = if at < end { self.pages.peek(Logical(at)).map(Some) } else { Ok(None) };
            let kept = match found {
                Err(next) => {
                    at = next.0.min(end);
                    continue;
                }
                Ok(kept) => kept,
            };
            if missing < at {
                let (offset, len) = (run.offset + (missing - run.disk), at - missing);
                let gap = Run { offset, disk: missing, len, room: 0 };
                self.read_run(view, file, &gap, &mut out[place(missing, at)], checked)?;
            }
            let Some((bytes, from)) = kept else { return Ok(()) };
            let stop = end.min(at + (bytes.len() - from) as u64);
            let part = place(at, stop);
            out[part.clone()].copy_from_slice(&bytes[from..from + part.len()]);
            (at, missing) = (stop, stop);
        }
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
    pub(crate) fn read_sectors(
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

/// Copies as much as there is, and zeroes behind it.
fn copy_front(out: &mut [u8], content: &[u8]) {
    let (head, tail) = out.split_at_mut(content.len().min(out.len()));
    head.copy_from_slice(&content[..head.len()]);
    tail.fill(0);
}
