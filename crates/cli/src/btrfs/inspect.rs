//! `btrfs inspect-internal`.

use std::ffi::OsString;

use buttress_control::named::Named;
use serde::Deserialize;

use super::subvolume;
use crate::client;
use crate::exit::{Context, Exit, Failure, Result};
use crate::image::Devices;
use crate::order::{Act, Order, Shown};
use crate::ui::Ui;

#[derive(Debug, clap::Subcommand)]
pub(super) enum Verb {
    /// Print the number of the subvolume at a place.
    Rootid { place: OsString },
    /// Print the path of a subvolume.
    SubvolidResolve { id: u64, place: OsString },
}

pub(super) fn run(verb: Verb, ui: &Ui) -> Result<Exit> {
    match verb {
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
