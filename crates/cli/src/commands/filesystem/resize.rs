//! `buttress filesystem resize`: gives a device another size.

use std::path::PathBuf;

use buttress_format::DeviceId;
use buttress_fs::{BalanceProgress, Filesystem};
use serde_json::{Value, json};

use crate::exit::{Context, Exit, Failure, Result};
use crate::image::Devices;
use crate::order::{self, Order};
use crate::size;
use crate::ui::Ui;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The new size: 4G, or +1G and -1G for more and less, or max for all of the device; behind the
    /// number of a device and a colon for another than the first, as in 2:max.
    #[arg(value_name = "[DEVID:]SIZE", allow_hyphen_values = true)]
    size: String,
    /// The volume, or where this user has it mounted. Of an image file that is to grow, make the file longer first.
    #[arg(value_name = "IMG")]
    image: PathBuf,
    #[command(flatten)]
    devices: Devices,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<Exit> {
    let order = Order::Resize { size: args.size.clone() };
    let done = order::run(&order, &args.image, &args.devices, "resize", ui)?;
    if ui.json() {
        ui.document(&done)?;
    } else {
        let bytes = |name: &str| size::human(done[name].as_u64().unwrap_or(0));
        let (name, id) = (args.image.display(), &done["devid"]);
        ui.line(format!("{name}: device {id}: {} -> {}", bytes("from"), bytes("to")))?;
    }
    Ok(Exit::Success)
}

/// Resizes a device of a volume that is open.
pub(crate) fn carry_out(
    fs: &Filesystem,
    wanted: &str,
    name: &str,
    watch: &mut dyn FnMut(&BalanceProgress) -> bool,
) -> Result<Value> {
    let usage = |what: String| Failure::new(Exit::Usage, format!("{wanted}: {what}"));
    let (id, text) = wanted.split_once(':').unwrap_or(("1", wanted));
    let id = DeviceId(id.parse().map_err(|_| usage(format!("{id:?} is no number of a device")))?);
    let device = fs.devices().into_iter().find(|device| device.id == id);
    let device = device.ok_or_else(|| usage(format!("there is no device {id} here")))?;
    let now = device.item.total_bytes;
    let bytes = |text: &str| size::parse(text).map_err(&usage);
    let to = match (text, text.as_bytes().first()) {
        ("max", _) => device.len,
        (_, Some(b'+')) => now.saturating_add(bytes(&text[1..])?),
        (_, Some(b'-')) => now.saturating_sub(bytes(&text[1..])?),
        _ => bytes(text)?,
    };
    fs.resize_device(id, to, watch).context(|| name)?;
    Ok(json!({ "devid": id.0, "from": now, "to": to }))
}
