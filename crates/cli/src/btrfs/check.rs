//! `btrfs check`: `buttress check` with further options of btrfs-progs.

use std::path::PathBuf;

use buttress_format::limits::SUPER_OFFSETS;
use buttress_words::mount_check;
use buttress_words::start::Start;

use crate::commands::{check as own, rescue};
use crate::exit::{Exit, Failure, Result};
use crate::ui::Ui;

#[derive(Debug, clap::Args)]
#[group(skip)]
pub(super) struct Args {
    #[command(flatten)]
    own: own::Args,
    /// Show progress. On a terminal, this is always done.
    #[arg(short, long)]
    progress: bool,
    /// The way to check. There is only one, and it takes as much memory as it may.
    #[arg(long, value_name = "MODE", value_parser = ["original", "lowmem", "low-memory"])]
    mode: Option<String>,
    /// Begin with this copy of the superblock.
    #[arg(short, long = "super", value_name = "COPY", conflicts_with_all = ["repair", "undo", "clear_ino_cache"])]
    superblock: Option<usize>,
    /// Clear the free space cache, v1 or v2, in place of a check.
    #[arg(
        long,
        value_name = "VERSION",
        value_parser = ["v1", "v2"],
        conflicts_with_all =
            ["superblock", "backup", "tree_root", "chunk_root", "readonly", "undo"],
    )]
    clear_space_cache: Option<String>,
    /// Begin with the newest older root of the superblock.
    #[arg(short, long, conflicts_with_all = ["repair", "undo", "tree_root", "clear_ino_cache"])]
    backup: bool,
    /// Begin with the root tree at this address.
    #[arg(short = 'r', long, value_name = "ADDRESS", conflicts_with_all = ["repair", "undo", "clear_ino_cache"])]
    tree_root: Option<u64>,
    /// Begin with the chunk tree at this address.
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["repair", "undo", "clear_ino_cache"])]
    chunk_root: Option<u64>,
}

pub(super) fn run(mut args: Args, ui: &Ui) -> Result<Exit> {
    if let Some(copy) = args.superblock {
        let Some(at) = SUPER_OFFSETS.get(copy) else {
            let what = format!("super mirror should be less than {}", SUPER_OFFSETS.len());
            return Err(Failure::new(Exit::Failure, what));
        };
        ui.line(format!("using SB copy {copy}, bytenr {at}"))?;
    }
    if !ui.json() {
        ui.line("Opening filesystem to check...")?;
    }
    mount_check::expect_there(&args.own.image)?;
    args.own.of_btrfs = true;
    args.own.start = Start {
        copy: args.superblock,
        is_older: args.backup,
        tree_root: args.tree_root,
        chunk_root: args.chunk_root,
    };
    match args.clear_space_cache {
        Some(version) => {
            let places: Vec<PathBuf> = vec![args.own.image];
            rescue::run(rescue::Verb::clearing(version, places), ui)
        }
        None => own::run(args.own, ui),
    }
}
