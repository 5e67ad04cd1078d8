//! `btrfs filesystem`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use buttress_words::units::{LongUnits, Units};
use buttress_words::usage::{self, Space};
use buttress_words::{linux, resize, swap, table};

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
        /// Show mounted volumes alone.
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
        Verb::Show { place, units, .. } => return show(place.as_deref(), units.into(), ui),
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

/// Shows one volume, or all volumes that this user has mounted and all that btrfs-progs know.
/// Mounted volumes are also found by their label or their identifier.
fn show(place: Option<&Path>, units: Units, ui: &Ui) -> Result<Exit> {
    let mounted = || live::reachable().into_iter().map(|(_, answer)| answer.subject.image);
    let Some(place) = place else {
        let mut shown = Vec::new();
        for image in mounted() {
            let space = Space::of(&image, ui)?;
            usage::show(&space, units, ui)?;
            shown.push(space.document.uuid);
        }
        // A copy of a volume that Linux has mounted has the same identifier.
        shown.retain(|uuid| !linux::has_mounted(uuid));
        return Ok(show_others(&shown, ui)?.unwrap_or(Exit::Success));
    };
    let is_path = place.exists() || buttress_remote::is_remote(place);
    if is_path || place.as_os_str().as_encoded_bytes().contains(&b'/') {
        usage::show(&Space::of(place, ui)?, units, ui)?;
        return Ok(Exit::Success);
    }
    for image in mounted() {
        let space = Space::of(&image, ui)?;
        if [space.label(), space.document.uuid.clone()].iter().any(|name| place == Path::new(name))
        {
            usage::show(&space, units, ui)?;
            return Ok(Exit::Success);
        }
    }
    if let Some(exit) = show_others(&[], ui)? {
        return Ok(exit);
    }
    let what = format!("not a valid btrfs filesystem: {}", place.display());
    Err(Failure::new(Exit::Failure, what))
}

/// Prints what btrfs-progs say to the same command line, without the volumes that were shown.
/// Returns `None` if btrfs-progs cannot be asked.
fn show_others(shown: &[String], ui: &Ui) -> Result<Option<Exit>> {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    if !linux::can_be_asked() {
        return Ok(None);
    }
    let output = match linux::ask(&words) {
        Ok(output) => output,
        Err(error) => {
            ui.note(format!("btrfs-progs cannot be asked: {error}"));
            return Ok(None);
        }
    };
    let text = String::from_utf8_lossy(&output.stdout);
    for line in others(&text, shown) {
        ui.line(line)?;
    }
    let is_told = output.status.success() || !shown.is_empty();
    Ok(Some(if is_told { Exit::Success } else { Exit::Failure }))
}

/// The lines of btrfs-progs about volumes that were not shown. A volume begins with its label.
fn others<'a>(text: &'a str, shown: &'a [String]) -> impl Iterator<Item = &'a str> {
    let mut is_new = true;
    text.lines().filter(move |line| {
        if line.starts_with("Label:") {
            is_new = !shown.iter().any(|uuid| line.ends_with(uuid.as_str()));
        }
        is_new
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_is_shown_once() {
        let text = "Label: none  uuid: a1\n\tdevid 1\n\nLabel: 'x'  uuid: b2\n\tdevid 2\n\n";
        let left = |shown: &[&str]| {
            let shown: Vec<_> = shown.iter().map(|&uuid| uuid.to_owned()).collect();
            others(text, &shown).collect::<Vec<_>>().join("|")
        };
        assert_eq!(left(&["a1"]), "Label: 'x'  uuid: b2|\tdevid 2|");
        assert_eq!(left(&["b2"]), "Label: none  uuid: a1|\tdevid 1|");
        assert_eq!(left(&["a1", "b2"]), "");
        assert_eq!(left(&[]).matches("devid").count(), 2);
    }
}
