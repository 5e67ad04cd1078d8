//! Work on a volume as a whole: opening it, forks, and random overwrites with the collector.

use std::time::{Duration, Instant};

use buttress_base::Rng;
use buttress_block::Device;
use buttress_fs::{Filesystem, MakeOptions};
use buttress_remote::{Options, Site};

use super::{Bed, Figures, Place, Plan, Result};
use crate::heap;
use crate::work::text;

const LATENCY: Duration = Duration::from_millis(30);
const SECTOR: u64 = 4096;
/// How many times the device is overwritten, and the passes of the collector for each time.
const TIMES: u64 = 4;
const PASSES: u64 = 64;

fn site(bed: &Bed, prefix: &str, options: Options) -> Site {
    Site::in_store(bed.store.clone(), prefix, options)
}

pub(super) fn run(plan: &Plan, figures: &mut Figures, say: &mut dyn FnMut(&str)) -> Result<()> {
    let place = Place::Store { latency_ms: 30, cache: false };
    if plan.objects > 0 {
        say("a volume with many objects");
        opening(plan, figures, place)?;
    }
    if plan.overwritten_mib > 0 {
        for _ in 0..plan.runs {
            say("random overwrites");
            overwrites(plan, figures)?;
        }
    }
    Ok(())
}

/// Opens a volume of many objects, each of one sector, and forks it.
fn opening(plan: &Plan, figures: &mut Figures, place: Place) -> Result<()> {
    let none = Place::Store { latency_ms: 0, cache: false };
    let len = (plan.objects * SECTOR * 2).max(1 << 30);
    let bed = Bed::new(none, &plan.dir, 64 << 20)?;
    let options = Options { write: true, object_len: SECTOR, ..Options::default() };
    let device = site(&bed, "big", options.clone()).create(len).map_err(text)?;
    Filesystem::make(&device, &MakeOptions::default()).map_err(text)?;
    // The volume does not refer to these sectors, but for the device they are content.
    let mut content = [0; SECTOR as usize];
    for number in 0..plan.objects {
        content[..8].copy_from_slice(&number.to_le_bytes());
        device.write_at(len - (number + 1) * SECTOR, &content).map_err(text)?;
    }
    device.checkpoint().map_err(text)?;
    let objects = device.status().objects;
    device.close().map_err(text)?;
    bed.store.set_latency(LATENCY);
    for (what, write) in [("for reading", false), ("for writing", true)] {
        for _ in 0..plan.runs {
            let options = Options { write, ..options.clone() };
            let (before, start) = (bed.counts(), Instant::now());
            heap::start();
            let device = site(&bed, "big", options).open().map_err(text)?;
            let (took, done) = (start.elapsed(), bed.counts().since(before));
            let held = heap::counted().held as f64 / (1 << 20) as f64;
            let mut add = |of: &str, unit, value| {
                figures.add(
                    &format!("{objects} objects, opening {what}: {of}"),
                    unit,
                    place,
                    value,
                );
            };
            add("time", "ms", took.as_secs_f64() * 1000.0);
            add("waits of 30 ms", "round trips", took.as_secs_f64() / LATENCY.as_secs_f64());
            add("requests", "requests", (done.reads + done.writes) as f64);
            add("read", "KiB", done.got_bytes as f64 / 1024.0);
            add("memory", "MiB", held);
            device.close().map_err(text)?;
        }
    }
    let base = site(&bed, "big", options.clone());
    for run in 0..plan.runs {
        let clone = site(&bed, &format!("clone{run}"), options.clone());
        let (before, start) = (bed.counts(), Instant::now());
        base.clone_to(&clone).map_err(text)?;
        let done = bed.counts().since(before);
        let requests = (done.reads + done.writes) as f64;
        figures.add("a fork: requests", "requests", place, requests);
        figures.add("a fork: time", "ms", place, start.elapsed().as_secs_f64() * 1000.0);
    }
    Ok(())
}

/// Overwrites a device at random, with passes of the collector in between, until a pass finds no
/// more work. The threshold of the collector decides the share of live bytes in the store.
fn overwrites(plan: &Plan, figures: &mut Figures) -> Result<()> {
    let place = Place::Store { latency_ms: 0, cache: false };
    let bed = Bed::new(place, &plan.dir, 64 << 20)?;
    let options = Options {
        write: true,
        object_len: 1 << 20,
        min_keep: Duration::ZERO,
        ..Options::default()
    };
    let sectors = plan.overwritten_mib * 256;
    let device = site(&bed, "over", options).create(sectors * SECTOR).map_err(text)?;
    let mut content = vec![0; 1 << 20];
    let mut rng = Rng::new(5);
    for at in 0..plan.overwritten_mib {
        rng.fill(&mut content);
        device.write_at(at << 20, &content).map_err(text)?;
    }
    device.checkpoint().map_err(text)?;
    let mut before = bed.counts();
    let (mut written, mut ratios) = (0, Vec::new());
    for time in 0..TIMES {
        if time == 1 {
            // The first overwrite fills the store to the level that the collector then maintains.
            (before, written) = (bed.counts(), 0);
        }
        for _ in 0..PASSES {
            for _ in 0..sectors / PASSES {
                let at = rng.below(sectors) * SECTOR;
                device.write_at(at, &content[..SECTOR as usize]).map_err(text)?;
                written += SECTOR;
            }
            device.push().map_err(text)?;
            for _ in 0..32 {
                let done = device.collect().map_err(text)?;
                if done.moved_bytes == 0 && done.objects == 0 {
                    break;
                }
                // The former objects of moved data are freed only in a commit.
                device.push().map_err(text)?;
            }
            let status = device.status();
            if time > 0 {
                ratios.push(status.live_bytes as f64 * 100.0 / status.object_bytes.max(1) as f64);
            }
        }
    }
    let done = bed.counts().since(before);
    let name = "random overwrites with the collector";
    let times = done.put_bytes as f64 / written as f64;
    figures.add(&format!("{name}: bytes sent for each written"), "bytes", place, times);
    let mean = ratios.iter().sum::<f64>() / ratios.len().max(1) as f64;
    figures.add(&format!("{name}: live part of the store's bytes"), "%", place, mean);
    let requests = (done.writes + done.reads) as f64 / (written as f64 / (1 << 20) as f64);
    figures.add(&format!("{name}: requests for each MiB"), "requests", place, requests);
    device.close().map_err(text)
}
