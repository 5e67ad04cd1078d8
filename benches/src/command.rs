//! The command line of `buttress-bench`: one verb for each experiment.

mod plot;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Duration;

use buttress_cli::exit::{Exit, Failure, Result};
use buttress_cli::ui::{self, Ui};
use clap::Parser;
use serde_json::Value;

use crate::published::{self, Added, Allocate, Enospc, Experiment, Nocow, Plan, Read, Slowness};
use crate::writeback::{self, Files, Writeback};
use crate::{
    choice, foreground, fsync, growth, mount, programs, remote, scale, setup, stall, volume, work,
};

pub(crate) use self::plot::is_page;

/// Measures Buttress beside the kernel's file systems, which need root and loop devices.
#[derive(Debug, Parser)]
#[command(name = "buttress-bench", version, max_term_width = 100)]
struct Args {
    /// What to measure.
    #[command(subcommand)]
    verb: Verb,
    /// Runs of each subject. Subjects take turns, and medians are shown.
    #[arg(long, default_value_t = 5, global = true)]
    runs: usize,
    /// Size of the job; with 1, a small machine takes minutes. The factor applies to seconds, to
    /// files and block groups of `nocow` and `cow`, and to the file of `read`. Files, names and the
    /// volume of `enospc` grow with a factor above 1, and never shrink: the files must exceed the
    /// limit of dirty data.
    #[arg(long, default_value_t = 1.0, global = true)]
    scale: f64,
    /// A memory-backed folder for the images.
    #[arg(long, default_value = "/dev/shm", global = true)]
    dir: PathBuf,
    /// Also drive ours through a mount. `fio` drives mounts and Linux's file systems. Threads drive
    /// allocations, as for the library. The job of `fio` that does nearly the same work drives
    /// them, too.
    #[arg(long, global = true)]
    mount: bool,
    /// Further mount options of our subjects, as for `buttress mount`. An option that only mounts
    /// know applies to no other subject. All options are shown.
    #[arg(long, short = 'o', value_name = "OPTIONS", global = true)]
    options: Vec<String>,
    /// Before the measurement, write each image once, and touch as much memory as `read` will need.
    /// The first touch of new memory costs time.
    #[arg(long, global = true)]
    prefault: bool,
    /// Simulate this many processors: the engine's threads take turns on one, and their time is
    /// counted. Works for `enospc` and `allocate` with the library, in a program that was built for
    /// it.
    #[arg(long, value_name = "COUNT", global = true, value_parser = clap::value_parser!(u16).range(1..=1024))]
    processors: Option<u16>,
    /// Only subjects with one of these words as the name, or in the name.
    #[arg(long, value_delimiter = ',', global = true)]
    only: Vec<String>,
    /// Draw the figures: as a page with the runs and their ranges if the name ends in `.html`, else
    /// as SVG. The page is one file, and all verbs but `choice` have one.
    #[arg(long, value_name = "FILE", global = true)]
    plot: Option<PathBuf>,
    /// Print JSON instead of tables.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Workers that append to files by `fallocate` and truncate them: how allocation scales.
    Allocate {
        /// The numbers of threads at a time.
        #[arg(long, value_delimiter = ',', default_value = "1,4,16,64")]
        workers: Vec<usize>,
        /// Use a volume that is full except for a tenth, which is free in pieces of 64 KiB.
        #[arg(long)]
        fragmented: bool,
    },
    /// Random direct writes in place, beside many filled block groups: how lookups scale.
    Nocow {
        /// Bytes of a write.
        #[arg(long, value_delimiter = ',', default_value = "65536,4096")]
        blocks: Vec<usize>,
        /// Jobs, each with a file of its own.
        #[arg(long, default_value_t = 8)]
        jobs: usize,
        /// Writes of each job that wait at a time.
        #[arg(long, default_value_t = 64)]
        depth: usize,
        /// Block groups of a GiB that are filled before, times --scale.
        #[arg(long, default_value_t = 3500)]
        groups: u64,
        /// MiB of each file, times --scale.
        #[arg(long, default_value_t = 128)]
        file_mib: u64,
    },
    /// Random direct writes that are copied on write, with checksums.
    Cow {
        /// Bytes of a write.
        #[arg(long, value_delimiter = ',', default_value = "4096,65536")]
        blocks: Vec<usize>,
        /// Jobs, each with a file of its own.
        #[arg(long, default_value_t = 8)]
        jobs: usize,
        /// Writes of each job that wait at a time.
        #[arg(long, default_value_t = 64)]
        depth: usize,
        /// MiB of each file, times --scale.
        #[arg(long, default_value_t = 128)]
        file_mib: u64,
    },
    /// Small random writes while metadata is scarce, through memory and direct, with and without
    /// preemptive flushing.
    Enospc {
        /// The number of writers.
        #[arg(long, default_value_t = 4)]
        jobs: usize,
        /// MiB of each writer's file, times --scale if that is above 1.
        #[arg(long, default_value_t = 96)]
        mib: u64,
        /// Small files that fill the trees, times --scale if that is above 1. Without them, a
        /// volume has enough metadata.
        #[arg(long, default_value_t = 40_000)]
        names: usize,
        /// Seconds of a run, times --scale.
        #[arg(long, default_value_t = 10.0)]
        seconds: f64,
        /// Leave the devices space for new chunks, so that metadata is scarce for a while only.
        #[arg(long)]
        unallocated: bool,
        /// MiB of the volume, times --scale if that is above 1.
        #[arg(long, default_value_t = 2048)]
        size_mib: u64,
        /// A device with this many MiB a second for all requests together. Only our subjects run on
        /// a slow device.
        #[arg(long)]
        device_mib_s: Option<f64>,
        /// A device that takes this many microseconds for each request before its first byte.
        #[arg(long)]
        device_latency_us: Option<u64>,
        /// Requests that wait for the latency at the same time: 1 is the arm of a disk.
        #[arg(long, default_value_t = 32)]
        device_depth: usize,
        /// A device that keeps only metadata: a write of data takes its time, but is stored
        /// nowhere.
        #[arg(long)]
        device_forgets_data: bool,
        /// The policy of metadata reservations in ours: as much as all operations together can
        /// dirty, or eight levels for each item, as in Linux.
        #[arg(long = "reserve", value_parser = ["counted", "levels"], default_value = "counted")]
        reserve_policy: String,
    },
    /// Threads that each read a whole file, 32 KiB at a time, with cold caches.
    Read {
        /// The numbers of threads at a time.
        #[arg(long, value_delimiter = ',', default_value = "1,4")]
        threads: Vec<usize>,
    },
    /// Orders of write-back of a cache in front of a hard disk: random writes of twice the cache,
    /// then a flush of everything. Times are simulated, so they are the same on every machine.
    /// --plot draws positions over time.
    Writeback {
        /// MiB of the cache, times --scale. The cache of the published experiment had 1006 MiB.
        #[arg(long, default_value_t = 256)]
        cache_mib: u64,
        /// Also use real files in --dir: the origin's writes take as long as on a disk.
        #[arg(long)]
        files: bool,
        /// How many times faster than a hard disk the origin is.
        #[arg(long, default_value_t = 2.0)]
        speed: f64,
        /// A log of dm-log-writes from beneath Linux's dm-writecache, to be played on the same
        /// disk. The mark steady is at the start of the writes, and the mark flush at the start of
        /// the flush.
        #[arg(long, value_name = "LOG")]
        trace: Vec<PathBuf>,
    },
    /// Real volumes of ten to a million block groups, each nine tenths full, in sparse files in
    /// --dir: the costs of opening, allocations, lookups, commits, one more chunk, and memory.
    Scale {
        /// Block groups of each volume. A million needs some GiB in --dir, and files of a PiB
        /// there.
        #[arg(long, value_delimiter = ',', default_value = "10,1000,100000")]
        groups: Vec<u64>,
        /// Measure this volume once. It must be one that this verb made.
        #[arg(long, hide = true)]
        image: Option<PathBuf>,
    },
    /// The effect of a flush of a whole cache on a program that uses the cache, and how writes
    /// scale.
    Foreground {
        /// Cached blocks, times --scale.
        #[arg(long, default_value_t = 10_000_000)]
        blocks: u64,
        /// Threads that write.
        #[arg(long, value_delimiter = ',', default_value = "1,2,4,8")]
        threads: Vec<u64>,
        /// Cache the blocks in random order, so that neighbours lie apart in the cache.
        #[arg(long)]
        scattered: bool,
    },
    /// Everyday loads on mounts, beside the kernel's btrfs and a server that answers from memory:
    /// small files, archives, git, copies, sqlite. Counts requests.
    Mount {
        /// Small files of each load.
        #[arg(long, default_value_t = 30_000)]
        files: usize,
        /// MiB of the large file.
        #[arg(long, default_value_t = 1024)]
        mib: u64,
        /// Transactions of sqlite.
        #[arg(long, default_value_t = 2000)]
        transactions: usize,
        /// Also loads that grow in one dimension, this many times as large as their smallest size:
        /// names of a folder, links, xattrs, extents, clones.
        #[arg(long, default_value_t = 0)]
        grown: usize,
        /// Only loads with one of these words in their names.
        #[arg(long, value_delimiter = ',')]
        loads: Vec<String>,
        /// A former `buttress` program, to be measured beside this one.
        #[arg(long, value_name = "PROGRAM")]
        before: Option<PathBuf>,
    },
    /// Commands beside those of btrfs-progs and compsize on equal images: images of trees, checks,
    /// repairs, restores, sums of space, streams.
    Programs {
        /// Files of the tree, of 4 KiB on average.
        #[arg(long, default_value_t = 30_000)]
        files: usize,
    },
    /// Serves the empty server.
    #[command(hide = true)]
    EmptyServer {
        /// The directory to mount it on.
        dir: PathBuf,
        /// Answer requests by io_uring.
        #[arg(long)]
        ring: bool,
    },
    /// Create, write and close small files; remove them again.
    Small(work::Args),
    /// Write and read one large file.
    Sequential(work::Args),
    /// The longest that a writer waits while a large transaction is committed.
    Stall(work::Args),
    /// Durable writes of 4 KiB a second, at random places and appended.
    Fsync(work::Args),
    /// Snapshots, clones, streams, scrub and check. Runs only on the targets library, loop and
    /// btrfs.
    Volume(work::Args),
    /// The growth of the counts of every operation and verb, at sizes 1x to 64x. A case with a mark
    /// grows faster than the work.
    Growth {
        /// Sizes, in units of each case.
        #[arg(long, value_delimiter = ',', default_value = "1,4,16,64")]
        factors: Vec<u64>,
        /// Leave out the checks of the largest volumes.
        #[arg(long)]
        no_check: bool,
    },
    /// A volume in a store of objects beside one in a file, with and without latency and a local
    /// cache: rates, requests, openings, forks, and the uploads of random overwrites.
    Remote {
        /// MiB of the large file, times --scale.
        #[arg(long, default_value_t = 256)]
        mib: u64,
        /// Small files, times --scale.
        #[arg(long, default_value_t = 2000)]
        files: u64,
        /// Latencies of the store, in milliseconds.
        #[arg(long, value_delimiter = ',', default_value = "0,30")]
        latencies: Vec<u64>,
        /// Objects of the big volume; 0 leaves it out.
        #[arg(long, default_value_t = 100_000)]
        objects: u64,
        /// MiB that are written over at random; 0 leaves it out.
        #[arg(long, default_value_t = 256)]
        overwritten_mib: u64,
    },
    /// The cost of choosing a block group by number of groups, in memory, for every policy.
    Choice {
        /// Most block groups.
        #[arg(long, default_value_t = 100_000)]
        groups: usize,
    },
}

