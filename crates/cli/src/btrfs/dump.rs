//! `btrfs inspect-internal dump-tree` and `dump-super`, with the options of btrfs-progs.

use std::path::PathBuf;

use buttress_format::{TreeId, limits};

use crate::commands::dump as own;
use crate::exit::{Exit, Failure, Result};
use crate::ui::Ui;

#[derive(Debug, clap::Args)]
pub(super) struct Tree {
    #[command(flatten)]
    own: own::Args,
    /// Print only the extent tree.
    #[arg(short, long, conflicts_with = "tree")]
    extents: bool,
    /// Print only the tree of identifiers.
    #[arg(short, long, conflicts_with = "tree")]
    uuid: bool,
    /// Look for no other devices. They are never looked for.
    #[arg(long)]
    noscan: bool,
    /// Refused: `-t chunk` and `-t dev` print what describes the devices.
    #[arg(short = 'd')]
    only_devices: bool,
    /// Refused: `-t root` prints the roots.
    #[arg(short, long)]
    roots: bool,
    /// Refused: `dump-super -f` prints the older roots.
    #[arg(short = 'R', long)]
    backups: bool,
    /// Refused: `-t` prints the tree that has the node.
    #[arg(short, long, value_name = "ADDRESS")]
    block: Vec<u64>,
    /// Refused, as `--block` is.
    #[arg(long)]
    follow: bool,
    /// Refused: there is one order of nodes.
    #[arg(long)]
    bfs: bool,
    /// Refused: there is one order of nodes.
    #[arg(long)]
    dfs: bool,
    /// Refused: names are always printed.
    #[arg(long)]
    hide_names: bool,
    /// Refused: checksums of nodes are not printed.
    #[arg(long)]
    csum_headers: bool,
    /// Refused: the ranges of checksums are printed, and the checksums are not.
    #[arg(long)]
    csum_items: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct Super {
    /// Print all copies of the superblock.
    #[arg(short, long)]
    all: bool,
    /// Print all fields. This is always done.
    #[arg(short, long)]
    full: bool,
    /// Print what is there, even if it is no superblock. A damaged superblock is an error here.
    #[arg(short = 'F', long)]
    force: bool,
    /// Print only this copy.
    #[arg(short, long = "super", short_alias = 'i', value_name = "COPY", conflicts_with = "all")]
    superblock: Option<usize>,
    /// Print only the copy at this address.
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = ["all", "superblock"])]
    bytenr: Option<u64>,
    #[arg(required = true)]
    devices: Vec<PathBuf>,
}

pub(super) fn tree(mut args: Tree, ui: &Ui) -> Result<Exit> {
    let refused = [
        (args.only_devices, "-d: `-t chunk` and `-t dev` print what describes the devices"),
        (args.roots, "--roots: `-t root` prints the roots"),
        (args.backups, "--backups: `dump-super -f` prints the older roots"),
        (!args.block.is_empty() || args.follow, "--block: `-t` prints the tree with the node"),
        (args.bfs || args.dfs, "--bfs and --dfs: there is one order of nodes"),
        (args.hide_names, "--hide-names: names are always printed"),
        (args.csum_headers || args.csum_items, "--csum-headers and --csum-items: not printed"),
    ];
    if let Some((_, what)) = refused.iter().find(|(is_given, _)| *is_given) {
        return Err(Failure::new(Exit::Failure, format!("option {what}")));
    }
    if args.extents {
        args.own.tree = Some(TreeId::EXTENT);
    } else if args.uuid {
        args.own.tree = Some(TreeId::UUID);
    }
    own::run(args.own, ui)
}

pub(super) fn superblock(args: Super, ui: &Ui) -> Result<Exit> {
    let copies = limits::SUPER_OFFSETS;
    let at = |address| copies.iter().position(|offset| *offset == address);
    let copy = match args.bytenr {
        Some(address) => Some(at(address).unwrap_or(copies.len())),
        None => args.superblock,
    };
    if copy.is_some_and(|copy| copy >= copies.len()) {
        let what = format!("a superblock has {} copies, at {copies:?}", copies.len());
        return Err(Failure::new(Exit::Failure, what));
    }
    for device in args.devices {
        let mut own = own::Args::superblock(device, args.all);
        own.copy = copy;
        own::run(own, ui)?;
    }
    Ok(Exit::Success)
}
