//! `btrfs check`. Options of btrfs-progs that have no counterpart are refused by name, with what to
//! use in their place.

use std::path::PathBuf;

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
    /// Use this copy of the superblock. Only copy 0 is used for a check.
    #[arg(short, long = "super", value_name = "COPY")]
    superblock: Option<u64>,
    /// Clear the free space cache, v1 or v2, in place of a check.
    #[arg(long, value_name = "VERSION", value_parser = ["v1", "v2"])]
    clear_space_cache: Option<String>,
    /// Refused: `btrfs restore` reads with older roots.
    #[arg(short, long)]
    backup: bool,
    /// Refused: `btrfs restore -t` reads with another root tree.
    #[arg(short = 'r', long, value_name = "ADDRESS")]
    tree_root: Option<u64>,
    /// Refused: `btrfs rescue chunk-recover` finds the chunk tree.
    #[arg(long, value_name = "ADDRESS")]
    chunk_root: Option<u64>,
    /// Refused: a check compares the counts of quota groups, and `btrfs qgroup show` lists them.
    #[arg(short = 'Q', long)]
    qgroup_report: bool,
    /// Refused: `btrfs filesystem du` shows what subvolumes share.
    #[arg(short = 'E', long, value_name = "ID")]
    subvol_extents: Option<u64>,
    /// Refused: no volume that this program can write has such a cache.
    #[arg(long)]
    clear_ino_cache: bool,
}

pub(super) fn run(args: Args, ui: &Ui) -> Result<Exit> {
    let other_copy = args.superblock.is_some_and(|copy| copy > 0);
    let refused = [
        (other_copy, "--super: `btrfs rescue super-recover` replaces damaged copies first"),
        (args.backup, "--backup: `btrfs restore` reads with older roots"),
        (args.tree_root.is_some(), "--tree-root: `btrfs restore -t` reads with another root tree"),
        (args.chunk_root.is_some(), "--chunk-root: `btrfs rescue chunk-recover` finds that tree"),
        (args.qgroup_report, "--qgroup-report: `btrfs qgroup show` lists the groups"),
        (args.subvol_extents.is_some(), "--subvol-extents: `btrfs filesystem du` shows sharing"),
        (args.clear_ino_cache, "--clear-ino-cache: nothing here uses such a cache"),
    ];
    if let Some((_, what)) = refused.iter().find(|(is_given, _)| *is_given) {
        return Err(Failure::new(Exit::Failure, format!("option {what}")));
    }
    match args.clear_space_cache {
        Some(version) => {
            let places: Vec<PathBuf> = vec![args.own.image];
            rescue::run(rescue::Verb::clearing(version, places), ui)
        }
        None => own::run(args.own, ui),
    }
}
