//! `buttress device`: adds and removes devices, and shows how often they failed.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use buttress_block::{Device, FileDevice, OpenOptions, probe};
use buttress_format::DeviceId;
use buttress_fs::{DeviceInfo, Filesystem};
use serde::Serialize;

use crate::commands::balance::bar;
use crate::exit::{Context, Exit, Failure, Result};
use crate::image::{self, Access, Devices};
use crate::ui::Ui;

/// What to do with devices.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Verb {
    /// Make devices part of a volume. Whatever is on them is gone.
    Add(Add),
    /// Move everything off a device and make it no part of the volume any more.
    #[command(alias = "delete")]
    Remove(Remove),
    /// Put a new device in the place of another, which may be missing. Whatever is on it is gone.
    Replace(Replace),
    /// Show how often each device failed.
    Stats(Stats),
}

#[derive(Debug, clap::Args)]
pub(crate) struct Replace {
    /// The volume, which nobody may have mounted.
    #[arg(value_name = "IMG")]
    image: PathBuf,
    /// The device to replace: by number, by path, or `missing`.
    #[arg(value_name = "DEVICE")]
    old: String,
    /// The image file or block device to take its place; make an image file as long as the old one first.
    #[arg(value_name = "NEW")]
    new: PathBuf,
    #[command(flatten)]
    devices: Devices,
    /// Overwrite a filesystem or partition table.
    #[arg(long, short)]
    force: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Add {
    /// The volume.
    #[arg(value_name = "IMG")]
    image: PathBuf,
    /// The image files or block devices to add.
    #[arg(value_name = "NEW", required = true)]
    new: Vec<PathBuf>,
    #[command(flatten)]
    devices: Devices,
    /// Overwrite a filesystem or partition table.
    #[arg(long, short)]
    force: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Remove {
    /// The volume, which nobody may have mounted.
    #[arg(value_name = "IMG")]
    image: PathBuf,
    /// The devices to remove: by number, by path, or `missing`.
    #[arg(value_name = "DEVICE", required = true)]
    gone: Vec<String>,
    #[command(flatten)]
    devices: Devices,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Stats {
    /// The volume.
    #[arg(value_name = "IMG")]
    image: PathBuf,
    #[command(flatten)]
    devices: Devices,
    /// End with exit code 1 if any count is not zero.
    #[arg(long, short)]
    check: bool,
    /// Set all counts to zero after showing them.
    #[arg(long, short = 'z')]
    reset: bool,
}

/// What scripts read, in the words of `btrfs device stats`.
#[derive(Serialize)]
struct Row {
    device: String,
    devid: u64,
    write_io_errs: u64,
    read_io_errs: u64,
    flush_io_errs: u64,
    corruption_errs: u64,
    generation_errs: u64,
}

impl Row {
    fn of(device: DeviceInfo) -> Self {
        let [write, read, flush, corruption, generation] = device.stats.counts;
        Self {
            device: device.name,
            devid: device.id.0,
            write_io_errs: write,
            read_io_errs: read,
            flush_io_errs: flush,
            corruption_errs: corruption,
            generation_errs: generation,
        }
    }

    fn counts(&self) -> [(&'static str, u64); 5] {
        [
            ("write_io_errs", self.write_io_errs),
            ("read_io_errs", self.read_io_errs),
            ("flush_io_errs", self.flush_io_errs),
            ("corruption_errs", self.corruption_errs),
            ("generation_errs", self.generation_errs),
        ]
    }
}

pub(crate) fn run(verb: Verb, ui: &Ui) -> Result<Exit> {
    match verb {
        Verb::Add(args) => add(&args, ui),
        Verb::Remove(args) => remove(&args, ui),
        Verb::Replace(args) => replace(&args, ui),
        Verb::Stats(args) => stats(&args, ui),
    }
}

/// Opens a device that is to become part of a volume, after a look at what is on it.
fn fresh(path: &Path, force: bool) -> Result<Arc<dyn Device>> {
    let device = FileDevice::open(path, OpenOptions::WRITE).map_err(Failure::of_device)?;
    let name = path.display().to_string();
    if !force && let Some(found) = probe::identify(&device).context(|| &name)? {
        let what = format!("{name}: holds {found}; --force overwrites it");
        return Err(Failure::new(Exit::Refused, what));
    }
    Ok(Arc::new(device))
}

fn add(args: &Add, ui: &Ui) -> Result<Exit> {
    let added: Vec<_> =
        args.new.iter().map(|path| fresh(path, args.force)).collect::<Result<_>>()?;
    let fs = image::open(&args.image, &args.devices, Access::Write)?;
    for device in added {
        let name = device.name();
        let id = fs.add_device(device).context(|| &name)?;
        if !ui.json() {
            ui.line(format!("{name}: device {id} of {}", args.image.display()))?;
        }
    }
    image::close(fs, &args.image)?;
    Ok(Exit::Success)
}

/// The device that is called by its number, its path, or `missing`.
fn find(fs: &Filesystem, called: &str, name: &str) -> Result<DeviceId> {
    let here = fs.devices();
    let by_path = || {
        let path = std::fs::canonicalize(called).ok();
        let same = |name: &str| {
            name == called || (path.is_some() && path == std::fs::canonicalize(name).ok())
        };
        here.iter().find(|device| same(&device.name)).map(|device| device.id)
    };
    let id = match called {
        "missing" => fs.missing_devices().context(|| name)?.first().copied(),
        number => number.parse().ok().map(DeviceId).or_else(by_path),
    };
    id.ok_or_else(|| {
        Failure::new(Exit::Usage, format!("{called}: no device of {name} is called that"))
    })
}

fn remove(args: &Remove, ui: &Ui) -> Result<Exit> {
    let name = args.image.display().to_string();
    let fs = image::open(&args.image, &args.devices, Access::Write)?;
    for gone in &args.gone {
        let id = find(&fs, gone, &name)?;
        let mut progress = bar(ui, "remove");
        fs.remove_device(id, &mut progress).context(|| &name)?;
    }
    image::close(fs, &args.image)?;
    Ok(Exit::Success)
}

fn replace(args: &Replace, ui: &Ui) -> Result<Exit> {
    let name = args.image.display().to_string();
    let new = fresh(&args.new, args.force)?;
    let fs = image::open(&args.image, &args.devices, Access::Write)?;
    let id = find(&fs, &args.old, &name)?;
    let mut progress = bar(ui, "replace");
    let found = fs.replace_device(id, new, &mut progress).context(|| &name)?;
    drop(progress);
    image::close(fs, &args.image)?;
    let lost = found.uncorrectable_errors;
    if ui.json() {
        ui.document(&serde_json::json!({ "devid": id.0, "uncorrectable_errors": lost }))?;
    } else {
        ui.line(format!("{}: device {id} of {name}", args.new.display()))?;
        if lost > 0 {
            ui.line(format!("{lost} pieces could be read from no device"))?;
        }
    }
    Ok(if lost > 0 { Exit::Corrupt } else { Exit::Success })
}

fn stats(args: &Stats, ui: &Ui) -> Result<Exit> {
    let access = if args.reset { Access::Write } else { Access::Read };
    let fs = image::open(&args.image, &args.devices, access)?;
    let rows: Vec<Row> = fs.devices().into_iter().map(Row::of).collect();
    if args.reset {
        fs.reset_device_stats().context(|| args.image.display().to_string())?;
    }
    image::close(fs, &args.image)?;
    if ui.json() {
        ui.document(&rows)?;
    } else {
        for row in &rows {
            for (name, count) in row.counts() {
                ui.line(format!("{:<40} {count}", format!("[{}].{name}", row.device)))?;
            }
        }
    }
    let failed = rows.iter().any(|row| row.counts().iter().any(|(_, count)| *count > 0));
    Ok(if args.check && failed { Exit::Failure } else { Exit::Success })
}
