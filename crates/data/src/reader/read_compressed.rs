//! Reads compressed extents. Adjacent extents are read together, and extents are unpacked in
//! parallel, once for all readers that wait.
//!
//! # Invariants
//!
//! - **Z1** One reader unpacks an extent for all readers ([`Unpacked`](super::unpacked::Unpacked)).
//!   A reader waits for other readers only after it has published or dropped all its own claims.
//! - **Z2** A batch is bounded, in extents and so in memory, however long the read is.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use buttress_base::AlignedBuf;
use buttress_base::activity::{self, Cause};
use buttress_base::sync::{Condvar, Mutex};
use buttress_format::{Compression, Extent, Logical};

use super::read::check_cancelled;
use super::read_plan::{PackedPart, Source};
use super::unpacked::{UnpackClaim, UnpackedKey, UnpackedLookup};
use crate::compress::{RAM_BYTES_MAX, decompress};
use crate::error::Result;
use crate::extent_map::{disk_extent, extent_error};
use crate::pages::Purpose;
use crate::reader::Reader;

/// The largest number of extents that are unpacked in parallel (Z2): two MiB of content, with the
/// usual 128 KiB each.
const BATCH: usize = 16;

/// An extent to be read and unpacked, and the index of the part that needs it.
struct Todo<'u> {
    index: usize,
    extent: Extent,
    claim: UnpackClaim<'u>,
    /// Whether a later read will probably ask for another part of the extent.
    keeps: bool,
}

