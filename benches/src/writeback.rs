//! The experiment of 2019, in simulated time: random 4 KiB writes, twice the cache, onto a hard disk behind a
//! cache; then a flush of everything; for each order of write-back.
//!
//! The foreground and the disk have clocks of their own. The cache takes a write in no time to speak of; one
//! that finds no free slot waits until the disk has freed some. So the foreground's rate is that of the disk once
//! the cache is full, which is what the experiment shows.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use buttress_cache::layout::Geometry;
use buttress_cache::{CacheDevice, CacheOptions, format};
use serde_json::{Value, json};

use crate::disk::{Disk, Done, Forgetful};

const BLOCK: u64 = 4096;
/// Seconds the cache takes for a write.
const WRITE: f64 = 20e-6;
const POLICIES: [&str; 3] = ["sorted", "lru", "fifo-unsorted"];

/// What one order of write-back did.
struct Figures {
    policy: &'static str,
    flush_seconds: f64,
    iops: Vec<f64>,
    steady: Vec<Done>,
    flush: Vec<Done>,
    /// Blocks a second that reached the disk while the foreground wrote.
    drain_rate: f64,
}

/// Runs all orders; returns the figures, and writes the plot.
pub(crate) fn run(cache_mib: u64, plot: Option<&Path>) -> Result<Value, String> {
    let mut all = Vec::new();
    for policy in POLICIES {
        eprintln!("write-back {policy}, {cache_mib} MiB of cache");
        all.push(measure(policy, cache_mib << 20).map_err(|error| error.to_string())?);
    }
    if let Some(path) = plot {
        std::fs::write(path, svg(&all, 2 * (cache_mib << 20)))
            .map_err(|error| format!("{}: {error}", path.display()))?;
    }
    let unsorted = all.last().map_or(f64::NAN, |figures| figures.flush_seconds);
    let published = all.get(1).map_or(f64::NAN, |figures| figures.drain_rate);
    let rows = all.iter().map(|figures| {
        let (min, mean, max, deviation) = spread(&figures.iops);
        json!({
            "writeback": figures.policy,
            "flush_seconds": figures.flush_seconds,
            "flush_times_unsorted": unsorted / figures.flush_seconds,
            "drain_blocks_per_second": figures.drain_rate,
            "drain_times_lru": figures.drain_rate / published,
            "iops_min": min, "iops_avg": mean, "iops_max": max, "iops_stdev": deviation,
        })
    });
    Ok(json!({ "cache_mib": cache_mib, "policies": rows.collect::<Vec<_>>() }))
}

