//! `buttress device`: what is known of a volume's devices.

use std::path::PathBuf;

use buttress_fs::DeviceInfo;
use serde::Serialize;

use crate::exit::{Context, Exit, Result};
use crate::image::{self, Access, Devices};
use crate::ui::Ui;

/// What to do with devices.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Verb {
    /// Show how often each device failed.
    Stats(Stats),
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
        Verb::Stats(args) => stats(&args, ui),
    }
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
