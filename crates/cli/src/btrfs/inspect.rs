//! `btrfs inspect-internal`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Instant;

use buttress_control::named::Named;
use buttress_format::TreeId;
use buttress_survey::{Holder, NodeFigures, smallest_device};
use buttress_words::units::Units;
use buttress_words::usage;
use buttress_words::{subvolume, swap};

use super::dump as own;
use crate::client;
use crate::commands::du::below;
use crate::commands::dump;
use crate::exit::{Context, Exit, Failure, Result};
use crate::image::Devices;
use crate::inspect::Inspect;
use crate::location::show;
use crate::order::{Act, Order, SurveyRequest};
use crate::ui::Ui;

#[derive(Debug, clap::Subcommand)]
pub(super) enum Verb {
    /// Print the items of trees.
    DumpTree(own::Tree),
    /// Print superblocks.
    DumpSuper(own::Super),
    /// Print the paths of an inode number in the subvolume of a place.
    InodeResolve { ino: u64, place: OsString },
    /// Print the paths of the files that hold the byte at an address of the volume.
    LogicalResolve(Resolve),
    /// Print where a file for swap space begins on its device.
    MapSwapfile(swap::Map),
    /// Print the smallest size to which a device can be shrunk without first freeing space on it.
    MinDevSize {
        /// The device, by its number.
        #[arg(long, value_name = "N", default_value_t = 1)]
        id: u64,
        place: PathBuf,
    },
    /// Print the number of the subvolume that a place is in.
    Rootid { place: OsString },
    /// Print the path of the subvolume with a number.
    SubvolidResolve { id: u64, place: OsString },
    /// Print how the nodes of trees lie on a volume.
    TreeStats {
        #[command(flatten)]
        units: Units,
        image: PathBuf,
    },
}

#[derive(Debug, clap::Args)]
pub(super) struct Resolve {
    /// Print inode numbers, offsets and subvolumes in place of paths.
    #[arg(short = 'P')]
    numbers: bool,
    /// Also find files that hold only other parts of the extent.
    #[arg(short = 'o')]
    any_part: bool,
    /// Size of a buffer. Accepted for scripts; has no effect.
    #[arg(short, value_name = "BYTES")]
    size: Option<u64>,
    address: u64,
    place: OsString,
}

pub(super) fn run(verb: Verb, ui: &Ui) -> Result<Exit> {
    match verb {
        Verb::DumpTree(args) => return own::tree(args, ui),
        Verb::DumpSuper(args) => return own::superblock(args, ui),
        Verb::InodeResolve { ino, place } => {
            let Named { volume, spot, .. } = Named::parse(&place)?;
            let order = Order::Survey { at: spot, request: SurveyRequest::Names { ino } };
            let done = client::run(&order, &volume, &Devices::default(), "inode-resolve", ui)?;
            let names: Vec<Vec<u8>> = serde_json::from_value(done).context(|| "the answer")?;
            if names.is_empty() {
                let what = "ino paths ioctl: No such file or directory";
                return Err(Failure::new(Exit::Failure, what));
            }
            for name in names {
                ui.line(show(&below(&place, &name)))?;
            }
        }
        Verb::MapSwapfile(args) => swap::map(&args, ui)?,
        Verb::LogicalResolve(resolve) => logical_resolve(&resolve, ui)?,
        Verb::MinDevSize { id, place } => {
            let inspect = usage::inspect(&place)?;
            let chunks = &inspect.chunks.chunks;
            let pieces = chunks.iter().flat_map(|chunk| {
                let own = chunk.stripes.iter().filter(|stripe| stripe.device.0 == id);
                own.map(|stripe| (stripe.offset, chunk.stripe_bytes()))
            });
            let bytes = smallest_device(pieces.collect());
            if inspect.chunks.devices.iter().all(|device| device.devid.0 != id) {
                return Err(Failure::new(Exit::Failure, format!("no device with id {id}")));
            }
            ui.line(format!("{bytes} bytes ({})", crate::size::human(bytes)))?;
        }
        Verb::TreeStats { units, image } => {
            let inspect = Inspect::open(&image, &Devices::default())?;
            for (id, name) in NodeFigures::TREES {
                tree_stats(&inspect, id, name, units, ui)?;
            }
        }
        Verb::Rootid { place } => {
            let Named { volume, spot, .. } = Named::parse(&place)?;
            let order = Order::Subvolume(Act::Within { at: spot });
            let done = client::run(&order, &volume, &Devices::default(), "rootid", ui)?;
            ui.line(done["id"].to_string())?;
        }
        Verb::SubvolidResolve { id, place } => {
            let Named { volume, .. } = Named::parse(&place)?;
            // The top level has no name, so its path is empty.
            if id == TreeId::FS.0 {
                ui.line("")?;
                return Ok(Exit::Success);
            }
            let found = subvolume::all(&volume, ui)?.into_iter().find(|one| one.id == id);
            let none = || Failure::new(Exit::Failure, format!("could not find subvolume {id}"));
            ui.line(found.ok_or_else(none)?.path)?;
        }
    }
    Ok(Exit::Success)
}

fn tree_stats(inspect: &Inspect, id: TreeId, name: &str, units: Units, ui: &Ui) -> Result<()> {
    ui.line(format!("Calculating size of {name} tree"))?;
    let (began, mut figures) = (Instant::now(), NodeFigures::default());
    dump::walk::nodes(inspect, id, inspect.tree(id)?, false, |node| {
        figures.add(node).map_err(std::io::Error::other)
    })?;
    figures
        .lines(began.elapsed(), |bytes| units.show(bytes))
        .iter()
        .try_for_each(|line| ui.line(line))
}

fn logical_resolve(resolve: &Resolve, ui: &Ui) -> Result<()> {
    let Named { volume, spot, .. } = Named::parse(&resolve.place)?;
    let (address, any_part) = (resolve.address, resolve.any_part);
    let order = Order::Survey { at: spot, request: SurveyRequest::Holders { address, any_part } };
    let done = client::run(&order, &volume, &Devices::default(), "logical-resolve", ui)?;
    let (mut found, here): (Vec<Holder>, u64) =
        serde_json::from_value(done).context(|| "the answer")?;
    if found.is_empty() {
        let what = "logical ino ioctl: No such file or directory";
        return Err(Failure::new(Exit::Failure, what));
    }
    // Linux lists the newest file first.
    found.reverse();
    if resolve.numbers {
        for Holder { tree, ino, at, .. } in found {
            ui.line(format!("inode {ino} offset {at} root {tree}"))?;
        }
        return Ok(());
    }
    let subvolumes = subvolume::all(&volume, ui)?;
    let path = |tree| {
        subvolumes.iter().find(|one| one.id == tree).map_or(String::new(), |one| one.path.clone())
    };
    let top = path(here);
    for Holder { tree, ino, paths, .. } in found {
        let its = path(tree);
        let way = its.strip_prefix(&top).map(|way| way.trim_start_matches('/'));
        let is_below = way.is_some() && (top.is_empty() || its[top.len()..].starts_with('/'));
        let Some(way) = way.filter(|_| is_below || tree == here) else {
            ui.line(format!("inode {ino} subvol {its} could not be accessed: not mounted"))?;
            continue;
        };
        for path in paths {
            let mut name = way.as_bytes().to_vec();
            if !name.is_empty() {
                name.push(b'/');
            }
            name.extend(path);
            ui.line(show(&below(&resolve.place, &name)))?;
        }
    }
    Ok(())
}
