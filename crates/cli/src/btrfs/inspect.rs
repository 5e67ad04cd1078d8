//! `btrfs inspect-internal`.

use std::ffi::OsString;
use std::path::PathBuf;

use buttress_control::named::Named;
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
    /// Print the number of the subvolume that a place is in.
    Rootid { place: OsString },
    /// Print the path of the subvolume with a number.
    SubvolidResolve { id: u64, place: OsString },
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