impl Verb {
    /// The experiment, if it runs in the common frame. `None` if it compares no file systems.
    fn experiment(&self) -> Option<Arc<dyn Experiment>> {
        match self {
            &Self::Allocate { ref workers, fragmented } => {
                Some(Arc::new(Allocate { workers: workers.clone(), fragmented }))
            }
            &Self::Enospc {
                ref reserve_policy,
                jobs,
                mib,
                names,
                seconds,
                unallocated,
                size_mib,
                device_mib_s: mib_s,
                device_latency_us: latency,
                device_depth: depth,
                device_forgets_data: forgets_data,
            } => {
                let is_slow = mib_s.is_some() || latency.is_some() || forgets_data;
                let latency = Duration::from_micros(latency.unwrap_or(0));
                let slow = is_slow.then_some(Slowness { mib_s, latency, depth, forgets_data });
                let reserve_policy = reserve_policy.clone();
                Some(Arc::new(Enospc {
                    jobs,
                    mib,
                    names,
                    seconds,
                    unallocated,
                    size_mib,
                    slow,
                    reserve_policy,
                }))
            }
            Self::Read { threads } => Some(Arc::new(Read { threads: threads.clone() })),
            &Self::Nocow { ref blocks, jobs, depth, groups, file_mib } => {
                let blocks = blocks.clone();
                Some(Arc::new(Nocow { blocks, jobs, depth, groups, file_mib, cow: false }))
            }
            &Self::Cow { ref blocks, jobs, depth, file_mib } => {
                let blocks = blocks.clone();
                Some(Arc::new(Nocow { blocks, jobs, depth, groups: 0, file_mib, cow: true }))
            }
            _ => None,
        }
    }

