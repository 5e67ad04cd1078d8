//! Writeback: dirty runs get addresses, are written to the device, and become extents.
//!
//! # Place
//!
//! Writeback has four steps, so that many small files can share one device call:
//!
//! - *take* takes runs of dirty data,
//! - *prepare* compresses them and chooses their addresses,
//! - *issue* writes all of them,
//! - *finish* makes the extents visible, with one handle for each extent or part of an extent.
//!
//! # Invariants
//!
//! - **B1** Data is on the device before any of its extents is visible. The exception is the data
//!   of `prepared`.
//! - **B2** One thread at a time writes back a file. Only the thread with the claim allocates for
//!   the file, finishes its ordered extents, truncates it or punches holes into it.
//!
//! # Failure
//!
//! A run that cannot be written is lost, as with every cache in memory. The file keeps the error
//! for its next fsync. [`Counters`] keeps it for the next sync of the volume. The space of the run
//! is given back.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use buttress_base::{clock, interrupt};
use buttress_format::{InodeFlags, Logical};
use buttress_txn::{Engine, InPlaceToken, ReserveClass, SharedRows};
use buttress_volume::Volume;

use crate::buffers::BufferPool;
use crate::claim::Claim;
use crate::counters::Counters;
use crate::dirty::Run;
use crate::error::{Error, Result};
use crate::file::File;
use crate::job::{Job, Packed, Placed, Plan, Supply, Target};
use crate::pages::Pages;
use crate::params::Params;
use crate::placement::{Placement, join};

mod finish;
mod prepared;

pub(crate) use finish::{advance_disk_size, grow};
pub use prepared::PreparedData;

/// The maximum number of bytes that one round takes from a file. The limit also bounds the data
/// that is in writeback at once.
const ROUND_BYTES_MAX: u64 = 128 << 20;

/// The result of a call of writeback.
#[derive(Clone, Copy, Debug, Default)]
pub struct Written {
    /// Files that had dirty data, and that no other thread was writing back.
    pub files: usize,
    /// Bytes of finished ordered extents, and lost bytes.
    pub bytes: u64,
    /// How long the call waited for devices.
    pub device: Duration,
}

/// Writes back the dirty data of one volume's files.
#[derive(Debug)]
pub struct Writeback {
    engine: Arc<Engine>,
    volume: Arc<Volume>,
    params: Arc<Params>,
    counters: Arc<Counters>,
    pool: Arc<BufferPool>,
    pages: Arc<Pages>,
    placement: Arc<Placement>,
}

impl Writeback {
    pub(crate) fn new(
        (engine, volume): (Arc<Engine>, Arc<Volume>),
        params: Arc<Params>,
        counters: Arc<Counters>,
        (pool, pages): (Arc<BufferPool>, Arc<Pages>),
        placement: Arc<Placement>,
    ) -> Self {
        Self { engine, volume, params, counters, pool, pages, placement }
    }

    /// Writes back the data of `range` that is dirty now, and waits until it is visible in the
    /// trees.
    ///
    /// # Errors
    ///
    /// The first failure; the file keeps it as well.
    pub fn write_back(&self, file: &File, range: Range<u64>) -> Result<()> {
        self.write_back_counted(file, range, &mut Written::default())
    }

    /// Writes back all data of a file that is dirty now. The file keeps a failure.
    pub fn write_back_whole(&self, file: &File) -> Written {
        let mut written = Written::default();
        // The file's next fsync reports the failure.
        let _ = self.write_back_counted(file, 0..u64::MAX, &mut written);
        written
    }

    fn write_back_counted(
        &self,
        file: &File,
        range: Range<u64>,
        written: &mut Written,
    ) -> Result<()> {
        // The write that made the data dirty has already succeeded, so its writeback cannot be
        // cancelled.
        interrupt::without_cancel(|| self.write_claimed(file, file.claim(), range, written))
    }

