//! Small random writes through memory while metadata is scarce, as the first version of preemptive flushing was
//! measured: 4 jobs of 4 KiB, and the same with direct I/O, which must not become slower.
//!
//! # Invariants
//!
//! - Small files fill a good part of the metadata groups, and data has taken all that the devices had left for another:
//!   it is free inside of block groups again, none of which is empty, so that nothing is ever unallocated.
//! - A slow device is slow only while the jobs write. Only ours stands on it: Linux has no such device.
//! - The jobs write into three times what ours keeps dirty. Linux is told to keep no more than that either, for the
//!   device; whether it obeys is not measured.

use std::{
    fs::{File, OpenOptions},
    os::unix::fs::{FileExt, OpenOptionsExt},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use buttress_base::{AlignedBuf, clock, thread};
use buttress_fs::{FallocateMode, SetAttr};
use buttress_sim::{Slow, slow::Asked};
use rustix::fs::{FallocateFlags, OFlags, fallocate};

use crate::{
    Target, processors,
    published::{Better, Experiment, Plan, Slowness, Subject, Table},
    target::Setup,
    work::text,
};

const BLOCK: usize = 4096;
const MIB: u64 = 1 << 20;
/// The filler is taken in pieces; of so many one stays, so that no block group is empty.
const PIECE: u64 = 16 * MIB;
const STAYS: u64 = 4;
/// What it leaves where block groups may be empty.
const LEFT: u64 = 1024 * MIB;
/// What a file system may keep dirty.
const DIRTY: u64 = 128 * MIB;
/// How long each small file is.
const NAME_BYTES: usize = 500;
/// How often the rate is looked at.
const SAMPLE: Duration = Duration::from_millis(100);
/// The part of the time for which the jobs write before anything is measured: files that are written for the first time
/// make trees grow.
const RAMP: f64 = 4.0;
/// Samples of a second.
const SAMPLES: usize = 10;

/// Writes a block of a job at an offset.
type Write<'w> = dyn Fn(usize, u64, &[u8]) -> Result<(), String> + Sync + 'w;

/// The two ways of writing.
const BUFFERED: &str = "through memory";
const DIRECT: &str = "direct";

/// The experiment.
#[derive(Clone, Debug)]
pub struct Enospc {
    /// How many write at a time.
    pub jobs: usize,
    /// Bytes that each writes into, in MiB.
    pub mib: u64,
    /// Small files that lie in the trees.
    pub names: usize,
    /// Seconds at a scale of one.
    pub seconds: f64,
    /// Leave block groups empty, which go, and come again for whoever takes them first.
    pub unallocated: bool,
    /// How long the volume is, in MiB.
    pub size_mib: u64,
    /// How much metadata a promise of ours takes, as the mount option says it.
    pub promise: String,
    /// How slow the device is, if it is.
    pub slow: Option<Slowness>,
}

impl Default for Enospc {
    fn default() -> Self {
        Self {
            jobs: 4,
            mib: 96,
            names: 40_000,
            seconds: 10.0,
            unallocated: false,
            size_mib: 2048,
            promise: "counted".to_owned(),
            slow: None,
        }
    }
}

impl Experiment for Enospc {
    fn runs_on_processors(&self) -> bool {
        true
    }

    fn name(&self) -> &'static str {
        "enospc"
    }

    fn subjects(&self, plan: &Plan) -> Vec<Subject> {
        let mut subjects = Vec::new();
        if self.slow.is_none() {
            subjects.push(Subject::new("kernel btrfs", Target::Btrfs, ""));
            subjects.push(Subject::new("kernel ext4", Target::Ext4, ""));
        }
        let rules = ["off", "clamp", "pace"];
        for rule in rules {
            let options = format!("preempt={rule},promise={}", self.promise);
            subjects.push(Subject::new(rule, Target::Library, &options));
            if plan.mount && self.slow.is_none() {
                subjects.push(Subject::new(&format!("{rule}, mount"), Target::Mount, &options));
            }
        }
        subjects
    }

    fn run(&self, subject: &Subject, plan: &Plan, out: &mut Table) -> Result<(), String> {
        let setup = Setup::of(subject, plan, self.size_mib * MIB)?;
        let time = Duration::from_secs_f64(self.seconds * plan.scale);
        if !subject.target.is_library() {
            return self.run_mounted(&setup, subject, time, out);
        }
        let slow = match self.slow {
            Some(slowness) => Some(Arc::new(Slow::new(setup.file()?, slowness))),
            None => None,
        };
        let fs = match &slow {
            Some(slow) => setup.open_on(Arc::<Slow<_>>::clone(slow))?,
            None => setup.open()?,
        };
        for i in 0..self.names {
            let name = format!("small{i}");
            let file = fs.root().create(name.as_bytes(), 0o100_600, 0, 0, 0).map_err(text)?;
            file.write_at(0, &[1; NAME_BYTES]).map_err(text)?;
        }
        fs.sync().map_err(text)?;
        let filler = fs.root().create(b"filler", 0o100_600, 0, 0, 0).map_err(text)?;
        let len = fill(|at, len| {
            filler.fallocate(at, len, FallocateMode::Allocate { keep_size: false }).is_ok()
        });
        let size = Some(len.saturating_sub(LEFT));
        match self.unallocated {
            true => {
                filler.set_attr(&SetAttr { size, ..SetAttr::default() }).map_err(text)?;
            }
            false => gaps(len).try_for_each(|at| {
                filler.fallocate(at, PIECE, FallocateMode::PunchHole).map_err(text)
            })?,
        }
        fs.sync().map_err(text)?;
        let mut files = Vec::new();
        for job in 0..self.jobs {
            let name = format!("job{job}");
            files.push(fs.root().create(name.as_bytes(), 0o100_600, 0, 0, 0).map_err(text)?);
        }
        if let Some(slow) = &slow {
            slow.begin();
        }
        let asked = || slow.as_ref().map(|slow| slow.asked());
        for way in [BUFFERED, DIRECT] {
            let write = |job: usize, at, data: &[u8]| {
                let file = &files[job];
                match way {
                    BUFFERED => file.write_at(at, data).map(drop).map_err(text),
                    _ => file.write_direct(at, data).map(drop).map_err(text),
                }
            };
            self.write(time.div_f64(RAMP), &write)?;
            let (before, asked_before) = (fs.space_stats(), asked());
            self.phase(subject, way, time, out, &|| fs.sync().map_err(text), &write)?;
            let after = fs.space_stats();
            let all = after.engine.waits.since(&before.engine.waits);
            let data = after.engine.data_waits.since(&before.engine.data_waits);
            let mut add = |what: &str, unit, value: f64| {
                out.add(&format!("{what}, {way}"), unit, Better::Less, subject, value);
            };
            add("waits for metadata", "", (all.count() - data.count()) as f64);
            add("waits for data", "", data.count() as f64);
            add("waited together", "s", all.nanos as f64 / 1e9);
            add("p99.9 of waits", "ms", all.per_mille(999).as_secs_f64() * 1e3);
            let commits = (after.engine.commits - before.engine.commits) as f64;
            let took = (after.engine.commit_nanos - before.engine.commit_nanos) as f64 / 1e6;
            add("commits", "", commits);
            add("a commit", "ms", took / commits.max(1.0));
            add("rounds made ahead", "", (after.rounds - before.rounds) as f64);
            let used = after.accounts.metadata.used as f64 / MIB as f64;
            let total = after.accounts.metadata.total as f64 / MIB as f64;
            add("metadata in use", "MiB", used);
            add("metadata", "MiB", total);
            if let (Some(before), Some(after)) = (asked_before, asked()) {
                tell_asked(&before, &after, &mut add);
            }
        }
        drop(files);
        fs.close().map_err(text)
    }
}

