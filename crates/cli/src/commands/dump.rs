//! `buttress dump`: the trees as text.
//!
//! # Place
//!
//! The format is that of `btrfs inspect-internal dump-tree`. So the same scripts can read the
//! output of both programs, and the two outputs can be compared line by line.

mod json;
pub(crate) mod walk;

use std::io::Write;
use std::path::PathBuf;

use buttress_dump::{items, superblock};
use buttress_format::{TreeId, limits};
use buttress_volume::{Uuid, Volume};

use crate::client;
use crate::exit::{Context, Exit, Failure, Result};
use crate::image::{self, Access, Devices};
use crate::inspect::{Inspect, ListedTree};
use crate::ui::Ui;
use walk::Form;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The image or block device of the volume, or a folder on its mount.
    #[arg(value_name = "IMG | DIR")]
    image: PathBuf,
    /// Print only this tree, given by number or name: root, chunk, extent, dev, fs, csum, uuid,
    /// free-space, block-group, data-reloc.
    #[arg(long, short, value_name = "TREE", value_parser = tree_id)]
    pub(crate) tree: Option<TreeId>,
    /// Print the superblock instead of trees.
    #[arg(long = "super", conflicts_with = "tree")]
    superblock: bool,
    /// Print every copy of the superblock.
    #[arg(long, requires = "superblock")]
    all: bool,
    /// The number of the only copy to print.
    #[arg(skip)]
    pub(crate) copy: Option<usize>,
    /// Print neither the array of chunks nor the older roots.
    #[arg(skip)]
    pub(crate) is_brief: bool,
    /// What to print in place of whole trees.
    #[arg(skip)]
    pub(crate) part: Part,
    #[arg(skip)]
    pub(crate) form: Form,
    /// Print the totals behind a single tree.
    #[arg(skip)]
    pub(crate) ends_with_totals: bool,
    #[command(flatten)]
    devices: Devices,
}

/// A part of a volume, as the options of btrfs-progs choose it.
#[derive(Clone, Debug, Default)]
pub(crate) enum Part {
    /// All trees, or the tree that is given.
    #[default]
    Trees,
    /// The trees of extents and of devices.
    Extents,
    /// The trees of roots, chunks and devices.
    Devices,
    /// One line for each root. With `backups`, the older roots, too.
    Roots { backups: bool },
    /// Nodes by their addresses. With `follows`, the nodes below them, too.
    Blocks { at: Vec<u64>, follows: bool },
}

impl Args {
    /// The superblock of a device, or every copy of it.
    pub(crate) fn superblock(image: PathBuf, all: bool) -> Self {
        let (part, form, ends_with_totals, devices) = Default::default();
        let (tree, copy, superblock, is_brief) = (None, None, true, false);
        Self { image, tree, superblock, all, copy, is_brief, part, form, ends_with_totals, devices }
    }
}

pub(crate) fn run(args: Args, ui: &Ui) -> Result<Exit> {
    if args.superblock {
        return superblocks(&args, ui);
    }
    let mut inspect = Inspect::open(&args.image, &args.devices)?;
    inspect.show_progress("dumping", args.tree, ui)?;
    let inspect = inspect;
    if ui.json() {
        return documents(&inspect, args.tree, ui);
    }
    let mut out = ui.writer();
    let version = concat!("buttress v", env!("CARGO_PKG_VERSION"));
    writeln!(out, "{version}").context(|| "standard output")?;
    let form = args.form;
    match &args.part {
        Part::Trees => match args.tree {
            Some(tree) => {
                one_tree(&inspect, tree, form, &mut out)?;
                if args.ends_with_totals {
                    totals(&inspect, &mut out)?;
                }
            }
            None => all_trees(&inspect, form, &mut out)?,
        },
        Part::Extents => {
            // As btrfs-progs, without the nodes above the leaves.
            let form = Form { only_leaves: true, ..form };
            for id in [TreeId::EXTENT, TreeId::DEV] {
                one_tree(&inspect, id, form, &mut out)?;
            }
        }
        Part::Devices => {
            for id in [TreeId::ROOT, TreeId::CHUNK, TreeId::DEV] {
                one_tree(&inspect, id, form, &mut out)?;
            }
        }
        Part::Roots { backups } => roots(&inspect, args.tree, *backups, &mut out)?,
        Part::Blocks { at, follows } => {
            for at in at {
                walk::block(&inspect, *at, *follows, form, &mut out)?;
            }
        }
    }
    out.flush().context(|| "standard output")?;
    Ok(Exit::Success)
}

