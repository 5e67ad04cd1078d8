//! Loads of programs on one volume: large files, small files, fsyncs and random reads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use buttress_base::Rng;
use buttress_fs::{Filesystem, NewInode};
use buttress_remote::store::Store;
use bytes::Bytes;

use super::{Bed, Figures, Place, Plan, Result};
use crate::work::text;

const CHUNK: usize = 1 << 20;
/// Random reads of a cold volume, and of one that is in the local cache.
const READS: u64 = 200;
const WARM_READS: u64 = 20_000;
/// Ranges of 1 MiB that are asked for at once, as many as a device with its defaults reads ahead.
const PARALLEL: usize = 8;

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
        let file = open.fs.root().create(b"large", NewInode::file(0o644)).map_err(text)?;
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

    let file = open.fs.root().create(b"synced", NewInode::file(0o644)).map_err(text)?;
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

    parallel(bed, plan, figures)?;
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
        let file =
            dir.create(format!("f{number}").as_bytes(), NewInode::file(0o644)).map_err(text)?;
        file.write_at(0, &content[..len(number)]).map_err(text)?;
    }
    fs.sync().map_err(text)
}

/// The rate of the store itself: [`PARALLEL`] ranges at once. Their bytes are copied.
fn parallel(bed: &Bed, plan: &Plan, figures: &mut Figures) -> Result<()> {
    if bed.place == Place::Local {
        return Ok(());
    }
    let body = Bytes::from(random(8 << 20, 5));
    bed.store.put("ranges", body).map_err(text)?;
    let next = AtomicU64::new(0);
    let get = || -> Result<()> {
        let mut room = vec![0; CHUNK];
        while next.fetch_add(1, Ordering::Relaxed) < plan.mib {
            let bytes = bed.store.get_range("ranges", 0..CHUNK as u64).map_err(text)?;
            room.copy_from_slice(&bytes);
        }
        Ok(())
    };
    let took = seconds(|| {
        thread::scope(|scope| {
            let all: Vec<_> = (0..PARALLEL).map(|_| scope.spawn(get)).collect();
            all.into_iter().try_for_each(|one| one.join().map_err(|_| "a thread panicked")?)
        })
    })?;
    let what = "8 parallel ranged requests of 1 MiB";
    figures.add(what, "MiB/s", bed.place, plan.mib as f64 / took);
    Ok(())
}

/// Random reads of a newly opened volume, the same reads again, and a read of the whole file.
fn reads(bed: &Bed, plan: &Plan, figures: &mut Figures, when: &str) -> Result<()> {
    let place = bed.place;
    let open = bed.open()?;
    let file = open.fs.root().lookup(b"large").map_err(text)?;
    let before = bed.counts();
    let mut buf = vec![0; CHUNK];
    let count = if when == "cold" { READS } else { WARM_READS };
    let took = seconds(|| {
        let mut rng = Rng::new(11);
        for _ in 0..count {
            let at = rng.below(plan.mib * 256) * 4096;
            file.read_at(at, &mut buf[..4096]).map_err(text)?;
        }
        Ok(())
    })?;
    let what = format!("random reads of 4 KiB, {when}");
    figures.add(&what, "reads/s", place, count as f64 / took);
    if matches!(place, Place::Store { .. }) {
        let done = bed.counts().since(before);
        let what = format!("requests of a random read, {when}");
        figures.add(&what, "gets", place, done.reads as f64 / count as f64);
        let what = format!("bytes read of a random read, {when}");
        figures.add(&what, "KiB", place, done.got_bytes as f64 / 1024.0 / count as f64);
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
