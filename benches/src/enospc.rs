//! Small random writes through memory while metadata is scarce, like the measurement of the first
//! version of preemptive flushing. Four jobs write 4 KiB at a time. The same jobs with direct I/O
//! must not become slower.
//!
//! # Invariants
//!
//! - Small files fill a good part of the metadata groups, and data has taken all other space of the
//!   devices. The data space is then freed again, but no block group becomes empty. So there is
//!   never unallocated space.
//! - A slow device is slow only while the jobs write. Only our subjects run on it: Linux has no
//!   such device.
//! - The jobs write into at least three times the limit of dirty data. Linux gets the same limit
//!   for the device, but whether Linux keeps to it is not measured.
//! - About ten times a second, the writers fill all space, and then wait until all data is written:
//!   the rate over time is a saw-tooth. `fio` gives ten samples a second at most. Our own threads
//!   are sampled twenty times as often, and half a second of these samples is drawn.
//! - In a folder the jobs are threads of `fio`. With the library, they are our own threads
//!   ([`writers`]). The jobs write into empty files that were made before. The first part of the
//!   time is not measured.

mod writers;

use std::{fs::File, os::unix::fs::FileExt, sync::Arc, time::Duration};

use buttress_base::clock;
use buttress_fs::{FallocateMode, NewInode, SetAttr};
use buttress_sim::{Slow, slow::RequestCounts};
use rustix::fs::{FallocateFlags, fallocate};

use crate::{
    Target,
    fio::{Engine, Fio, FioWork, Place, Seen},
    processors,
    published::{Better, Experiment, Plan, Slowness, Subject, Table},
    setup::Setup,
    told::Told,
    work::text,
};

const BLOCK: usize = 4096;
const MIB: u64 = 1 << 20;
/// The filler consists of pieces. One piece in [`STAYS`] stays, so that no block group is empty.
const PIECE: u64 = 16 * MIB;
const STAYS: u64 = 4;
/// The space that the filler leaves if block groups may be empty.
const LEFT: u64 = 1024 * MIB;
/// The dirty bytes that a file system may keep.
const DIRTY: u64 = 128 * MIB;
/// The length of each small file.
const NAME_BYTES: usize = 500;
/// The time between two samples of the rate.
const SAMPLE: Duration = Duration::from_millis(100);
/// The time between two samples that can show a saw-tooth.
const CLOSE: Duration = Duration::from_millis(5);
/// The number of samples with this short distance that are drawn, from the middle of the run.
const DRAWN: usize = 100;
/// Before anything is measured, the jobs write for the time divided by this number, because first
/// writes to a file make trees grow.
const RAMP: f64 = 4.0;
/// Samples of a second.
const SAMPLES: usize = 10;

/// The default kind of reservations.
const COUNTED: &str = "counted";
/// The two ways of writing.
const BUFFERED: &str = "through memory";
const DIRECT: &str = "direct";

/// The experiment.
#[derive(Clone, Debug)]
pub struct Enospc {
    /// The number of writers.
    pub jobs: usize,
    /// MiB of each writer's file, times the scale if that is above one.
    pub mib: u64,
    /// Small files that lie in the trees, times the scale if that is above one.
    pub names: usize,
    /// Seconds at a scale of one.
    pub seconds: f64,
    /// Leave block groups empty. Empty groups are removed, and the first request for their space
    /// makes new ones.
    pub unallocated: bool,
    /// The size of the volume in MiB, times the scale if that is above one.
    pub size_mib: u64,
    /// The policy of metadata reservations in Buttress, as the value of the mount option.
    pub reserve_policy: String,
    /// How slow the device is. `None` for a fast device.
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
            reserve_policy: COUNTED.to_owned(),
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
        let rules = ["off", "clamp"];
        for rule in rules {
            let options = format!("preempt={rule},reserve={}", self.reserve_policy);
            subjects.push(Subject::new(rule, Target::Library, &options));
            if self.slow.is_some() {
                continue;
            }
            subjects.push(Subject::new(&format!("{rule} on loop"), Target::Loop, &options));
            if plan.mount {
                for mount in Subject::mounts(&options) {
                    let way = mount.name.trim_start_matches("buttress ");
                    subjects.push(Subject::new(
                        &format!("{rule} {way}"),
                        mount.target,
                        &mount.options,
                    ));
                }
            }
        }
        if self.reserve_policy != COUNTED {
            // This subject is for a comparison with the saw-tooth of the baseline.
            let options = format!("reserve={COUNTED}");
            subjects.push(Subject::new("as by default", Target::Library, &options));
        }
        subjects
    }

    fn run(&self, subject: &Subject, plan: &Plan, out: &mut Table) -> Result<(), String> {
        // A smaller volume would have no room for the files, which must exceed the limit of dirty
        // data.
        let larger = Plan { scale: plan.scale.max(1.0), ..plan.clone() };
        let own = Self {
            mib: larger.scaled(self.mib),
            names: larger.scaled(self.names as u64) as usize,
            size_mib: larger.scaled(self.size_mib),
            ..self.clone()
        };
        let setup = Setup::of(subject, plan, own.size_mib * MIB)?;
        let time = Duration::from_secs_f64(self.seconds * plan.scale);
        if subject.target.is_library() {
            own.run_library(&setup, subject, time, out)
        } else {
            own.run_folder(&setup, subject, time, out)
        }
    }
}

