//! `btrfs replace`.

use std::path::PathBuf;

use crate::commands::device as own;
use crate::exit::{Exit, Result};
use crate::ui::Ui;

#[derive(Debug, clap::Subcommand)]
pub(super) enum Verb {
    /// Put a device in the place of another, and wait for the end.
    Start {
        /// Wait, which it does anyway.
        #[arg(short = 'B')]
        waits: bool,
        /// Overwrite what is on the new device.
        #[arg(short, long)]
        force: bool,
        /// Read from the old device only what is nowhere else, which it does anyway.
        #[arg(short = 'r')]
        spares_old: bool,
        /// The old device, or its number.
        old: String,
        /// The new one.
        new: PathBuf,
        place: PathBuf,
    },
}

pub(super) fn run(verb: Verb, ui: &Ui) -> Result<Exit> {
    let Verb::Start { force, old, new, place, .. } = verb;
    own::run(own::Verb::replacing(old, new, place, force), ui)
}
