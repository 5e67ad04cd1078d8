//! `buttress df`: how full a volume is.

use std::path::PathBuf;

use serde::Serialize;

use crate::exit::{Context, Exit, Result};
use crate::image::{self, Access, Devices};
use crate::size;
use crate::ui::Ui;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The volume.
    #[arg(value_name = "IMG")]
    image: PathBuf,
    #[command(flatten)]
    devices: Devices,
}

/// What scripts read, in bytes.
#[derive(Serialize)]
struct Document {
    size: u64,
    used: u64,
    available: u64,
}

pub(crate) fn run(args: Args, ui: &Ui) -> Result<Exit> {
    let fs = image::open(&args.image, &args.devices, Access::Read)?;
    let stat = fs.statfs().context(|| args.image.display().to_string())?;
    let unit = u64::from(stat.block_size);
    let document = Document {
        size: stat.blocks.saturating_mul(unit),
        used: stat.blocks.saturating_sub(stat.blocks_free).saturating_mul(unit),
        available: stat.blocks_available.saturating_mul(unit),
    };
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