impl Reader {
    /// Reads parts of compressed extents, given in the order of the file. Calls `take` for each
    /// part, in any order.
    pub(crate) fn read_compressed(
        &self,
        source: &Source<'_>,
        parts: &[PackedPart],
        mut take: impl FnMut(&PackedPart, &[u8]),
    ) -> Result<()> {
        let mut place = |part: &PackedPart, content: &[u8]| {
            let offset = part.mapping.region().map_or(0, |region| region.offset);
            let start = offset + (part.low - part.mapping.offset);
            let start = usize::try_from(start).unwrap_or(usize::MAX).min(content.len());
            let len = (part.high - part.low) as usize;
            take(part, &content[start..content.len().min(start.saturating_add(len))]);
        };
        for batch in parts.chunks(BATCH) {
            let (mut todo, mut busy) = (Vec::new(), Vec::new());
            for (index, part) in batch.iter().enumerate() {
                let Some(region) = part.mapping.region() else { continue };
                let extent = disk_extent(region);
                if extent.len > RAM_BYTES_MAX {
                    let what = "is compressed and too long";
                    return Err(extent_error(source.file, part.mapping.offset, what));
                }
                let key = UnpackedKey { layout: source.layout, disk: region.disk };
                match self.unpacked.find(key) {
                    UnpackedLookup::Ready(content) => place(part, &content),
                    UnpackedLookup::Claimed(claim) => {
                        todo.push(Todo { index, extent, claim, keeps: !part.is_whole() });
                    }
                    UnpackedLookup::Busy => busy.push((part, key)),
                }
            }
            self.unpack(source, batch, todo, Purpose::Now, &mut place)?;
            for (part, key) in busy {
                let mut waiting = None;
                loop {
                    match self.unpacked.find(key) {
                        UnpackedLookup::Ready(content) => break place(part, &content),
                        UnpackedLookup::Busy => {
                            waiting.get_or_insert_with(|| activity::wait(Cause::Reader));
                            self.unpacked.wait(key);
                            check_cancelled()?;
                        }
                        UnpackedLookup::Claimed(claim) => {
                            let Some(region) = part.mapping.region() else { break };
                            let (extent, keeps) = (disk_extent(region), !part.is_whole());
                            let todo = vec![Todo { index: 0, extent, claim, keeps }];
                            let one = std::slice::from_ref(part);
                            break self.unpack(source, one, todo, Purpose::Now, &mut place)?;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Unpacks extents that will be asked for in parts. Skips extents that are cached or being
    /// unpacked.
    pub(crate) fn read_compressed_ahead(
        &self,
        source: &Source<'_>,
        parts: &[PackedPart],
    ) -> Result<()> {
        for batch in parts.chunks(BATCH) {
            let mut todo = Vec::new();
            for (index, part) in batch.iter().enumerate() {
                let Some(region) = part.mapping.region() else { continue };
                let extent = disk_extent(region);
                let key = UnpackedKey { layout: source.layout, disk: region.disk };
                if extent.len <= RAM_BYTES_MAX
                    && let UnpackedLookup::Claimed(claim) = self.unpacked.find(key)
                {
                    todo.push(Todo { index, extent, claim, keeps: true });
                }
            }
            self.unpack(source, batch, todo, Purpose::Later, &mut |_, _| ())?;
        }
        Ok(())
    }

    /// Unpacks the claimed extents. Adjacent extents are read together.
    fn unpack(
        &self,
        source: &Source<'_>,
        batch: &[PackedPart],
        todo: Vec<Todo<'_>>,
        purpose: Purpose,
        place: &mut impl FnMut(&PackedPart, &[u8]),
    ) -> Result<()> {
        let sector = self.params.sector as usize;
        let mut jobs = Vec::with_capacity(todo.len());
        for group in todo.chunk_by(|one, next| one.extent.end() == next.extent.start) {
            let (Some(first), Some(last)) = (group.first(), group.last()) else { continue };
            let start = first.extent.start.0;
            let mut bytes = AlignedBuf::zeroed((last.extent.end().0 - start) as usize);
            self.read_sectors(source, start, &mut bytes, purpose)?;
            let bytes = Arc::new(bytes);
            for one in group {
                let from = (one.extent.start.0 - start) as usize;
                let item = &batch[one.index].mapping.extent;
                jobs.push(Job {
                    bytes: Arc::clone(&bytes),
                    part: from..from + one.extent.len as usize,
                    start: one.extent.start,
                    kind: item.compression,
                    ram_bytes: item.ram_bytes,
                    sector,
                });
            }
        }
        for (one, content) in todo.into_iter().zip(self.side_by_side(jobs)) {
            let content = Arc::new(content?);
            one.claim.finish(&content, one.keeps);
            place(&batch[one.index], &content);
        }
        Ok(())
    }

    /// Unpacks extents with the help of idle threads. Returns the results in the order of the jobs.
    fn side_by_side(&self, jobs: Vec<Job>) -> Vec<Result<Vec<u8>>> {
        if jobs.len() < 2 {
            return jobs.iter().map(Job::run).collect();
        }
        let helpers = jobs.len() - 1;
        let shared = Arc::new(Shared {
            results: jobs.iter().map(|_| Mutex::new(None)).collect(),
            next: AtomicUsize::new(0),
            left: Mutex::new(jobs.len()),
            done: Condvar::new(),
            jobs,
        });
        for _ in 0..helpers.min(self.helpers.threads_max() - 1) {
            let shared = Arc::clone(&shared);
            if !self.helpers.offer(move || shared.take_part()) {
                break;
            }
        }
        shared.take_part();
        let _waiting = activity::wait(Cause::Reader);
        let mut left = shared.left.lock();
        while *left > 0 {
            shared.done.wait(&mut left);
        }
        drop(left);
        let taken = shared.results.iter().map(|result| result.lock().take());
        taken.map(|result| result.expect("the thread that unpacked it did not panic")).collect()
    }
}

/// The unpacking of one extent. The job owns all its data, so that any thread can do it.
struct Job {
    bytes: Arc<AlignedBuf>,
    part: Range<usize>,
    start: Logical,
    kind: Compression,
    ram_bytes: u64,
    sector: usize,
}

impl Job {
    fn run(&self) -> Result<Vec<u8>> {
        let packed = &self.bytes[self.part.clone()];
        decompress(self.kind, self.start, packed, self.ram_bytes, self.sector)
    }
}

/// Jobs that several threads take in turn.
struct Shared {
    jobs: Vec<Job>,
    /// Unranked: nothing is locked under any of these locks.
    results: Vec<Mutex<Option<Result<Vec<u8>>>>>,
    next: AtomicUsize,
    /// Unranked: nothing is locked under it.
    left: Mutex<usize>,
    done: Condvar,
}

impl Shared {
    /// Runs jobs until all are taken. A late thread finds no job.
    fn take_part(&self) {
        /// Counts a job as done, also when it panicked: the reader waits for the count.
        struct Done<'s>(&'s Shared);
        impl Drop for Done<'_> {
            fn drop(&mut self) {
                let mut left = self.0.left.lock();
                *left -= 1;
                if *left == 0 {
                    self.0.done.notify_all();
                }
            }
        }
        loop {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(job) = self.jobs.get(index) else { return };
            let _done = Done(self);
            let result = job.run();
            *self.results[index].lock() = Some(result);
        }
    }
}
