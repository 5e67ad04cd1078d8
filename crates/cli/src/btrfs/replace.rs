//! `btrfs replace`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use crate::background;
use crate::client;
use crate::commands::device as own;
use crate::exit::{Exit, Result};
use crate::image::Devices;
use crate::order::Order;
use crate::ui::Ui;
use crate::when;

/// How often the status of a running replacement is printed.
const PERIOD: Duration = Duration::from_secs(1);

#[derive(Debug, clap::Subcommand)]
pub(super) enum Verb {
    /// Replace a device by a new one.
    Start {
        /// Wait until the replacement is done.
        #[arg(short = 'B')]
        waits: bool,
        /// Overwrite an existing filesystem on the new device.
        #[arg(short, long)]
        force: bool,
        /// Read from the old device only what no other device has. This is always done.
        #[arg(short = 'r')]
        spares_old: bool,
        /// Accepted for scripts. Work on the whole volume goes on beside other such work, in turns.
        #[arg(long)]
        enqueue: bool,
        /// Discard nothing on the new device first. Nothing is ever discarded.
        #[arg(short = 'K', long)]
        nodiscard: bool,
        /// The old device, as a path or its number.
        old: OsString,
        /// The new device.
        new: PathBuf,
        place: PathBuf,
    },
    /// Show the progress of a replacement, repeatedly until it ends.
    Status {
        /// Show the progress once.
        #[arg(short = '1')]
        once: bool,
        place: PathBuf,
    },
    /// Stop a replacement. The old device stays.
    Cancel { place: PathBuf },
}

pub(super) fn run(verb: Verb, ui: &Ui) -> Result<Exit> {
    match verb {
        Verb::Start { waits, force, old, new, place, .. } => {
            // As in btrfs-progs, a start in the background prints nothing.
            if !waits && background::begin(ui)?.is_some() {
                return Ok(Exit::Success);
            }
            own::run(own::Verb::replacing(old, new, place, force), ui)
        }
        Verb::Status { once, place } => status(&place, once, ui),
        Verb::Cancel { place } => cancel(&place, ui),
    }
}

fn status(place: &Path, once: bool, ui: &Ui) -> Result<Exit> {
    loop {
        let told = ask(&Order::ReplaceStatus, place, ui)?;
        ui.line(in_words(&told))?;
        if once || told["status"] != "running" {
            return Ok(Exit::Success);
        }
        std::thread::sleep(PERIOD);
    }
}

fn cancel(place: &Path, ui: &Ui) -> Result<Exit> {
    if ask(&Order::ReplaceCancel, place, ui)?["canceled"] == true {
        return Ok(Exit::Success);
    }
    let name = place.display();
    ui.line(format!("INFO: ioctl(DEV_REPLACE_CANCEL)\"{name}\": not started"))?;
    Ok(Exit::Usage)
}

fn ask(order: &Order, place: &Path, ui: &Ui) -> Result<Value> {
    client::run(order, place, &Devices::default(), "replace", ui)
}

/// One line about a replacement, as btrfs-progs print it.
fn in_words(told: &Value) -> String {
    let number = |name: &str| told[name].as_u64().unwrap_or(0);
    let day = |name: &str| when::in_brief(told[name].as_i64().unwrap_or(0));
    let (copied, total) = (number("copied_bytes"), number("total_bytes").max(1));
    let part = copied as f64 * 100.0 / total as f64;
    let (write, read) = (number("write_errors"), number("uncorrectable_errors"));
    let errors = format!("{write} write errs, {read} uncorr. read errs");
    match told["status"].as_str() {
        Some("running") => format!("{part:.1}% done, {errors}"),
        Some(state @ ("canceled" | "suspended")) => {
            let (started, ended) = (day("started"), day("ended"));
            format!("Started on {started}, {state} on {ended} at {part:.1}%, {errors}")
        }
        Some(_) => {
            format!("Started on {}, finished on {}, {errors}", day("started"), day("ended"))
        }
        None => "Never started".to_owned(),
    }
}
