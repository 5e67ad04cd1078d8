//! Jobs of `fio`, which use a folder, or a device without a file system.
//!
//! # Invariants
//!
//! - **F1** Processor time is that of the whole machine while the jobs were measured. The quarter
//!   of a second in which `fio` begins does not count, and the ramp does not count either.
//! - **F2** A rate over time comes from the jobs' own histograms, each with its time. The bandwidth
//!   log of `fio` comes from a separate thread. That thread is late if the jobs keep the processors
//!   busy, and logs nothing for a time without work.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::{cpu, work::text};

/// The time from the start of the program to the first request.
const BEGINS: Duration = Duration::from_millis(250);
/// The longest time from the last request to the end of the program. `fio` sleeps longer before the
/// first request, so this margin adds no other work of the jobs.
const ENDS: Duration = Duration::from_millis(40);
/// The time between two samples of processor time.
const LOOK: Duration = Duration::from_millis(20);
/// The time between two lines of a job's log.
const WRITTEN_DOWN: Duration = Duration::from_millis(20);

/// The way in which requests are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    /// Many requests at a time, by `libaio`.
    Libaio {
        /// The number of requests.
        depth: usize,
    },
    /// One call of `pread` or `pwrite` for each request, by threads of one process.
    Psync,
    /// `fallocate` in place of writes, by threads of one process.
    Falloc,
}

/// The work of each job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FioWork {
    /// Reads all of its part, from the beginning to the end.
    ReadOnce,
    /// Writes its part from the beginning to the end, removes the file, makes it anew and begins
    /// again, until the time is over.
    Anew {
        /// The time of the work.
        time: Duration,
    },
    /// Writes at random places until the time is over, after a ramp that is not measured.
    RandomWrites {
        /// Whether the writes bypass the page cache.
        direct: bool,
        /// The time of the work.
        time: Duration,
        /// The time of the ramp before the measured time.
        ramp: Duration,
    },
}

/// The place at which a job works.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// The file, which several jobs may share. `fio` would remove and remake a file that is shorter
    /// than the jobs' bytes.
    pub(crate) path: PathBuf,
    /// The offset of the job's part in the file.
    pub(crate) offset: u64,
}

impl Place {
    /// The place that is a whole file.
    pub(crate) fn whole(path: PathBuf) -> Self {
        Self { path, offset: 0 }
    }
}

/// Jobs with the same work, each at its own place.
#[derive(Clone, Debug)]
pub(crate) struct Fio {
    /// The way in which requests are made.
    pub(crate) engine: Engine,
    /// The work of each job.
    pub(crate) work: FioWork,
    /// Bytes of a request.
    pub(crate) block: usize,
    /// Bytes of a job's part.
    pub(crate) bytes: u64,
    /// The time between two samples of the rate, if the rate over time is wanted.
    pub(crate) step: Option<Duration>,
}

/// The results of all jobs together; times of requests are in seconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Seen {
    /// Bytes that were moved.
    pub(crate) bytes: f64,
    /// The duration in seconds.
    pub(crate) seconds: f64,
    /// The mean time of a request, from its submission on.
    pub(crate) mean: f64,
    /// The median time of a request.
    pub(crate) p50: f64,
    /// The time that 99 % of requests did not exceed.
    pub(crate) p99: f64,
    /// The time that 99.9 % of requests did not exceed.
    pub(crate) p999: f64,
    /// The longest time of a request.
    pub(crate) longest: f64,
    /// Bytes a second, sample by sample, if they were asked for.
    pub(crate) rates: Vec<f64>,
    /// Bytes a second in shorter steps, which `fio` cannot give.
    pub(crate) close: Vec<f64>,
    /// Seconds of the processors (F1).
    pub(crate) spent: f64,
}

