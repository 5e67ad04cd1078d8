//! `btrfs filesystem`.

use std::path::{Path, PathBuf};

use super::usage::{self, Space, Units};
use crate::client;
use crate::commands::filesystem as own;
use crate::exit::{Exit, Result};
use crate::image::Devices;
use crate::live;
use crate::order::Order;
use crate::ui::Ui;

#[derive(Debug, clap::Subcommand)]
pub(super) enum Verb {
    /// Show how full each kind of block group is.
    Df {
        #[command(flatten)]
        units: Units,
        place: PathBuf,
    },
    /// Show how full a volume is, and each of its devices.
    Usage {
        #[command(flatten)]
        units: Units,
        #[arg(required = true)]
        places: Vec<PathBuf>,
    },
    /// Show a volume and its devices.
    Show {
        /// Show mounted ones.
        #[arg(short, long)]
        mounted: bool,
        /// Show all that are found.
        #[arg(short = 'd', long)]
        all_devices: bool,
        place: Option<PathBuf>,
    },
    /// Make all that was written durable.
    Sync { place: PathBuf },
    /// Show the label.
    Label { place: PathBuf },
    /// Give a device another size.
    Resize(own::resize::Args),
    /// Write files anew in larger pieces.
    Defragment(own::defragment::Args),
}

pub(super) fn run(verb: Verb, ui: &Ui) -> Result<Exit> {
    match verb {
        Verb::Df { units, place } => usage::df(&Space::of(&place, ui)?, units, ui)?,
        Verb::Usage { units, places } => {
            for place in &places {
                usage::usage(&Space::of(place, ui)?, units, ui)?;
            }
        }
        Verb::Show { place, .. } => show(place.as_deref(), ui)?,
        Verb::Sync { place } => {
            client::run(&Order::Commit, &place, &Devices::default(), "sync", ui)?;
        }
        Verb::Label { place } => ui.line(Space::of(&place, ui)?.label())?,
        Verb::Resize(args) => return own::resize::run(&args, ui),
        Verb::Defragment(args) => return own::defragment::run(args, ui),
    }
    Ok(Exit::Success)
}

/// Shows one volume, or all that this user has mounted.
fn show(place: Option<&Path>, ui: &Ui) -> Result<()> {
    let places = match place {
        Some(place) => vec![place.to_owned()],
        None => live::reachable().into_iter().map(|(_, answer)| answer.subject.image).collect(),
    };
    for place in places {
        usage::show(&Space::of(&place, ui)?, ui)?;
    }
    Ok(())
}
