//! Allocation by many workers, as will-it-scale's `fallocate2` does it. Each worker appends to its
//! own file by `fallocate`, 8 KiB at a time up to 1 MiB. The worker then truncates the file to
//! nothing, and begins again. No job of `fio` truncates a file before it writes the file again, so
//! our own threads drive all subjects. In a folder, `fio` also runs its nearest equivalent: each
//! file is removed and made anew.

use std::{
    fs::File,
    path::Path,
    sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    time::Duration,
};

use buttress_base::{clock, thread};
use buttress_fs::{FallocateMode, Filesystem, Inode, NewInode, SetAttr};
use rustix::fs::{FallocateFlags, fallocate, ftruncate};

use crate::{
    Target,
    enospc::fill,
    fio::{Engine, Fio, FioWork, Place},
    latency::Latencies,
    processors,
    published::{Better, Experiment, Plan, Subject, Table},
    setup::Setup,
    work::{measure_for, text},
};

const PIECE: u64 = 8 << 10;
const WHOLE: u64 = 1 << 20;
const SIZE: u64 = 8 << 30;
/// One of this many allocations is timed: reading the clock takes a tenth of the time of the
/// shortest allocation.
const TIMED: u64 = 32;
/// The length of a free range in a fragmented volume, in bytes.
const FRAGMENT: u64 = 64 << 10;

/// The experiment.
#[derive(Clone, Debug)]
pub struct Allocate {
    /// The numbers of workers. Each number is a row of its own.
    pub workers: Vec<usize>,
    /// Whether the volume is full except for a tenth, which is free in pieces of 64 KiB.
    pub fragmented: bool,
}

impl Experiment for Allocate {
    fn name(&self) -> &'static str {
        if self.fragmented { "allocate, fragmented" } else { "allocate" }
    }

    fn runs_on_processors(&self) -> bool {
        true
    }

    fn subjects(&self, plan: &Plan) -> Vec<Subject> {
        let mut subjects = vec![
            Subject::new("kernel btrfs", Target::Btrfs, ""),
            Subject::new("kernel ext4", Target::Ext4, ""),
            Subject::new("buttress, linear", Target::Library, "alloc=linear"),
            Subject::new("buttress, linear-trylock", Target::Library, "alloc=linear-trylock"),
            Subject::new("buttress, index, one goal", Target::Library, "alloc=index-single-goal"),
            Subject::new("buttress", Target::Library, ""),
            Subject::new("buttress on loop", Target::Loop, ""),
        ];
        if plan.mount {
            subjects.extend(Subject::mounts(""));
        }
        subjects
    }

    fn run(&self, subject: &Subject, plan: &Plan, out: &mut Table) -> Result<(), String> {
        let setup = Setup::of(subject, plan, SIZE)?;
        let time = Duration::from_secs_f64(2.0 * plan.scale);
        let fs = if subject.target.is_library() { Some(setup.open()?) } else { None };
        if self.fragmented {
            fragment(&setup, fs.as_ref())?;
        }
        for &workers in &self.workers {
            let busy = processors::busy();
            let (rate, times) = match &fs {
                Some(fs) => together(workers, time, |i| {
                    let name = format!("w{workers}-{i}");
                    let file = fs.root().create(name.as_bytes(), NewInode::file(0o600));
                    let file = file.map_err(text)?;
                    let empty = SetAttr { size: Some(0), ..SetAttr::default() };
                    Ok(move |at: Option<u64>| match at {
                        Some(at) => {
                            let mode = FallocateMode::Allocate { keep_size: false };
                            file.fallocate(at, PIECE, mode).map_err(text)
                        }
                        None => file.set_attr(&empty).map_err(text).map(drop),
                    })
                })?,
                None => together(workers, time, |i| {
                    let file = create(setup.folder(), &format!("w{workers}-{i}"))?;
                    Ok(move |at: Option<u64>| match at {
                        Some(at) => {
                            fallocate(&file, FallocateFlags::empty(), at, PIECE).map_err(text)
                        }
                        None => ftruncate(&file, 0).map_err(text),
                    })
                })?,
            };
            let what = format!("allocations by {workers}");
            out.add(&what, "1/s", Better::More, subject, rate);
            let spent = (processors::busy() - busy) / (rate * time.as_secs_f64());
            let what = format!("processor time of each, {workers}");
            out.add(&what, "us", Better::Less, subject, spent * 1e6);
            let what = format!("p99 of an allocation, {workers}");
            out.add(&what, "us", Better::Less, subject, times.p99());
            if fs.is_none() {
                by_fio(&setup, subject, workers, time, out)?;
            }
        }
        if let Some(fs) = fs {
            fs.close().map_err(text)?;
        }
        Ok(())
    }
}

