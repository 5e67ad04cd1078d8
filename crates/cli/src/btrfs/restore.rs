//! `btrfs restore`, with the options of btrfs-progs.

use std::path::PathBuf;

use buttress_dump::items;
use buttress_rescue::Pattern;
use buttress_words::mount_check;

use crate::commands::restore as own;
use crate::exit::{Exit, Failure, Result};
use crate::image::Devices;
use crate::inspect::{Inspect, ListedTree};
use crate::ui::Ui;

/// Copy files out of a damaged volume. Damage never ends the run. Owners, modes, times, symbolic
/// links and extended attributes are always restored.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Read and verify everything, but write nothing.
    #[arg(short = 'D', long)]
    dry_run: bool,
    /// Go on after errors. This is always done.
    #[arg(short, long)]
    ignore_errors: bool,
    /// Overwrite existing files.
    #[arg(short, long)]
    overwrite: bool,
    /// Restore owner, mode and times. This is always done.
    #[arg(short, long)]
    metadata: bool,
    /// Restore symbolic links. This is always done.
    #[arg(short = 'S', long)]
    symlink: bool,
    /// Also restore read-only snapshots.
    #[arg(short, long)]
    snapshots: bool,
    /// Restore extended attributes. This is always done.
    #[arg(short, long)]
    xattr: bool,
    /// Only files that this regular expression finds in their path and in each folder above, as
    /// in `^/(|home(|/anna(|/.*)))$`.
    #[arg(long, value_name = "REGEX")]
    path_regex: Option<String>,
    /// Ignore case in --path-regex.
    #[arg(short = 'c')]
    ignore_case: bool,
    /// List the roots that were found.
    #[arg(short, long)]
    list_roots: bool,
    /// Only this subvolume, given by its number.
    #[arg(short, long, value_name = "ID")]
    root: Option<u64>,
    /// Use the root tree at this address.
    #[arg(short, value_name = "ADDRESS")]
    tree: Option<u64>,
    /// Only the subvolume with the root node of its tree at this address.
    #[arg(short = 'f', value_name = "ADDRESS")]
    node: Option<u64>,
    /// Begin at the first folder that is found. This is always done where the top is lost.
    #[arg(short = 'd')]
    find_folder: bool,
    /// Use this copy of the superblock. Accepted, but has no effect: every good copy is found.
    #[arg(short = 'u', long = "super", value_name = "COPY")]
    mirror: Option<u64>,
    /// The devices of the volume, then the directory for the files.
    #[arg(value_name = "DEVICE... TO", required = true, num_args = 1..)]
    places: Vec<PathBuf>,
}

pub(super) fn run(args: Args, is_verbose: bool, ui: &Ui) -> Result<Exit> {
    mount_check::expect_there(&args.places[0])?;
    // A root tree that is damaged, or was named, is searched as `buttress restore` does.
    if args.list_roots
        && args.tree.is_none()
        && let Ok(inspect) = Inspect::open_quietly(&args.places[0], &Devices::default())
        && let Ok(trees) = inspect.trees()
    {
        for ListedTree { key, root, .. } in trees {
            let (key, at, level) = (items::key(&key), root.logical, root.level);
            ui.line(format!(" tree key {key} {at} level {level}"))?;
        }
        return Ok(Exit::Success);
    }
    if args.dry_run {
        ui.line("This is a dry-run, no files are going to be restored")?;
    }
    let pattern = args.path_regex.map(|text| Pattern::new(&text, args.ignore_case)).transpose();
    let pattern = pattern.map_err(|why| Failure::new(Exit::Failure, why))?;
    let own = own::Args {
        list_roots: args.list_roots,
        root: args.tree,
        pattern,
        node: args.node,
        subvolume: args.root.map(|id| id.to_string()),
        snapshots: args.snapshots,
        overwrite: args.overwrite,
        dry_run: args.dry_run,
        verbose: is_verbose && !args.dry_run,
        of_btrfs: true,
        ..own::Args::of(args.places)
    };
    own::run(own, ui)
}