    /// As [`write_back`](Self::write_back), for a caller that has the claim.
    pub(crate) fn write_claimed<'f>(
        &self,
        file: &'f File,
        mut claim: Claim<'f>,
        range: Range<u64>,
        written: &mut Written,
    ) -> Result<()> {
        // Do not wait for data that other threads dirty meanwhile.
        let mut left = file.dirty.lock().bytes();
        while left > 0 {
            let Some(mut job) = self.take(file, claim, range.clone()) else { return Ok(()) };
            let bytes = job.bytes();
            left = left.saturating_sub(bytes);
            self.prepare(std::slice::from_mut(&mut job));
            written.device += self.issue(std::slice::from_mut(&mut job));
            written.bytes += bytes;
            written.files = 1;
            claim = self.finish_job(job)?;
        }
        Ok(())
    }

    /// Waits until no thread writes a file back.
    pub fn wait_idle(&self, file: &File) {
        drop(file.claim());
    }

    /// Writes several files back with as few device calls as possible. Skips files that another
    /// thread is writing back.
    ///
    /// Each file keeps its own failure.
    pub fn write_back_many(&self, files: &[&File]) -> Written {
        interrupt::without_cancel(|| self.write_many(files))
    }

    fn write_many(&self, files: &[&File]) -> Written {
        let mut jobs: Vec<Job<'_>> = Vec::with_capacity(files.len());
        for file in files {
            if let Some(claim) = file.try_claim()
                && let Some(job) = self.take(file, claim, 0..u64::MAX)
            {
                jobs.push(job);
            }
        }
        let (files, bytes) = (jobs.len(), jobs.iter().map(Job::bytes).sum());
        self.prepare(&mut jobs);
        let device = self.issue(&mut jobs);
        for job in jobs {
            // The file's next fsync reports the failure.
            let _ = self.finish_job(job);
        }
        Written { files, bytes, device }
    }

    /// Takes the dirty runs of one round.
    pub(crate) fn take<'f>(
        &self,
        file: &'f File,
        claim: Claim<'f>,
        range: Range<u64>,
    ) -> Option<Job<'f>> {
        let mut meta = file.meta();
        let mut dirty = file.dirty.lock();
        let runs = dirty.take(range, ROUND_BYTES_MAX);
        // Note the end before the extents exist, for writers that reserve metadata meanwhile.
        meta.ordered_end = meta.ordered_end.max(runs.last()?.end());
        let mut taken: u64 = runs.iter().map(|run| run.len).sum();
        self.counters.count_ordered(taken);
        let in_place = |run: &Run| run.unreserved.as_ref().map_or(0, InPlaceToken::bytes);
        taken -= runs.iter().map(in_place).sum::<u64>();
        let is_part = dirty.bytes() > 0;
        let reserved = if is_part {
            dirty.reserved.as_mut().map(|reserved| reserved.split(taken))
        } else {
            dirty.prefers_in_place = false;
            dirty.reserved.take()
        };
        Some(Job {
            file,
            size: meta.item.size,
            flags: meta.item.flags,
            choice: self.params.choice(meta.item.flags, meta.codec),
            taken: runs.into_iter().map(|run| (run, Vec::new())).collect(),
            runs: Vec::new(),
            failed: None,
            reserved,
            // The need of the taken part is not known yet, so the job takes the whole reservation.
            // The rest comes back when the extents are finished.
            metadata: dirty.metadata.take(),
            is_part,
            claim,
        })
    }

    /// Compresses data on all cores if the file's options ask for it, and gives all data an
    /// address.
    pub(crate) fn prepare(&self, jobs: &mut [Job<'_>]) {
        self.params.pack(jobs);
        let mut rows = self.engine.storage().begin_rows();
        for job in jobs {
            self.place_all(job, &mut rows);
        }
    }

    fn place_all(&self, job: &mut Job<'_>, rows: &mut SharedRows<'_>) {
        let file = job.file;
        let taken = std::mem::take(&mut job.taken);
        job.runs.reserve_exact(taken.len());
        // Runs that will be written in place have no data reservation.
        let reserved = job.reserved.take().map_or_else(|| self.engine.reserve_data(0), Ok);
        let reserved = match reserved {
            Ok(reserved) => reserved,
            Err(error) => {
                job.failed = Some(error.into());
                job.runs.extend(taken.into_iter().map(|(run, _)| (run, Plan::Extents(Vec::new()))));
                return;
            }
        };
        let mut supply = Supply { reserved, goal: file.goal(), rows };
        for (mut run, mut packed) in taken {
            let unreserved = run.unreserved.take();
            let plan = if self.params.fits_inline(&run, &packed, job.size, job.flags) {
                Ok(Plan::Inline(packed.pop()))
            } else {
                self.place(file, &run, unreserved, packed, job.flags, &mut supply)
                    .map(Plan::Extents)
            };
            match plan {
                Ok(plan) => job.runs.push((run, plan)),
                Err(error) => {
                    // The space of this run stays unwritten, and a row must have no gaps. So the
                    // next run begins another row.
                    supply.rows.close();
                    job.failed.get_or_insert(error);
                    job.runs.push((run, Plan::Extents(Vec::new())));
                }
            }
        }
        file.set_goal(supply.goal);
        self.reserve_parts(job);
    }

    /// Reserves metadata for the extents of a piece beyond the first one. Fragmented free space
    /// causes such extents (`placement::reservation::V1`). If the metadata is not free at once,
    /// finishing the ordered extents takes it from the global reserve.
    fn reserve_parts(&self, job: &mut Job<'_>) {
        let is_part =
            |part: &&Placed| matches!(part.target, Target::Fresh(_)) && part.packed.is_none();
        let parts = job.runs.iter().map(|(run, plan)| match plan {
            Plan::Extents(placed) => {
                placed.iter().filter(is_part).count().saturating_sub(run.pieces.len())
            }
            Plan::Inline(_) => 0,
        });
        let parts: usize = parts.sum();
        if parts > 0
            && let Ok(Some(more)) =
                self.engine.reserve_at_once(self.params.cost_of_parts(parts), ReserveClass::Normal)
        {
            join(&mut job.metadata, more);
        }
    }

    fn place(
        &self,
        file: &File,
        run: &Run,
        unreserved: Option<InPlaceToken>,
        packed: Vec<Packed>,
        flags: u64,
        supply: &mut Supply<'_, '_>,
    ) -> Result<Vec<Placed>> {
        if !packed.is_empty() {
            self.placement.adjust_reservation(file.tree(), unreserved, 0, supply)?;
            return self.placement.place_packed(run, packed, supply);
        }
        let mut placed = Vec::new();
        let may_be_in_place = flags & (InodeFlags::PREALLOC | InodeFlags::NODATACOW) != 0;
        let in_place = if may_be_in_place {
            self.placement.find_in_place(file, run.offset..run.end(), flags)?
        } else {
            Vec::new()
        };
        let bytes_in_place = in_place.iter().map(|part| part.range.end - part.range.start).sum();
        self.placement.adjust_reservation(file.tree(), unreserved, bytes_in_place, supply)?;
        let mut at = run.offset;
        let mut fresh = |range: Range<u64>, placed: &mut Vec<Placed>| -> Result<()> {
            let placed_before = placed.len();
            let done = self.placement.allocate(range, supply, placed);
            if done.is_err() {
                self.placement.unallocate(&placed[placed_before..]);
                placed.truncate(placed_before);
            }
            done
        };
        for part in in_place {
            fresh(at..part.range.start, &mut placed)
                .inspect_err(|_| self.placement.unallocate(&placed))?;
            at = part.range.end;
            placed.push(part);
        }
        fresh(at..run.end(), &mut placed).inspect_err(|_| self.placement.unallocate(&placed))?;
        if flags & InodeFlags::NODATASUM == 0 {
            for part in &mut placed {
                part.sums = self.params.sums(&run.slices(part.range.clone()));
            }
        }
        Ok(placed)
    }

    /// Writes all data that the jobs have placed (B1). Returns how long the devices took.
    pub(crate) fn issue(&self, jobs: &mut [Job<'_>]) -> Duration {
        let begun = clock::now();
        let failure = {
            let mut batch: Vec<(Logical, &[u8])> = Vec::new();
            for (run, plan) in jobs.iter().flat_map(|job| &job.runs) {
                let Plan::Extents(placed) = plan else { continue };
                for part in placed {
                    let mut at = part.disk().start.0;
                    if let Some(packed) = &part.packed {
                        batch.push((Logical(at), &packed.bytes));
                        continue;
                    }
                    for slice in run.slices(part.range.clone()) {
                        batch.push((Logical(at), slice));
                        at += slice.len() as u64;
                    }
                }
            }
            if batch.is_empty() { None } else { self.volume.write_batch(&batch).err() }
        };
        let took = clock::since(begun);
        for (_, plan) in jobs.iter().flat_map(|job| &job.runs) {
            let Plan::Extents(placed) = plan else { continue };
            placed.iter().for_each(|part| self.pages.forget(part.disk()));
        }
        if let Some(error) = failure.map(Error::from) {
            for job in jobs {
                job.failed.get_or_insert_with(|| error.clone());
            }
        }
        took
    }

    /// Makes a job's extents visible. Returns the claim, for the next round.
    pub(crate) fn finish_job<'f>(&self, job: Job<'f>) -> Result<Claim<'f>> {
        let Job { file, size, runs, mut failed, mut metadata, is_part, claim, .. } = job;
        let ordered: u64 = runs.iter().map(|(run, _)| run.len).sum();
        for (run, plan) in runs {
            if failed.is_none() {
                let finished = match plan {
                    Plan::Inline(packed) => {
                        self.finish_inline(file, &run, size, packed, &mut metadata)
                    }
                    Plan::Extents(placed) => {
                        self.finish(file, &placed, &mut metadata, |meta, dirty| {
                            self.counters.count_clean(dirty.end_writeback(&run));
                            grow(meta, dirty, &(run.offset..run.end()), size, self.params.sector);
                        })
                    }
                };
                match finished {
                    Ok(()) => {
                        self.pool.give(run);
                        continue;
                    }
                    Err(error) => failed = Some(error),
                }
            } else if let Plan::Extents(placed) = &plan {
                self.placement.unallocate(placed);
            }
            let lost = file.dirty.lock().end_writeback(&run);
            self.counters.count_clean(lost);
        }
        self.counters.count_finished(ordered);
        if is_part && let Some(rest) = metadata {
            let mut dirty = file.dirty.lock();
            if dirty.bytes() > 0 {
                join(&mut dirty.metadata, rest);
            }
        }
        match failed {
            None => Ok(claim),
            Some(error) => {
                file.keep_error(&error);
                self.counters.keep_error(&error);
                Err(error)
            }
        }
    }
}
