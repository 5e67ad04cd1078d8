//! The jobs: the same operations through a folder and through the library.

use buttress_fs::NewInode;
use std::{
    fs::{self, File},
    io::{Read, Write},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use buttress_base::{clock, thread};

use crate::{
    report::{Better, Report},
    setup::Setup,
    target::Target,
};

pub(crate) const SMALL_LEN: usize = 4096;
const PER_DIR: usize = 1000;
const MIB: usize = 1 << 20;
/// How much longer than planned a phase may last while no work is done: on a busy machine the
/// planned time may be too short. The limit ends the phase if a worker has failed and does nothing.
const NOTHING_MAX: Duration = Duration::from_secs(10);

/// The arguments of experiments over targets.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Small files per run.
    #[arg(long, default_value_t = 50_000)]
    files: usize,
    /// MiB of the large file.
    #[arg(long, default_value_t = 2048)]
    mib: u64,
    /// How many threads write and sync in the experiment fsync, one measurement each.
    #[arg(long, value_delimiter = ',', default_value = "1,8,32")]
    threads: Vec<usize>,
    /// Targets: library, loop (the library on a loop device), mount, mount-loop, btrfs, ext4,
    /// fuse2fs.
    #[arg(long, value_delimiter = ',', default_value = "library,mount,btrfs,ext4")]
    targets: Vec<String>,
}

/// A job on one target.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) target: Target,
    /// A folder for the image.
    pub(crate) dir: PathBuf,
    /// See [`Args`].
    pub(crate) files: usize,
    pub(crate) mib: u64,
    pub(crate) threads: Vec<usize>,
}

/// Does a job once, and reports its figures.
pub(crate) type JobWork = fn(&Job, &mut Report) -> Result<(), String>;

/// Does the work on each target in turn, `runs` times. `say` gets messages about the progress.
///
/// # Errors
///
/// The cause of the failure, in words.
pub(crate) fn run(
    work: JobWork,
    args: &Args,
    dir: &Path,
    runs: usize,
    say: &mut dyn FnMut(&str),
) -> Result<Report, String> {
    let parsed = args.targets.iter().map(|name| Target::parse(name));
    let targets: Vec<Target> = parsed.collect::<Result<_, _>>()?;
    let mut report = Report::default();
    for run in 0..runs {
        for &target in &targets {
            say(&format!("run {} of {runs}: {target}", run + 1));
            let Args { files, mib, threads, .. } = args.clone();
            work(&Job { target, dir: dir.to_owned(), files, mib, threads }, &mut report)?;
        }
    }
    Ok(report)
}

/// Waits for `time`, and until some work was done.
pub(crate) fn measure_for(time: Duration, done: &AtomicU64) {
    let start = clock::now();
    thread::sleep(time);
    while is_measured(start, time, done) {
        thread::sleep(Duration::from_millis(1));
    }
}

/// Whether a measurement that began at `start` is still to go on.
pub(crate) fn is_measured(start: Instant, time: Duration, done: &AtomicU64) -> bool {
    let over = clock::since(start);
    over < time || done.load(Ordering::Relaxed) == 0 && over < time + NOTHING_MAX
}

