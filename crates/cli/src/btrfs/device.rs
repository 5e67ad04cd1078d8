//! `btrfs device`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use buttress_control::closing;
use buttress_words::json;
use buttress_words::resize::{CANCELED, canceled};
use buttress_words::units::Units;
use buttress_words::usage::{self, Space};

use super::replace;
use crate::client;
use crate::commands::device as own;
use crate::execute::DeviceRow;
use crate::exit::{Context, Exit, Failure, Result};
use crate::image::Devices;
use crate::order::Order;
use crate::ui::Ui;

#[derive(Debug, clap::Subcommand)]
pub(super) enum Verb {
    /// Add devices to a volume.
    Add {
        /// Overwrite an existing filesystem on the devices.
        #[arg(short, long)]
        force: bool,
        /// Discard nothing on the devices first.
        #[arg(short = 'K', long)]
        nodiscard: bool,
        /// Accepted for scripts. Work on the whole volume goes on beside other such work, in turns.
        #[arg(long)]
        enqueue: bool,
        /// The devices, then the volume.
        #[arg(required = true, num_args = 2..)]
        words: Vec<OsString>,
    },
    /// Move all data off devices and remove them from a volume.
    #[command(alias = "delete")]
    Remove {
        /// Accepted for scripts. Work on the whole volume goes on beside other such work, in turns.
        #[arg(long)]
        enqueue: bool,
        /// The devices, then the volume. The word cancel in place of devices stops a running
        /// removal.
        #[arg(required = true, num_args = 2..)]
        words: Vec<OsString>,
    },
    /// Accepted for scripts. No device has to be scanned or registered.
    Scan {
        /// Scan all devices. Has no effect.
        #[arg(short = 'd', long)]
        all_devices: bool,
        /// Forget devices. Has no effect: no list is kept.
        #[arg(short = 'u', long)]
        forget: bool,
        devices: Vec<PathBuf>,
    },
    /// Replace a device by another.
    #[command(subcommand)]
    Replace(replace::Verb),
    /// Check whether all devices of a volume are present.
    Ready { device: PathBuf },
    /// Show the error counts of devices.
    Stats {
        /// Reset the counts to zero after showing them.
        #[arg(short = 'z', long)]
        reset: bool,
        /// Exit with status 1 if any count is not zero.
        #[arg(short, long)]
        check: bool,
        /// Print a table with a row for each device.
        #[arg(short = 'T')]
        table: bool,
        /// A folder of the mount for all devices, or one device of the volume.
        place: PathBuf,
    },
    /// Show how the space of each device is used.
    Usage {
        #[command(flatten)]
        units: Units,
        #[arg(required = true)]
        places: Vec<PathBuf>,
    },
}

pub(super) fn run(verb: Verb, ui: &Ui) -> Result<Exit> {
    match verb {
        Verb::Add { force, nodiscard, words, .. } => {
            let (volume, new) = last(words)?;
            let new: Vec<PathBuf> = new.into_iter().map(PathBuf::from).collect();
            if !force {
                new.iter().try_for_each(|path| expect_empty(path))?;
            }
            own::run(own::Verb::adding(PathBuf::from(volume), new, force, !nodiscard), ui)
        }
        Verb::Remove { words, .. } => {
            let (volume, gone) = last(words)?;
            let volume = PathBuf::from(volume);
            match gone.iter().position(|word| word == "cancel") {
                Some(at) => cancel_removal(&volume, gone.get(at + 1), ui),
                None => remove(volume, gone, ui),
            }
        }
        Verb::Replace(verb) => replace::run(verb, ui),
        Verb::Scan { forget: true, .. } => Ok(Exit::Success),
        Verb::Scan { devices, .. } => {
            if devices.is_empty() {
                ui.line("Scanning for Btrfs filesystems")?;
            }
            for device in devices {
                if !device.exists() {
                    let what = format!("not a block device: {}", device.display());
                    return Err(Failure::new(Exit::Failure, what));
                }
                ui.line(format!("Scanning for btrfs filesystems on '{}'", device.display()))?;
            }
            Ok(Exit::Success)
        }
        Verb::Ready { device } => {
            let is_whole = Space::of(&device, ui)?.is_whole();
            Ok(if is_whole { Exit::Success } else { Exit::Failure })
        }
        Verb::Stats { reset, check, table, place } => stats(reset, check, table, &place, ui),
        Verb::Usage { units, places } => {
            for place in &places {
                usage::devices(&Space::of(place, ui)?, units, ui)?;
            }
            Ok(Exit::Success)
        }
    }
}

