//! `buttress filesystem resize`: gives a device another size.

use std::path::PathBuf;

use buttress_format::DeviceId;

use crate::commands::balance::bar;
use crate::exit::{Context, Exit, Failure, Result};
use crate::image::{self, Access, Devices};
use crate::size;
use crate::ui::Ui;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The new size: 4G, or +1G and -1G for more and less, or max for all of the device; behind the
    /// number of a device and a colon for another than the first, as in 2:max.
    #[arg(value_name = "[DEVID:]SIZE", allow_hyphen_values = true)]
    size: String,
    /// The volume. Of an image file that is to grow, make the file longer first.
    #[arg(value_name = "IMG")]
    image: PathBuf,
    #[command(flatten)]
    devices: Devices,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<Exit> {
    let name = args.image.display().to_string();
    let usage = |what: String| Failure::new(Exit::Usage, format!("{}: {what}", args.size));
    let (id, text) = args.size.split_once(':').unwrap_or(("1", &args.size));
    let id = DeviceId(id.parse().map_err(|_| usage(format!("{id:?} is no number of a device")))?);
    let devices = image::open_devices(&args.image, &args.devices, Access::Peek)?;
    let len_of = |wanted: &str| devices.iter().find(|d| d.name() == wanted).map(|d| d.len());
    let fs = image::open(&args.image, &args.devices, Access::Write)?;
    let device = fs.devices().into_iter().find(|device| device.id == id);
    let device = device.ok_or_else(|| usage(format!("there is no device {id} here")))?;
    let now = device.item.total_bytes;
    let bytes = |text: &str| size::parse(text).map_err(&usage);
    let wanted = match (text, text.as_bytes().first()) {
        ("max", _) => len_of(&device.name).unwrap_or(now),
        (_, Some(b'+')) => now.saturating_add(bytes(&text[1..])?),
        (_, Some(b'-')) => now.saturating_sub(bytes(&text[1..])?),
        _ => bytes(text)?,
    };
    let mut progress = bar(ui, "resize");
    fs.resize_device(id, wanted, &mut progress).context(|| &name)?;
    drop(progress);
    image::close(fs, &args.image)?;
    let (from, to) = (size::human(now), size::human(wanted));
    if !ui.json() {
        ui.line(format!("{name}: device {id}: {from} -> {to}"))?;
    }
    Ok(Exit::Success)
}
