//! `buttress device`: adds and removes devices, and shows how often they failed.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use buttress_base::text;
use buttress_words::units::Units;
use serde_json::Value;

use crate::client;
use crate::commands::filesystem::resize::cancel;
use crate::execute::{self, DeviceRow};
use crate::exit::{Context, Exit, Result};
use crate::image::Devices;
use crate::order::Order;
use crate::ui::Ui;

/// The actions on devices.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Verb {
    /// Add devices to a volume. Existing data on them is lost. If the volume is a seed, a new
    /// volume grows on the devices.
    Add(Add),
    /// Move all data off a device, and remove it from the volume.
    #[command(alias = "delete")]
    Remove(Remove),
    /// Replace a device, which may be missing, by a new one. Existing data on the new device is
    /// lost.
    Replace(Replace),
    /// Show the error counts of devices.
    Stats(Stats),
}

impl Verb {
    /// Adds devices with the lines of btrfs-progs.
    pub(crate) fn adding(image: PathBuf, new: Vec<PathBuf>, force: bool, discard: bool) -> Self {
        let devices = Devices::default();
        Self::Add(Add { image, new, force, devices, discard, is_silent: true })
    }

    pub(crate) fn removing(image: PathBuf, gone: Vec<OsString>) -> Self {
        Self::Remove(Remove { image, gone, devices: Devices::default() })
    }

