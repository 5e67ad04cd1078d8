//! `buttress fstrim`: tells the devices which space is free.

use std::path::PathBuf;

use crate::client;
use crate::exit::{Exit, Failure, Result};
use crate::image::Devices;
use crate::order::Order;
use crate::size;
use crate::ui::Ui;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The image or block device of the volume, or a directory where this user has mounted it.
    #[arg(value_name = "IMG")]
    image: PathBuf,
    #[command(flatten)]
    devices: Devices,
    /// Start at this logical address of the volume.
    #[arg(long, short = 'o', value_name = "SIZE", default_value = "0")]
    offset: String,
    /// Trim this many bytes, beginning at --offset. The default is everything, and also the space
    /// outside of block groups.
    #[arg(long, short = 'l', value_name = "SIZE")]
    length: Option<String>,
    /// Leave out free ranges that are shorter than this.
    #[arg(long, short = 'm', value_name = "SIZE", default_value = "0")]
    minimum: String,
    /// Accepted, as by the fstrim of util-linux. The result is always printed.
    #[arg(long, short = 'v', hide = true)]
    verbose: bool,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<Exit> {
    let bytes = |text: &str| {
        size::parse(text).map_err(|what| Failure::new(Exit::Usage, format!("{text}: {what}")))
    };
    let length = args.length.as_deref().map(bytes).transpose()?;
    let order = Order::Fstrim {
        offset: bytes(&args.offset)?,
        length: length.unwrap_or(u64::MAX),
        minimum: bytes(&args.minimum)?,
    };
    let done = client::run(&order, &args.image, &args.devices, "fstrim", ui)?;
    if ui.json() {
        ui.document(&done)?;
        return Ok(Exit::Success);
    }
    let name = args.image.display();
    let bytes = |name: &str| done[name].as_u64().unwrap_or(0);
    let trimmed = bytes("trimmed_bytes");
    ui.line(format!("{name}: {} ({trimmed} bytes) trimmed", size::human(trimmed)))?;
    if bytes("left_bytes") > 0 {
        let left = size::human(bytes("left_bytes"));
        ui.line(format!("{name}: {left} left out: they may be needed at any moment"))?;
    }
    Ok(Exit::Success)
}