    /// The work of a verb that runs over targets, with its arguments. `None` for other verbs.
    fn work(&self) -> Option<(work::JobWork, &work::Args)> {
        match self {
            Self::Small(args) => Some((work::small, args)),
            Self::Sequential(args) => Some((work::sequential, args)),
            Self::Stall(args) => Some((stall::run, args)),
            Self::Fsync(args) => Some((fsync::run, args)),
            Self::Volume(args) => Some((volume::run, args)),
            _ => None,
        }
    }
}

/// Mount options, each with a flag that says whether only mounts take the option. Options that a
/// mount would refuse are errors.
fn added(lists: &[String]) -> Result<Vec<Added>> {
    let split = buttress_cli::mount_options(lists)?.into_iter();
    let added = split.map(|(option, of_volume)| Added { option, is_for_mounts: !of_volume });
    Ok(added.collect())
}

/// Measures volumes by their number of block groups.
fn of_scale(
    args: &Args,
    groups: &[u64],
    say: &mut dyn FnMut(&str),
) -> std::result::Result<(Value, String), String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let child = |image: &Path, groups: u64| {
        let mut command = Command::new(&own);
        let groups = groups.to_string();
        command.args(["--json", "scale", "--groups", &groups, "--image"]).arg(image);
        command
    };
    let plan = scale::Plan { groups: groups.to_vec(), runs: args.runs, dir: args.dir.clone() };
    let value = scale::run(&plan, &child, say)?;
    let text = scale::table(&value);
    Ok((value, text))
}

