//! Loads of programs on one volume: large files, small files, fsyncs and random reads.

use std::time::Instant;

use buttress_base::Rng;
use buttress_fs::Filesystem;

use super::{Bed, Figures, Place, Plan, Result};
use crate::work::text;

const CHUNK: usize = 1 << 20;
const READS: u64 = 200;

fn seconds(work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed().as_secs_f64())
}

fn random(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::new(seed).fill(&mut bytes);
    bytes
}

pub(super) fn run(bed: &Bed, plan: &Plan, figures: &mut Figures) -> Result<()> {
    let place = bed.place;
    let mib = plan.mib as f64;
    let open = bed.open()?;
    let took = seconds(|| {
        let file = open.fs.root().create(b"large", 0o644, 0, 0, 0).map_err(text)?;
        let chunk = random(CHUNK, 7);
        for at in 0..plan.mib {
            file.write_at(at << 20, &chunk).map_err(text)?;
        }
        file.sync().map_err(text)
    })?;
    figures.add("sequential write and one fsync", "MiB/s", place, mib / took);
    open.fs.sync().map_err(text)?;

    let took = seconds(|| files(&open.fs, "small", plan.files, |_| 4096))?;
    figures.add("small files of 4 KiB, then sync", "files/s", place, plan.files as f64 / took);
    let took =
        seconds(|| files(&open.fs, "tree", plan.files, |n| 200 + (n * 7919 % 60_000) as usize))?;
    figures.add("files as tar has them, then sync", "files/s", place, plan.files as f64 / took);

    let file = open.fs.root().create(b"synced", 0o644, 0, 0, 0).map_err(text)?;
    let before = bed.counts();
    let (mut count, start) = (0_u64, Instant::now());
    while start.elapsed() < plan.time {
        file.write_at(count % 64 * 4096, &[count as u8; 4096]).map_err(text)?;
        file.sync().map_err(text)?;
        count += 1;
    }
    let rate = count as f64 / start.elapsed().as_secs_f64();
    figures.add("fsync of 4 KiB", "fsyncs/s", place, rate);
    if matches!(place, Place::Store { .. }) {
        let done = bed.counts().since(before);
        figures.add("requests of an fsync", "puts", place, done.writes as f64 / count as f64);
        figures.add(
            "bytes of an fsync",
            "KiB",
            place,
            done.put_bytes as f64 / 1024.0 / count as f64,
        );
    }
    drop(file);
    open.close()?;

    bed.forget();
    reads(bed, plan, figures, "cold")?;
    if matches!(place, Place::Store { cache: true, .. } | Place::Local) {
        reads(bed, plan, figures, "after a restart")?;
    }
    Ok(())
}

fn files(fs: &Filesystem, top: &str, count: u64, len: impl Fn(u64) -> usize) -> Result<()> {
    let content = random(64 << 10, 3);
    let top = fs.root().mkdir(top.as_bytes(), 0o755, 0, 0).map_err(text)?;
    let mut dir = None;
    for number in 0..count {
        if number % 50 == 0 {
            let made = top.mkdir(format!("d{number}").as_bytes(), 0o755, 0, 0);
            dir = Some(made.map_err(text)?);
        }
        let Some(dir) = &dir else { continue };
        let file = dir.create(format!("f{number}").as_bytes(), 0o644, 0, 0, 0).map_err(text)?;
        file.write_at(0, &content[..len(number)]).map_err(text)?;
    }
    fs.sync().map_err(text)
}

/// Random reads of a newly opened volume, the same reads again, and a read of the whole file.
fn reads(bed: &Bed, plan: &Plan, figures: &mut Figures, when: &str) -> Result<()> {
    let place = bed.place;
    let open = bed.open()?;
    let file = open.fs.root().lookup(b"large").map_err(text)?;
    let before = bed.counts();
    let mut buf = vec![0; CHUNK];
    let took = seconds(|| {
        let mut rng = Rng::new(11);
        for _ in 0..READS {
            let at = rng.below(plan.mib * 256) * 4096;
            file.read_at(at, &mut buf[..4096]).map_err(text)?;
        }
        Ok(())
    })?;
    let what = format!("random reads of 4 KiB, {when}");
    figures.add(&what, "reads/s", place, READS as f64 / took);
    if matches!(place, Place::Store { .. }) {
        let done = bed.counts().since(before);
        let what = format!("requests of a random read, {when}");
        figures.add(&what, "gets", place, done.reads as f64 / READS as f64);
        let what = format!("bytes read of a random read, {when}");
        figures.add(&what, "KiB", place, done.got_bytes as f64 / 1024.0 / READS as f64);
    }
    drop(file);
    open.close()?;

    if when == "cold" {
        bed.forget();
    }
    let open = bed.open()?;
    let file = open.fs.root().lookup(b"large").map_err(text)?;
    let took = seconds(|| {
        for at in 0..plan.mib {
            file.read_at(at << 20, &mut buf).map_err(text)?;
        }
        Ok(())
    })?;
    figures.add(&format!("sequential read, {when}"), "MiB/s", place, plan.mib as f64 / took);
    drop(file);
    open.close()
}