/// Prints one JSON entry for each node, tree after tree in the order of the text.
fn documents(inspect: &Inspect, tree: Option<TreeId>, ui: &Ui) -> Result<Exit> {
    let mut trees = Vec::new();
    for id in [TreeId::ROOT, TreeId::CHUNK] {
        if tree.is_none_or(|tree| tree == id) {
            trees.push((id, inspect.tree(id)?));
        }
    }
    let root = |tree: &ListedTree| (TreeId(tree.key.objectid), tree.root);
    match tree {
        Some(TreeId::ROOT | TreeId::CHUNK) => {}
        Some(id) => trees.push(root(&inspect.listed(id)?)),
        None => {
            let mut logs = Vec::new();
            if let Some(log) = inspect.log_root() {
                trees.push((TreeId::TREE_LOG, log));
                logs = inspect.listed_in(TreeId::TREE_LOG, log)?;
            }
            trees.extend(inspect.trees()?.iter().chain(&logs).map(root));
        }
    }
    let mut list = json::List::new(ui.writer());
    let geometry = inspect.store.geometry();
    for (id, root) in trees {
        walk::nodes(inspect, id, root, false, |node| list.add(&json::node(id, node, geometry)))?;
    }
    list.end().context(|| "standard output")?;
    Ok(Exit::Success)
}

/// Prints a line for the root of each tree, or of one tree.
fn roots(
    inspect: &Inspect,
    only: Option<TreeId>,
    backups: bool,
    out: &mut impl Write,
) -> Result<()> {
    let mut lines = Vec::new();
    let is_wanted = |id: TreeId| only.is_none_or(|only| only == id);
    for id in [TreeId::ROOT, TreeId::CHUNK].into_iter().filter(|id| is_wanted(*id)) {
        let root = inspect.tree(id)?;
        lines.push(format!("{} tree: {} level {}", tree_name(id), root.logical, root.level));
    }
    if let Some(root) = inspect.log_root().filter(|_| only.is_none()) {
        lines.push(format!("log root tree: {} level {}", root.logical, root.level));
    }
    for tree in inspect.trees()?.iter().filter(|tree| is_wanted(TreeId(tree.key.objectid))) {
        let (name, key) = (tree_name(TreeId(tree.key.objectid)), items::key(&tree.key));
        lines
            .push(format!("{name} tree key {key} {} level {}", tree.root.logical, tree.root.level));
    }
    for line in lines {
        writeln!(out, "{line}").context(|| "standard output")?;
    }
    if backups {
        superblock::print_backups(&inspect.superblock, out).context(|| "standard output")?;
    }
    totals(inspect, out)
}

fn one_tree(inspect: &Inspect, id: TreeId, form: Form, out: &mut impl Write) -> Result<()> {
    if id == TreeId::ROOT || id == TreeId::CHUNK {
        writeln!(out, "{} tree", tree_name(id)).context(|| "standard output")?;
        return walk::tree(inspect, id, inspect.tree(id)?, form, out);
    }
    let tree = inspect.listed(id)?;
    listed_tree(inspect, &tree, form, out)
}

fn listed_tree(
    inspect: &Inspect,
    tree: &ListedTree,
    form: Form,
    out: &mut impl Write,
) -> Result<()> {
    let id = TreeId(tree.key.objectid);
    writeln!(out, "{} tree key {} ", tree_name(id), items::key(&tree.key))
        .context(|| "standard output")?;
    walk::tree(inspect, id, tree.root, form, out)
}

fn all_trees(inspect: &Inspect, form: Form, out: &mut impl Write) -> Result<()> {
    for id in [TreeId::ROOT, TreeId::CHUNK] {
        one_tree(inspect, id, form, out)?;
    }
    let mut logs = Vec::new();
    if let Some(root) = inspect.log_root() {
        writeln!(out, "log root tree").context(|| "standard output")?;
        walk::tree(inspect, TreeId::TREE_LOG, root, form, out)?;
        logs = inspect.listed_in(TreeId::TREE_LOG, root)?;
    }
    for tree in inspect.trees()?.iter().chain(&logs) {
        listed_tree(inspect, tree, form, out)?;
    }
    totals(inspect, out)
}