/// Measures the growth of costs.
fn of_growth(
    args: &Args,
    factors: &[u64],
    is_checked: bool,
    say: &mut dyn FnMut(&str),
) -> std::result::Result<(Value, String), String> {
    let look = |images: &[PathBuf]| if is_checked { growth::expect_sound(images) } else { Ok(()) };
    let plan = growth::Plan {
        dir: args.dir.clone(),
        program: std::env::current_exe().map_err(|error| error.to_string())?,
        factors: factors.to_vec(),
        divisor: 1,
        only: args.only.clone(),
        look: &look,
    };
    let rows = growth::run(&plan, say)?;
    Ok((growth::json(&rows), growth::table(&rows)))
}

/// Runs the experiments without other file systems; returns the figures as JSON and as text.
fn alone(args: &Args, say: &mut dyn FnMut(&str)) -> std::result::Result<(Value, String), String> {
    let scaled = |number: u64| ((number as f64 * args.scale) as u64).max(1);
    match &args.verb {
        Verb::Writeback { cache_mib, files, speed, trace } => {
            if speed.is_nan() || *speed <= 0.0 {
                return Err("--speed must be above zero".to_owned());
            }
            let experiment = Writeback {
                cache_mib: scaled(*cache_mib),
                files: files.then(|| Files {
                    dir: args.dir.clone(),
                    cache_mib: (scaled(*cache_mib) / 16).max(1),
                    speed: *speed,
                }),
                traces: trace.clone(),
                plot: args.plot.clone(),
            };
            let value = experiment.run(say)?;
            let text = writeback::table(&value);
            Ok((value, text))
        }
        Verb::Foreground { blocks, threads, scattered } => {
            if !threads.iter().all(|threads| (1..=foreground::THREADS_MAX).contains(threads)) {
                return Err(format!("--threads: 1 to {}", foreground::THREADS_MAX));
            }
            let (blocks, scattered) = (scaled(*blocks), *scattered);
            let plan = foreground::Plan { blocks, scattered, runs: args.runs, threads };
            let value = foreground::run(&plan, say)?;
            let text = foreground::table(&value);
            Ok((value, text))
        }
        Verb::Scale { groups, image: Some(image) } => {
            let value = scale::measure_image(image, groups.first().copied().unwrap_or(0))?;
            Ok((value, String::new()))
        }
        Verb::Scale { groups, image: None } => of_scale(args, groups, say),
        Verb::Growth { factors, no_check } => of_growth(args, factors, !no_check, say),
        Verb::Remote { mib, files, latencies, objects, overwritten_mib } => {
            let plan = remote::Plan {
                dir: args.dir.clone(),
                runs: args.runs,
                time: Duration::from_secs_f64((1.5 * args.scale).clamp(0.1, 60.0)),
                mib: scaled(*mib),
                files: scaled(*files),
                latencies_ms: latencies.clone(),
                objects: *objects,
                overwritten_mib: *overwritten_mib,
            };
            remote::run(&plan, say)
        }
        Verb::Programs { files } => {
            let plan = programs::Plan {
                dir: args.dir.clone(),
                runs: args.runs,
                files: (*files).max(1),
                only: args.only.clone(),
            };
            programs::run(&plan, say)
        }
        Verb::Choice { groups } => Ok(drawn(choice::table(*groups))),
        Verb::Mount { files, mib, transactions, grown, loads, before } => {
            let plan = mount::Plan {
                dir: args.dir.clone(),
                runs: args.runs,
                files: (*files).max(1),
                mib: *mib,
                transactions: (*transactions).max(1),
                grown: *grown,
                loads: loads.clone(),
                only: args.only.clone(),
                before: before.clone(),
            };
            mount::run(&plan, say)
        }
        verb => {
            let (work, how) = verb.work().ok_or("it has others beside it")?;
            let report = work::run(work, how, &args.dir, args.runs, say)?;
            Ok((report.json(), report.to_string()))
        }
    }
}

