//! How long a writer waits while a large transaction is committed.
//!
//! Files with content within their items make a transaction of about 200 MiB; then one thread syncs
//! while another goes on creating files. The longest operation of the creating thread counts.

use buttress_fs::NewInode;
use std::{
    fs::File,
    io::Write,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use crate::{
    report::{Better, Report},
    setup::Setup,
    work::{Job, sync, text},
};

/// Content of one file: stays within its item.
const LEN: usize = 1500;
const FILES: usize = 85_000;

/// Creates files until `stop` is set. Returns the longest time of one creation.
fn worst(
    stop: &AtomicBool,
    mut create: impl FnMut(usize) -> Result<(), String>,
) -> Result<(Duration, usize), String> {
    let mut longest = Duration::ZERO;
    let mut count = 0;
    while !stop.load(Ordering::Relaxed) {
        let start = Instant::now();
        create(count)?;
        longest = longest.max(start.elapsed());
        count += 1;
    }
    Ok((longest, count))
}

pub(crate) fn run(job: &Job, report: &mut Report) -> Result<(), String> {
    let target = job.target;
    let setup = Setup::new(target, &job.dir)?;
    let data = vec![7; LEN];
    let stop = AtomicBool::new(false);
    let (longest, count, took) = if target.is_library() {
        let fs = setup.open()?;
        let create = |prefix: &str, i: usize| -> Result<(), String> {
            let name = format!("{prefix}{i}");
            let file = fs.root().create(name.as_bytes(), NewInode::file(0o644)).map_err(text)?;
            file.write_at(0, &data).map_err(text)?;
            Ok(())
        };
        for i in 0..FILES {
            create("a", i)?;
        }
        let outcome = thread::scope(|scope| {
            let writer = scope.spawn(|| worst(&stop, |i| create("b", i)));
            let start = Instant::now();
            let synced = fs.sync().map_err(text);
            let took = start.elapsed();
            stop.store(true, Ordering::Relaxed);
            let (longest, count) = writer.join().map_err(|_| "the writer panicked")??;
            synced.map(|()| (longest, count, took))
        })?;
        fs.close().map_err(text)?;
        outcome
    } else {
        let root = setup.folder();
        // For any file system, the kernel locks the folder that is synced, so the work goes on in
        // another folder.
        let work = root.join("work");
        std::fs::create_dir(&work).map_err(text)?;
        let create = |prefix: &str, i: usize| -> Result<(), String> {
            let mut file = File::create(work.join(format!("{prefix}{i}"))).map_err(text)?;
            file.write_all(&data).map_err(text)
        };
        for i in 0..FILES {
            create("a", i)?;
        }
        thread::scope(|scope| {
            let writer = scope.spawn(|| worst(&stop, |i| create("b", i)));
            let start = Instant::now();
            let synced = sync(root);
            let took = start.elapsed();
            stop.store(true, Ordering::Relaxed);
            let (longest, count) = writer.join().map_err(|_| "the writer panicked")??;
            synced.map(|()| (longest, count, took))
        })?
    };
    let ms = |time: Duration| time.as_secs_f64() * 1000.0;
    let mut add = |what: &str, unit, better, value| report.add(what, unit, better, target, value);
    add("longest operation during a commit", "ms", Better::Less, ms(longest));
    add("the commit", "ms", Better::Less, ms(took));
    let rate = count as f64 / took.as_secs_f64();
    add("operations meanwhile", "files/s", Better::More, rate);
    Ok(())
}
