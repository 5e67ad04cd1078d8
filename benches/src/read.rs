//! Several threads read one file in order, 32 KiB at a time, with cold caches. In 2012, Linux began
//! to insert pages in batches of sixteen. With this job, four threads went from 745 to 887 MB/s.
//! Each thread reads the whole file once. In a folder, the threads belong to `fio`. With the
//! library, the threads are our own.

use buttress_fs::NewInode;
use std::{fs::File, os::unix::fs::FileExt, sync::Barrier, thread, time::Instant};

use crate::{
    Target, cpu,
    fio::{Engine, Fio, FioWork, Place},
    latency::Latencies,
    published::{Better, Experiment, Plan, Subject, Table},
    setup::Setup,
    told::Told,
    work::{pattern, text},
};

const PIECE: usize = 32 << 10;
const SIZE: u64 = 8 << 30;
const MIB: usize = 1 << 20;

/// The experiment.
#[derive(Clone, Debug)]
pub struct Read {
    /// The numbers of readers. Each number is a row of its own.
    pub threads: Vec<usize>,
}

impl Experiment for Read {
    fn name(&self) -> &'static str {
        "read"
    }

    fn subjects(&self, plan: &Plan) -> Vec<Subject> {
        let mut subjects = vec![
            Subject::new("kernel btrfs", Target::Btrfs, ""),
            Subject::new("kernel ext4", Target::Ext4, ""),
            Subject::new("buttress page by page", Target::Library, "read_batch=1"),
            Subject::new("buttress by sixteen", Target::Library, "read_batch=16"),
            Subject::new("buttress", Target::Library, ""),
            Subject::new("buttress on loop", Target::Loop, ""),
        ];
        if plan.mount {
            subjects.extend(Subject::mounts(""));
        }
        subjects
    }

    fn run(&self, subject: &Subject, plan: &Plan, out: &mut Table) -> Result<(), String> {
        let mib = plan.scaled(1024);
        let mut setup = Setup::of(subject, plan, SIZE.max(2 * (mib << 20)))?;
        let chunk = pattern(4, MIB);
        if subject.target.is_library() {
            let fs = setup.open()?;
            let file = fs.root().create(b"large", NewInode::file(0o644)).map_err(text)?;
            for at in 0..mib {
                file.write_at(at << 20, &chunk).map_err(text)?;
            }
            drop(file);
            fs.close().map_err(text)?;
        } else {
            let file = File::create(setup.folder().join("large")).map_err(text)?;
            for at in 0..mib {
                file.write_all_at(&chunk, at << 20).map_err(text)?;
            }
            file.sync_all().map_err(text)?;
        }
        for &threads in &self.threads {
            if plan.prefault {
                // The data that is read takes memory twice: in a cache and in buffers.
                touch_memory(2 * mib);
            }
            let bytes = (mib * MIB as u64 * threads as u64) as f64;
            let (seen, requests) = if subject.target.is_library() {
                let fs = setup.open()?;
                let file = fs.resolve("large").map_err(text)?;
                let before = Told::by_library(&fs);
                let seen = together(threads, mib, |at, buf| file.read_at(at, buf).map_err(text))?;
                let after = Told::by_library(&fs);
                drop(file);
                fs.close().map_err(text)?;
                (seen, before.requests.zip(after.requests))
            } else {
                setup.unmount()?;
                setup.mount()?;
                let before = setup.told();
                let places = vec![Place::whole(setup.folder().join("large")); threads];
                let (engine, work) = (Engine::Psync, FioWork::ReadOnce);
                let fio = Fio { engine, work, block: PIECE, bytes: mib << 20, step: None };
                let seen = fio.run(&places, || ())?;
                if seen.bytes != bytes {
                    return Err(format!("{} of {bytes} bytes were read", seen.bytes));
                }
                let after = setup.told();
                let (seconds, spent, p99) = (seen.seconds, seen.spent, seen.p99 * 1e6);
                (Seen { seconds, spent, p99 }, before.requests.zip(after.requests))
            };
            let what = format!("read by {threads}, cold");
            let rate = bytes / MIB as f64 / seen.seconds;
            out.add(&what, "MiB/s", Better::More, subject, rate);
            let what = format!("processor time of a GiB, {threads}");
            let spent = seen.spent / (bytes / (1_u64 << 30) as f64);
            out.add(&what, "s", Better::Less, subject, spent);
            let what = format!("p99 of 32 KiB, {threads}");
            out.add(&what, "us", Better::Less, subject, seen.p99);
            let reads = requests.map(|(before, after)| after.since(before).reads);
            if let Some(reads) = reads.filter(|reads| reads.count > 0) {
                let what = format!("requests to the device, {threads}");
                out.add(&what, "", Better::Less, subject, reads.count as f64);
                let what = format!("mean size of a request, {threads}");
                out.add(&what, "KiB", Better::More, subject, reads.mean_kib());
            }
        }
        Ok(())
    }
}

/// Touches `mib` MiB of memory and frees it. The host of a virtual machine takes free memory away
/// and returns it at the next touch. The first thread that touches such memory is ten times as
/// slow.
fn touch_memory(mib: u64) {
    let pieces: Vec<Vec<u8>> = (0..mib).map(|_| vec![1; MIB]).collect();
    std::hint::black_box(&pieces);
}

/// The results of the readers.
struct Seen {
    /// Seconds until the last reader was done.
    seconds: f64,
    /// Seconds of the processors.
    spent: f64,
    /// The 99th percentile of the time of a piece, in microseconds.
    p99: f64,
}

/// Lets threads read `mib` MiB each.
fn together(
    threads: usize,
    mib: u64,
    read: impl Fn(u64, &mut [u8]) -> Result<usize, String> + Sync,
) -> Result<Seen, String> {
    let ready = Barrier::new(threads + 1);
    thread::scope(|scope| {
        let running: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(|| {
                    let mut buf = vec![0; PIECE];
                    let mut times = Latencies::default();
                    ready.wait();
                    for at in (0..mib << 20).step_by(PIECE) {
                        if times.time(|| read(at, &mut buf))? != PIECE {
                            return Err(format!("the file ends at {at}"));
                        }
                    }
                    Ok(times)
                })
            })
            .collect();
        ready.wait();
        let (start, busy) = (Instant::now(), cpu::busy());
        let mut times = Latencies::default();
        for thread in running {
            times.join(&thread.join().map_err(|_| "a reader panicked".to_string())??);
        }
        let seconds = start.elapsed().as_secs_f64();
        Ok(Seen { seconds, spent: cpu::busy() - busy, p99: times.p99() })
    })
}
