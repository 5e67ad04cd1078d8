//! `btrfs replace`.

use std::path::PathBuf;

use crate::commands::device as own;
use crate::exit::{Exit, Result};
use crate::ui::Ui;

#[derive(Debug, clap::Subcommand)]
pub(super) enum Verb {
    /// Replace a device by a new one, and wait until it is done.
    Start {
        /// Wait until the replacement is done. This is always done.
        #[arg(short = 'B')]
        waits: bool,
        /// Overwrite an existing filesystem on the new device.
        #[arg(short, long)]
        force: bool,
        /// Read from the old device only what no other device has. This is always done.
        #[arg(short = 'r')]
        spares_old: bool,
        /// The old device, as a path or its number.
        old: String,
        /// The new device.
        new: PathBuf,
        place: PathBuf,
    },
}

pub(super) fn run(verb: Verb, ui: &Ui) -> Result<Exit> {
    let Verb::Start { force, old, new, place, .. } = verb;
    own::run(own::Verb::replacing(old, new, place, force), ui)
}