/// Removes devices.
fn remove(volume: PathBuf, gone: Vec<OsString>, ui: &Ui) -> Result<Exit> {
    let called = gone.first().map(|word| word.display().to_string()).unwrap_or_default();
    own::run(own::Verb::removing(volume, gone), ui).map_err(|failure| {
        if !failure.is_stopped() {
            return failure;
        }
        let device = match called.parse::<u64>() {
            Ok(id) => format!("devid {id}"),
            Err(_) => format!("device '{called}'"),
        };
        Failure::new(Exit::Failure, format!("error removing {device}: {CANCELED}"))
    })
}

/// Cancels the removal that is running. As on Linux, the request itself fails in any case. `more`
/// is a word behind `cancel`.
fn cancel_removal(volume: &Path, more: Option<&OsString>, ui: &Ui) -> Result<Exit> {
    ui.line("Request to cancel running device deletion")?;
    let why = match more {
        Some(more) => {
            format!("cancel requested but another device specified: {}\n", more.display())
        }
        None => {
            let order = Order::DeviceRemoveCancel;
            let told = client::run(&order, volume, &Devices::default(), "remove", ui)?;
            format!("error removing device 'cancel': {}", canceled(&told))
        }
    };
    Err(Failure::new(Exit::Failure, why))
}

/// Refuses a device that holds something.
fn expect_empty(path: &Path) -> Result<()> {
    let Some(found) = buttress_remote::overwritten(path).map_err(Failure::of_remote)? else {
        return Ok(());
    };
    let path = path.display();
    let what = format!(
        "{path} appears to contain an existing filesystem ({found})\n\
         ERROR: use the -f option to force overwrite of {path}"
    );
    Err(Failure::new(Exit::Failure, what))
}

/// Shows the error counts of all devices, or of one device if the place is one of several.
fn stats(reset: bool, check: bool, table: bool, place: &Path, ui: &Ui) -> Result<Exit> {
    let order = Order::DeviceStats { reset };
    let told = client::run(&order, place, &Devices::default(), "stats", ui)?;
    let mut rows: Vec<DeviceRow> = serde_json::from_value(told).context(|| "the answer")?;
    let full = |path: &Path| closing::full_name(path).ok();
    let is_it = |row: &DeviceRow| full(Path::new(&row.device)) == full(place);
    if !place.is_dir() && rows.iter().any(is_it) {
        rows.retain(is_it);
    }
    if ui.json() {
        let list: Vec<_> = rows.iter().map(in_json).collect();
        json::document("device-stats", &list, ui)?;
    } else if table {
        for line in table_of(&rows) {
            ui.line(line)?;
        }
    } else {
        for row in &rows {
            for (name, count) in row.counts() {
                ui.line(format!("[{}].{name:<16} {count}", row.device))?;
            }
        }
    }
    let failed = rows.iter().any(|row| row.counts().iter().any(|(_, count)| *count > 0));
    Ok(if check && failed { Exit::Failure } else { Exit::Success })
}

/// In the JSON of btrfs-progs all numbers are texts.
fn in_json(row: &DeviceRow) -> json::Object {
    let counts = row.counts().map(|(name, count)| (name, count.to_string()));
    let about = [("device", row.device.clone()), ("devid", row.devid.to_string())];
    json::Object(about.into_iter().chain(counts).collect())
}

/// The heads of the columns behind the path, in the order of [`DeviceRow::counts`].
const HEADS: [&str; 5] =
    ["Write errors", "Read errors", "Flush errors", "Corruption errors", "Generation errors"];

fn table_of(rows: &[DeviceRow]) -> Vec<String> {
    let widest = rows.iter().map(|row| row.device.chars().count()).max().unwrap_or(0);
    let (path, id) = (
        widest.max("Path".len()),
        rows.iter().map(|row| row.devid.to_string().len()).max().unwrap_or(0).max("Id".len()),
    );
    let heads = HEADS.join(" ");
    let rules = HEADS.map(|head| "-".repeat(head.len())).join(" ");
    let mut lines = vec![
        format!("{:<id$} {:<path$} {heads}", "Id", "Path"),
        format!("{} {} {rules}", "-".repeat(id), "-".repeat(path)),
    ];
    for row in rows {
        let counts = row.counts().into_iter().zip(HEADS);
        let counts: Vec<_> = counts
            .map(|((_, count), head)| format!("{count:>width$}", width = head.len()))
            .collect();
        lines.push(format!("{:>id$} {:<path$} {}", row.devid, row.device, counts.join(" ")));
    }
    lines
}

/// Splits off the last word, which is the volume.
fn last(mut words: Vec<OsString>) -> Result<(OsString, Vec<OsString>)> {
    let volume = words.pop().ok_or_else(|| Failure::new(Exit::Usage, "no volume was named"))?;
    Ok((volume, words))
}