/// An output that exists only as text.
fn drawn(text: String) -> (Value, String) {
    (Value::String(text.clone()), text)
}

/// Runs the program with a command line. If the first word is [`setup::PROGRAM`], the program acts
/// as `buttress`.
#[must_use]
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let mut arguments = arguments.into_iter().peekable();
    let name = arguments.next();
    if arguments.next_if(|word| word == setup::PROGRAM).is_some() {
        growth::begin_program();
        let code = buttress_cli::run(name.into_iter().chain(arguments));
        growth::end_program();
        return code;
    }
    let args = Args::parse_from(name.into_iter().chain(arguments));
    let ui = Ui::new(args.json);
    let done = match &args.verb {
        Verb::EmptyServer { dir, ring } => {
            let served = mount::serve_empty(dir, *ring);
            served.map(|()| Exit::Success).map_err(|error| Failure::new(Exit::Failure, error))
        }
        _ => measure(args, &ui),
    };
    match done {
        Ok(exit) => ExitCode::from(exit as u8),
        Err(failure) if failure.is_closed_pipe() => ExitCode::SUCCESS,
        Err(failure) => {
            ui::note(failure.to_string());
            ExitCode::from(failure.exit as u8)
        }
    }
}

fn measure(args: Args, ui: &Ui) -> Result<Exit> {
    if let Verb::Enospc { device_mib_s: Some(rate), .. } = args.verb
        && (rate.is_nan() || rate <= 0.0)
    {
        return Err(Failure::new(Exit::Usage, "--device-mib-s must be above zero"));
    }
    if args.runs == 0 || args.scale.is_nan() || args.scale <= 0.0 {
        return Err(Failure::new(Exit::Usage, "--runs and --scale must be above zero"));
    }
    if let Some(path) = &args.plot {
        if args.verb.experiment().is_none() {
            plot::expect_known(&args.verb, path)?;
        }
        plot::expect_writable(path)?;
    }
    let options = added(&args.options)?;
    let Some(experiment) = args.verb.experiment() else {
        if !options.is_empty() {
            let which = "nocow, cow, enospc, read and allocate";
            return Err(Failure::new(Exit::Usage, format!("--options is for {which} alone")));
        }
        let progress = ui.count_bar("bench", 0);
        let done = alone(&args, &mut |what| progress.print_above(what));
        let (value, text) = done.map_err(|error| Failure::new(Exit::Failure, error))?;
        drop(progress);
        if ui.json() {
            ui.document(&value)?;
        } else {
            ui.line(text.trim_end())?;
        }
        // The figures are out by now. The experiment on write-back has drawn more than them.
        if let Some(path) = args.plot.as_deref().filter(|_| !plot::draws_itself(&args.verb)) {
            plot::write(path, &plot::page(&value))?;
        }
        return Ok(Exit::Success);
    };
    let Args { runs, scale, dir, mount, prefault, processors, only, plot, .. } = args;
    let processors = processors.map(usize::from);
    let plan = Plan { dir, runs, scale, only, mount, options, prefault, processors };
    let progress = ui.count_bar("bench", 0);
    let table = published::run(&experiment, &plan, &mut |what| progress.print_above(what))
        .map_err(|error| Failure::new(Exit::Failure, error))?;
    drop(progress);
    if ui.json() {
        ui.document(&table.json())?;
    } else {
        ui.line(table.to_string().trim())?;
    }
    if let Some(path) = plot {
        let text = if is_page(&path) { plot::page(&table.json()) } else { table.svg() };
        plot::write(&path, &text)?;
    }
    Ok(Exit::Success)
}
