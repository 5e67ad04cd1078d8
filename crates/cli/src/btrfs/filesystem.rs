//! `btrfs filesystem`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use buttress_words::units::{LongUnits, Units};
use buttress_words::usage::{self, Space};
use buttress_words::{resize, swap, table};

use super::{defragment, du};
use crate::client;
use crate::commands::filesystem as own;
use crate::exit::{Exit, Failure, Result};
use crate::image::Devices;
use crate::live;
use crate::order::Order;
use crate::ui::Ui;

#[derive(Debug, clap::Subcommand)]
pub(super) enum Verb {
    /// Show the used space of each kind of block group.
    Df {
        #[command(flatten)]
        units: Units,
        place: PathBuf,
    },
    /// Show how much space files and folders take alone, and how much they share.
    Du {
        #[command(flatten)]
        units: Units,
        /// Show only a total for each place.
        #[arg(short, long)]
        summarize: bool,
        #[arg(required = true)]
        places: Vec<OsString>,
    },
    /// Show the used space of a volume and of each of its devices.
    Usage {
        #[command(flatten)]
        units: Units,
        /// Show the devices as a table.
        #[arg(short = 'T')]
        table: bool,
        #[arg(required = true)]
        places: Vec<PathBuf>,
    },
    /// Show the label, identifier and devices of a volume.
    Show {
        /// Show the volumes that this user has mounted. This is the default.
        #[arg(short, long)]
        mounted: bool,
        /// Accepted for scripts; has no effect.
        #[arg(short = 'd', long)]
        all_devices: bool,
        #[command(flatten)]
        units: LongUnits,
        /// The volume, by its device, mount, label or identifier.
        place: Option<PathBuf>,
    },
    /// Write all changes to the devices.
    Sync { place: PathBuf },
    /// Show the label of a volume, or change it.
    Label { place: PathBuf, label: Option<OsString> },
    /// Resize a device of a volume.
    Resize(resize::Args),
    /// Defragment files.
    Defragment(defragment::Args),
    /// Make a file for the kernel's swap space.
    Mkswapfile(swap::Make),
}

pub(super) fn run(verb: Verb, is_verbose: bool, ui: &Ui) -> Result<Exit> {
    match verb {
        Verb::Df { units, place } => usage::df(&Space::of(&place, ui)?, units, ui)?,
        Verb::Du { units, summarize, places } => return du::run(units, summarize, &places, ui),
        Verb::Usage { units, table, places } => {
            for place in &places {
                let space = Space::of(place, ui)?;
                usage::usage(&space, units, ui)?;
                if table {
                    table::show(&space, units, ui)?;
                } else {
                    usage::placed(&space, units, ui)?;
                }
            }
        }
        Verb::Show { place, units, .. } => show(place.as_deref(), units.into(), ui)?,
        Verb::Sync { place } => {
            client::run(&Order::Commit, &place, &Devices::default(), "sync", ui)?;
        }
        Verb::Label { place, label: None } => ui.line(Space::of(&place, ui)?.label())?,
        Verb::Label { place, label: Some(label) } => {
            own::label::set(&place, &Devices::default(), &label, ui)?;
        }
        Verb::Mkswapfile(args) => swap::make(&args, ui)?,
        Verb::Resize(args) => return resize::run(&args, ui),
        Verb::Defragment(args) => return defragment::run(args, is_verbose, ui),
    }
    Ok(Exit::Success)
}

/// Shows one volume, or all volumes that this user has mounted. Mounted volumes are also found by
/// their label or their identifier.
fn show(place: Option<&Path>, units: Units, ui: &Ui) -> Result<()> {
    let mounted = || live::reachable().into_iter().map(|(_, answer)| answer.subject.image);
    let Some(place) = place else {
        return mounted().try_for_each(|image| usage::show(&Space::of(&image, ui)?, units, ui));
    };
    let is_path = place.exists() || buttress_remote::is_remote(place);
    if is_path || place.as_os_str().as_encoded_bytes().contains(&b'/') {
        return usage::show(&Space::of(place, ui)?, units, ui);
    }
    for image in mounted() {
        let space = Space::of(&image, ui)?;
        if [space.label(), space.document.uuid.clone()].iter().any(|name| place == Path::new(name))
        {
            return usage::show(&space, units, ui);
        }
    }
    let what = format!("not a valid btrfs filesystem: {}", place.display());
    Err(Failure::new(Exit::Failure, what))
}
