//! `buttress restore`: files out of a damaged volume.

use std::path::PathBuf;

use buttress_rescue::{Condition, Entry, Glob, Pattern, RestoreOptions, RootInfo, State, Summary};
use serde::Serialize;
use serde_json::json;

use crate::exit::{Context, Exit, Failure, Result};
use crate::location::show;
use crate::salvage::{self, Opening};
use crate::ui::{Tone, Ui};

/// Copy files out of a volume in any state, from its newest usable root or from older ones, which a
/// scan of the devices finds. Writes nothing to the volume. Bytes without a matching checksum are
/// left out. An interrupted run can be started again and continues. Exit code 3 means that
/// something is lost.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The present devices of the volume, then the directory for the files. --list-roots and
    /// --dry-run need no directory.
    #[arg(value_name = "VOLUME... TO", required = true, num_args = 1..)]
    pub(crate) places: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) opening: Opening,
    /// List the roots that were found, newest first, and exit.
    #[arg(long)]
    pub(crate) list_roots: bool,
    /// Use this root, given by its transaction or by the address of its node.
    #[arg(long, value_name = "N")]
    pub(crate) root: Option<u64>,
    /// Only files that match this pattern, with everything below them. Can be given several times.
    /// `*` stays within one directory; `**` does not.
    #[arg(long, value_name = "GLOB")]
    pub(crate) path: Vec<String>,
    /// Only this subvolume, given by its number or path.
    #[arg(long, value_name = "SUBVOLUME")]
    pub(crate) subvolume: Option<String>,
    /// Also restore read-only snapshots.
    #[arg(long)]
    pub(crate) snapshots: bool,
    /// Also restore data that has lost its checksums.
    #[arg(long)]
    pub(crate) unverified: bool,
    /// Leave out what only the log of fsync has, as a mount does with `rescue=nologreplay`.
    #[arg(long)]
    pub(crate) no_log: bool,
    /// Overwrite existing files.
    #[arg(long)]
    pub(crate) overwrite: bool,
    /// Read and verify everything, but write nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Also list files that are complete.
    #[arg(long, short)]
    pub(crate) verbose: bool,
    /// A regular expression for paths. Only `btrfs restore` sets it.
    #[arg(skip)]
    pub(crate) pattern: Option<Pattern>,
    /// The root node of the only subvolume to restore. Only `btrfs restore` sets it.
    #[arg(skip)]
    pub(crate) node: Option<u64>,
    /// Print as btrfs-progs do: what is not restored, and no sum.
    #[arg(skip)]
    pub(crate) of_btrfs: bool,
}

impl Args {
    /// The command line that names only places.
    pub(crate) fn of(places: Vec<PathBuf>) -> Self {
        Self {
            places,
            opening: Opening::default(),
            list_roots: false,
            root: None,
            path: Vec::new(),
            subvolume: None,
            snapshots: false,
            unverified: false,
            no_log: false,
            overwrite: false,
            dry_run: false,
            verbose: false,
            pattern: None,
            node: None,
            of_btrfs: false,
        }
    }
}

/// The JSON document for scripts.
#[derive(Serialize)]
struct Document<'d> {
    generation: u64,
    origin: buttress_rescue::Origin,
    notes: Vec<&'d String>,
    summary: Summary,
    files: Vec<Entry>,
}

pub(crate) fn run(args: Args, ui: &Ui) -> Result<Exit> {
    let needs_folder = !args.list_roots && !args.dry_run;
    let mut volumes = args.places.clone();
    // A dry run needs no folder, but the folder may be named.
    let has_folder =
        needs_folder || volumes.len() > 1 && volumes.last().is_some_and(|it| it.is_dir());
    let target = if has_folder { volumes.pop() } else { None };
    if volumes.is_empty() {
        return Err(Failure::new(Exit::Usage, "a volume and a folder for its files are needed"));
    }
    let target = target.filter(|_| needs_folder);
    let (opened, bars) = salvage::open(&volumes, &args.opening, ui)?;
    let name = volumes[0].display().to_string();
    if args.list_roots {
        let roots = State::list(&opened);
        bars.end();
        return list(&roots, ui);
    }
    let state = match args.root {
        Some(number) => State::of(&opened, number),
        None => State::newest(&opened),
    };
    let mut state = state.context(|| &name)?;
    let mut options = RestoreOptions::default();
    options.paths = args.path.iter().map(|glob| Glob::new(glob.as_bytes())).collect();
    options.pattern = args.pattern.clone();
    options.subvolume = args.subvolume.clone();
    if let Some(address) = args.node {
        let id = state.use_tree_at(&opened, address).context(|| &name)?;
        options.subvolume = Some(id.0.to_string());
    } else if !args.no_log {
        state.replay_log(&opened);
    }
    options.snapshots = args.snapshots;
    options.unverified = args.unverified;
    options.overwrite = args.overwrite;
    let notes: Vec<&String> = opened.notes().iter().chain(&state.notes).collect();
    bars.end();
    if !ui.json() {
        for note in &notes {
            ui.note(format!("{name}: {note}"));
        }
        let newest = opened.superblock().generation;
        if state.generation < newest {
            ui.note(format!("{name}: an older root is used, {} of {newest}", state.generation));
        }
    }
    let mut files = Vec::new();
    let mut each = |entry: &Entry| {
        if ui.json() {
            files.push(entry.clone());
        } else if args.of_btrfs && entry.condition == Condition::Skipped {
            let name = entry.path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
            bars.above(|| ui.complain(format!("Skipping snapshot {}", show(name))));
        } else {
            bars.above(|| salvage::print(entry, args.verbose, ui));
        }
    };
    let summary = buttress_rescue::restore(&opened, &state, &options, target.as_deref(), &mut each);
    bars.end();
    let summary = summary.context(|| &name)?;
    if ui.json() {
        let (generation, origin) = (state.generation.0, state.origin);
        ui.document(&Document { generation, origin, notes, summary, files })?;
    } else if !args.of_btrfs {
        salvage::print_summary(&summary, ui)?;
    }
    Ok(salvage::exit(&summary))
}

fn list(roots: &[RootInfo], ui: &Ui) -> Result<Exit> {
    if ui.json() {
        ui.document(&json!({ "roots": roots }))?;
        return Ok(Exit::Success);
    }
    for root in roots {
        let state = match (root.readable, root.subvolumes) {
            (false, _) => ui.tint(Tone::Bad, "lost"),
            (true, (all, good)) if all == good => ui.tint(Tone::Good, &format!("{all} subvolumes")),
            (true, (all, good)) => ui.tint(Tone::Heading, &format!("{good} of {all} subvolumes")),
        };
        let origin = serde_json::to_value(root.origin).context(|| "output")?;
        let origin = origin.as_str().unwrap_or_default().to_owned();
        ui.line(format!(
            "generation {:>8}  address {:>14}  level {}  {origin:<7} {state}",
            root.generation, root.address, root.level
        ))?;
    }
    Ok(Exit::Success)
}
