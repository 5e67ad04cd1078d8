//! `buttress subvolume`: makes, copies, deletes and shows subvolumes, in the words of `btrfs
//! subvolume`.
//!
//! # Place
//!
//! Reads the words and shows what came of them; `crate::execute` does it, here or in the process
//! that has the volume mounted. A path of the host that lies on a mount of this user is as good as
//! one in an image.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use buttress_fs::{Filesystem, Ino, TreeId};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::client;
use crate::exit::{Context, Exit, Failure, Result};
use crate::image::{self, Devices};
use crate::live;
use crate::location::VolumePath;
use crate::names;
use crate::order::{Act, Order, Shown, Spot};
use crate::ui::Ui;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Make empty subvolumes.
    Create {
        /// The subvolumes, as IMG:/path, or as a path on a mount.
        #[arg(required = true, value_name = "IMG:/PATH | PATH")]
        places: Vec<OsString>,
        #[command(flatten)]
        devices: Devices,
    },
    /// Make a snapshot of a subvolume.
    Snapshot {
        /// Forbid changes of the snapshot.
        #[arg(short = 'r')]
        read_only: bool,
        /// The subvolume to be copied, as IMG:/path, or as a path on a mount.
        #[arg(value_name = "IMG:/SOURCE | SOURCE")]
        source: OsString,
        /// The snapshot, or a directory in which it gets the source's name.
        #[arg(value_name = "IMG:/TARGET | TARGET")]
        target: OsString,
        #[command(flatten)]
        devices: Devices,
    },
    /// Delete subvolumes, and give their space back.
    Delete {
        /// The subvolumes, as IMG:/path, or as a path on a mount.
        #[arg(required = true, value_name = "IMG:/PATH | PATH")]
        places: Vec<OsString>,
        /// Leave what they held to the next writer: it is given back while the volume is mounted.
        #[arg(long)]
        later: bool,
        #[command(flatten)]
        devices: Devices,
    },
    /// List all subvolumes.
    List {
        /// The volume: its image, or where it is mounted.
        #[arg(value_name = "IMG | DIR")]
        place: OsString,
        #[command(flatten)]
        devices: Devices,
    },
    /// Show everything about one subvolume.
    Show {
        /// The subvolume, as IMG:/path, or as a path on a mount.
        #[arg(value_name = "IMG:/PATH | PATH")]
        place: OsString,
        #[command(flatten)]
        devices: Devices,
    },
    /// Show which subvolume is mounted when no other is asked for.
    GetDefault {
        /// The volume: its image, or where it is mounted.
        #[arg(value_name = "IMG | DIR")]
        place: OsString,
        #[command(flatten)]
        devices: Devices,
    },
    /// Have another subvolume mounted when no other is asked for.
    SetDefault {
        /// The subvolume, as IMG:/path or a path on a mount; or its number, and the volume behind
        /// it.
        #[arg(value_name = "IMG:/PATH | ID")]
        what: OsString,
        /// The volume, where a number came before.
        #[arg(value_name = "IMG")]
        place: Option<OsString>,
        #[command(flatten)]
        devices: Devices,
    },
}

/// A place that was named, and what has the volume: an image, or the top of a mount.
struct Named {
    volume: PathBuf,
    /// What the place lies on, where that is a folder of the host that is no mount of ours.
    elsewhere: Option<String>,
    spot: Spot,
}

impl Named {
    fn parse(argument: &OsString) -> Result<Self> {
        let text = names::of_path(argument);
        let place = VolumePath::parse(argument);
        let is_file = place.image.metadata().is_ok_and(|metadata| !metadata.is_dir());
        let is_image = is_file || buttress_remote::is_remote(&place.image);
        if !is_image && let Some(served) = live::served(Path::new(argument))? {
            let path = served.within.into_os_string().into_vec();
            let is_from_top = served.answer.subject.is_shared;
            let spot = Spot { path, is_mounted: true, is_from_top, text };
            return Ok(Self { volume: served.target, elsewhere: None, spot });
        }
        let elsewhere = if is_image { None } else { live::ground(Path::new(argument)) };
        let spot = Spot { path: place.path, is_mounted: false, is_from_top: false, text };
        Ok(Self { volume: place.image, elsewhere, spot })
    }
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

/// Does something to each place, one after the other, and says so: each in a line, or all in one
/// document, those before a failure too.
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
        order(Act::Create { at: spot, uid, gid }, &volume, devices, "create", ui)
    };
    each(places, ui, act, |_, text| format!("Create subvolume '{text}'"))
}

/// Whether two names are of one volume: of one file, or of an image and where it is mounted.
fn is_one(volume: &Path, other: &Path) -> bool {
    let file = |name: &Path| name.canonicalize().ok();
    let server = |name: &Path| live::find(name).ok().flatten().map(|(socket, _)| socket);
    let same = |one: Option<PathBuf>, other| one.is_some() && one == other;
    volume == other || same(file(volume), file(other)) || same(server(volume), server(other))
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
    if !is_one(&source.volume, &target.volume) {
        let mut what = "a snapshot lies on the volume of its source".to_owned();
        if let Some(ground) = &target.elsewhere {
            what += &format!(": {} is on {ground}", target.spot.text);
        }
        return Err(Failure::new(Exit::Usage, what));
    }
    let (from, to) = (source.spot.text.clone(), target.spot.text.clone());
    let act = Act::Snapshot { source: source.spot, target: target.spot, read_only };
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
        format!("Delete subvolume {} (commit): '{text}'", done["id"])
    })
}

fn show(
    place: &OsString,
    act: impl FnOnce(Spot) -> Act,
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

/// The subvolume that has a place as its top.
pub(super) fn find(fs: &Filesystem, place: &VolumePath) -> Result<TreeId> {
    let inode = image::resolve(fs, place)?;
    if inode.id().ino != Ino::ROOT_DIR {
        let what = format!("{}: not a subvolume", place.show());
        return Err(Failure::new(Exit::Failure, what));
    }
    Ok(inode.id().tree)
}
