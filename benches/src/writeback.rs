//! The experiment of 2019, for each order of write-back. Random writes of 4 KiB, together twice the
//! cache's size, go to a hard disk behind a cache. A flush of everything follows.
//!
//! # In simulated time
//!
//! The foreground and the disk have clocks of their own. The cache takes a write in almost no time.
//! A write that finds no free slot waits until the disk has freed some slots. So once the cache is
//! full, the foreground's rate is that of the disk.
//!
//! # On a file
//!
//! The experiment uses real files, threads and waits: the origin's writes sleep for as long as the
//! disk would take.
//!
//! # From a trace
//!
//! The writes of another program to an origin are played on the same disk, in their order.

mod plot;
mod trace;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use buttress_block::{Device, FileDevice, OpenOptions};
use buttress_cache::layout::Geometry;
use buttress_cache::{CacheDevice, CacheOptions, format};
use serde_json::{Value, json};

use self::trace::Trace;
use crate::command::is_page;
use crate::disk::{Disk, Done, Forgetful, Throttled};

const BLOCK: u64 = 4096;
/// Seconds the cache takes for a write.
const WRITE: f64 = 20e-6;
/// The policies: our policy, the published policy, and the policy before the published one.
const POLICIES: [&str; 3] = ["sorted", "lru", "fifo-unsorted"];

/// The plan of the experiment.
#[derive(Clone, Debug)]
pub struct Writeback {
    /// MiB of the cache. The cache of the published experiment had 1006 MiB.
    pub cache_mib: u64,
    /// Also run the experiment with real files in this folder.
    pub files: Option<Files>,
    /// Logs of Linux's dm-log-writes, to be played on the disk.
    pub traces: Vec<PathBuf>,
    /// Where to draw positions on the disk over time.
    pub plot: Option<PathBuf>,
}

/// The experiment on files.
#[derive(Clone, Debug)]
pub struct Files {
    /// The folder.
    pub dir: PathBuf,
    /// MiB of the cache.
    pub cache_mib: u64,
    /// How many times faster than a hard disk the origin is.
    pub speed: f64,
}

/// The results of one order of write-back. All times are by the clock of the disk.
struct Figures {
    name: String,
    disk: &'static str,
    flush_seconds: f64,
    /// Writes of the foreground by second; none when they are unknown.
    iops: Vec<f64>,
    steady: Vec<Done>,
    flush: Vec<Done>,
    /// Blocks a second that reached the disk while the foreground wrote and the disk was at work.
    drain_rate: f64,
}

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

impl Writeback {
    /// Runs the experiment. Returns the figures, and writes the plot. `say` gets messages about the
    /// progress.
    ///
    /// # Errors
    ///
    /// The cause of the failure, in words.
    pub fn run(&self, say: &mut dyn FnMut(&str)) -> Result<Value, String> {
        let all = self.measure(say).map_err(|error| error.to_string())?;
        let of = |disk: &str, policy: &str| {
            all.iter().find(|figures| figures.disk == disk && figures.name == policy)
        };
        let rows = all.iter().map(|figures| {
            // A trace was played on the simulated disk, so its figures are compared with the
            // simulated ones.
            let disk = if figures.disk == "trace" { "simulated" } else { figures.disk };
            let unsorted = of(disk, POLICIES[2]).map_or(f64::NAN, |other| other.flush_seconds);
            let published = of(disk, POLICIES[1]).map_or(f64::NAN, |other| other.drain_rate);
            let (min, mean, max, deviation) = spread(&figures.iops);
            json!({
                "writeback": figures.name,
                "disk": figures.disk,
                "flush_seconds": figures.flush_seconds,
                "flush_times_unsorted": unsorted / figures.flush_seconds,
                "drain_blocks_per_second": figures.drain_rate,
                "drain_times_lru": figures.drain_rate / published,
                "iops_min": min, "iops_avg": mean, "iops_max": max, "iops_stdev": deviation,
            })
        });
        let value = json!({ "cache_mib": self.cache_mib, "policies": rows.collect::<Vec<_>>() });
        if let Some(path) = &self.plot {
            let text = if is_page(path) { plot::page(&all, &value) } else { plot::svg(&all) };
            std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))?;
        }
        Ok(value)
    }

    fn measure(&self, say: &mut dyn FnMut(&str)) -> Outcome<Vec<Figures>> {
        // The logs are read first, since a file may be no log.
        let traces: Vec<_> =
            self.traces.iter().map(|path| trace::read(path)).collect::<Result<_, _>>()?;
        let mut all = Vec::new();
        for policy in POLICIES {
            say(&format!("write-back {policy}, {} MiB of cache", self.cache_mib));
            all.push(simulated(policy, self.cache_mib << 20)?);
        }
        for (path, trace) in self.traces.iter().zip(&traces) {
            say(&format!("playing {}", path.display()));
            all.push(played(path, trace));
        }
        if let Some(files) = &self.files {
            for policy in POLICIES {
                say(&format!("write-back {policy}, {} MiB of cache on a file", files.cache_mib));
                all.push(on_files(policy, files)?);
            }
        }
        Ok(all)
    }
}

