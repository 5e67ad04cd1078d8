//! `buttress bench`: published experiments, with ours and the kernel's file systems side by side.

use std::fs;
use std::path::PathBuf;

use buttress_bench::published::{self, Allocate, Experiment, Plan};

use crate::exit::{Context, Exit, Failure, Result};
use crate::ui::Ui;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// What to measure.
    #[command(subcommand)]
    verb: Verb,
    /// Runs of each; they take turns, and medians are shown.
    #[arg(long, default_value_t = 5, global = true)]
    runs: usize,
    /// Size of the job; 1 is what a small machine does in minutes.
    #[arg(long, default_value_t = 1.0, global = true)]
    scale: f64,
    /// A memory-backed folder for the images.
    #[arg(long, default_value = "/dev/shm", global = true)]
    dir: PathBuf,
    /// Drive ours through a mount too.
    #[arg(long, global = true)]
    mount: bool,
    /// Only those whose names contain one of these words.
    #[arg(long, value_delimiter = ',', global = true)]
    only: Vec<String>,
    /// Draw the figures.
    #[arg(long, value_name = "SVG", global = true)]
    plot: Option<PathBuf>,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Workers that append to files by `fallocate` and truncate them: how allocation scales.
    Allocate {
        /// How many at a time.
        #[arg(long, value_delimiter = ',', default_value = "1,4,16,64")]
        workers: Vec<usize>,
    },
}

impl Verb {
    fn experiment(&self) -> Box<dyn Experiment> {
        match self {
            Self::Allocate { workers } => Box::new(Allocate { workers: workers.clone() }),
        }
    }
}

pub(crate) fn run(args: Args, ui: &Ui) -> Result<Exit> {
    let Args { verb, runs, scale, dir, mount, only, plot } = args;
    if runs == 0 || scale.is_nan() || scale <= 0.0 {
        return Err(Failure::new(Exit::Usage, "--runs and --scale must be above zero"));
    }
    let experiment = verb.experiment();
    let plan = Plan { dir, runs, scale, only, mount };
    let progress = ui.count_bar("bench", 0);
    let table = published::run(experiment.as_ref(), &plan, &mut |what| progress.say(what))
        .map_err(|error| Failure::new(Exit::Failure, error))?;
    drop(progress);
    if let Some(path) = plot {
        fs::write(&path, table.svg()).context(|| path.display().to_string())?;
    }
    if ui.json() {
        ui.document(&table.json())?;
    } else {
        ui.line(table.to_string().trim())?;
    }
    Ok(Exit::Success)
}