impl Enospc {
    fn run_library(
        &self,
        setup: &Setup,
        subject: &Subject,
        time: Duration,
        out: &mut Table,
    ) -> Result<(), String> {
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
            let file = fs.root().create(name.as_bytes(), NewInode::file(0o600)).map_err(text)?;
            file.write_at(0, &[1; NAME_BYTES]).map_err(text)?;
        }
        fs.sync().map_err(text)?;
        let filler = fs.root().create(b"filler", NewInode::file(0o600)).map_err(text)?;
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
            files.push(fs.root().create(name.as_bytes(), NewInode::file(0o600)).map_err(text)?);
        }
        if let Some(slow) = &slow {
            slow.begin();
        }
        let asked = || slow.as_ref().map(|slow| slow.request_counts());
        for way in [BUFFERED, DIRECT] {
            let write = |job: usize, at, data: &[u8]| {
                let file = &files[job];
                match way {
                    BUFFERED => file.write_at(at, data).map(drop).map_err(text),
                    _ => file.write_direct(at, data).map(drop).map_err(text),
                }
            };
            self.write(time.div_f64(RAMP), &write)?;
            let (before, asked_before, busy) = (Told::by_library(&fs), asked(), processors::busy());
            let mut seen = self.write(time, &write)?;
            let start = clock::now();
            fs.sync().map_err(text)?;
            let sync = clock::since(start);
            seen.spent = processors::busy() - busy;
            let (after, asked_after) = (Told::by_library(&fs), asked());
            tell(subject, way, &seen, sync, out);
            tell_told(subject, way, &before, &after, out);
            if let (Some(before), Some(after)) = (asked_before, asked_after) {
                tell_asked(subject, way, &before, &after, out);
            }
            self.compute_as_long(subject, way, &seen, time, out)?;
        }
        drop(files);
        fs.close().map_err(text)
    }

    fn run_folder(
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
        let file = |job: usize| setup.folder().join(format!("job{job}"));
        let places: Vec<_> = (0..self.jobs).map(|job| Place::whole(file(job))).collect();
        for place in &places {
            let file = File::create(&place.path).map_err(text)?;
            file.set_len(self.mib * MIB).map_err(text)?;
        }
        for way in [BUFFERED, DIRECT] {
            let work =
                FioWork::RandomWrites { direct: way == DIRECT, time, ramp: time.div_f64(RAMP) };
            let (engine, bytes) = (Engine::Psync, self.mib * MIB);
            let fio = Fio { engine, work, block: BLOCK, bytes, step: Some(SAMPLE) };
            let mut before = Told::default();
            let mut seen = fio.run(&places, || before = setup.told())?;
            let (start, busy) = (clock::now(), processors::busy());
            crate::work::sync(setup.folder())?;
            let sync = clock::since(start);
            seen.spent += processors::busy() - busy;
            tell(subject, way, &seen, sync, out);
            tell_told(subject, way, &before, &setup.told(), out);
            self.compute_as_long(subject, way, &seen, time, out)?;
        }
        Ok(())
    }

    /// Measures the effect of the machine's scheduler alone: the same number of threads compute for
    /// the same time, and wait for nothing.
    fn compute_as_long(
        &self,
        subject: &Subject,
        way: &str,
        seen: &Seen,
        time: Duration,
        out: &mut Table,
    ) -> Result<(), String> {
        if processors::is_run() {
            return Ok(());
        }
        let mean = Duration::from_secs_f64(seen.mean);
        let alone = self.write(time.min(Duration::from_secs(1)), &|_, _, _| {
            let start = clock::now();
            while clock::since(start) < mean {
                std::hint::spin_loop();
            }
            Ok(())
        })?;
        let what = format!("p99.9 of computing as long, {way}");
        out.add(&what, "ms", Better::Less, subject, alone.p999 * 1e3);
        Ok(())
    }
}

