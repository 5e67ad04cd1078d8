//! Reads files: dirty data comes from memory, and the rest from extents, verified by checksums.
//!
//! # Invariants
//!
//! - **R1** A read never returns a byte that failed its checksum on every mirror, unless an option
//!   ignores checksums.
//! - **R2** Returned bytes belonged to the file's extents at the time of the read: see `read_plan`.
//!
//! Extents that are adjacent on disk are read in one call. A long read goes straight into the
//! caller's buffer, except for partial sectors at its ends. It caches only data that other threads
//! wait for (`read_long`). Short reads are read ahead and cached ([`Pages`](crate::pages::Pages)).

use std::ops::Range;
use std::sync::Arc;

use buttress_base::activity::{self, Cause};
use buttress_base::{AlignedBuf, interrupt};
use buttress_format::{Extent, Logical};
use buttress_txn::{Csums, View};

use super::ahead::Ahead;
use super::read_plan::{CachePolicy, Plan, RUN_BYTES_MAX, Run, Source, Validation, copy_front};
use crate::compress::RAM_BYTES_MAX;
use crate::error::{Error, Result};
use crate::extent_map::extent_error;
use crate::file::File;
use crate::pages::{PageLookup, Purpose, REGION, ReadBatch, RunClaim};
use crate::reader::Reader;

/// A read of at least this many bytes is a long request by itself. Caching it costs more than it
/// saves.
const DIRECT_BYTES_MIN: usize = 512 << 10;

/// A copy of some sectors does not match its checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("data at {logical} does not match its checksum")]
pub struct DataMismatch {
    /// Address of the first sector that does not match.
    pub logical: Logical,
}

/// Fails if the program that reads is about to end (`base::interrupt::I3`). Waits for other
/// threads check this.
pub(super) fn check_cancelled() -> Result<()> {
    if interrupt::is_abandoned() { Err(buttress_txn::Error::Interrupted.into()) } else { Ok(()) }
}

/// The parts of a read that are not in memory.
struct Gaps {
    /// Bytes of the read before the end of the file.
    len: usize,
    parts: Vec<Range<u64>>,
}

impl Reader {
    /// Reads at `offset`. Returns fewer bytes than `buf` holds only at the end of the file.
    ///
    /// # Errors
    ///
    /// [`Error::Checksum`] if no mirror has right data. Otherwise an error of the volume or the
    /// trees.
    pub fn read(&self, file: &File, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.read_in_stream(file, offset, buf).map(|(len, _)| len)
    }