impl Fio {
    /// Runs the jobs. `begun` is called at about the end of the ramp.
    ///
    /// # Errors
    ///
    /// The message of `fio`, or that `fio` is missing.
    pub(crate) fn run(&self, places: &[Place], begun: impl FnOnce()) -> Result<Seen, String> {
        let logs = self.step.map(|_| Logs::new()).transpose()?;
        let mut command = Command::new("fio");
        command.args(self.arguments(places, logs.as_ref().map(|logs| logs.0.as_path())));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let stop = AtomicBool::new(false);
        let (answer, ended, looks) = thread::scope(|scope| {
            let watch = scope.spawn(|| look_until(&stop));
            let child = command.spawn();
            if let (FioWork::RandomWrites { ramp, .. }, Ok(_)) = (self.work, &child) {
                thread::sleep(BEGINS + ramp);
            }
            begun();
            let answer = child.and_then(std::process::Child::wait_with_output);
            let ended = Instant::now();
            stop.store(true, Ordering::Relaxed);
            (answer, ended, watch.join().unwrap_or_default())
        });
        let answer = answer.map_err(|error| format!("fio: {error}"))?;
        if !answer.status.success() {
            return Err(format!("fio: {}", String::from_utf8_lossy(&answer.stderr).trim()));
        }
        let side = if self.work == FioWork::ReadOnce { "read" } else { "write" };
        let mut seen = parse(&answer.stdout, side)?;
        let measured = Duration::from_secs_f64(seen.seconds);
        let from = ended.checked_sub(measured + ENDS).unwrap_or(ended);
        seen.spent = between(&looks, from, ended);
        if let (Some(step), Some(logs)) = (self.step, &logs) {
            let samples = (seen.seconds / step.as_secs_f64()).round() as usize;
            seen.rates = vec![0.0; samples];
            for log in logs.all()? {
                add_log(&log, self.block, step, &mut seen.rates);
            }
            // The bytes after each job's last line belong to the last sample.
            let rest = seen.bytes / step.as_secs_f64() - seen.rates.iter().sum::<f64>();
            if let Some(last) = seen.rates.last_mut() {
                *last += rest.max(0.0);
            }
        }
        Ok(seen)
    }

    fn arguments(&self, places: &[Place], logs: Option<&Path>) -> Vec<String> {
        // `fio` must neither fill nor empty files before the run, and must not drop cached data.
        let always = "--output-format=json --group_reporting --randrepeat=0 --invalidate=0 \
             --fallocate=none --overwrite=0";
        let mut all: Vec<String> = always.split_whitespace().map(str::to_owned).collect();
        let mut add = |name: &str, value: String| all.push(format!("--{name}={value}"));
        match self.engine {
            Engine::Libaio { depth } => {
                add("ioengine", "libaio".to_owned());
                add("iodepth", depth.to_string());
            }
            Engine::Psync => {
                add("ioengine", "psync".to_owned());
                add("thread", "1".to_owned());
            }
            Engine::Falloc => {
                add("ioengine", "falloc".to_owned());
                add("thread", "1".to_owned());
            }
        }
        match self.work {
            FioWork::ReadOnce => add("rw", "read".to_owned()),
            FioWork::Anew { time } => {
                add("rw", "write".to_owned());
                // Otherwise `fio` would make the file in advance, with its full size.
                add("create_on_open", "1".to_owned());
                add("unlink_each_loop", "1".to_owned());
                // The job ends with its time, and never by the number of its loops. With a job
                // based on time alone, `fio` would not remove the file before it begins again.
                add("loops", i32::MAX.to_string());
                add("runtime", format!("{}ms", time.as_millis().max(1)));
            }
            FioWork::RandomWrites { direct, time, ramp } => {
                add("rw", "randwrite".to_owned());
                // Every place can be written several times, and no two blocks are equal.
                add("norandommap", "1".to_owned());
                add("scramble_buffers", "1".to_owned());
                add("direct", u8::from(direct).to_string());
                add("time_based", "1".to_owned());
                add("runtime", format!("{}ms", time.as_millis().max(1)));
                add("ramp_time", format!("{}ms", ramp.as_millis()));
            }
        }
        add("bs", self.block.to_string());
        add("size", self.bytes.to_string());
        if let Some(logs) = logs {
            add("write_hist_log", logs.join("job").display().to_string());
            add("log_hist_msec", WRITTEN_DOWN.as_millis().to_string());
            // This chooses the fewest classes, because only the sum of a histogram is used.
            add("log_hist_coarseness", "6".to_owned());
        }
        for (job, place) in places.iter().enumerate() {
            add("name", format!("job-{job}"));
            add("filename", place.path.display().to_string());
            add("offset", place.offset.to_string());
        }
        all
    }
}

