//! `btrfs device`.

use std::ffi::OsString;
use std::path::PathBuf;

use buttress_words::usage::{self, Space, Units};

use crate::commands::device as own;
use crate::exit::{Exit, Failure, Result};
use crate::ui::Ui;

#[derive(Debug, clap::Subcommand)]
pub(super) enum Verb {
    /// Add devices to a volume.
    Add {
        /// Overwrite an existing filesystem on the devices.
        #[arg(short, long)]
        force: bool,
        /// The devices, then the volume.
        #[arg(required = true, num_args = 2..)]
        words: Vec<OsString>,
    },
    /// Move all data off devices and remove them from a volume.
    #[command(alias = "delete")]
    Remove {
        /// The devices, then the volume.
        #[arg(required = true, num_args = 2..)]
        words: Vec<OsString>,
    },
    /// Accepted for scripts. No device has to be scanned or registered.
    Scan { devices: Vec<PathBuf> },
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
        Verb::Add { force, words } => {
            let (volume, new) = last(words)?;
            let new = new.into_iter().map(PathBuf::from).collect();
            own::run(own::Verb::adding(PathBuf::from(volume), new, force), ui)
        }
        Verb::Remove { words } => {
            let (volume, gone) = last(words)?;
            let gone = gone.into_iter().map(|name| name.to_string_lossy().into_owned()).collect();
            own::run(own::Verb::removing(PathBuf::from(volume), gone), ui)
        }
        Verb::Scan { devices } => {
            if devices.is_empty() {
                ui.line("Scanning for Btrfs filesystems")?;
            }
            Ok(Exit::Success)
        }
        Verb::Ready { device } => {
            let is_whole = Space::of(&device, ui)?.is_whole();
            Ok(if is_whole { Exit::Success } else { Exit::Failure })
        }
        Verb::Stats { reset, check, place } => {
            own::run(own::Verb::counting(place, reset, check), ui)
        }
        Verb::Usage { units, places } => {
            for place in &places {
                usage::devices(&Space::of(place, ui)?, units, ui)?;
            }
            Ok(Exit::Success)
        }
    }
}

/// Splits off the last word, which is the volume.
fn last(mut words: Vec<OsString>) -> Result<(OsString, Vec<OsString>)> {
    let volume = words.pop().ok_or_else(|| Failure::new(Exit::Usage, "no volume was named"))?;
    Ok((volume, words))
}