pub(crate) fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Bytes that do not repeat within a block, so that nothing is the same by chance.
pub(crate) fn pattern(seed: usize, len: usize) -> Vec<u8> {
    let mut state = (seed as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect()
}

pub(crate) fn small(job: &Job, report: &mut Report) -> Result<(), String> {
    let (target, count) = (job.target, job.files);
    let setup = Setup::new(target, &job.dir)?;
    let data = pattern(1, SMALL_LEN);
    let (created, synced, removed);
    if target.is_library() {
        let fs = setup.open()?;
        let start = Instant::now();
        let mut dir = fs.root();
        for i in 0..count {
            if i % PER_DIR == 0 {
                let name = format!("d{}", i / PER_DIR);
                dir = fs.root().mkdir(name.as_bytes(), 0o755, 0, 0).map_err(text)?;
            }
            let file =
                dir.create(format!("f{i}").as_bytes(), NewInode::file(0o644)).map_err(text)?;
            file.write_at(0, &data).map_err(text)?;
        }
        created = start.elapsed();
        fs.sync().map_err(text)?;
        synced = start.elapsed();
        let start = Instant::now();
        for i in 0..count {
            if i % PER_DIR == 0 {
                dir = fs.root().lookup(format!("d{}", i / PER_DIR).as_bytes()).map_err(text)?;
            }
            dir.unlink(format!("f{i}").as_bytes()).map_err(text)?;
        }
        removed = start.elapsed();
        drop(dir);
        fs.close().map_err(text)?;
    } else {
        let root = setup.folder();
        let start = Instant::now();
        for i in 0..count {
            let dir = root.join(format!("d{}", i / PER_DIR));
            if i % PER_DIR == 0 {
                fs::create_dir(&dir).map_err(text)?;
            }
            let mut file = File::create(dir.join(format!("f{i}"))).map_err(text)?;
            file.write_all(&data).map_err(text)?;
        }
        created = start.elapsed();
        sync(root)?;
        synced = start.elapsed();
        let start = Instant::now();
        for i in 0..count {
            fs::remove_file(root.join(format!("d{}/f{i}", i / PER_DIR))).map_err(text)?;
        }
        removed = start.elapsed();
    }
    let rate = |time: Duration| count as f64 / time.as_secs_f64();
    let mut add = |what: &str, value| report.add(what, "files/s", Better::More, target, value);
    add("create, write 4 KiB, close", rate(created));
    add("the same, and sync", rate(synced));
    add("unlink", rate(removed));
    Ok(())
}

/// Makes everything durable. The kernel does not pass `syncfs` on to a FUSE server. So `sync` only
/// writes the kernel's dirty data to the server, and an fsync of the folder makes the data durable.
pub(crate) fn sync(dir: &Path) -> Result<(), String> {
    crate::setup::sh("sync", &["-f", &dir.to_string_lossy()])?;
    File::open(dir).and_then(|folder| folder.sync_all()).map_err(text)
}

pub(crate) fn sequential(job: &Job, report: &mut Report) -> Result<(), String> {
    let target = job.target;
    let mut setup = Setup::new(target, &job.dir)?;
    let chunk = pattern(2, MIB);
    let mut buf = vec![0; MIB];
    let (written, read);
    if target.is_library() {
        let fs = setup.open()?;
        let start = Instant::now();
        let file = fs.root().create(b"large", NewInode::file(0o644)).map_err(text)?;
        for i in 0..job.mib {
            file.write_at(i << 20, &chunk).map_err(text)?;
        }
        file.sync().map_err(text)?;
        written = start.elapsed();
        drop(file);
        fs.close().map_err(text)?;
        let fs = setup.open()?;
        let file = fs.root().lookup(b"large").map_err(text)?;
        let start = Instant::now();
        for i in 0..job.mib {
            let found = file.read_at(i << 20, &mut buf).map_err(text)?;
            if found != MIB || buf != chunk {
                return Err(format!("{target}: wrong content at {i} MiB"));
            }
        }
        read = start.elapsed();
        drop(file);
        fs.close().map_err(text)?;
    } else {
        let path = setup.folder().join("large");
        let start = Instant::now();
        let mut file = File::create(&path).map_err(text)?;
        for _ in 0..job.mib {
            file.write_all(&chunk).map_err(text)?;
        }
        file.sync_all().map_err(text)?;
        written = start.elapsed();
        drop(file);
        setup.unmount()?;
        setup.mount()?;
        let mut file = File::open(&path).map_err(text)?;
        let start = Instant::now();
        for i in 0..job.mib {
            file.read_exact(&mut buf).map_err(text)?;
            if buf != chunk {
                return Err(format!("{target}: wrong content at {i} MiB"));
            }
        }
        read = start.elapsed();
    }
    let rate = |time: Duration| job.mib as f64 / time.as_secs_f64();
    report.add("sequential write and fsync", "MiB/s", Better::More, target, rate(written));
    report.add("sequential read, cold", "MiB/s", Better::More, target, rate(read));
    Ok(())
}