    pub(crate) fn replacing(old: OsString, new: PathBuf, image: PathBuf, force: bool) -> Self {
        Self::Replace(Replace { image, old, new, devices: Devices::default(), force })
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct Replace {
    /// The image or block device of the volume, or a directory where this user has mounted it.
    #[arg(value_name = "IMG")]
    image: PathBuf,
    /// The device to replace: its number, its path, or `missing`.
    #[arg(value_name = "DEVICE")]
    old: OsString,
    /// The image file or block device that replaces the old device. An image file must exist, and
    /// be at least as long as the old device.
    #[arg(value_name = "NEW")]
    new: PathBuf,
    #[command(flatten)]
    devices: Devices,
    /// Overwrite an existing filesystem or partition table.
    #[arg(long, short)]
    force: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Add {
    /// The image or block device of the volume, or a directory where this user has mounted it.
    #[arg(value_name = "IMG")]
    image: PathBuf,
    /// The image files or block devices to add.
    #[arg(value_name = "NEW", required = true)]
    new: Vec<PathBuf>,
    #[command(flatten)]
    devices: Devices,
    /// Overwrite an existing filesystem or partition table.
    #[arg(long, short)]
    force: bool,
    /// Discard the whole content of the devices first.
    #[arg(skip)]
    discard: bool,
    /// Print no line for a device of the same volume.
    #[arg(skip)]
    is_silent: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Remove {
    /// The image or block device of the volume, or a directory where this user has mounted it.
    #[arg(value_name = "IMG")]
    image: PathBuf,
    /// The devices to remove: their numbers, their paths, or `missing`. The word `cancel` in their
    /// place stops a running removal.
    #[arg(value_name = "DEVICE", required = true)]
    gone: Vec<OsString>,
    #[command(flatten)]
    devices: Devices,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Stats {
    /// The image or block device of the volume, or a directory where this user has mounted it.
    #[arg(value_name = "IMG")]
    image: PathBuf,
    #[command(flatten)]
    devices: Devices,
    /// Exit with code 1 if any count is not zero.
    #[arg(long, short)]
    check: bool,
    /// Reset the counts to zero after showing them.
    #[arg(long, short = 'z')]
    reset: bool,
}

pub(crate) fn run(verb: Verb, ui: &Ui) -> Result<Exit> {
    match verb {
        Verb::Add(args) => add(&args, ui),
        Verb::Remove(args) => remove(&args, ui),
        Verb::Replace(args) => replace(&args, ui),
        Verb::Stats(args) => stats(&args, ui),
    }
}

fn add(args: &Add, ui: &Ui) -> Result<Exit> {
    let mut added = Vec::new();
    for path in &args.new {
        // All devices are checked before the first device is added.
        drop(execute::fresh_device(path, args.force)?);
    }
    let (mut image, mut devices) = (args.image.clone(), args.devices.clone());
    for path in &args.new {
        let (new, discard) = (client::whole(path)?, args.discard);
        let order = Order::DeviceAdd { new: new.clone(), force: args.force, discard };
        let done = client::run(&order, &image, &devices, "add", ui)?;
        if let Some(len) = done["discarded_bytes"].as_u64() {
            let (name, len) = (new.display(), Units::default().show(len));
            ui.line(format!("Performing full device TRIM {name} ({len}) ..."))?;
        }
        if done["grown_from"].is_null() {
            if !ui.json() && !args.is_silent {
                let id = &done["devid"];
                ui.line(format!("{}: device {id} of {}", path.display(), image.display()))?;
            }
        } else {
            // A seed has grown into a sprout: the new device becomes the image, and the seeds its
            // other devices.
            let seeds = done["grown_from"].as_array().into_iter().flatten();
            let decoded =
                |name: &str| text::decode(name).map(OsString::from_vec).map(PathBuf::from);
            devices.devices = seeds.filter_map(Value::as_str).filter_map(decoded).collect();
            image.clone_from(path);
            if !ui.json() {
                let options: Vec<_> = devices
                    .devices
                    .iter()
                    .map(|seed| format!("--device {}", seed.display()))
                    .collect();
                let options = options.join(" ");
                ui.line(format!("{}: a new volume; open it with {options}", path.display()))?;
            }
        }
        added.push(done);
    }
    if ui.json() {
        ui.document(&added)?;
    }
    Ok(Exit::Success)
}

/// Returns the name of a device as another process needs it: an absolute path, a number, or
/// `missing`.
fn called(name: &OsStr) -> String {
    let is_number = name.to_str().is_some_and(|name| name.parse::<u64>().is_ok());
    let whole = std::fs::canonicalize(name).ok().filter(|_| !is_number && name != "missing");
    text::of_path(whole.as_deref().unwrap_or(Path::new(name)))
}

fn remove(args: &Remove, ui: &Ui) -> Result<Exit> {
    if args.gone == ["cancel"] {
        let order = Order::DeviceRemoveCancel;
        return cancel(&order, "remove", &args.image, &args.devices, ui);
    }
    let mut removed = Vec::new();
    for gone in &args.gone {
        let order = Order::DeviceRemove { called: called(gone) };
        removed.push(client::run(&order, &args.image, &args.devices, "remove", ui)?);
    }
    if ui.json() {
        ui.document(&removed)?;
    }
    Ok(Exit::Success)
}

fn replace(args: &Replace, ui: &Ui) -> Result<Exit> {
    let name = args.image.display().to_string();
    let (new, force) = (client::whole(&args.new)?, args.force);
    let order = Order::DeviceReplace { called: called(&args.old), new, force };
    let done = client::run(&order, &args.image, &args.devices, "replace", ui)?;
    let lost = done["uncorrectable_errors"].as_u64().unwrap_or(0);
    if ui.json() {
        ui.document(&done)?;
    } else {
        ui.line(format!("{}: device {} of {name}", args.new.display(), done["devid"]))?;
        if lost > 0 {
            ui.line(format!("{lost} pieces could be read from no device"))?;
        }
    }
    Ok(if lost > 0 { Exit::Corrupt } else { Exit::Success })
}

fn stats(args: &Stats, ui: &Ui) -> Result<Exit> {
    let order = Order::DeviceStats { reset: args.reset };
    let told = client::run(&order, &args.image, &args.devices, "stats", ui)?;
    let rows: Vec<DeviceRow> = serde_json::from_value(told).context(|| "the answer")?;
    if ui.json() {
        ui.document(&rows)?;
    } else {
        for row in &rows {
            for (name, count) in row.counts() {
                ui.line(format!("[{}].{name:<16} {count}", row.device))?;
            }
        }
    }
    let failed = rows.iter().any(|row| row.counts().iter().any(|(_, count)| *count > 0));
    Ok(if args.check && failed { Exit::Failure } else { Exit::Success })
}
