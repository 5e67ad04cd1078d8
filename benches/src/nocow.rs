//! Random direct writes into files that are overwritten in place, as in the published measurement
//! of block-group lookups: fixed blocks, a deep queue, many jobs, and a tree of many filled block
//! groups.
//!
//! `fio` with `libaio` drives folders. Threads drive the library, which has no queue: each write is
//! done when the call returns. In one row, one thread does a job. In another row, the number of
//! threads of a job is the depth of the queue.
//!
//! The same job on files that are copied on write, with checksums, is an experiment of its own.

use std::{
    fs::{File, OpenOptions},
    os::unix::fs::FileExt,
    path::Path,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use buttress_base::{AlignedBuf, Rng};
use buttress_fs::{FallocateMode, Filesystem, Inode, NewInode};

use crate::{
    Target, cpu,
    fio::{Engine, Fio, FioWork, Place},
    latency::Latencies,
    published::{Better, Experiment, Plan, Subject, Table},
    setup::Setup,
    work::{measure_for, pattern, text},
};

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

/// The experiment.
#[derive(Clone, Debug)]
pub struct Nocow {
    /// Bytes of a write. Each size is a row of its own.
    pub blocks: Vec<usize>,
    /// Jobs at a time, each with a file of its own.
    pub jobs: usize,
    /// Writes of each job that wait for the device.
    pub depth: usize,
    /// Data block groups of a GiB that are filled in advance, times the scale.
    pub groups: u64,
    /// MiB of each job's file; times the scale, but at least twice the waiting writes of the job.
    pub file_mib: u64,
    /// Whether writes are copied on write, with checksums, and not in place.
    pub cow: bool,
}

impl Experiment for Nocow {
    fn name(&self) -> &'static str {
        if self.cow { "cow" } else { "nocow" }
    }

    fn subjects(&self, plan: &Plan) -> Vec<Subject> {
        let deep =
            |name, target, options| Subject::new(name, target, options).with_threads(self.depth);
        if self.cow {
            let mut subjects = vec![
                Subject::new("kernel btrfs", Target::Btrfs, ""),
                Subject::new("kernel ext4", Target::Ext4, ""),
                Subject::new("buttress", Target::Library, ""),
                deep("buttress, as deep", Target::Library, ""),
                Subject::new("buttress on loop", Target::Loop, ""),
            ];
            if plan.mount {
                subjects.extend(Subject::mounts(""));
            }
            return subjects;
        }
        let off = "nodatacow,nocow_check=always,bg_lookup=rwlock-double";
        let single = "nodatacow,nocow_check=always,bg_lookup=rwlock-single";
        let lockfree = "nodatacow,nocow_check=always,bg_lookup=lockfree";
        let mut subjects = vec![
            Subject::new("kernel btrfs", Target::Btrfs, "nodatacow"),
            Subject::new("kernel ext4", Target::Ext4, ""),
            Subject::new("device", Target::Raw, ""),
            Subject::new("buttress, two lookups", Target::Library, off),
            Subject::new("buttress, one lookup", Target::Library, single),
            Subject::new("buttress, no lock", Target::Library, lockfree),
            Subject::new("buttress", Target::Library, "nodatacow"),
            deep("buttress, as deep", Target::Library, "nodatacow"),
            Subject::new("buttress on loop", Target::Loop, "nodatacow"),
        ];
        if plan.mount {
            subjects.extend(Subject::mounts("nodatacow"));
        }
        subjects
    }

    fn run(&self, subject: &Subject, plan: &Plan, out: &mut Table) -> Result<(), String> {
        let longest = self.blocks.iter().copied().max().unwrap_or(0);
        let waiting = (self.depth * longest) as u64;
        let bytes = plan.scaled(self.file_mib * MIB).max(2 * waiting).next_multiple_of(MIB);
        let jobs = self.jobs;
        let groups = if self.groups > 0 { plan.scaled(self.groups) } else { 0 };
        // An extent is kept as long as any part of it is in use, so copied data may need its room
        // twice.
        let copies = if self.cow { 3 } else { 1 };
        let room = (jobs as u64 * bytes * copies + 2 * GIB).next_multiple_of(GIB);
        let size = room + groups * (GIB + GIB / 8);
        let setup = Setup::of(subject, plan, size)?;
        let time = Duration::from_secs_f64(3.0 * plan.scale);
        if subject.target.is_library() {
            let fs = setup.open()?;
            let files = self.prepare(&fs, groups, bytes)?;
            for &block in &self.blocks {
                let threads = jobs * subject.threads.max(1);
                let seen = drive(threads, time, bytes, block, |thread, at, data| {
                    let job = thread % jobs;
                    files[job].write_direct(at, data).map_err(text).map(drop)
                })?;
                tell(subject, block, &seen, out);
            }
            drop(files);
            return fs.close().map_err(text);
        }
        let place = |job: usize| match subject.target {
            Target::Raw => Place { path: setup.device().into(), offset: job as u64 * bytes },
            _ => Place::whole(setup.folder().join(format!("job-{job}"))),
        };
        let places: Vec<_> = (0..jobs).map(place).collect();
        if subject.target != Target::Raw {
            for group in 0..groups {
                let file = File::create(setup.folder().join(format!("filler-{group}")));
                let file = file.map_err(text)?;
                let mode = rustix::fs::FallocateFlags::empty();
                rustix::fs::fallocate(&file, mode, 0, GIB).map_err(text)?;
            }
            for place in &places {
                fill(&place.path, bytes, !self.cow)?;
            }
            crate::work::sync(setup.folder())?;
        }
        for &block in &self.blocks {
            let work = FioWork::RandomWrites { direct: true, time, ramp: Duration::ZERO };
            let engine = Engine::Libaio { depth: self.depth };
            let seen = Fio { engine, work, block, bytes, step: None }.run(&places, || ())?;
            let rate = seen.bytes / seen.seconds;
            let seen = Seen { rate, p99: seen.p99 * 1e6, spent: seen.spent / seen.bytes };
            tell(subject, block, &seen, out);
        }
        Ok(())
    }
}