/// A folder for logs, which is removed when this value is dropped.
struct Logs(PathBuf);

impl Logs {
    fn new() -> Result<Self, String> {
        let folder = format!("buttress-bench-{}.fio", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        Ok(Self(folder))
    }

    fn all(&self) -> Result<Vec<String>, String> {
        let entries = fs::read_dir(&self.0).map_err(text)?;
        entries.map(|entry| fs::read_to_string(entry.map_err(text)?.path()).map_err(text)).collect()
    }
}

impl Drop for Logs {
    fn drop(&mut self) {
        // If the folder stays, a later process with the same number uses it again.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Parses the output of `fio` for its one group of jobs.
fn parse(answer: &[u8], side: &str) -> Result<Seen, String> {
    // Notes may come before the JSON document.
    let start = answer.iter().position(|byte| *byte == b'{').unwrap_or(0);
    let found: Value = serde_json::from_slice(&answer[start..]).map_err(text)?;
    let group = &found["jobs"][0][side];
    let number = |value: &Value| value.as_f64().unwrap_or(0.0);
    let (times, nanos) = (&group["clat_ns"], 1e-9);
    let quantile = |share: &str| number(&times["percentile"][share]) * nanos;
    let seen = Seen {
        bytes: number(&group["io_bytes"]),
        seconds: number(&group["runtime"]) / 1e3,
        mean: number(&times["mean"]) * nanos,
        p50: quantile("50.000000"),
        p99: quantile("99.000000"),
        p999: quantile("99.900000"),
        longest: number(&times["max"]) * nanos,
        ..Seen::default()
    };
    if seen.bytes > 0.0 && seen.seconds > 0.0 { Ok(seen) } else { Err("fio did nothing".into()) }
}

/// Adds one job's log of histograms to the rates of all jobs. A line has milliseconds, direction,
/// bytes of a request, and the histogram of times since the previous line.
fn add_log(log: &str, block: usize, step: Duration, rates: &mut [f64]) {
    let step = step.as_secs_f64();
    let mut before = 0.0;
    for line in log.lines() {
        let mut fields = line.split(',').filter_map(|field| field.trim().parse::<f64>().ok());
        let Some(millis) = fields.next() else { continue };
        let now = millis / 1e3;
        let bytes = fields.skip(2).sum::<f64>() * block as f64;
        let last = (now / step).ceil() as usize;
        if now <= before {
            // Two lines can have the same millisecond.
            if let Some(rate) = rates.get_mut(last.saturating_sub(1)) {
                *rate += bytes / step;
            }
            continue;
        }
        let rate = bytes / (now - before);
        for at in (before / step) as usize..last.min(rates.len()) {
            let (from, to) = (before.max(at as f64 * step), now.min((at + 1) as f64 * step));
            rates[at] += rate * (to - from).max(0.0) / step;
        }
        before = now;
    }
}

/// Samples the busy seconds of all processors until `stop` is set.
fn look_until(stop: &AtomicBool) -> Vec<(Instant, f64)> {
    let mut looks = Vec::new();
    let mut is_last = false;
    loop {
        looks.push((Instant::now(), cpu::busy()));
        if is_last {
            return looks;
        }
        thread::sleep(LOOK);
        is_last = stop.load(Ordering::Relaxed);
    }
}

/// Returns the busy seconds of the processors between two moments.
fn between(looks: &[(Instant, f64)], from: Instant, to: Instant) -> f64 {
    let at = |moment: Instant| {
        let next = looks.partition_point(|(time, _)| *time < moment);
        match (next.checked_sub(1).and_then(|at| looks.get(at)), looks.get(next)) {
            (Some((t0, b0)), Some((t1, b1))) => {
                let part = (moment - *t0).as_secs_f64() / (*t1 - *t0).as_secs_f64();
                b0 + (b1 - b0) * part
            }
            (Some((_, busy)), None) | (None, Some((_, busy))) => *busy,
            (None, None) => 0.0,
        }
    };
    (at(to) - at(from)).max(0.0)
}

#[cfg(test)]
mod tests;
