//! `buttress property`: properties of subvolumes, files and directories.

use std::ffi::OsString;

use buttress_base::text;
use buttress_control::named::Named;
use buttress_control::order::{Order, PropertyAct};

use crate::client;
use crate::exit::{Exit, Result};
use crate::image::Devices;
use crate::location::show;
use crate::ui::Ui;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Show one property, or all properties that are set.
    Get {
        /// The file or directory, as IMG:/path or as a path on a mount.
        #[arg(value_name = "IMG:/PATH | PATH")]
        place: OsString,
        /// The property: compression, or ro for a subvolume.
        name: Option<String>,
        #[command(flatten)]
        devices: Devices,
    },
    /// Set a property. An empty value removes it.
    Set {
        /// Allow clearing ro of a received subvolume. Incremental streams can then no longer build
        /// on it.
        #[arg(short = 'f')]
        force: bool,
        /// The file or directory, as IMG:/path or as a path on a mount.
        #[arg(value_name = "IMG:/PATH | PATH")]
        place: OsString,
        /// The property: compression, or ro for a subvolume.
        name: String,
        /// For compression: zlib, lzo or zstd, optionally with a level as in zstd:9, or none. It
        /// applies to later writes, and new files in a directory inherit it. For ro: true or false.
        value: String,
        #[command(flatten)]
        devices: Devices,
    },
    /// List the known properties.
    List {
        /// The file or directory, as IMG:/path or as a path on a mount.
        #[arg(value_name = "IMG:/PATH | PATH")]
        place: OsString,
    },
}

pub(crate) fn run(args: Args, ui: &Ui) -> Result<Exit> {
    let order = |place: &OsString, act, devices: &Devices| {
        let Named { volume, spot, .. } = Named::parse(place)?;
        client::run(&Order::Property { at: spot, act }, &volume, devices, "property", ui)
    };
    match args.verb {
        Verb::Get { place, name, devices } => {
            let found = order(&place, PropertyAct::Get { name }, &devices)?;
            if ui.json() {
                ui.document(&found)?;
                return Ok(Exit::Success);
            }
            let mut found: Vec<_> = found.as_object().into_iter().flatten().collect();
            // As in `btrfs`, `ro` comes first. Only subvolumes have this property.
            found.sort_by_key(|(name, _)| *name != "ro");
            for (name, value) in found {
                let value = value.as_str().and_then(text::decode).unwrap_or_default();
                ui.line(format!("{name}={}", show(&value)))?;
            }
        }
        Verb::Set { force, place, name, value, devices } => {
            order(&place, PropertyAct::Set { name, value, force }, &devices)?;
        }
        Verb::List { place } => {
            let found = order(&place, PropertyAct::List, &Devices::default())?;
            let mut found: Vec<_> = found.as_object().into_iter().flatten().collect();
            found.sort_by_key(|(name, _)| *name != "ro");
            if ui.json() {
                ui.document(&found.iter().map(|(name, _)| name).collect::<Vec<_>>())?;
                return Ok(Exit::Success);
            }
            for (name, what) in found {
                ui.line(format!("{name:<20}{}", what.as_str().unwrap_or_default()))?;
            }
        }
    }
    Ok(Exit::Success)
}