fn options(policy: &str) -> Outcome<CacheOptions> {
    let list = format!("writeback={policy},writeback_jobs=1024,autocommit_blocks=4096,mode=pmem");
    Ok(CacheOptions::parse(&list)?)
}

fn simulated(policy: &'static str, cache_bytes: u64) -> Outcome<Figures> {
    let span = 2 * cache_bytes;
    let disk = Arc::new(Disk::new(span));
    let front = Geometry::largest(BLOCK as u32, "cache", cache_bytes)?.data_start();
    let memory = Arc::new(Forgetful::new(front, cache_bytes));
    format(Arc::clone(&memory) as _, None, BLOCK as u32, 0, false)?;
    let mut options = options(policy)?;
    options.background = false;
    let (high, low) = (u64::from(options.high_watermark), u64::from(options.low_watermark));
    let cached = CacheDevice::open(Arc::clone(&disk) as _, memory, options)?;

    let blocks = cached.status().blocks;
    let mut rng = buttress_base::Rng::new(2019);
    let (mut now, mut is_draining) = (0.0, false);
    let mut per_second = Vec::new();
    let mut written_back = 0;
    let data = [1; BLOCK as usize];
    for _ in 0..2 * cache_bytes / BLOCK {
        // The disk works as long as its clock is behind the clock of the foreground.
        loop {
            let used = blocks - cached.status().free;
            is_draining = used * 100 > blocks * if is_draining { low } else { high };
            if !is_draining || (disk.now() > now && cached.status().free > 0) {
                break;
            }
            disk.wait_until(now);
            written_back += cached.drain_step()?.blocks;
            if cached.status().free == 0 {
                now = now.max(disk.now());
            }
        }
        if cached.status().free == 1 {
            now = now.max(disk.now());
        }
        let at = rng.below(span / BLOCK) * BLOCK;
        cached.write_at(at, &data)?;
        now += WRITE;
        count(&mut per_second, now);
    }
    // The last second is not a whole one.
    per_second.pop();
    let steady = disk.take_done();
    let busy = disk.now();
    let begin = disk.now().max(now);
    disk.wait_until(begin);
    cached.drain(|_| {})?;
    let flush_seconds = disk.now() - begin;
    Ok(Figures {
        name: policy.to_owned(),
        disk: "simulated",
        flush_seconds,
        iops: per_second,
        steady,
        flush: disk.take_done(),
        drain_rate: written_back as f64 / busy,
    })
}

fn on_files(policy: &'static str, files: &Files) -> Outcome<Figures> {
    let folder = files.dir.join(format!("buttress-writeback-{}", std::process::id()));
    std::fs::create_dir(&folder)?;
    let outcome = on_files_in(policy, files, &folder);
    std::fs::remove_dir_all(&folder)?;
    outcome
}

fn on_files_in(policy: &'static str, files: &Files, folder: &Path) -> Outcome<Figures> {
    let cache_bytes = files.cache_mib << 20;
    let span = 2 * cache_bytes;
    let disk = Arc::new(Throttled::create(&folder.join("origin"), span, files.speed)?);
    let place = folder.join("cache");
    drop(FileDevice::create(&place, cache_bytes)?);
    let cache = Arc::new(FileDevice::open(&place, OpenOptions::WRITE)?);
    format(Arc::clone(&cache) as _, None, BLOCK as u32, 0, false)?;
    let cached = CacheDevice::open(Arc::clone(&disk) as _, cache, options(policy)?)?;
    let mut rng = buttress_base::Rng::new(2019);
    let mut per_second = Vec::new();
    let data = [1; BLOCK as usize];
    let begin = disk.now();
    for _ in 0..2 * cache_bytes / BLOCK {
        let at = rng.below(span / BLOCK) * BLOCK;
        cached.write_at(at, &data)?;
        count(&mut per_second, disk.now() - begin);
    }
    per_second.pop();
    let steady = disk.take_done();
    let end = disk.now();
    // Write-back starts when the high watermark is reached.
    let first = steady.first().map_or(begin, |done| done.at);
    let begin = disk.now();
    cached.drain(|_| {})?;
    let flush_seconds = disk.now() - begin;
    let flush = disk.take_done();
    cached.close()?;
    let blocks: u64 = steady.iter().map(|done| done.len / BLOCK).sum();
    Ok(Figures {
        name: policy.to_owned(),
        disk: "file",
        flush_seconds,
        iops: per_second,
        steady,
        flush,
        drain_rate: blocks as f64 / (end - first),
    })
}

