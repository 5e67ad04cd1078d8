//! `buttress subvolume`: makes, copies, deletes and shows subvolumes, in the words of `btrfs
//! subvolume`.
//!
//! # Place
//!
//! This file parses arguments and shows results. `crate::execute` does the work, in this process or
//! in the process that has the volume mounted. A path on a mount of this user is accepted wherever
//! a path in an image is.

use std::ffi::OsString;
use std::path::Path;

use buttress_control::named::Named;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::client;
use crate::exit::{Context, Exit, Failure, Result};
use crate::image::Devices;
use crate::names;
use crate::order::{Act, Order, PathInVolume, Shown};
use crate::ui::Ui;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Create empty subvolumes.
    Create {
        /// The new subvolumes, as IMG:/path or as a path on a mount.
        #[arg(required = true, value_name = "IMG:/PATH | PATH")]
        places: Vec<OsString>,
        #[command(flatten)]
        devices: Devices,
    },
    /// Create a snapshot of a subvolume.
    Snapshot {
        /// Make the snapshot read-only.
        #[arg(short = 'r')]
        read_only: bool,
        /// The subvolume to snapshot, as IMG:/path or as a path on a mount.
        #[arg(value_name = "IMG:/SOURCE | SOURCE")]
        source: OsString,
        /// The snapshot, or an existing directory in which it gets the name of the source.
        #[arg(value_name = "IMG:/TARGET | TARGET")]
        target: OsString,
        #[command(flatten)]
        devices: Devices,
    },
    /// Delete subvolumes, and free their space.
    Delete {
        /// The subvolumes to delete, as IMG:/path or as a path on a mount.
        #[arg(required = true, value_name = "IMG:/PATH | PATH")]
        places: Vec<OsString>,
        /// Do not wait for the space. It is freed in the background while the volume is mounted.
        #[arg(long)]
        later: bool,
        #[command(flatten)]
        devices: Devices,
    },
    /// List all subvolumes.
    List {
        /// The image or block device of the volume, or a directory where it is mounted.
        #[arg(value_name = "IMG | DIR")]
        place: OsString,
        #[command(flatten)]
        devices: Devices,
    },
    /// Show everything about one subvolume.
    Show {
        /// The subvolume, as IMG:/path or as a path on a mount.
        #[arg(value_name = "IMG:/PATH | PATH")]
        place: OsString,
        #[command(flatten)]
        devices: Devices,
    },
    /// Show the default subvolume, which a mount without other options shows.
    GetDefault {
        /// The image or block device of the volume, or a directory where it is mounted.
        #[arg(value_name = "IMG | DIR")]
        place: OsString,
        #[command(flatten)]
        devices: Devices,
    },
    /// Set the default subvolume.
    SetDefault {
        /// The subvolume, as IMG:/path or as a path on a mount, or its number, followed by the
        /// volume.
        #[arg(value_name = "IMG:/PATH | ID")]
        what: OsString,
        /// The volume, if the subvolume is given by its number.
        #[arg(value_name = "IMG")]
        place: Option<OsString>,
        #[command(flatten)]
        devices: Devices,
    },
}

pub(crate) fn run(args: Args, ui: &Ui) -> Result<Exit> {
    match args.verb {
        Verb::Create { places, devices } => create(&places, &devices, ui),
        Verb::Snapshot { read_only, source, target, devices } => {
            snapshot(read_only, &source, &target, &devices, ui)
        }
        Verb::Delete { places, later, devices } => delete(&places, later, &devices, ui),
        Verb::List { place, devices } => show(&place, |_| Act::List, &devices, ui),
        Verb::Show { place, devices } => show(&place, |at| Act::Show { at }, &devices, ui),
        Verb::GetDefault { place, devices } => show(&place, |_| Act::GetDefault, &devices, ui),
        Verb::SetDefault { what, place, devices } => set_default(&what, place, &devices, ui),
    }
}

fn order(act: Act, volume: &Path, devices: &Devices, what: &'static str, ui: &Ui) -> Result<Value> {
    client::run(&Order::Subvolume(act), volume, devices, what, ui)
}

