//! `btrfs balance`.

use std::io::Write;
use std::path::{Path, PathBuf};

use crate::commands::balance as own;
use crate::exit::{Exit, Failure, Result};
use crate::ui::Ui;

#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(super) struct Args {
    #[command(subcommand)]
    verb: Option<Verb>,
    /// Balance everything on this volume.
    place: Option<PathBuf>,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Balance the selected block groups, or all of them if no filter is given.
    Start(Start),
    /// Pause a running balance.
    Pause { place: PathBuf },
    /// Cancel a running or paused balance.
    Cancel { place: PathBuf },
    /// Resume a paused balance.
    Resume { place: PathBuf },
    /// Show whether a balance is running or paused.
    Status { place: PathBuf },
}

#[derive(Debug, clap::Args)]
struct Start {
    /// Filters for data block groups, written without a space as in `-dusage=50`.
    #[arg(short, value_name = "FILTERS", num_args = 0..=1, require_equals = true,
        default_missing_value = "all")]
    data: Option<String>,
    /// Filters for metadata block groups.
    #[arg(short, value_name = "FILTERS", num_args = 0..=1, require_equals = true,
        default_missing_value = "all")]
    metadata: Option<String>,
    /// Filters for system block groups. Needs --force.
    #[arg(short, value_name = "FILTERS", num_args = 0..=1, require_equals = true,
        default_missing_value = "all")]
    system: Option<String>,
    /// Allow fewer copies of metadata than before, and a balance of system block groups.
    #[arg(short, long)]
    force: bool,
    /// Balance all block groups without a question. There is no question in any case.
    #[arg(long)]
    full_balance: bool,
    /// Continue in the background, and return when the work has begun.
    #[arg(long, alias = "bg")]
    background: bool,
    /// Accepted for scripts. Work on the whole volume goes on beside other such work, in turns.
    #[arg(long)]
    enqueue: bool,
    place: PathBuf,
}

impl Args {
    pub(super) fn is_status(&self) -> bool {
        matches!(self.verb, Some(Verb::Status { .. }))
    }
}

pub(super) fn run(args: Args, is_verbose: bool, ui: &Ui) -> Result<Exit> {
    match (args.verb, args.place) {
        (Some(Verb::Start(args)), _) => start(args, is_verbose, ui),
        (Some(Verb::Pause { place }), _) => match state(&place, ui)?.as_str() {
            "running" => own::run(own::Verb::Pause(own::Volume::at(place)), ui),
            _ => Ok(nothing("pause", &place, "Not running")),
        },
        (Some(Verb::Cancel { place }), _) => match state(&place, ui)?.as_str() {
            "none" => Ok(nothing("cancel", &place, "Not in progress")),
            _ => own::run(own::Verb::Cancel(own::Volume::at(place)), ui),
        },
        (Some(Verb::Resume { place }), _) => match state(&place, ui)?.as_str() {
            "none" => Ok(nothing("resume", &place, "Not in progress")),
            _ => own::run(own::Verb::Resume(own::Volume::at(place)), ui),
        },
        (Some(Verb::Status { place }), _) => {
            own::run(own::Verb::Status(own::Volume::at(place)), ui)
        }
        (None, Some(place)) => own::run(own::Verb::Start(own::Start::of(place)), ui),
        (None, None) => Err(Failure::new(Exit::Failure, "no volume was named")),
    }
}

fn start(args: Start, is_verbose: bool, ui: &Ui) -> Result<Exit> {
    if args.system.is_some() && !args.force {
        let what = "Refusing to explicitly operate on system chunks.\n\
                    Pass --force if you really want to do that.";
        return Err(Failure::new(Exit::Failure, what));
    }
    if is_verbose {
        for line in filters(&args) {
            ui.line(line)?;
        }
    }
    let start = own::Start {
        data: args.data,
        metadata: args.metadata,
        system: args.system,
        full_balance: args.full_balance,
        background: args.background,
        force: args.force,
        ..own::Start::of(args.place)
    };
    own::run(own::Verb::Start(start), ui)
}

/// The state of a volume's balance: `running`, `paused` or `none`.
fn state(place: &Path, ui: &Ui) -> Result<String> {
    let told = own::told(&own::Volume::at(place.to_owned()), ui)?;
    Ok(told["status"].as_str().unwrap_or_default().to_owned())
}

/// Says that there was nothing to do. The exit code is then 2, as with btrfs-progs.
fn nothing(verb: &str, place: &Path, why: &str) -> Exit {
    // Standard error may be closed.
    let _ =
        writeln!(std::io::stderr(), "ERROR: balance {verb} on '{}' failed: {why}", place.display());
    Exit::Usage
}

/// The bit of a filter in the item of a balance.
fn flag(filter: &str) -> u32 {
    let (name, value) = filter.split_once('=').unwrap_or((filter, ""));
    let is_range = value.contains("..");
    let bit = match name {
        "profiles" => 0,
        "usage" if is_range => 10,
        "usage" => 1,
        "devid" => 2,
        "drange" => 3,
        "vrange" => 4,
        "limit" if is_range => 6,
        "limit" => 5,
        "stripes" => 7,
        "convert" => 8,
        "soft" => 9,
        _ => return 0,
    };
    1 << bit
}

/// The filters as btrfs-progs print them with `-v`.
fn filters(args: &Start) -> Vec<String> {
    let is_full = args.data.is_none() && args.metadata.is_none() && args.system.is_none();
    let all = is_full.then(|| "all".to_owned());
    let metadata = args.metadata.clone().or(all.clone());
    let kinds = [
        ("DATA", args.data.clone().or(all)),
        ("METADATA", metadata.clone()),
        ("SYSTEM", args.system.clone().or(metadata)),
    ];
    let chosen = kinds.iter().enumerate().filter(|(_, (_, filters))| filters.is_some());
    let flags: u32 = chosen.map(|(at, _)| 1 << at).sum();
    let force = if args.force { "on" } else { "off" };
    let mut lines = vec![format!("Dumping filters: flags {flags:#x}, state 0x0, force is {force}")];
    for (name, filters) in kinds {
        let Some(filters) = filters else { continue };
        let words: Vec<_> = filters.split(',').filter(|word| *word != "all").collect();
        let more: String = words.iter().map(|word| format!(", {word}")).collect();
        let flags = words.iter().fold(0, |flags, word| flags | flag(word));
        lines.push(format!("  {name} (flags {flags:#x}): balancing{more}"));
    }
    lines
}