/// The same allocations by `fio`, in a folder. The file is removed instead of truncated.
fn by_fio(
    setup: &Setup,
    subject: &Subject,
    workers: usize,
    time: Duration,
    out: &mut Table,
) -> Result<(), String> {
    let job = |i| Place::whole(setup.folder().join(format!("f{workers}-{i}")));
    let places: Vec<_> = (0..workers).map(job).collect();
    let (engine, work) = (Engine::Falloc, FioWork::Anew { time });
    let fio = Fio { engine, work, block: PIECE as usize, bytes: WHOLE, step: None };
    let seen = fio.run(&places, || ())?;
    let count = seen.bytes / PIECE as f64;
    let what = format!("allocations by {workers}, fio, removed");
    out.add(&what, "1/s", Better::More, subject, count / seen.seconds);
    let what = format!("processor time of each, {workers}, fio, removed");
    out.add(&what, "us", Better::Less, subject, seen.spent / count * 1e6);
    let what = format!("p99 of an allocation, {workers}, fio, removed");
    out.add(&what, "us", Better::Less, subject, seen.p99 * 1e6);
    Ok(())
}

/// A file that is filled by `fallocate`.
enum Filled {
    Library(Inode),
    Folder(File),
}

impl Filled {
    fn create(setup: &Setup, fs: Option<&Filesystem>, name: &str) -> Result<Self, String> {
        let Some(fs) = fs else { return create(setup.folder(), name).map(Self::Folder) };
        let made = fs.root().create(name.as_bytes(), NewInode::file(0o600));
        made.map(Self::Library).map_err(text)
    }

    fn take(&self, at: u64, len: u64) -> bool {
        match self {
            Self::Library(inode) => {
                inode.fallocate(at, len, FallocateMode::Allocate { keep_size: false }).is_ok()
            }
            Self::Folder(file) => fallocate(file, FallocateFlags::empty(), at, len).is_ok(),
        }
    }

    fn cut(&self, len: u64) -> Result<(), String> {
        match self {
            Self::Library(inode) => {
                let set = SetAttr { size: Some(len), ..SetAttr::default() };
                inode.set_attr(&set).map(drop).map_err(text)
            }
            Self::Folder(file) => ftruncate(file, len).map_err(text),
        }
    }
}

/// Fills a volume except for a tenth. In that part, free pieces alternate with used pieces of the
/// same length.
fn fragment(setup: &Setup, fs: Option<&Filesystem>) -> Result<(), String> {
    let sync = || match fs {
        Some(fs) => fs.sync().map_err(text),
        None => crate::work::sync(setup.folder()),
    };
    let filler = Filled::create(setup, fs, "filler")?;
    let mut len = 0;
    fill(|at, piece| {
        let taken = filler.take(at, piece);
        len = len.max(if taken { at + piece } else { 0 });
        taken
    });
    filler.cut(len.saturating_sub(SIZE / 5))?;
    sync()?;
    // Each piece is a file of its own: a file that grows in steps would get space in advance.
    let mut count = 0;
    let take =
        |name: &str| Filled::create(setup, fs, name).is_ok_and(|file| file.take(0, FRAGMENT));
    while take(&format!("kept{count}")) && take(&format!("gone{count}")) {
        count += 1;
    }
    sync()?;
    for index in 0..count {
        let name = format!("gone{index}");
        match fs {
            Some(fs) => fs.root().unlink(name.as_bytes()).map_err(text)?,
            None => std::fs::remove_file(setup.folder().join(name)).map_err(text)?,
        }
    }
    sync()
}

fn create(dir: &Path, name: &str) -> Result<File, String> {
    File::create(dir.join(name)).map_err(text)
}

/// Lets `workers` threads work for `time`. Returns their total rate a second, and the times of
/// single allocations.
fn together<W: FnMut(Option<u64>) -> Result<(), String>>(
    workers: usize,
    time: Duration,
    make: impl Fn(usize) -> Result<W, String> + Sync,
) -> Result<(f64, Latencies), String> {
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let ready = AtomicUsize::new(0);
    // This is no barrier of the standard library: the scheduler of `processors` would not notice a
    // thread that waits at such a barrier.
    let wait = || {
        while ready.load(Ordering::Acquire) < workers {
            thread::sleep(Duration::from_millis(1));
        }
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..workers)
            .map(|i| {
                let (stop, done, ready, make, wait) = (&stop, &done, &ready, &make, &wait);
                scope.spawn(move || {
                    let work = make(i);
                    ready.fetch_add(1, Ordering::Release);
                    wait();
                    let mut work = work?;
                    let (mut times, mut count) = (Latencies::default(), 0_u64);
                    while !stop.load(Ordering::Relaxed) {
                        for at in (0..WHOLE).step_by(PIECE as usize) {
                            count += 1;
                            if count.is_multiple_of(TIMED) {
                                times.time(|| work(Some(at)))?;
                            } else {
                                work(Some(at))?;
                            }
                            done.fetch_add(1, Ordering::Relaxed);
                            if stop.load(Ordering::Relaxed) {
                                break;
                            }
                        }
                        work(None)?;
                    }
                    Ok::<_, String>(times)
                })
            })
            .collect();
        wait();
        let start = clock::now();
        measure_for(time, &done);
        let rate = done.load(Ordering::Relaxed) as f64 / clock::since(start).as_secs_f64();
        stop.store(true, Ordering::Relaxed);
        let mut times = Latencies::default();
        for thread in threads {
            times.join(&thread.join().map_err(|_| "a worker panicked".to_string())??);
        }
        Ok((rate, times))
    })
}
