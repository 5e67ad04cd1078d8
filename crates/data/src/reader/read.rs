//! Reading: dirty data from memory, the rest from its extents, checked.
//!
//! # Invariants
//!
//! - **R1** No byte is returned that failed its checksum on every mirror, but where checksums are
//!   to be ignored.
//! - **R2** Bytes that are returned belonged to the file's extents at the time of the read: see
//!   `read_plan`.
//!
//! Runs of extents that lie one behind the other on disk are read in one call. Long reads go
//! straight into the caller's buffer, except for ends that are no whole sector. They leave nothing
//! in memory but what others wait for (`read_long`). What is read in short pieces is read ahead and
//! kept ([`Pages`](crate::pages::Pages)).

use std::ops::Range;
use std::sync::Arc;

use buttress_base::AlignedBuf;
use buttress_format::{Extent, Logical};
use buttress_txn::{Csums, View};

use super::ahead::Ahead;
use super::read_plan::{CachePolicy, Plan, RUN_BYTES_MAX, Run, Source, Validation, copy_front};
use crate::compress::RAM_BYTES_MAX;
use crate::error::{Error, Result};
use crate::extent_map::extent_error;
use crate::file::File;
use crate::pages::{Claim, Found, Purpose, REGION, ReadBatch};
use crate::reader::Reader;

/// Reads of so many bytes are long requests by themselves. A copy in memory costs more than it
/// saves.
const DIRECT_BYTES_MIN: usize = 512 << 10;

/// A copy of some sectors does not match its checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("data at {logical} does not match its checksum")]
pub struct DataMismatch {
    /// The first sector that does not.
    pub logical: Logical,
}

/// The parts of a read that are not in memory.
struct Gaps {
    /// Bytes that can be read.
    len: usize,
    parts: Vec<Range<u64>>,
}

impl Reader {
    /// Reads at `offset`; fewer bytes than asked only at the end of the file.
    ///
    /// # Errors
    ///
    /// [`Error::Checksum`] when no mirror is right, or what the volume or the trees met.
    pub fn read(&self, file: &File, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.read_in_stream(file, offset, buf).map(|(len, _)| len)
    }

    /// As [`read`](Self::read), for callers with another thread to read ahead. Also returns what is
    /// worth reading meanwhile, for [`read_ahead`](Self::read_ahead).
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

    /// As [`read`](Self::read), but straight into `buf` whatever its length. Keeps nothing but what
    /// it had to unpack, and copies what is kept already.
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
        // The baselines of 2012 read by themselves, as Linux did.
        let is_ours = self.params.options.read_batch == ReadBatch::Run;
        let (policy, ahead) = if !may_keep || !self.pages.is_on() {
            (CachePolicy::Alone, Ahead::default())
        } else if len >= DIRECT_BYTES_MIN {
            (if is_ours { CachePolicy::Long } else { CachePolicy::Alone }, Ahead::default())
        } else {
            let read = offset..offset + len as u64;
            let advice = file.streams.lock().note(&read, self.pages.widest_window());
            // Readers that keep all processors busy are not helped. A helped one would run ahead of
            // the others, and what it read would be gone when they come.
            let helps = is_ours && self.helpers.are_idle_beside(reader.count());
            let ahead = Ahead(if helps { advice.ahead } else { Vec::new() });
            (CachePolicy::Kept { window: advice.window }, ahead)
        };
        let plan = self.plan(&view, file, &gaps.parts, offset, buf)?;
        if plan.is_done() {
            return Ok((len, ahead));
        }
        if !file.free_reads.may() {
            self.carry_out(&plan, &view, file, Validation::Held, buf, policy)?;
            return Ok((len, ahead));
        }
        let stamp = plan.stamp(&self.engine);
        drop(extents);
        let outcome = self.carry_out(&plan, &view, file, Validation::Trial, buf, policy);
        if outcome.is_ok() && stamp.is_valid(file, &self.engine) {
            return Ok((len, ahead));
        }
        // The trial failed or may be wrong. With the extents held no thread can change them.
        file.free_reads.note_vain();
        drop(view);
        self.read_held(file, offset, buf, policy).map(|len| (len, ahead))
    }

    /// Copies what waits in memory. Returns how much can be read and which parts are missing;
    /// `None` behind the end.
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
    /// As [`read`](Self::read); an extent that is too long to be a compressed one is refused.
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

    /// Reads a range as its extents have it, without what waits in memory.
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

    /// Reads a run through the kept pages, and keeps what was missing.
    pub(crate) fn read_kept(
        &self,
        source: &Source<'_>,
        run: &Run,
        out: &mut [u8],
        window: u64,
    ) -> Result<()> {
        let end = run.disk + run.len;
        let batch = self.params.options.read_batch.bytes(self.params.sector);
        // Extents end with a sector, so the read ends with one, too.
        let reach = self.params.ceil(end + run.room);
        let window = if source.file.long_reads.may() { window } else { 0 };
        let limit = self.params.ceil(end + window).min(reach);
        let mut at = run.disk;
        while at < end {
            let first = self.params.floor(at);
            let want = (limit - first).min(batch);
            let (bytes, from) = match self.pages.find(Logical(first), want, at > first) {
                Found::Ready { bytes, from } => (bytes, from),
                Found::Claimed(claim) => {
                    let stop = claim.extent().end().0.min(end);
                    match self.load(source, claim, Purpose::Now) {
                        Ok(bytes) => (bytes, 0),
                        Err(error) if source.validation == Validation::Trial => return Err(error),
                        // The bad sector may lie in what was only read ahead.
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
                Found::Loading { end: busy } => {
                    // Another thread reads this run. What comes behind is read meanwhile, up to the
                    // window.
                    if window > 0 && batch == REGION && busy.0 < limit {
                        let want = (reach - busy.0).min(self.most_ahead());
                        if let Ok(next) = self.pages.claim(busy, want) {
                            // A reader that needs it reads it again and gets the error.
                            let _ = self.load(source, next, Purpose::Later);
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

    /// Reads what was claimed, and gives it to all that wait for it.
    pub(crate) fn load(
        &self,
        source: &Source<'_>,
        claim: Claim<'_>,
        purpose: Purpose,
    ) -> Result<Arc<AlignedBuf>> {
        let extent = claim.extent();
        let mut bytes = self.pages.buffer(extent.len);
        // If this fails, readers of these sectors read them again, and the failure counts then.
        self.read_sectors(source, extent.start.0, &mut bytes, Purpose::Later)?;
        let bytes = Arc::new(bytes);
        claim.publish(&bytes, purpose);
        Ok(bytes)
    }

    /// Reads a run, takes what is kept from memory, and keeps nothing.
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

    /// Reads a run. Only a part of its first and last sector may be asked for.
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
        // Checksums go with their extent: there may have been some when this was planned.
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

    /// Checks one sector, which lies `at` bytes behind the start of the sums.
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

    /// Reads what a plan names.
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
        self.read_packed(&source, &plan.packed, |one, content| {
            copy_front(&mut buf[part(one.low, one.high)], content);
        })
    }
}