impl Enospc {
    fn run_mounted(
        &self,
        setup: &Setup,
        subject: &Subject,
        time: Duration,
        out: &mut Table,
    ) -> Result<(), String> {
        for i in 0..self.names {
            let file = File::create(setup.folder().join(format!("small{i}"))).map_err(text)?;
            file.write_all_at(&[1; NAME_BYTES], 0).map_err(text)?;
        }
        crate::work::sync(setup.folder())?;
        let filler = File::create(setup.folder().join("filler")).map_err(text)?;
        let len = fill(|at, len| fallocate(&filler, FallocateFlags::empty(), at, len).is_ok());
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match self.unallocated {
            true => filler.set_len(len.saturating_sub(LEFT)).map_err(text)?,
            false => {
                gaps(len).try_for_each(|at| fallocate(&filler, punch, at, PIECE).map_err(text))?;
            }
        }
        setup.bound_dirty(DIRTY);
        filler.sync_all().map_err(text)?;
        for way in [BUFFERED, DIRECT] {
            let flags = if way == DIRECT { OFlags::DIRECT } else { OFlags::empty() };
            let mut files = Vec::new();
            for job in 0..self.jobs {
                let mut options = OpenOptions::new();
                options.create(true).truncate(false).write(true);
                options.custom_flags(flags.bits().cast_signed());
                files.push(options.open(setup.folder().join(format!("job{job}"))).map_err(text)?);
            }
            let sync = || crate::work::sync(setup.folder());
            let write = |job: usize, at, data: &[u8]| -> Result<(), String> {
                files[job].write_all_at(data, at).map_err(text)
            };
            self.write(time.div_f64(RAMP), &write)?;
            self.phase(subject, way, time, out, &sync, &write)?;
        }
        Ok(())
    }

