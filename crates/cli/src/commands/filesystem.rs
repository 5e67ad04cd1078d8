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
    /// Rewrite files in larger pieces, or with another compression.
    Defragment(defragment::Args),
    /// Show the label of a volume, or give it another.
    Label(label::Args),
    /// Give one of a volume's devices another size.
    Resize(resize::Args),
}

pub(crate) fn run(args: Args, ui: &Ui) -> Result<Exit> {
    match args.verb {
        Verb::Defragment(args) => defragment::run(args, ui),
        Verb::Label(args) => label::run(&args, ui),
        Verb::Resize(args) => resize::run(&args, ui),
    }
}