fn played(path: &Path, trace: &Trace) -> Figures {
    let span = trace.writes().map(|(offset, len)| offset + len).max().unwrap_or(BLOCK);
    let disk = Disk::new(span);
    trace.play(&disk, &trace.steady);
    let (steady, busy) = (disk.take_done(), disk.now());
    trace.play(&disk, &trace.flush);
    let flush = disk.take_done();
    let blocks: u64 = steady.iter().map(|done| done.len / BLOCK).sum();
    let name = path.file_stem().map(|name| name.to_string_lossy().into_owned());
    Figures {
        name: name.unwrap_or_default(),
        disk: "trace",
        flush_seconds: disk.now() - busy,
        iops: Vec::new(),
        steady,
        flush,
        drain_rate: blocks as f64 / busy,
    }
}

fn count(per_second: &mut Vec<f64>, now: f64) {
    let second = now as usize;
    if per_second.len() <= second {
        per_second.resize(second + 1, 0.0);
    }
    per_second[second] += 1.0;
}

fn spread(values: &[f64]) -> (f64, f64, f64, f64) {
    if values.is_empty() {
        return (f64::NAN, f64::NAN, f64::NAN, f64::NAN);
    }
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let square = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count;
    let min = values.iter().copied().fold(f64::INFINITY, f64::min);
    let max = values.iter().copied().fold(0.0, f64::max);
    (min, mean, max, square.sqrt())
}

/// The figures as a table.
#[must_use]
pub fn table(value: &Value) -> String {
    let mut text = String::from(
        "disk       write-back       flush s  x unsorted   drain blocks/s   x lru    iops min      avg      max    stdev\n",
    );
    for row in value["policies"].as_array().into_iter().flatten() {
        let number = |name: &str, places: usize| match row[name].as_f64() {
            Some(value) => format!("{value:.places$}"),
            None => "-".to_owned(),
        };
        // Writing into a string cannot fail.
        let _ = writeln!(
            text,
            "{:<11}{:<15}{:>9}{:>12}{:>17}{:>8}{:>12}{:>9}{:>9}{:>9}",
            row["disk"].as_str().unwrap_or_default(),
            row["writeback"].as_str().unwrap_or_default(),
            number("flush_seconds", 1),
            number("flush_times_unsorted", 2),
            number("drain_blocks_per_second", 0),
            number("drain_times_lru", 2),
            number("iops_min", 0),
            number("iops_avg", 0),
            number("iops_max", 0),
            number("iops_stdev", 0),
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The gains are at least the published gains. Simulated time is the same on every machine, so
    /// a test can check the gains. A plot is drawn.
    #[test]
    fn sorted_is_as_much_faster_as_was_published() {
        let folder = std::env::temp_dir().join(format!("buttress-plot-{}", std::process::id()));
        let experiment = Writeback {
            cache_mib: 32,
            files: None,
            traces: Vec::new(),
            plot: Some(folder.clone()),
        };
        let figures = experiment.run(&mut |_| {}).expect("it runs");
        let svg = std::fs::read_to_string(&folder).expect("a plot");
        std::fs::remove_file(&folder).expect("it is ours");
        let page = folder.with_extension("html");
        Writeback { plot: Some(page.clone()), cache_mib: 8, ..experiment }
            .run(&mut |_| {})
            .expect("it runs");
        let html = std::fs::read_to_string(&page).expect("a page");
        std::fs::remove_file(&page).expect("it is ours");
        assert!(html.contains("\"kind\":\"positions\"") && html.contains("\"kind\":\"bars\""));
        assert!(svg.starts_with("<svg") && POLICIES.iter().all(|policy| svg.contains(policy)));
        let sorted = &figures["policies"][0];
        assert_eq!(sorted["writeback"], "sorted");
        let number = |name: &str| sorted[name].as_f64().expect("a number");
        assert!(number("flush_times_unsorted") >= 2.25, "{}", table(&figures));
        assert!(number("drain_times_lru") >= 2.0, "{}", table(&figures));
    }
}
