//! `btrfs inspect-internal dump-tree` and `dump-super`, with the options of btrfs-progs.

use std::path::PathBuf;

use buttress_format::{TreeId, limits};

use crate::commands::dump::{self as own, Part};
use crate::exit::{Exit, Failure, Result};
use crate::ui::Ui;

#[derive(Debug, clap::Args)]
pub(super) struct Tree {
    #[command(flatten)]
    own: own::Args,
    /// Print only the extent tree and the device tree.
    #[arg(short, long, conflicts_with_all = ["tree", "only_devices", "roots", "backups", "block"])]
    extents: bool,
    /// Print only the UUID tree.
    #[arg(short, long, conflicts_with_all = ["tree", "extents", "only_devices", "block"])]
    uuid: bool,
    /// Look for no other devices. They are never looked for.
    #[arg(long)]
    noscan: bool,
    /// Print only the root tree, the chunk tree and the device tree.
    #[arg(short = 'd', conflicts_with_all = ["tree", "roots", "backups", "block"])]
    only_devices: bool,
    /// Print only one line for each root.
    #[arg(short, long, conflicts_with = "block")]
    roots: bool,
    /// Print one line for each root, and the older roots of the superblock.
    #[arg(short = 'R', long, conflicts_with = "block")]
    backups: bool,
    /// Print only the node at this address. Can be given several times.
    #[arg(short, long, value_name = "ADDRESS", conflicts_with = "tree")]
    block: Vec<u64>,
    /// With `--block`: print the nodes below it, too.
    #[arg(long, requires = "block")]
    follow: bool,
    /// Print trees level by level. This is the default.
    #[arg(long)]
    bfs: bool,
    /// Print the nodes below a node before the next node of its level.
    #[arg(long, conflicts_with = "bfs")]
    dfs: bool,
    /// Print no names and no values of attributes.
    #[arg(long)]
    hide_names: bool,
    /// Print the checksum of each node.
    #[arg(long)]
    csum_headers: bool,
    /// Print each checksum of data.
    #[arg(long)]
    csum_items: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct Super {
    /// Print all copies of the superblock.
    #[arg(short, long)]
    all: bool,
    /// Print also the array of chunks and the older roots.
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
    let is_of_superblock = |tree| tree == TreeId::ROOT || tree == TreeId::CHUNK;
    args.own.ends_with_totals = args.own.tree.is_some_and(|tree| !is_of_superblock(tree));
    if args.uuid {
        args.own.tree = Some(TreeId::UUID);
    }
    let own = &mut args.own;
    own.form.is_depth_first = args.dfs;
    own.form.shows_csums = args.csum_headers;
    own.form.items.hides_names = args.hide_names;
    own.form.items.shows_csums = args.csum_items;
    if args.extents {
        own.part = Part::Extents;
    } else if args.only_devices {
        own.part = Part::Devices;
    } else if args.roots || args.backups {
        own.part = Part::Roots { backups: args.backups };
    } else if !args.block.is_empty() {
        own.part = Part::Blocks { at: args.block, follows: args.follow };
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
        own.is_brief = !args.full;
        own::run(own, ui)?;
        if args.all {
            ui.line("")?;
        }
    }
    Ok(Exit::Success)
}