/// Calls `act` for each place in turn, and prints each result in a line. With JSON all results are
/// in one document, also the results before a failure.
fn each(
    places: &[OsString],
    ui: &Ui,
    mut act: impl FnMut(Named) -> Result<Value>,
    line: impl Fn(&Value, &str) -> String,
) -> Result<Exit> {
    let mut documents = Vec::new();
    let mut ended = Ok(Exit::Success);
    for place in places {
        let text = names::of_path(place);
        match Named::parse(place).and_then(&mut act) {
            Ok(done) if ui.json() => documents.push(json!({ "place": text, "id": done["id"] })),
            Ok(done) => ui.line(line(&done, &text))?,
            Err(failure) => {
                ended = Err(failure);
                break;
            }
        }
    }
    if ui.json() {
        ui.document(&documents)?;
    }
    ended
}

fn create(places: &[OsString], devices: &Devices, ui: &Ui) -> Result<Exit> {
    let (uid, gid) = crate::transfer::caller();
    let act = |Named { volume, spot, .. }: Named| {
        order(
            Act::Create { at: spot, uid, gid, groups: Vec::new() },
            &volume,
            devices,
            "create",
            ui,
        )
    };
    each(places, ui, act, |_, text| format!("Create subvolume '{text}'"))
}

fn snapshot(
    read_only: bool,
    source: &OsString,
    target: &OsString,
    devices: &Devices,
    ui: &Ui,
) -> Result<Exit> {
    let (source, target) = (Named::parse(source)?, Named::parse(target)?);
    if let Some(ground) = source.elsewhere.as_ref().filter(|_| source.volume.is_dir()) {
        let what = format!("{}: is on {ground}, which is no mount of buttress", source.spot.text);
        return Err(Failure::new(Exit::Failure, what));
    }
    if !source.is_one_with(&target) {
        let mut what = "a snapshot lies on the volume of its source".to_owned();
        if let Some(ground) = &target.elsewhere {
            what += &format!(": {} is on {ground}", target.spot.text);
        }
        return Err(Failure::new(Exit::Usage, what));
    }
    let (from, to) = (source.spot.text.clone(), target.spot.text.clone());
    let groups = Vec::new();
    let act = Act::Snapshot { source: source.spot, target: target.spot, read_only, groups };
    let done = order(act, &source.volume, devices, "snapshot", ui)?;
    if ui.json() {
        let id = &done["id"];
        ui.document(&json!({ "source": from, "place": to, "read_only": read_only, "id": id }))?;
        return Ok(Exit::Success);
    }
    let kind = if read_only { "readonly snapshot" } else { "snapshot" };
    ui.line(format!("Create {kind} of '{from}' in '{to}'"))?;
    Ok(Exit::Success)
}

fn delete(places: &[OsString], later: bool, devices: &Devices, ui: &Ui) -> Result<Exit> {
    let act = |Named { volume, spot, .. }: Named| {
        order(Act::Delete { at: spot, wait: !later }, &volume, devices, "dropping", ui)
    };
    each(places, ui, act, |done, text| {
        let later = match done["in_use"] == true {
            true => ", its space is freed when no program uses it any more",
            false => "",
        };
        format!("Delete subvolume {} (commit): '{text}'{later}", done["id"])
    })
}

fn show(
    place: &OsString,
    act: impl FnOnce(PathInVolume) -> Act,
    devices: &Devices,
    ui: &Ui,
) -> Result<Exit> {
    let Named { volume, spot, .. } = Named::parse(place)?;
    let done = order(act(spot), &volume, devices, "subvolumes", ui)?;
    let shown = Shown::deserialize(done).context(|| "the answer")?;
    if ui.json() {
        ui.document(&shown.document)?;
        return Ok(Exit::Success);
    }
    for line in &shown.lines {
        ui.line(line)?;
    }
    Ok(Exit::Success)
}

fn set_default(
    what: &OsString,
    volume: Option<OsString>,
    devices: &Devices,
    ui: &Ui,
) -> Result<Exit> {
    let named = Named::parse(volume.as_ref().unwrap_or(what))?;
    let act = match volume {
        None => Act::SetDefault { at: named.spot },
        Some(_) => {
            let number = what.to_str().and_then(|text| text.parse().ok()).ok_or_else(|| {
                Failure::new(Exit::Usage, format!("{}: no number", what.display()))
            })?;
            Act::SetDefaultId { id: number }
        }
    };
    order(act, &named.volume, devices, "set-default", ui)?;
    Ok(Exit::Success)
}
