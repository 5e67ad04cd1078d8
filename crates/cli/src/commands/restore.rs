//! `buttress restore`: files out of a damaged volume.

use std::path::PathBuf;

use buttress_rescue::{Entry, Glob, RestoreOptions, RootInfo, State, Summary};
use serde::Serialize;
use serde_json::json;

use crate::exit::{Context, Exit, Failure, Result};
use crate::salvage::{self, Opening};
use crate::ui::{Tone, Ui};

/// Saves files from a volume in any state, from its newest root or else from older roots. A scan of
/// the devices helps to find them. Writes nothing to the volume. Bytes that no checksum confirms
/// are left out. A run that was stopped continues when it is started again. Exit code 3: something
/// is lost.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The devices of the volume that are there, and after them the folder for the files (none with
    /// --list-roots and --dry-run).
    #[arg(value_name = "VOLUME... TO", required = true, num_args = 1..)]
    places: Vec<PathBuf>,
    #[command(flatten)]
    opening: Opening,
    /// List the roots that there are, newest first, and stop.
    #[arg(long)]
    list_roots: bool,
    /// Use this root: a transaction, or the address of its node.
    #[arg(long, value_name = "N")]
    root: Option<u64>,
    /// Only files that match this pattern, and all below them; may be given several times. A star
    /// stays within one folder, two stars do not.
    #[arg(long, value_name = "GLOB")]
    path: Vec<String>,
    /// Only this subvolume: its number, or its path.
    #[arg(long, value_name = "SUBVOLUME")]
    subvolume: Option<String>,
    /// Read-only snapshots, too.
    #[arg(long)]
    snapshots: bool,
    /// Data with lost checksums, too.
    #[arg(long)]
    unverified: bool,
    /// Replace files that are there.
    #[arg(long)]
    overwrite: bool,
    /// Read and verify everything, and write nothing.
    #[arg(long)]
    dry_run: bool,
    /// Name whole files, too.
    #[arg(long, short)]
    verbose: bool,
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
    // With a dry run the folder may be named, too.
    let has_folder =
        needs_folder || volumes.len() > 1 && volumes.last().is_some_and(|it| it.is_dir());
    let target = if has_folder { volumes.pop() } else { None };
    if volumes.is_empty() {
        return Err(Failure::new(Exit::Usage, "a volume and a folder for its files are needed"));
    }
    let target = target.filter(|_| needs_folder);
    let opened = salvage::open(&volumes, &args.opening, ui)?;
    let name = volumes[0].display().to_string();
    if args.list_roots {
        return list(&State::list(&opened), ui);
    }
    let state = match args.root {
        Some(number) => State::of(&opened, number),
        None => State::newest(&opened),
    };
    let state = state.context(|| &name)?;
    let mut options = RestoreOptions::default();
    options.paths = args.path.iter().map(|glob| Glob::new(glob.as_bytes())).collect();
    options.subvolume = args.subvolume.clone();
    options.snapshots = args.snapshots;
    options.unverified = args.unverified;
    options.overwrite = args.overwrite;
    let notes: Vec<&String> = opened.notes().iter().chain(&state.notes).collect();
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
        } else {
            salvage::print(entry, args.verbose, ui);
        }
    };
    let summary = buttress_rescue::restore(&opened, &state, &options, target.as_deref(), &mut each);
    let summary = summary.context(|| &name)?;
    if ui.json() {
        let (generation, origin) = (state.generation.0, state.origin);
        ui.document(&Document { generation, origin, notes, summary, files })?;
    } else {
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
