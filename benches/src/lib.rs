//! Speed beside the kernel's file systems, as ratios in one run.
//!
//! Every experiment runs all its targets in turn, several times over, so that what else the machine
//! does hits all alike; medians are reported, with the smallest and the largest. The kernel's file
//! systems need root and loop devices; a memory-backed folder is for the images.
//!
//! [`published`] is for experiments that somebody published figures of: `buttress bench` runs those, and the two of
//! the write-back cache, [`writeback`] and [`foreground`], which have no other file systems beside them.

mod allocate;
mod choice;
pub mod cores;
mod costs;
mod cpu;
mod disk;
mod enospc;
mod fio;
pub mod foreground;
mod fsync;
pub mod groups;
mod latency;
mod lookups;
mod nocow;
mod processors;
pub mod published;
mod read;
mod report;
pub mod scale;
mod series;
mod stall;
mod subject;
mod target;
mod told;
mod volume;
mod work;
pub mod writeback;

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use clap::{Parser, ValueEnum};

use report::Report;

pub use target::Target;

/// What to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Experiment {
    /// Create, write and close small files; remove them again.
    Small,
    /// Write and read one large file.
    Sequential,
    /// The longest that a writer waits while a large transaction is committed.
    Stall,
    /// Durable writes of 4 KiB a second, at random places and appended, by one thread and by eight.
    Fsync,
    /// Snapshots, clones, streams, scrub and check; of the targets library, loop and btrfs.
    Volume,
    /// Real volumes by their number of block groups: what opening, an allocation, a lookup, a commit, a new chunk and
    /// memory cost.
    Scale,
    /// Block groups by number, in memory: what choosing one costs, by every policy.
    Choice,
    /// Allocation on 1 to 256 processors, simulated over the real choice of groups, and the search for the group of who
    /// writes in place.
    Cores,
}

/// Measures Buttress beside the kernel's file systems.
#[derive(Debug, Parser)]
pub struct Args {
    /// Experiments; all when none is named.
    #[arg(value_enum)]
    experiments: Vec<Experiment>,
    /// Runs of each target.
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Small files per run.
    #[arg(long, default_value_t = 50_000)]
    files: usize,
    /// Bytes of the large file, in MiB.
    #[arg(long, default_value_t = 2048)]
    mib: u64,
    /// A memory-backed folder for the images.
    #[arg(long, default_value = "/dev/shm")]
    dir: PathBuf,
    /// How many threads write and sync in the experiment fsync, one measurement each.
    #[arg(long, value_delimiter = ',', default_value = "1,8,32")]
    threads: Vec<usize>,
    /// Targets: library, loop (the library on a loop device), mount, mount-loop, btrfs, ext4, fuse2fs.
    #[arg(long, value_delimiter = ',', default_value = "library,mount,btrfs,ext4")]
    targets: Vec<String>,
    /// Most block groups of the experiments scale and choice.
    #[arg(long, default_value_t = 100_000)]
    groups: usize,
    /// Measure this volume, which scale made, once, and print what was found.
    #[arg(long, hide = true)]
    image: Option<PathBuf>,
    /// Print JSON instead of tables.
    #[arg(long)]
    json: bool,
}

fn run_scale(args: &Args) -> Result<(), String> {
    let groups = scale::GROUPS.into_iter().filter(|groups| *groups <= args.groups as u64);
    let plan = scale::Plan { groups: groups.collect(), runs: args.runs, dir: args.dir.clone() };
    let own = std::env::current_exe().map_err(|e| e.to_string())?;
    let child = |image: &Path, groups: u64| {
        let mut command = Command::new(&own);
        command.args(["scale", "--groups", &groups.to_string(), "--image"]).arg(image);
        command
    };
    let value = scale::run(&plan, &child, &mut |what| eprintln!("{what}"))?;
    if args.json {
        println!("{value}");
    } else {
        print!("{}", scale::table(&value));
    }
    Ok(())
}

/// Runs what the arguments ask for, and prints it.
///
/// # Errors
///
/// What stopped it, in words.
pub fn run(args: &Args) -> Result<(), String> {
    let mut targets = Vec::new();
    for name in &args.targets {
        targets.push(Target::parse(name)?);
    }
    let all = [Experiment::Small, Experiment::Sequential, Experiment::Stall, Experiment::Fsync];
    let wanted = if args.experiments.is_empty() { &all[..] } else { &args.experiments };
    let mut report = Report::default();
    if let Some(image) = &args.image {
        println!("{}", scale::measure_image(image, args.groups as u64)?);
        return Ok(());
    }
    let is_of_space =
        |e: &&Experiment| matches!(e, Experiment::Scale | Experiment::Choice | Experiment::Cores);
    for experiment in wanted.iter().filter(is_of_space) {
        match experiment {
            Experiment::Scale => run_scale(args)?,
            Experiment::Choice => print!("{}", choice::table(args.groups)),
            _ => print!("{}", choice::cores_table()),
        }
    }
    let wanted: Vec<_> = wanted.iter().filter(|e| !is_of_space(e)).collect();
    if wanted.is_empty() {
        return Ok(());
    }
    for experiment in wanted {
        for run in 0..args.runs {
            for target in &targets {
                eprintln!("{experiment:?}, run {} of {}: {target}", run + 1, args.runs);
                match experiment {
                    Experiment::Small => work::small(*target, args, &mut report)?,
                    Experiment::Sequential => work::sequential(*target, args, &mut report)?,
                    Experiment::Stall => stall::run(*target, args, &mut report)?,
                    Experiment::Fsync => fsync::run(*target, args, &mut report)?,
                    Experiment::Volume => volume::run(*target, &args.dir, &mut report)?,
                    // Done above.
                    Experiment::Scale | Experiment::Choice | Experiment::Cores => {}
                }
            }
        }
    }
    if args.json {
        println!("{}", report.json());
    } else {
        print!("{report}");
    }
    Ok(())
}