    /// One way of writing, and what was seen of it.
    fn phase(
        &self,
        subject: &Subject,
        way: &str,
        time: Duration,
        out: &mut Table,
        sync: &dyn Fn() -> Result<(), String>,
        write: &Write<'_>,
    ) -> Result<(), String> {
        let busy = processors::busy();
        let start = clock::now();
        let seen = self.write(time, write)?;
        sync()?;
        let synced = clock::since(start);
        let busy = processors::busy() - busy;
        let bytes = seen.rates.iter().sum::<f64>() * SAMPLE.as_secs_f64();
        let mut add = |what: &str, unit, better, value: f64| {
            out.add(&format!("{what}, {way}"), unit, better, subject, value);
        };
        let mib = bytes / MIB as f64;
        add("written", "MiB/s", Better::More, mib / time.as_secs_f64());
        add("written and synced", "MiB/s", Better::More, mib / synced.as_secs_f64());
        let seconds: Vec<_> = seen.rates.chunks_exact(SAMPLES).map(mean).collect();
        add("variation of the rate, second by second", "", Better::Less, variation(&seconds));
        add("variation of the rate, tenths", "", Better::Less, variation(&seen.rates));
        add("p99 of a write", "ms", Better::Less, seen.quantile(0.99) * 1e3);
        add("p99.9 of a write", "ms", Better::Less, seen.quantile(0.999) * 1e3);
        add("longest write", "ms", Better::Less, seen.quantile(1.0) * 1e3);
        add("processor time", "s/GiB", Better::Less, busy / (bytes / (1u64 << 30) as f64));
        if !processors::is_run() {
            // What the machine's scheduler does to as many threads that compute as long and wait for nothing.
            let mean = Duration::from_secs_f64(seen.mean());
            let alone = self.write(time.min(Duration::from_secs(1)), &|_, _, _| {
                let start = clock::now();
                while clock::since(start) < mean {
                    std::hint::spin_loop();
                }
                Ok(())
            })?;
            let p999 = alone.quantile(0.999) * 1e3;
            out.add(
                &format!("p99.9 of computing as long, {way}"),
                "ms",
                Better::Less,
                subject,
                p999,
            );
        }
        let rates = seen.rates.iter().map(|rate| rate / MIB as f64).collect();
        let step = SAMPLE.as_secs_f64();
        out.add_series(&format!("over time, {way}"), "MiB/s", subject, step, rates);
        Ok(())
    }
}

