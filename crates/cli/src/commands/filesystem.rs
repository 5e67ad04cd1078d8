//! `buttress filesystem`: work on a whole volume, or on whole files of it.

pub(crate) mod defragment;
pub(crate) mod label;
pub(crate) mod resize;

use crate::exit::{Exit, Result};
use crate::ui::Ui;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Defragment files, or change their compression.
    Defragment(defragment::Args),
    /// Show the label of a volume, or change it.
    Label(label::Args),
    /// Resize a device of a volume.
    Resize(resize::Args),
}

pub(crate) fn run(args: Args, ui: &Ui) -> Result<Exit> {
    match args.verb {
        Verb::Defragment(args) => defragment::run(&args, ui),
        Verb::Label(args) => label::run(&args, ui),
        Verb::Resize(args) => resize::run(&args, ui),
    }
}