fn totals(inspect: &Inspect, out: &mut impl Write) -> Result<()> {
    let superblock = &inspect.superblock;
    writeln!(
        out,
        "total bytes {}\nbytes used {}\nuuid {}",
        superblock.total_bytes,
        superblock.bytes_used,
        Uuid(superblock.fsid)
    )
    .context(|| "standard output")
}

fn superblocks(args: &Args, ui: &Ui) -> Result<Exit> {
    client::commit(&args.image);
    let devices = image::open_devices(&args.image, &args.devices, Access::Peek)?;
    let copies = if args.all { limits::SUPER_OFFSETS.len() } else { 1 };
    let mut out = ui.writer();
    let mut list = Vec::new();
    for device in &devices {
        for mirror in args.copy.map_or(0..copies, |copy| copy..copy + 1) {
            let offset = limits::SUPER_OFFSETS[mirror];
            if offset.saturating_add(limits::SUPER_SIZE as u64) > device.len() {
                continue;
            }
            let copy =
                Volume::read_superblock_mirror(&**device, mirror).context(|| device.name())?;
            let mut raw = vec![0; limits::SUPER_SIZE];
            device.read_at(offset, &mut raw).map_err(Failure::of_device)?;
            let name = device.name();
            if ui.json() {
                let mut lines = Vec::new();
                superblock::print(&name, &copy, &raw, &mut lines).context(|| "output")?;
                list.push(json::superblock(&name, copy.label_bytes(), &lines));
            } else {
                let mut text = Vec::new();
                superblock::print(&name, &copy, &raw, &mut text).context(|| "output")?;
                let rest = b"\nsys_chunk_array[";
                let found = text.windows(rest.len()).position(|part| part == rest);
                if let Some(end) = found.filter(|_| args.is_brief) {
                    text.truncate(end);
                    text.extend(b"\n\n");
                }
                out.write_all(&text).context(|| "standard output")?;
            }
        }
    }
    if ui.json() {
        ui.document(&list)?;
    }
    out.flush().context(|| "standard output")?;
    Ok(Exit::Success)
}

/// Returns the name of a tree in the heading above its nodes.
fn tree_name(id: TreeId) -> &'static str {
    match id {
        TreeId::ROOT => "root",
        TreeId::CHUNK => "chunk",
        TreeId::EXTENT => "extent",
        TreeId::DEV => "device",
        TreeId::FS => "fs",
        TreeId::CSUM => "checksum",
        TreeId::QUOTA => "quota",
        TreeId::UUID => "uuid",
        TreeId::FREE_SPACE => "free space",
        TreeId::BLOCK_GROUP => "block group",
        TreeId::RAID_STRIPE => "raid stripe",
        TreeId::DATA_RELOC => "data reloc",
        TreeId::TREE_LOG => "log",
        TreeId::TREE_RELOC => "reloc",
        _ => "file",
    }
}

/// Reads a tree's number or name.
fn tree_id(text: &str) -> Result<TreeId, String> {
    if let Ok(number) = text.parse::<u64>() {
        return Ok(TreeId(number));
    }
    if let Ok(number) = text.parse::<i64>() {
        return Ok(TreeId(number.cast_unsigned()));
    }
    Ok(match text.to_ascii_lowercase().replace('_', "-").as_str() {
        "root" => TreeId::ROOT,
        "extent" => TreeId::EXTENT,
        "chunk" => TreeId::CHUNK,
        "dev" | "device" => TreeId::DEV,
        "fs" => TreeId::FS,
        "csum" | "checksum" => TreeId::CSUM,
        "quota" => TreeId::QUOTA,
        "uuid" => TreeId::UUID,
        "free-space" => TreeId::FREE_SPACE,
        "block-group" => TreeId::BLOCK_GROUP,
        "raid-stripe" => TreeId::RAID_STRIPE,
        "data-reloc" => TreeId::DATA_RELOC,
        _ => return Err(format!("{text:?} is neither a number nor the name of a tree")),
    })
}