/// What a slow device was asked for in between.
fn tell_asked(before: &Asked, after: &Asked, add: &mut impl FnMut(&str, &'static str, f64)) {
    let mib = |after: u64, before: u64| (after - before) as f64 / MIB as f64;
    add("data to the device", "MiB", mib(after.data, before.data));
    add("metadata to the device", "MiB", mib(after.metadata, before.metadata));
    add("writes to the device", "", (after.writes - before.writes) as f64);
    add("reads from the device", "", (after.reads - before.reads) as f64);
    add("flushes of the device", "", (after.flushes - before.flushes) as f64);
}

/// Takes all data space there is, and says how much it was.
pub(crate) fn fill(mut take: impl FnMut(u64, u64) -> bool) -> u64 {
    let mut at = 0;
    // In pieces that a cut can give back: an extent stays whole while any of it is in use.
    for piece in [PIECE, MIB] {
        while take(at, piece) {
            at += piece;
        }
    }
    at
}

/// Where the pieces are that go again.
fn gaps(len: u64) -> impl Iterator<Item = u64> {
    (0..len / PIECE).filter(|piece| piece % STAYS > 0).map(|piece| piece * PIECE)
}

/// What the writers saw.
struct Seen {
    /// Bytes a second, sample by sample.
    rates: Vec<f64>,
    /// How long each write took, in seconds, sorted.
    times: Vec<f32>,
}

impl Seen {
    fn mean(&self) -> f64 {
        let sum: f64 = self.times.iter().copied().map(f64::from).sum();
        sum / self.times.len().max(1) as f64
    }

    fn quantile(&self, share: f64) -> f64 {
        let at =
            ((self.times.len() as f64 * share) as usize).min(self.times.len().saturating_sub(1));
        self.times.get(at).copied().map_or(0.0, f64::from)
    }
}

impl Enospc {
    fn write(&self, time: Duration, write: &Write<'_>) -> Result<Seen, String> {
        let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
        let blocks = self.mib * MIB / BLOCK as u64;
        thread::scope(|scope| {
            let threads: Vec<_> = (0..self.jobs)
                .map(|job| {
                    let (stop, done) = (&stop, &done);
                    scope.spawn(move || {
                        let mut state = job as u64 * 2 + 1;
                        let mut times = Vec::new();
                        let mut data = AlignedBuf::copy_of(&[job as u8; BLOCK]);
                        while !stop.load(Ordering::Relaxed) {
                            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                            data[..8].copy_from_slice(&state.to_le_bytes());
                            let at = (state >> 33) % blocks * BLOCK as u64;
                            let start = clock::now();
                            write(job, at, &data)?;
                            times.push(clock::since(start).as_secs_f32());
                            done.fetch_add(BLOCK as u64, Ordering::Relaxed);
                        }
                        Ok::<_, String>(times)
                    })
                })
                .collect();
            let mut rates = Vec::new();
            let start = clock::now();
            let mut before = 0;
            while clock::since(start) < time {
                thread::sleep(SAMPLE);
                let now = done.load(Ordering::Relaxed);
                rates.push((now - before) as f64 / SAMPLE.as_secs_f64());
                before = now;
            }
            stop.store(true, Ordering::Relaxed);
            let mut times = Vec::new();
            for thread in threads {
                times.extend(thread.join().map_err(|_| "a job panicked".to_string())??);
            }
            times.sort_by(f32::total_cmp);
            Ok(Seen { rates, times })
        })
    }
}

fn mean(rates: &[f64]) -> f64 {
    rates.iter().sum::<f64>() / rates.len().max(1) as f64
}

/// Deviation over mean.
fn variation(rates: &[f64]) -> f64 {
    let mean = mean(rates);
    let squares = rates.iter().map(|rate| (rate - mean).powi(2)).sum::<f64>();
    if mean > 0.0 { (squares / rates.len() as f64).sqrt() / mean } else { 0.0 }
}
