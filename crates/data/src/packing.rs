//! Compression during writeback: selects parts of runs, compresses them on several threads, and
//! chooses where the result is stored.
//!
//! # Invariants
//!
//! - **G1** A compressed extent holds at most [`PACKED_BYTES_MAX`] of a file and saves at least one
//!   sector. Otherwise the part is written uncompressed.
//! - **G2** A compressed part is one extent of its own. If no free extent is long enough, the part
//!   is written uncompressed.
//! - **G3** Files that are overwritten in place or have no checksums are never compressed, as in
//!   Linux. Files with preallocated space are compressed only by
//!   [`Files::defragment`](crate::Files::defragment) with a codec.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use buttress_base::thread;
use buttress_format::InodeFlags;

use crate::codec::Codec;
use crate::dirty::PIECE_BYTES;
use crate::heuristic::looks_compressible;
use crate::job::{Choice, Job, Packed};
use crate::pack::{PACKED_BYTES_MAX, Packer};
use crate::params::Params;

/// The maximum number of compressed extents that one buffer of dirty data may become. Each run is
/// cut from its start into parts of [`PACKED_BYTES_MAX`].
pub(crate) const PACKED_PER_PIECE: u32 = PIECE_BYTES.div_ceil(PACKED_BYTES_MAX as usize) as u32;

/// Fewest parts for each thread. With fewer parts, another thread costs more than it saves.
const PARTS_PER_THREAD: usize = 4;

/// The result of trying to compress a part.
enum Outcome {
    Packed(Packed),
    /// Compression was not tried, because the sample predicts no saving.
    LeftAlone,
    /// Compression was tried and saved too little.
    Incompressible,
}

/// One part of one run.
struct Part<'j> {
    job: usize,
    run: usize,
    range: Range<u64>,
    slices: Vec<&'j [u8]>,
    choice: Choice,
    inline: bool,
}

impl Params {
    /// Whether a file with these inode flags may have compressed extents.
    pub(crate) fn may_pack(flags: u64) -> bool {
        flags & (InodeFlags::NODATACOW | InodeFlags::NODATASUM) == 0
    }

    /// The compression of a file with these flags and this property. `None` if the file is not
    /// compressed.
    pub(crate) fn choice(&self, flags: u64, property: Option<Codec>) -> Option<Choice> {
        if !Self::may_pack(flags) || flags & InodeFlags::PREALLOC != 0 {
            return None;
        }
        let forced = self.options.compress_force && self.options.compress.is_some();
        if flags & InodeFlags::NOCOMPRESS != 0 && !forced {
            return None;
        }
        let by_flag = (flags & InodeFlags::COMPRESS != 0).then_some(Codec::DEFAULT);
        let codec = property.or(self.options.compress).or(by_flag)?;
        Some(Choice { codec, forced, kept: property.is_some() })
    }

    /// Compresses the parts of the jobs' runs that are selected for compression.
    pub(crate) fn pack(&self, jobs: &mut [Job<'_>]) {
        let mut incompressible = Vec::new();
        let outcomes = {
            let parts = self.parts(jobs);
            let outcomes = self.pack_parts(&parts);
            parts
                .into_iter()
                .zip(outcomes)
                .filter_map(|(part, outcome)| match outcome {
                    Outcome::Packed(packed) => Some((part.job, part.run, packed)),
                    Outcome::LeftAlone => None,
                    Outcome::Incompressible => {
                        if !(part.inline || part.choice.forced || part.choice.kept) {
                            incompressible.push(part.job);
                        }
                        None
                    }
                })
                .collect::<Vec<_>>()
        };
        for (job, run, packed) in outcomes {
            jobs[job].taken[run].1.push(packed);
        }
        for job in incompressible {
            // The flag reaches the disk with the ordered extents of this job.
            jobs[job].file.touch(|item| item.flags |= InodeFlags::NOCOMPRESS);
        }
    }

    /// The parts that are worth compressing, in order.
    fn parts<'j>(&self, jobs: &'j [Job<'_>]) -> Vec<Part<'j>> {
        let mut parts = Vec::new();
        for (index, job) in jobs.iter().enumerate() {
            let Some(choice) = job.choice else { continue };
            for (number, (run, _)) in job.taken.iter().enumerate() {
                let mut part = |range: Range<u64>, inline| {
                    let slices = run.slices(range.clone());
                    parts.push(Part { job: index, run: number, range, slices, choice, inline });
                };
                if self.may_be_inline(run, job.size, job.flags) {
                    part(0..job.size, true);
                    continue;
                }
                for range in cut(run.offset..run.end()) {
                    if range.end - range.start > self.sector {
                        part(range, false);
                    }
                }
            }
        }
        parts
    }

    /// Compresses the parts of `data` that shrink. `offset` is the file offset of `data`.
    pub(crate) fn pack_slice(&self, offset: u64, data: &[u8], choice: Choice) -> Vec<Packed> {
        let slice = |range: &Range<u64>| {
            &data[(range.start - offset) as usize..(range.end - offset) as usize]
        };
        let parts: Vec<_> = cut(offset..offset + data.len() as u64)
            .filter(|range| range.end - range.start > self.sector)
            .map(|range| {
                let slices = vec![slice(&range)];
                Part { job: 0, run: 0, range, slices, choice, inline: false }
            })
            .collect();
        let packed = |outcome| match outcome {
            Outcome::Packed(packed) => Some(packed),
            Outcome::LeftAlone | Outcome::Incompressible => None,
        };
        self.pack_parts(&parts).into_iter().filter_map(packed).collect()
    }

    fn pack_parts(&self, parts: &[Part<'_>]) -> Vec<Outcome> {
        if parts.is_empty() {
            return Vec::new();
        }
        let threads = thread::parallelism().min(parts.len().div_ceil(PARTS_PER_THREAD));
        let next = AtomicUsize::new(0);
        let work = || {
            let mut packer = Packer::default();
            let mut done = Vec::new();
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(part) = parts.get(index) else { return done };
                done.push((index, self.pack_part(&mut packer, part)));
            }
        };
        let mut done = if threads <= 1 {
            work()
        } else {
            thread::scope(|scope| {
                let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
                let mut done = work();
                for other in others {
                    done.extend(other.join().expect("packing does not panic"));
                }
                done
            })
        };
        done.sort_unstable_by_key(|(index, _)| *index);
        done.into_iter().map(|(_, outcome)| outcome).collect()
    }

    fn pack_part(&self, packer: &mut Packer, part: &Part<'_>) -> Outcome {
        let Part { range, slices, choice, .. } = part;
        if !choice.forced && !looks_compressible(slices) {
            return Outcome::LeftAlone;
        }
        let len = (range.end - range.start) as usize;
        let sector = self.sector as usize;
        let limit = if part.inline {
            (len - 1).min(self.options.max_inline as usize)
        } else {
            len - sector
        };
        let Some(mut bytes) = packer.pack(choice.codec, slices, limit, sector) else {
            return Outcome::Incompressible;
        };
        let mut sums = Vec::new();
        if !part.inline {
            bytes.resize(bytes.len().next_multiple_of(sector), 0);
            sums = self.sums(&[&bytes]);
        }
        Outcome::Packed(Packed { range: range.clone(), kind: choice.codec.kind(), bytes, sums })
    }
}

/// Cuts a run into the ranges that become one extent each.
fn cut(run: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let (start, end) = (run.start, run.end);
    (start..end)
        .step_by(PACKED_BYTES_MAX as usize)
        .map(move |at| at..end.min(at + PACKED_BYTES_MAX))
}
