//! `btrfs inspect-internal`.

use std::ffi::OsString;
use std::path::PathBuf;

use buttress_control::named::Named;
use buttress_survey::Holder;
use serde::Deserialize;

use super::subvolume;
use crate::client;
use crate::commands::du::below;
use crate::commands::dump;
use crate::exit::{Context, Exit, Failure, Result};
use crate::image::Devices;
use crate::location::show;
use crate::order::{Act, Order, Shown, SurveyRequest};
use crate::ui::Ui;

#[derive(Debug, clap::Subcommand)]
pub(super) enum Verb {
    /// Print the items of trees.
    DumpTree(dump::Args),
    /// Print superblocks.
    DumpSuper {
        /// Print all copies of the superblock.
        #[arg(short, long)]
        all: bool,
        /// Print all fields. This is always done.
        #[arg(short, long)]
        full: bool,
        #[arg(required = true)]
        devices: Vec<PathBuf>,
    },
    /// Print the paths of an inode number in the subvolume of a place.
    InodeResolve { ino: u64, place: OsString },
    /// Print the paths of the files that hold the byte at an address of the volume.
    LogicalResolve(Resolve),
    /// Print the number of the subvolume that a place is in.
    Rootid { place: OsString },
    /// Print the path of the subvolume with a number.
    SubvolidResolve { id: u64, place: OsString },
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
        Verb::DumpTree(args) => return dump::run(args, ui),
        Verb::DumpSuper { all, devices, .. } => {
            for device in devices {
                dump::run(dump::Args::superblock(device, all), ui)?;
            }
        }
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
        Verb::LogicalResolve(resolve) => logical_resolve(&resolve, ui)?,
        Verb::Rootid { place } => {
            let Named { volume, spot, .. } = Named::parse(&place)?;
            let order = Order::Subvolume(Act::Show { at: spot });
            let done = client::run(&order, &volume, &Devices::default(), "rootid", ui)?;
            let shown = Shown::deserialize(done).context(|| "the answer")?;
            ui.line(shown.document["id"].to_string())?;
        }
        Verb::SubvolidResolve { id, place } => {
            let Named { volume, .. } = Named::parse(&place)?;
            let found = subvolume::all(&volume, ui)?.into_iter().find(|one| one.id == id);
            let none = || Failure::new(Exit::Failure, format!("could not find subvolume {id}"));
            ui.line(found.ok_or_else(none)?.path)?;
        }
    }
    Ok(Exit::Success)
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
