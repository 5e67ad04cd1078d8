//! `buttress df`: how full a volume is.

use std::path::PathBuf;

use serde::Deserialize;

use crate::client;
use crate::execute::Room;
use crate::exit::{Context, Exit, Result};
use crate::image::Devices;
use crate::order::Order;
use crate::size;
use crate::ui::Ui;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The image or block device of the volume, or a directory where it is mounted.
    #[arg(value_name = "IMG | DIR")]
    image: PathBuf,
    #[command(flatten)]
    devices: Devices,
}

pub(crate) fn run(args: Args, ui: &Ui) -> Result<Exit> {
    let found = client::run(&Order::Room, &args.image, &args.devices, "df", ui)?;
    let document = Room::deserialize(&found).context(|| "the answer")?;
    if ui.json() {
        ui.document(&document)?;
        return Ok(Exit::Success);
    }
    let share = document.used as f64 / (document.used + document.available).max(1) as f64;
    ui.line(format!("{:>12} {:>12} {:>12} {:>5}", "Size", "Used", "Available", "Use%"))?;
    ui.line(format!(
        "{:>12} {:>12} {:>12} {:>4.0}%",
        size::human(document.size),
        size::human(document.used),
        size::human(document.available),
        share * 100.0
    ))?;
    Ok(Exit::Success)
}