fn measure(policy: &'static str, cache_bytes: u64) -> Result<Figures, Box<dyn std::error::Error>> {
    let span = 2 * cache_bytes;
    let disk = Arc::new(Disk::new(span));
    let front = Geometry::largest(BLOCK as u32, "cache", cache_bytes)?.data_start();
    let memory = Arc::new(Forgetful::new(front, cache_bytes));
    format(Arc::clone(&memory) as _, None, BLOCK as u32, 0, false)?;
    let list = format!("writeback={policy},writeback_jobs=1024,autocommit_blocks=4096,mode=pmem");
    let mut options = CacheOptions::parse(&list)?;
    options.background = false;
    let (high, low) = (u64::from(options.high_watermark), u64::from(options.low_watermark));
    let cached = CacheDevice::open(Arc::clone(&disk) as _, memory, options)?;

    let blocks = cached.status().blocks;
    let mut rng = buttress_base::Rng::new(2019);
    let (mut now, mut is_draining) = (0.0, false);
    let mut per_second: Vec<f64> = Vec::new();
    let mut written_back = 0;
    let data = [1; BLOCK as usize];
    for _ in 0..2 * cache_bytes / BLOCK {
        // The disk works on as long as its clock is behind.
        loop {
            let used = blocks - u64::from(u32::try_from(cached.status().free)?);
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
        buttress_block::Device::write_at(&cached, at, &data)?;
        now += WRITE;
        let second = now as usize;
        if per_second.len() <= second {
            per_second.resize(second + 1, 0.0);
        }
        per_second[second] += 1.0;
    }
    // The last second is not a whole one.
    per_second.pop();
    let steady = disk.take_done();
    let busy = disk.now();
    let begin = disk.now().max(now);
    disk.wait_until(begin);
    cached.drain(|_| {})?;
    let flush_seconds = disk.now() - begin;
    let flush = disk.take_done();
    let drain_rate = f64::from(u32::try_from(written_back)?) / busy;
    Ok(Figures { policy, flush_seconds, iops: per_second, steady, flush, drain_rate })
}

fn spread(values: &[f64]) -> (f64, f64, f64, f64) {
    let count = values.len().max(1) as f64;
    let mean = values.iter().sum::<f64>() / count;
    let square = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count;
    let min = values.iter().copied().fold(f64::INFINITY, f64::min);
    let max = values.iter().copied().fold(0.0, f64::max);
    (min, mean, max, square.sqrt())
}

/// The figures as a table.
pub(crate) fn table(value: &Value) -> String {
    let mut text = String::from(
        "write-back      flush s  x unsorted   drain blocks/s   x lru    iops min      avg      max    stdev\n",
    );
    for row in value["policies"].as_array().into_iter().flatten() {
        let number = |name: &str| row[name].as_f64().unwrap_or(f64::NAN);
        // Into a string: nothing can fail.
        let _ = writeln!(
            text,
            "{:<14}{:>9.1}{:>12.2}{:>17.0}{:>8.2}{:>12.0}{:>9.0}{:>9.0}{:>9.0}",
            row["writeback"].as_str().unwrap_or_default(),
            number("flush_seconds"),
            number("flush_times_unsorted"),
            number("drain_blocks_per_second"),
            number("drain_times_lru"),
            number("iops_min"),
            number("iops_avg"),
            number("iops_max"),
            number("iops_stdev"),
        );
    }
    text
}

/// Position on the disk over time, one panel an order: grey while the foreground writes, blue the flush.
fn svg(all: &[Figures], span: u64) -> String {
    const WIDTH: f64 = 860.0;
    const HEIGHT: f64 = 190.0;
    const GAP: f64 = 46.0;
    const POINTS: usize = 3000;
    let last = |figures: &Figures| figures.flush.last().map_or(1.0, |done| done.at);
    let longest = all.iter().map(last).fold(1.0, f64::max);
    let total = all.len() as f64 * (HEIGHT + GAP) + GAP;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 960 {total:.0}\" \
         font-family=\"sans-serif\" font-size=\"13\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for (index, figures) in all.iter().enumerate() {
        let top = GAP * 0.8 + index as f64 * (HEIGHT + GAP);
        let _ = writeln!(
            text,
            "<text x=\"60\" y=\"{:.0}\">{}: flush in {:.1} s</text>\n<rect x=\"60\" y=\"{top:.0}\" width=\"{WIDTH}\" \
             height=\"{HEIGHT}\" fill=\"none\" stroke=\"#999\"/>",
            top - 6.0,
            figures.policy,
            figures.flush_seconds,
        );
        for (done, colour) in [(&figures.steady, "#aaa"), (&figures.flush, "#06c")] {
            let step = done.len().div_ceil(POINTS).max(1);
            let mut path = String::new();
            for point in done.iter().step_by(step) {
                let x = 60.0 + point.at / longest * WIDTH;
                let y = top + HEIGHT - point.offset as f64 / span as f64 * HEIGHT;
                let _ = write!(path, "M{x:.1} {y:.1}h1.4");
            }
            let _ = writeln!(text, "<path d=\"{path}\" stroke=\"{colour}\" stroke-width=\"1.4\"/>");
        }
    }
    let _ = writeln!(
        text,
        "<text x=\"60\" y=\"{:.0}\">time, 0 to {longest:.0} s; position on the disk, 0 to {} MiB; grey: \
         foreground writing, blue: flush</text>\n</svg>",
        total - 12.0,
        span >> 20
    );
    text
}
