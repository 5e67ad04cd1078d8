//! `buttress filesystem resize`: gives a device another size.

use std::path::{Path, PathBuf};

use crate::client;
use crate::exit::{Exit, Failure, Result};
use crate::image::Devices;
use crate::order::Order;
use crate::size;
use crate::ui::Ui;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The new size: 4G, or +1G and -1G to change it by that much, or max for the whole device. For
    /// another device than the first, put its number in front, as in 2:max. The word cancel stops
    /// a running resize.
    #[arg(value_name = "[DEVID:]SIZE", allow_hyphen_values = true)]
    size: String,
    /// The image or block device of the volume, or a directory where this user has mounted it. To
    /// grow an image file, make the file longer first.
    #[arg(value_name = "IMG")]
    image: PathBuf,
    #[command(flatten)]
    devices: Devices,
}

/// Stops work of a mount. Fails if no such work was running.
pub(crate) fn cancel(
    order: &Order,
    what: &'static str,
    place: &Path,
    devices: &Devices,
    ui: &Ui,
) -> Result<Exit> {
    let told = client::run(order, place, devices, what, ui)?;
    if told["canceled"] != true {
        let what = format!("{what} cancel failed on {}: not running", place.display());
        return Err(Failure::new(Exit::Usage, what));
    }
    match ui.json() {
        true => ui.document(&told)?,
        false => ui.line(format!("{what} cancelled"))?,
    }
    Ok(Exit::Success)
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<Exit> {
    if args.size == "cancel" {
        return cancel(&Order::ResizeCancel, "resize", &args.image, &args.devices, ui);
    }
    let order = Order::Resize { size: args.size.clone() };
    let done = client::run(&order, &args.image, &args.devices, "resize", ui)?;
    if ui.json() {
        ui.document(&done)?;
    } else {
        let bytes = |name: &str| size::human(done[name].as_u64().unwrap_or(0));
        let (name, id) = (args.image.display(), &done["devid"]);
        ui.line(format!("{name}: device {id}: {} -> {}", bytes("from"), bytes("to")))?;
    }
    Ok(Exit::Success)
}
