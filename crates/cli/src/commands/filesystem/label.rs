//! `buttress filesystem label`: the name of a volume.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use buttress_volume::Volume;
use serde_json::json;

use crate::client;
use crate::exit::{Context, Exit, Result};
use crate::image::{self, Access, Devices};
use crate::location::show;
use crate::order::Order;
use crate::ui::Ui;
use crate::{live, names};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The image or block device of the volume, or a directory where this user has mounted it.
    #[arg(value_name = "IMG")]
    image: PathBuf,
    /// The new label, of at most 255 bytes. An empty one removes the label.
    #[arg(value_name = "LABEL")]
    label: Option<OsString>,
    #[command(flatten)]
    devices: Devices,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<Exit> {
    let label = match &args.label {
        Some(label) => {
            set(&args.image, &args.devices, label, ui)?;
            label.clone()
        }
        None => get(&args.image, &args.devices)?,
    };
    if ui.json() {
        ui.document(&json!({ "label": names::of_path(&label) }))?;
    } else if args.label.is_none() {
        ui.line(show(label.as_bytes()))?;
    }
    Ok(Exit::Success)
}

/// Gives a volume another label, in whatever process the volume is open.
pub(crate) fn set(place: &Path, devices: &Devices, label: &OsStr, ui: &Ui) -> Result<()> {
    let order = Order::Label { label: label.as_bytes().to_vec() };
    client::run(&order, place, devices, "label", ui)?;
    Ok(())
}

fn get(place: &Path, devices: &Devices) -> Result<OsString> {
    // The superblock of the image has the label of the mount, so the mount is not asked.
    let found = live::find(place)?;
    let image = found.map_or_else(|| place.to_owned(), |(_, answer)| answer.subject.image);
    let devices = image::open_devices(&image, devices, Access::Peek)?;
    let superblock =
        Volume::read_superblock(&*devices[0]).context(|| place.display().to_string())?;
    Ok(OsStr::from_bytes(superblock.label_bytes()).to_owned())
}