    /// As [`read`](Self::read), for callers with another thread to read ahead. Also returns the
    /// ranges to pass to [`read_ahead`](Self::read_ahead).
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
        self.read_and_keep(file, offset, buf, true)
    }

    /// As [`read`](Self::read), but reads straight into `buf`, whatever its length. Caches only
    /// extents that it had to unpack. Copies data that is cached already.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub fn read_direct(&self, file: &File, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.read_and_keep(file, offset, buf, false).map(|(len, _)| len)
    }

    fn read_and_keep(
        &self,
        file: &File,
        offset: u64,
        buf: &mut [u8],
        may_keep: bool,
    ) -> Result<(usize, Ahead)> {
        if file.has_verity() {
            return self.read_verified(file, offset, buf, may_keep);
        }
        self.read_content(file, offset, buf, may_keep)
    }

    /// Reads without the Merkle tree that a file with fs-verity has.
    pub(super) fn read_content(
        &self,
        file: &File,
        offset: u64,
        buf: &mut [u8],
        may_keep: bool,
    ) -> Result<(usize, Ahead)> {
        let extents = file.extents.read();
        let Some(gaps) = self.copy_dirty(file, offset, buf) else {
            return Ok((0, Ahead::default()));
        };
        let len = gaps.len;
        let buf = &mut buf[..len];
        if gaps.parts.is_empty() {
            return Ok((len, Ahead::default()));
        }
        let reader = self.reading.enter();
        let view = self.engine.view();
        // The baselines of 2012 read without read-ahead threads, as Linux did.
        let is_ours = self.params.options.read_batch == ReadBatch::Run;
        let (policy, ahead) = if !may_keep || !self.pages.is_on() {
            (CachePolicy::Alone, Ahead::default())
        } else if len >= DIRECT_BYTES_MIN {
            (if is_ours { CachePolicy::Long } else { CachePolicy::Alone }, Ahead::default())
        } else {
            let read = offset..offset + len as u64;
            let advice = file.streams.lock().note(&read, self.pages.widest_window());
            // If readers keep all processors busy, no data is read ahead. Otherwise one reader
            // would get ahead of the others, and shared data would be evicted before the other
            // readers read it.
            let helps = is_ours && self.helpers.are_idle_beside(reader.count());
            let ahead = Ahead(if helps { advice.ahead } else { Vec::new() });
            (CachePolicy::Kept { window: advice.window }, ahead)
        };
        let plan = self.plan(&view, file, &gaps.parts, offset, buf)?;
        if plan.is_done() {
            return Ok((len, ahead));
        }
        if !file.free_reads.take_turn() {
            self.carry_out(&plan, &view, file, Validation::Held, buf, policy)?;
            return Ok((len, ahead));
        }
        let stamp = plan.stamp(&self.engine);
        drop(extents);
        let outcome = self.carry_out(&plan, &view, file, Validation::Trial, buf, policy);
        if outcome.is_ok() && stamp.is_valid(file, &self.engine) {
            return Ok((len, ahead));
        }
        // The trial failed or may be wrong. Read again with the extents held, so that no thread can
        // change them.
        file.free_reads.note_vain();
        drop(view);
        self.read_held(file, offset, buf, policy).map(|len| (len, ahead))
    }

    /// Copies dirty data. Returns the readable length and the missing parts, or `None` past the end
    /// of the file.
    fn copy_dirty(&self, file: &File, offset: u64, buf: &mut [u8]) -> Option<Gaps> {
        let size = file.size();
        let len =
            usize::try_from(size.saturating_sub(offset)).map_or(buf.len(), |n| n.min(buf.len()));
        if len == 0 {
            return None;
        }
        let mut parts = Vec::new();
        file.dirty.lock().copy_out(offset, &mut buf[..len], &mut parts);
        Some(Gaps { len, parts })
    }

    /// Reads with the file's extents held.
    fn read_held(
        &self,
        file: &File,
        offset: u64,
        buf: &mut [u8],
        policy: CachePolicy,
    ) -> Result<usize> {
        let _extents = file.extents.read();
        let Some(gaps) = self.copy_dirty(file, offset, buf) else { return Ok(0) };
        let view = self.engine.view();
        let buf = &mut buf[..gaps.len];
        let plan = self.plan(&view, file, &gaps.parts, offset, buf)?;
        self.carry_out(&plan, &view, file, Validation::Held, buf, policy)?;
        Ok(gaps.len)
    }

    /// Reads a whole compressed extent of a file as it lies on disk.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read). Also fails for an extent that is too long to be compressed. Bytes
    /// of a file with fs-verity are not compared with its tree, which has hashes of unpacked bytes.
    pub fn read_stored(&self, file: &File, extent: Extent) -> Result<Vec<u8>> {
        if extent.len > RAM_BYTES_MAX {
            return Err(extent_error(file, 0, "is compressed and too long"));
        }
        let _extents = file.extents.read();
        let view = self.engine.view();
        let mut stored = AlignedBuf::zeroed(extent.len as usize);
        let source = Source::held(&view, file);
        self.read_sectors(&source, extent.start.0, &mut stored, Purpose::Now)?;
        Ok(stored.to_vec())
    }

    /// Reads a range from its extents, without dirty data.
    ///
    /// The caller holds `file.extents` shared, or is the only thread that changes extents.
    pub(crate) fn read_extents(
        &self,
        view: &View,
        file: &File,
        range: Range<u64>,
        buf: &mut [u8],
    ) -> Result<()> {
        let base = range.start;
        let plan = self.plan(view, file, std::slice::from_ref(&range), base, buf)?;
        self.carry_out(&plan, view, file, Validation::Held, buf, CachePolicy::Alone)
    }

    /// Reads a run through the page cache, and caches the missing data.
    pub(crate) fn read_kept(
        &self,
        source: &Source<'_>,
        run: &Run,
        out: &mut [u8],
        window: u64,
    ) -> Result<()> {
        let end = run.disk + run.len;
        let batch = self.params.options.read_batch.bytes(self.params.sector);
        // Extents end at sector boundaries, so the read also ends at a boundary.
        let reach = self.params.ceil(end + run.room);
        let window = if source.file.long_reads.take_turn() { window } else { 0 };
        let limit = self.params.ceil(end + window).min(reach);
        let mut at = run.disk;
        // The waits for one run are one wait, however often this thread looks.
        let mut waiting = None;
        while at < end {
            let first = self.params.floor(at);
            let want = (limit - first).min(batch);
            let (bytes, from) = match self.pages.find(Logical(first), want, at > first) {
                PageLookup::Ready { bytes, from } => (bytes, from),
                PageLookup::Claimed(claim) => {
                    let stop = claim.extent().end().0.min(end);
                    match self.load(source, claim, Purpose::Now) {
                        Ok(bytes) => (bytes, 0),
                        Err(error) if source.validation == Validation::Trial => return Err(error),
                        // The bad sector may lie in data that was only read ahead.
                        Err(_) => {
                            source.file.long_reads.note_vain();
                            let (low, high) = (at - run.disk, stop - run.disk);
                            let part = Run {
                                offset: run.offset + low,
                                disk: at,
                                len: high - low,
                                room: 0,
                            };
                            let out = &mut out[low as usize..high as usize];
                            self.read_run(source, &part, out)?;
                            at = stop;
                            continue;
                        }
                    }
                }
                PageLookup::Loading { end: busy } => {
                    // Another thread reads this run. Meanwhile this thread reads the data after
                    // that run, up to the window.
                    if window > 0 && batch == REGION && busy.0 < limit {
                        let want = (reach - busy.0).min(self.ahead_bytes_max());
                        if let Ok(next) = self.pages.claim(busy, want) {
                            // After a failure, a reader that needs the data reads it again and gets
                            // the error.
                            let _ = self.load(source, next, Purpose::Later);
                        }
                    }
                    waiting.get_or_insert_with(|| activity::wait(Cause::Reader));
                    self.pages.wait(Logical(first));
                    check_cancelled()?;
                    continue;
                }
            };
            waiting = None;
            let skip = from + (at - first) as usize;
            let len = (bytes.len() - skip).min((end - at) as usize);
            let place = (at - run.disk) as usize;
            out[place..place + len].copy_from_slice(&bytes[skip..skip + len]);
            at += len as u64;
        }
        Ok(())
    }

    /// Reads a claimed run, and gives it to all threads that wait for it.
    pub(crate) fn load(
        &self,
        source: &Source<'_>,
        claim: RunClaim<'_>,
        purpose: Purpose,
    ) -> Result<Arc<AlignedBuf>> {
        let extent = claim.extent();
        let mut bytes = self.pages.buffer(extent.len);
        // If this read fails, readers of these sectors read them again and report the failure.
        self.read_sectors(source, extent.start.0, &mut bytes, Purpose::Later)?;
        let bytes = Arc::new(bytes);
        claim.publish(&bytes, purpose);
        Ok(bytes)
    }

    /// Reads a run. Copies data that is cached, and adds nothing to the cache.
    pub(crate) fn read_around(&self, source: &Source<'_>, run: &Run, out: &mut [u8]) -> Result<()> {
        if !self.pages.is_on() {
            return self.read_run(source, run, out);
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
                self.read_run(source, &gap, &mut out[place(missing, at)])?;
            }
            let Some((bytes, from)) = kept else { return Ok(()) };
            let stop = end.min(at + (bytes.len() - from) as u64);
            let part = place(at, stop);
            out[part.clone()].copy_from_slice(&bytes[from..from + part.len()]);
            (at, missing) = (stop, stop);
        }
    }

    /// Reads a run, which may begin and end within a sector.
    fn read_run(&self, source: &Source<'_>, run: &Run, out: &mut [u8]) -> Result<()> {
        let end = run.disk + run.len;
        let (inner, inner_end) = (self.params.ceil(run.disk), self.params.floor(end));
        if inner > run.disk || inner_end < end {
            let (low, high) = (self.params.floor(run.disk), self.params.ceil(end));
            if inner >= inner_end || high - low <= 16 * self.params.sector {
                let mut bounce = AlignedBuf::zeroed((high - low) as usize);
                self.read_sectors(source, low, &mut bounce, Purpose::Now)?;
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
                self.read_sectors(source, step, &mut out[part], Purpose::Now)?;
            } else {
                let low = self.params.floor(step);
                let mut bounce = AlignedBuf::zeroed(self.params.sector as usize);
                self.read_sectors(source, low, &mut bounce, Purpose::Now)?;
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
        source: &Source<'_>,
        disk: u64,
        out: &mut [u8],
        purpose: Purpose,
    ) -> Result<()> {
        let extent = Extent { start: Logical(disk), len: out.len() as u64 };
        let csums = match source.checked && !self.params.options.ignore_csums {
            true => Some(self.engine.read_csums(source.view, extent)?),
            false => None,
        };
        // Checksums are removed with their extent. So checksums that the plan relies on may be
        // missing now.
        let is_trial = source.validation == Validation::Trial;
        if is_trial && csums.as_ref().is_some_and(|csums| !csums.is_whole()) {
            return Err(source.stale(extent.start));
        }
        let csums = csums.filter(|csums| !csums.is_empty());
        let sector = self.params.sector as usize;
        let verify = |at: usize, bytes: &[u8]| match &csums {
            Some(csums) => self.verify(extent.start, at, bytes, csums),
            None => Ok(()),
        };
        if is_trial {
            let is_right = self.volume.try_read_verified_by(extent.start, out, sector, verify);
            return if is_right { Ok(()) } else { Err(source.stale(extent.start)) };
        }
        let file = source.file;
        let read = match purpose {
            Purpose::Now => self.volume.read_verified_by(extent.start, out, sector, verify),
            Purpose::Later => self.volume.read_ahead_by(extent.start, out, sector, verify),
        };
        read.map_err(|error| match error {
            buttress_volume::Error::NoGoodMirror { logical, source: None, .. } => {
                Error::Checksum { tree: file.tree, ino: file.ino, logical }
            }
            error => error.into(),
        })
    }

    /// Checks one sector, which lies `at` bytes after the first sector of the sums.
    fn verify(
        &self,
        start: Logical,
        at: usize,
        bytes: &[u8],
        csums: &Csums,
    ) -> Result<(), DataMismatch> {
        let size = self.params.csum_type.size();
        match csums.sector(at / self.params.sector as usize) {
            Some(expected) if self.params.csum_type.digest(bytes)[..size] != *expected => {
                Err(DataMismatch { logical: Logical(start.0 + at as u64) })
            }
            _ => Ok(()),
        }
    }

    /// Reads the extents of a plan.
    pub(crate) fn carry_out(
        &self,
        plan: &Plan,
        view: &View,
        file: &File,
        validation: Validation,
        buf: &mut [u8],
        policy: CachePolicy,
    ) -> Result<()> {
        let source = Source { view, file, checked: plan.checked, layout: plan.layout, validation };
        let part = |low: u64, high: u64| (low - plan.base) as usize..(high - plan.base) as usize;
        for run in &plan.runs {
            let out = &mut buf[part(run.offset, run.offset + run.len)];
            match policy {
                CachePolicy::Kept { window } => self.read_kept(&source, run, out, window)?,
                CachePolicy::Long => self.read_long(&source, run, out)?,
                CachePolicy::Alone => self.read_around(&source, run, out)?,
            }
        }
        self.read_compressed(&source, &plan.packed, |one, content| {
            copy_front(&mut buf[part(one.low, one.high)], content);
        })
    }
}