impl Nocow {
    /// Fills block groups, and makes the files that are written to.
    fn prepare(&self, fs: &Filesystem, groups: u64, bytes: u64) -> Result<Vec<Inode>, String> {
        let create =
            |name: String| fs.root().create(name.as_bytes(), NewInode::file(0o600)).map_err(text);
        for group in 0..groups {
            let file = create(format!("filler-{group}"))?;
            file.fallocate(0, GIB, FallocateMode::Allocate { keep_size: false }).map_err(text)?;
        }
        let data = pattern(3, MIB as usize);
        let mut files = Vec::new();
        for job in 0..self.jobs {
            let file = create(format!("job-{job}"))?;
            if !self.cow {
                let mode = FallocateMode::Allocate { keep_size: false };
                file.fallocate(0, bytes, mode).map_err(text)?;
            }
            for at in (0..bytes).step_by(MIB as usize) {
                file.write_direct(at, &data).map_err(text)?;
            }
            files.push(file);
        }
        fs.sync().map_err(text)?;
        Ok(files)
    }
}

fn fill(path: &Path, bytes: u64, at_once: bool) -> Result<(), String> {
    let file = OpenOptions::new().create(true).truncate(true).write(true).open(path);
    let file = file.map_err(text)?;
    if at_once {
        let mode = rustix::fs::FallocateFlags::empty();
        rustix::fs::fallocate(&file, mode, 0, bytes).map_err(text)?;
    }
    let data = pattern(3, MIB as usize);
    for at in (0..bytes).step_by(MIB as usize) {
        file.write_all_at(&data, at).map_err(text)?;
    }
    file.sync_all().map_err(text)
}

/// The results of all jobs.
struct Seen {
    /// Bytes a second.
    rate: f64,
    /// The 99th percentile of a write's time in microseconds. If a job has many writes under way,
    /// the time includes the wait for earlier ones.
    p99: f64,
    /// Seconds of the processors for a byte.
    spent: f64,
}

/// Reports one size of writes.
fn tell(subject: &Subject, block: usize, seen: &Seen, out: &mut Table) {
    let kib = block >> 10;
    let what = format!("{kib} KiB random direct");
    if block >= 32 << 10 {
        out.add(&what, "MiB/s", Better::More, subject, seen.rate / MIB as f64);
    } else {
        out.add(&what, "1/s", Better::More, subject, seen.rate / block as f64);
    }
    let what = format!("processor time of a GiB, {kib} KiB");
    out.add(&what, "s", Better::Less, subject, seen.spent * GIB as f64);
    out.add(&format!("p99 of {kib} KiB"), "us", Better::Less, subject, seen.p99);
}

/// Threads that write at random places until the time is over.
fn drive(
    threads: usize,
    time: Duration,
    bytes: u64,
    block: usize,
    write: impl Fn(usize, u64, &[u8]) -> Result<(), String> + Sync,
) -> Result<Seen, String> {
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let (start, busy) = (Instant::now(), cpu::busy());
    thread::scope(|scope| {
        let threads: Vec<_> = (0..threads)
            .map(|thread| {
                let (stop, done, write) = (&stop, &done, &write);
                scope.spawn(move || {
                    let mut rng = Rng::new(thread as u64);
                    let mut data = AlignedBuf::zeroed(block);
                    data.copy_from_slice(&pattern(thread, block));
                    let mut times = Latencies::default();
                    while !stop.load(Ordering::Relaxed) {
                        let at = rng.below(bytes / block as u64) * block as u64;
                        times.time(|| write(thread, at, &data))?;
                        done.fetch_add(block as u64, Ordering::Relaxed);
                    }
                    Ok::<_, String>(times)
                })
            })
            .collect();
        measure_for(time, &done);
        stop.store(true, Ordering::Relaxed);
        let mut times = Latencies::default();
        for thread in threads {
            times.join(&thread.join().map_err(|_| "a job panicked".to_string())??);
        }
        let bytes = done.load(Ordering::Relaxed) as f64;
        let (rate, spent) = (bytes / start.elapsed().as_secs_f64(), (cpu::busy() - busy) / bytes);
        Ok(Seen { rate, p99: times.p99(), spent })
    })
}