/// Reports one way of writing, and the sync after it.
fn tell(subject: &Subject, way: &str, seen: &Seen, sync: Duration, out: &mut Table) {
    let mut add = |what: &str, unit, better, value: f64| {
        out.add(&format!("{what}, {way}"), unit, better, subject, value);
    };
    let mib = seen.bytes / MIB as f64;
    let synced = seen.seconds + sync.as_secs_f64();
    add("written", "MiB/s", Better::More, mib / seen.seconds);
    add("written and synced", "MiB/s", Better::More, mib / synced);
    let seconds: Vec<_> = seen.rates.chunks_exact(SAMPLES).map(mean).collect();
    add("variation of the rate, second by second", "", Better::Less, variation(&seconds));
    add("variation of the rate, tenths", "", Better::Less, variation(&seen.rates));
    if !seen.close.is_empty() {
        add("variation of the rate, 5 ms", "", Better::Less, variation(&seen.close));
    }
    add("p99 of a write", "ms", Better::Less, seen.p99 * 1e3);
    add("p99.9 of a write", "ms", Better::Less, seen.p999 * 1e3);
    add("longest write", "ms", Better::Less, seen.longest * 1e3);
    add("processor time", "s/GiB", Better::Less, seen.spent / (mib / 1024.0));
    let mut draw = |what: &str, step: Duration, rates: &[f64]| {
        let rates = rates.iter().map(|rate| rate / MIB as f64).collect();
        out.add_series(&format!("{what}, {way}"), "MiB/s", subject, step.as_secs_f64(), rates);
    };
    draw("over time", SAMPLE, &seen.rates);
    if !seen.close.is_empty() {
        let first = seen.close.len().saturating_sub(DRAWN) / 2;
        let drawn = &seen.close[first..seen.close.len().min(first + DRAWN)];
        draw("half a second of it", CLOSE, drawn);
    }
}

/// Reports a subject's counters, from the first write of the jobs until all data was durable.
fn tell_told(subject: &Subject, way: &str, before: &Told, after: &Told, out: &mut Table) {
    let mut add = |what: &str, unit, better, value: f64| {
        out.add(&format!("{what}, {way}"), unit, better, subject, value);
    };
    if let (Some(before), Some(after)) = (before.room, after.room) {
        let metadata = after.metadata_waits.since(&before.metadata_waits);
        let data = after.data_waits.since(&before.data_waits);
        let all = metadata.and(&data);
        add("waits for metadata", "", Better::Less, metadata.count() as f64);
        add("waits for data", "", Better::Less, data.count() as f64);
        add("waited together", "s", Better::Less, all.nanos as f64 / 1e9);
        add("p99.9 of waits", "ms", Better::Less, all.per_mille(999).as_secs_f64() * 1e3);
        add("rounds made ahead", "", Better::Less, (after.rounds - before.rounds) as f64);
        add("metadata in use", "MiB", Better::Less, after.used as f64 / MIB as f64);
        add("metadata", "MiB", Better::Less, after.total as f64 / MIB as f64);
    }
    if let (Some(before), Some(after)) = (before.requests, after.requests) {
        let requests = after.since(before);
        let all = requests.reads.and(requests.writes);
        add("requests to the device", "", Better::Less, all.count as f64);
        add("mean size of a request", "KiB", Better::More, all.mean_kib());
    }
    if let (Some(before), Some(after)) = (before.commits, after.commits) {
        let count = after.count.saturating_sub(before.count) as f64;
        let took = after.took.saturating_sub(before.took).as_secs_f64() * 1e3;
        add("commits", "", Better::Less, count);
        add("a commit", "ms", Better::Less, took / count.max(1.0));
    }
}

/// Reports the requests to a slow device, from the first write of the jobs until all data was
/// durable.
fn tell_asked(
    subject: &Subject,
    way: &str,
    before: &RequestCounts,
    after: &RequestCounts,
    out: &mut Table,
) {
    let mut add = |what: &str, unit, value: f64| {
        out.add(&format!("{what}, {way}"), unit, Better::Less, subject, value);
    };
    let mib = |after: u64, before: u64| (after - before) as f64 / MIB as f64;
    add("data to the device", "MiB", mib(after.data, before.data));
    add("metadata to the device", "MiB", mib(after.metadata, before.metadata));
    add("writes to the device", "", (after.writes - before.writes) as f64);
    add("reads from the device", "", (after.reads - before.reads) as f64);
    add("flushes of the device", "", (after.flushes - before.flushes) as f64);
}

/// Takes all data space. Returns the number of bytes.
pub(crate) fn fill(mut take: impl FnMut(u64, u64) -> bool) -> u64 {
    let mut at = 0;
    // The pieces are separate extents, because an extent stays allocated while any part of it is in
    // use.
    for piece in [PIECE, MIB] {
        while take(at, piece) {
            at += piece;
        }
    }
    at
}

/// The offsets of the pieces that are removed again.
fn gaps(len: u64) -> impl Iterator<Item = u64> {
    (0..len / PIECE).filter(|piece| piece % STAYS > 0).map(|piece| piece * PIECE)
}

fn mean(rates: &[f64]) -> f64 {
    rates.iter().sum::<f64>() / rates.len().max(1) as f64
}

/// The standard deviation divided by the mean.
fn variation(rates: &[f64]) -> f64 {
    let mean = mean(rates);
    let squares = rates.iter().map(|rate| (rate - mean).powi(2)).sum::<f64>();
    if mean > 0.0 { (squares / rates.len() as f64).sqrt() / mean } else { 0.0 }
}
